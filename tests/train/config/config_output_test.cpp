#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <tuple>

#include "tests/data/support.h"
#include "train/config/config.h"
#include "train/config/config_fields.h"
#include "train/config/find_config.h"
#include "train/config/load_config.h"
#include "train/config/print_config.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ConfigOutput = InTempFolder;

// A random value of each kind.
using Random = std::mt19937_64;
int64_t random_whole(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}
void randomize(Random& random, int64_t& member, const Whole& kind) {
  const int64_t unit = kind.multiple_of;
  member = random_whole(random, kind.at_least / unit, kind.at_most / unit) * unit;
}
template <std::floating_point T>
void randomize(Random& random, T& member, const Number& kind) {
  const auto fits = [&](double value) {
    return value >= kind.at_least.value_or(value) && value <= kind.at_most.value_or(value) &&
           value < kind.below.value_or(HUGE_VAL) && value > kind.above.value_or(-HUGE_VAL);
  };
  do {
    member = static_cast<T>(std::ldexp(std::uniform_real_distribution<double>(0, 1)(random),
                                       static_cast<int>(random_whole(random, -40, 40))));
  } while (!fits(member));
}
void randomize(Random& random, double& member, const Probability&) {
  member = random() % 4 == 0 ? 0 : std::uniform_real_distribution<double>(1 / 512.0, 511 / 512.0)(random);
}
template <class Set, class E>
void randomize(Random& random, Set& member, const SetOf<Set, E>&) {
  for (const E part : values_with_words<E>())
    if (random() % 2 == 0) member.add(part);
}
template <class V, class Kind>
void randomize(Random& random, ByBlock<V>& member, const ByBlockOf<Kind>& kind) {
  std::vector<typename ByBlock<V>::Run> runs(1 + random() % 3);
  for (auto& run : runs) randomize(random, run.value, kind.kind), run.blocks = random_whole(random, 3, 9);
  if (random() % 2 == 0) runs.back().blocks = ByBlock<V>::kRest;
  member = ByBlock<V>(runs);
}
void randomize(Random& random, Windows& member, const WindowPattern&) {
  std::vector<Windows::Run> pattern(1 + random() % 3);
  const int64_t window = random_whole(random, 1, 1'000'000'000);  // families have windows of one length
  for (auto& run : pattern)
    run = {.window = random() % 2 == 0 ? window : Windows::kFull, .blocks = random_whole(random, 1, 9)};
  member = Windows(pattern);
}
void randomize(Random& random, SparseBlocks& member, const SparseAttention&) {
  std::vector<SparseRun> pattern(1 + random() % 3);
  for (SparseRun& run : pattern) {
    run.blocks = random_whole(random, 1, 5);
    if (random() % 2 == 0) continue;
    SparsePattern& p = run.pattern;
    p.window = random_whole(random, 1, 1'000'000), p.global = random_whole(random, 0, 9);
    if (random() % 2 == 0) p.stride = random_whole(random, 2, 99);
    if (random() % 2 == 0) p.random = random_whole(random, 1, 9), p.seed = random_whole(random, 0, 99);
    p.block = int64_t{128} << random() % 4;
  }
  member = SparseBlocks(pattern);
}
void randomize(Random& random, Offload& member, const OffloadedParts&) {
  randomize(random, member, SetOf<Offload, Offloaded>{});
  if (member.activations && random() % 2 == 0) member.blocks = random_whole(random, 1, 30);
}
void randomize(Random& random, Freeze& member, const FrozenParts&) {
  for (const ParamPart part : {ParamPart::kEmbeddings, ParamPart::kAttention, ParamPart::kNorms})
    if (random() % 2 == 0) member.add(part);
  if (random() % 2 == 0) member.add(Freeze::Blocks{0, 0});
}
void randomize(Random& random, std::vector<ContextPhase>& member, const Phases&) {
  for (int64_t i = random_whole(random, 0, 3), step = 0; i > 0; --i) {
    member.push_back({.from_step = step, .sequence_length = i});
    step += random_whole(random, 1, 1'000'000);
  }
}
template <class E>
void randomize(Random& random, E& member, const OneOf<E>& kind) {
  const auto last = static_cast<int64_t>(kind.values.size()) - 1;
  member = kind.values[static_cast<size_t>(random_whole(random, 0, last))];
}
template <class Value, class Kind>
void randomize(Random& random, std::optional<Value>& member, const OrAuto<Kind>& either) {
  member.emplace();
  randomize(random, *member, either.kind);
  if (random() % 3 == 0) member.reset();
}
void randomize(Random& random, WarmUp& member, const WarmUpLength&) {
  member = {.steps = random_whole(random, 0, 1000)};
  if (random() % 2 == 0) member = {.percent = std::uniform_real_distribution<double>(1e-9, 100)(random)};
}
void randomize(Random& random, bool& member, const Flag&) { member = random() % 2 == 0; }
void randomize(Random& random, std::string& member, const Text&) {
  static const std::vector<std::string> pieces = {
      "a",      "null",       "true",   "12",     " ",      "\n",     "\r",     "\t",
      "\"",     "'",          ":",      ": ",     " #",     "#",      "\\",     "\\n",
      "*",      "&",          "{",      "]",      ",",      "%",      "---\n",  "...\n",
      "\u00e9", "\U0001F600", "\x7f",   "\x01",   "-",      "@",      "|\n",    "~",
      "\x1b",   "\u0085",     "\u2028", "\u2029", "\ufeff", "\u00a0", "\u4e16", std::string(1, '\0')};
  member.clear();
  for (int64_t i = random_whole(random, 0, 12); i > 0; --i) member += pieces[random() % pieces.size()];
}
void randomize(Random& random, std::vector<std::string>& member, const Paths&) {
  for (int64_t i = random_whole(random, 0, 3); i > 0; --i) {
    randomize(random, member.emplace_back(), Text{});
    member.back() += fmt::format("{}", i);  // each another one, and none empty
  }
}

void randomize(Random& random, std::vector<double>& member, const Numbers& kind) {
  for (int64_t i = random_whole(random, 0, 9); i > 0; --i)
    randomize(random, member.emplace_back(), Number{.above = 0, .at_most = kind.at_most});
}
void randomize(Random& random, std::vector<int64_t>& member, const BlockNumbers&) {
  for (int64_t i = random_whole(random, 0, 5), block = 0; i > 0; --i)
    member.push_back(block += random_whole(random, 1, 100));
}
void randomize(Random& random, std::vector<DataSource>& member, const Sources&) {
  member.resize(1 + random() % 3);
  for (DataSource& source : member) {
    do randomize(random, source.path, Text{});
    while (source.path.empty() || std::ranges::count(member, source.path, &DataSource::path) > 1);
    if (member.size() > 1) randomize(random, source.weight, Number{.above = 0, .at_most = 1e9});
  }
}

// Without the parts of Gemma, BLOOM, gpt-oss and Granite
void make_plain(Config::Model& model) {
  model.embedding_scale = model.residual_scale = model.logit_divisor = 1;
  model.norm_place = NormPlace::kBefore;
  model.norm_plus_one = model.scale_embeddings = false;
  model.norm_embeddings = model.attention_sinks = false;
  model.attention_cap = 0;
  model.query_scalar = 0;
}

// Keeps what `model` has at random, as far as a family and the conditions on several keys allow.
void make_valid(Random& random, Config::Model& model) {
  model.heads = random_whole(random, 1, 1000);
  model.channels = model.heads * 8 * random_whole(random, 1, 100);
  model.layers = std::max(model.layers, model.window.pattern_blocks());
  model.head_dim = 0;
  const Config::Model drawn = model;
  const ExpertsConfig experts = std::exchange(model.experts, {});
  model.kv_heads = random() % 2 == 0 ? 0 : model.heads;
  model.qk_norm = QkNorm::kNone;
  const bool rotary = random() % 2 == 0;
  model.positions = rotary ? Positions::kRope : Positions::kLearned;
  model.norm = rotary ? NormKind::kRmsNorm : NormKind::kLayerNorm;
  if (!rotary) {
    model.rope = {};
    model.window = {};
    model.logit_cap = 0;
    model.bias = Bias::kAll;
    if (is_gated(model.mlp)) model.mlp = Mlp::kGelu;
    make_plain(model);
    return;
  }
  model.position_extension = PositionExtension::kNone;
  model.scale_attention = true;
  model.scale_attention_by_layer = false;
  constexpr auto kBiases = words_of(Bias{});
  model.bias = kBiases[random() % kBiases.size()].value;
  const bool own = random() % 2 == 0 && model.bias != Bias::kQkv;  // of Tessera's own family, or it may be
  model.mlp = own && random() % 2 == 0 ? Mlp::kRelu2 : Mlp::kSwiglu;
  if (!own) {
    if (model.bias == Bias::kNone && !model.window.all_equal()) model.bias = Bias::kQkv;  // Qwen2's
    if (model.bias != Bias::kNone && model.bias != Bias::kQkv) model.window = {};
    model.logit_cap = 0;
    make_plain(model);
    if (model.bias == Bias::kNone && experts.active > 0 && experts.width > 0)  // Mixtral's
      model.experts = {.count = std::max(experts.count, experts.active),
                       .active = experts.active,
                       .width = experts.width,
                       .renormalise = true};
    if (model.experts && random() % 2 == 0) {  // Granite's
      model.experts.router = Router::kSoftmaxOfChosen, model.experts.renormalise = false;
      model.window = {}, model.query_scalar = random_whole(random, 1, 10'000);
      model.embedding_scale = drawn.embedding_scale, model.residual_scale = drawn.residual_scale;
      model.logit_divisor = drawn.logit_divisor;
    }
  } else {
    model.embedding_scale = model.residual_scale = model.logit_divisor = 1;
  }
  if (model.norm_place != NormPlace::kBefore) model.dropout.residual = 0;
  Rope& rope = model.rope;
  const Rope random_rope = rope;
  rope = {.theta = random_rope.theta, .scaling = random_rope.scaling};
  if (own) rope.share = static_cast<double>(random_whole(random, 1, 4)) / 4;
  const bool is_longrope = rope.scaling == RopeScaling::kLongrope;
  if (rope.scaling != RopeScaling::kNone && !is_longrope) rope.factor = random_rope.factor;
  if (rope.scaling == RopeScaling::kLlama3 || rope.scaling == RopeScaling::kYarn || is_longrope)
    rope.original_context = random_rope.original_context;
  if (is_longrope) {
    if (rope.original_context == 1) rope.original_context = 2;
    const auto pairs = static_cast<size_t>(model.resolved().rotated_channels() / 2);
    for (std::vector<double>* factors : {&rope.short_factors, &rope.long_factors})
      while (factors->size() < pairs)
        randomize(random, factors->emplace_back(), Number{.above = 0, .at_most = 1e6});
    rope.attention_factor = random_rope.attention_factor;
  }
  if (rope.scaling == RopeScaling::kLlama3)
    std::tie(rope.low_frequency, rope.high_frequency) =
        std::minmax(random_rope.low_frequency, random_rope.high_frequency);
  if (rope.scaling == RopeScaling::kYarn) {
    std::tie(rope.beta_slow, rope.beta_fast) = std::minmax(random_rope.beta_slow, random_rope.beta_fast);
    rope.attention_factor = random_rope.attention_factor;
  }
}

TEST_F(ConfigOutput, PrintedConfigurationsReadBackTheSame) {
  Random random(1);
  for (int i = 0; i < 300; ++i) {
    Config config;
    for_each_field(config, [&](std::string_view, auto& member, const auto& kind, auto) {
      randomize(random, member, kind);
    });
    if (config.train.folder.empty()) config.train.folder = "x";
    config.train.init_from.clear();  // a folder, which would have to exist
    config.model.context = random_whole(random, 1, 1000);
    config.train.sequence_length = random_whole(random, 0, config.model.context);
    config.train.micro_batch = random_whole(random, 0, 100);
    config.train.tokens_per_step = config.sequence_length() * std::max<int64_t>(1, config.train.micro_batch) *
                                   random_whole(random, 1, 99);
    if (!config.train.context_schedule.empty()) {
      config.train.sequence_length = 0;
      config.train.epochs = 0;
      config.train.steps = config.train.context_schedule.back().from_step + random_whole(random, 1, 1000);
      config.model.context = random_whole(random, 3, 1000);
      config.train.tokens_per_step = 6 * std::max<int64_t>(1, config.train.micro_batch);
    }
    make_valid(random, config.model);
    if (config.model.experts) {
      config.train.mlp_chunk = 0;
    } else {
      config.train.experts = {};
      if (config.train.lora.parts.names(Adapted::kRouter)) config.train.lora.parts = LoraConfig().parts;
    }
    OnBadStep& rule = config.train.on_bad_step;
    if (!rule.judges_spikes()) rule.spike_score = OnBadStep().spike_score;
    if (config.optimizer.rule != OptimizerRule::kMuon) config.optimizer.muon = {};
    if (!config.optimizer.muon.variance) config.optimizer.muon.beta2 = MuonConfig().beta2;
    LoraConfig& lora = config.train.lora;
    if (random() % 2 == 0)
      lora = {};
    else
      lora.rank = random_whole(random, 1, config.model.channels), config.train.freeze = {};
    if (random() % 2 == 0) {
      config.train.fp8 = {};
    } else {
      config.train.fp8.gemm_dtype = GemmDtype::kFp8;
      const int64_t context = config.model.context;
      config.model = {}, config.train.experts = {};  // whose widths are multiples of 16
      config.model.context = context;
      lora = {}, config.train.freeze = {};
    }
    if (!lora || config.train.lora_base.form == BaseForm::kAuto) config.train.lora_base = {};
    if (!config.model.experts && config.train.lora_base.parts == LoraBaseParts::kExperts)
      config.train.lora_base.parts = LoraBaseParts::kBlocks;
    if (config.model.qk_norm != QkNorm::kNone || config.model.attention_cap > 0 || lora ||
        config.train.freeze.names(ParamPart::kAttention))
      config.optimizer.qk_clip = 0;
    config.train.loss = LossKind::kCrossEntropy;  // others need data of pairs, and folders that exist
    config.train.preference = {}, config.train.distillation = {};
    config.train.reference.clear(), config.train.teacher.clear(), config.train.stored_reference = false;
    config.train.teacher_logits = 0, config.train.teacher_base = BaseForm::kAuto;
    auto& recompute = config.train.recompute;
    if (config.model.mlp != Mlp::kSwiglu && recompute)
      recompute = recompute->changed(
          [](Keep& keep) { keep = keep.recomputes(Recomputed::kMlp) ? kKeepAllButMlp : Keep{}; });
    config.model.layers = recompute && !recompute->has_rest() ? recompute->counted() : 30;
    if (config.model.window.pattern_blocks() > config.model.layers) config.model.window = {};
    if (!config.model.window.all_full() || config.model.sparse.pattern_blocks() > config.model.layers)
      config.model.sparse = {};
    if (!config.model.sparse.all_full()) config.model.attention = AttentionKind::kNaive;
    if (config.memory.offload && config.memory.offload->blocks > config.model.layers)
      config.memory.offload->blocks = Offload::kAllBlocks;
    if (config.train.epochs > 0)
      config.train.steps = 0;
    else
      config.train.steps = std::max<int64_t>(1, config.train.steps);
    config.optimizer.min_learning_rate =
        std::min(config.optimizer.min_learning_rate, config.optimizer.learning_rate);
    config.evaluation.every = std::max<int64_t>(1, config.evaluation.every);
    if (!config.checkpoint.keep_best) config.train.patience = 0;
    config.checkpoint.every = random_whole(random, 1, 1'000'000);
    config.checkpoint.keep_every = config.checkpoint.every * random_whole(random, 0, 99);
    if (config.data.masks() && config.data.shift == Shift::kOn) config.data.shift = Shift::kOff;
    const std::string yaml = print_config(config);
    Config read = load_config(write("run.yaml", yaml), {});
    read.notices.clear();  // of a model that transformers has not
    ASSERT_EQ(read, config) << yaml;
  }
}

TEST(Config, PrintsDocumentationAboveEveryKey) {
  const std::string yaml = print_config(Config{});
  for (const char* part :
       {"\n\nmodel:\n  # ", "\n  # Transformer blocks (a whole number of at least 1)\n  layers: 12\n",
        " (auto, cpu or cuda)\ndevice: auto\n", "\n  micro_batch: auto\n", "\n  prompt: \"\\n\"\n",
        "\n  epsilon: 1.0e-08\n"})
    EXPECT_NE(yaml.find(part), std::string::npos) << part << "\n" << yaml;
}

TEST_F(ConfigOutput, FindsConfigurations) {
  fs::create_directories(folder_ / "beside");
  fs::create_directories(folder_ / "above/small.yaml");
  write("beside/small.yaml", "");
  write("above/large.yaml", "");
  write("here.yaml", "");
  const std::vector<fs::path> folders = {folder_ / "absent", folder_ / "beside", folder_ / "above"};
  const auto find = [&](const std::string& name) {
    return find_config(name, folders).lexically_relative(folder_);
  };
  EXPECT_EQ(find("small"), "beside/small.yaml");
  EXPECT_EQ(find("small.yaml"), "beside/small.yaml");
  EXPECT_EQ(find("large.yaml"), "above/large.yaml");
  EXPECT_EQ(find(folder_ / "here"), "here.yaml");
  EXPECT_EQ(find(folder_ / "here.yaml"), "here.yaml");
  expect_error(
      [&] { find("tiny"); },
      {fmt::format(
           "tiny, tiny.yaml, {0}/absent/tiny, {0}/absent/tiny.yaml, {0}/beside/tiny, {0}/beside/tiny.yaml, "
           "{0}/above/tiny, {0}/above/tiny.yaml",
           folder_.string()),
       "no configuration \"tiny\"", "large, small"});
  const std::string folder = folder_ / "above/small.yaml";
  expect_error([&] { find(folder); },
               {fmt::format("no configuration \"{0}\". Tried: {0} (a folder)", folder), "large, small"});
  expect_error([&] { find_config("tiny.yaml", {}); },
               {"\"tiny.yaml\". Tried: tiny.yaml", "No configurations ship"});
  const fs::path here = fs::current_path();
  fs::current_path(folder_);
  write("small.yaml", "");
  const fs::path found = find_config("small", folders);
  fs::current_path(here);
  EXPECT_EQ(found, "small.yaml");
}

TEST(Config, LooksBesideAndAboveTheProgramAndWhereItIsInstalled) {
  const auto folders = shipped_config_folders();
  ASSERT_EQ(folders.size(), 3u);
  EXPECT_EQ(folders[2], folders[1].parent_path() / "share/tessera/configs");
  EXPECT_EQ(folders[0].filename(), "configs");
  EXPECT_TRUE(fs::equivalent(folders[0].parent_path().parent_path(), folders[1].parent_path()));
}

TEST(ShippedConfigs, AllLoad) {
  std::map<std::string, Config> configs;
  for (const auto& entry : fs::directory_iterator(fs::path(TESSERA_SOURCE_DIR) / "configs"))
    if (entry.path().extension() == ".yaml") configs[entry.path().stem()] = load_config(entry.path(), {});
  const auto is = [&](const std::string& name, int64_t layers, int64_t heads, int64_t channels, double rate) {
    ASSERT_TRUE(configs.contains(name)) << name;
    const Config& config = configs[name];
    EXPECT_EQ(config.model.resolved(), (ModelConfig{50257, 1024, layers, heads, channels})) << name;
    EXPECT_EQ(config.model.attention, AttentionKind::kFlash) << name;
    EXPECT_EQ(config.optimizer.learning_rate, rate) << name;
    EXPECT_EQ(config.train.tokens_per_step, 524288) << name;
    EXPECT_EQ(config.train.folder, "runs/" + name);
  };
  is("gpt2_small", 12, 12, 768, 6e-4);
  is("gpt2_medium", 24, 16, 1024, 3e-4);
  is("gpt2_large", 36, 20, 1280, 2.5e-4);
  is("gpt2_xl", 48, 25, 1600, 2e-4);
  for (const Preset preset : values_with_words<Preset>()) {
    const std::string name = name_of(preset);
    if (preset == Preset::kNone) continue;
    ASSERT_TRUE(configs.contains(name)) << name;
    EXPECT_EQ(configs[name].model.resolved(), preset_model(preset)) << name;
    EXPECT_EQ(configs[name].train.folder, "runs/" + name);
  }
  ASSERT_TRUE(configs.contains("quickstart"));
  EXPECT_EQ(configs["quickstart"].model.vocab_size, 257);
}

// docs/configuration.md shows every key as the program prints it. TESSERA_UPDATE_DOCS=1 makes this test write
// it.
TEST(Docs, ConfigurationIsUpToDate) {
  const fs::path path = fs::path(TESSERA_SOURCE_DIR) / "docs/configuration.md";
  std::string text = read_file(path);
  const std::string open = "\n```yaml\n", close = "```\n";
  const size_t at = text.find(open);
  ASSERT_NE(at, std::string::npos) << path << " has lost its yaml block";
  const size_t begin = at + open.size(), end = text.find(close, begin);
  ASSERT_NE(end, std::string::npos) << path << " does not close its yaml block";
  const std::string wanted = print_config(Config{});
  if (std::getenv("TESSERA_UPDATE_DOCS") != nullptr) {
    std::ofstream(path, std::ios::binary) << text.replace(begin, end - begin, wanted);
    return;
  }
  EXPECT_EQ(text.substr(begin, end - begin), wanted)
      << path
      << " is out of date; to write it anew, run this test with TESSERA_UPDATE_DOCS=1 in the environment";
}

}  // namespace
}  // namespace tessera
