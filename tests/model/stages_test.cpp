// The table of a block's stages: every row is complete, a stage writes what it says it saves, and
// neighbours hand over what they can, and nothing else.
#include "model/stages.h"

#include "tests/model/loud_model.h"
#include "tests/model_variants.h"

namespace tessera::testing {
namespace {

constexpr ModelConfig kPlainStages{.vocab_size = 29, .context = 16, .layers = 3, .heads = 2, .channels = 8};

std::vector<Variant> staged_models() {
  std::vector<Variant> all = parts_of(kPlainStages);
  all.push_back({"gpt2", kPlainStages});
  for (const char* base : {"gpt2", "qwen3"})
    for (Variant variant : std::vector(all))
      if (variant.name == base) {
        variant.model.lora = {.rank = 2};
        variant.name += " with adapters";
        all.push_back(variant);
      }
  return all;
}

const BlockKind kGelu(kPlainStages, block_spec(kPlainStages, 0)),
    kSwiglu(kPlainStages, {.mlp = Mlp::kSwiglu}),
    kBoth(kPlainStages, {.norm = NormKind::kRmsNorm, .norm_place = NormPlace::kBoth, .mlp = Mlp::kGeglu}),
    kExperts(kPlainStages, {.mlp = Mlp::kSwiglu, .experts = true}),
    kAfter(kPlainStages, {.norm = NormKind::kRmsNorm, .norm_place = NormPlace::kAfter, .mlp = Mlp::kSwiglu});

TEST(Stages, EachHasAForwardABackwardAndWhatItSaves) {
  for (const Stage stage : kStages) {
    const StageRow& row = row_of(stage);
    EXPECT_EQ(row.stage, stage);
    EXPECT_TRUE(row.forward && row.backward && row.saved);
  }
  constexpr size_t kOfExperts = 5, kOfMlp = 3, kAll = kStages.size() - kOfExperts;  // of one MLP
  EXPECT_EQ(kBoth.stages.size(), kAll);
  EXPECT_EQ(kSwiglu.stages.size(), kAll - 2);
  EXPECT_EQ(kAfter.stages.size(), kAll - 2);
  EXPECT_EQ(kGelu.stages.size(), kAll - 3);
  EXPECT_EQ(kExperts.stages.size(), kAll - 2 - kOfMlp + kOfExperts);
}

TEST(Stages, TheirNeighboursAreThoseThatExist) {
  EXPECT_EQ(kGelu.before(Stage::kContract)->stage, Stage::kExpand);
  EXPECT_EQ(kSwiglu.before(Stage::kContract)->stage, Stage::kActivation);
  EXPECT_EQ(kGelu.before(Stage::kNorm1), nullptr);
  EXPECT_EQ(kGelu.after(Stage::kExpand)->stage, Stage::kContract);
  EXPECT_EQ(kGelu.after(Stage::kContract), nullptr);
  EXPECT_EQ(kBoth.after(Stage::kOut)->stage, Stage::kNorm1After);
  EXPECT_EQ(kBoth.before(Stage::kNorm2)->stage, Stage::kNorm1After);
  EXPECT_EQ(kBoth.after(Stage::kContract)->stage, Stage::kNorm2After);
  EXPECT_EQ(kBoth.after(Stage::kNorm2After), nullptr);
  EXPECT_EQ(kAfter.before(Stage::kQkv), nullptr);
  EXPECT_EQ(kAfter.before(Stage::kExpand)->stage, Stage::kNorm1After);
}

// The names of linear layers are those of their weights.
TEST(Stages, NameTheLinearLayersOfABlock) {
  std::vector<std::string> named, weights;
  for (const LinearOfStage& of : kGelu.linears) {
    EXPECT_TRUE(of.weights && of.adapter);
    EXPECT_EQ(kGelu.only_linear(of.stage), &of);
    named.push_back(fmt::format("blocks.0.{}.weight", of.linear.name));
  }
  Params none;
  none.blocks.resize(1);
  for_each_param(none, kPlainStages, [&](const ParamInfo& info, const Tensor&) {
    if (info.block == 0 && info.decay) weights.push_back(info.name);
  });
  EXPECT_EQ(named, weights);
}

// One for each expert: a tensor has all of them, and so have those of an adapter.
TEST(Stages, LinearLayersWithACountAreOneTensor) {
  BlockKind kind = kSwiglu;
  Linear& expand = kind.linears[2].linear;
  expand.count = 4;
  BlockParams block;
  std::map<std::string, ParamInfo> found;
  visit_block_weights(block, kind, 1, [&](const ParamInfo& info, Tensor&) { found[info.name] = info; });
  const ParamInfo &weight = found.at("blocks.1.mlp.expand.weight"),
                  &bias = found.at("blocks.1.mlp.expand.bias");
  EXPECT_EQ(weight.shape, (Shape{4, 64, 8}));
  EXPECT_EQ(bias.shape, (Shape{4, 64}));
  EXPECT_EQ(weight.matrices, (LayerParts{32, 32}));
  EXPECT_TRUE(is_matrix_of_block(weight) && weight.linear->count == 4 && !is_matrix_of_block(bias));
  EXPECT_EQ(adapter_rows({.rank = 2}, expand), (LayerParts{64}));
  EXPECT_EQ(adapter_rows({.rank = 2}, kSwiglu.linears[2].linear), (LayerParts{32, 32}));
  expand.count = 1;
  EXPECT_EQ(expand.weight_shape(), (Shape{1, 64, 8}));
}

constexpr std::initializer_list<Stage> kLinear = {Stage::kQkv, Stage::kOut, Stage::kExpand, Stage::kContract};

// A pass over a model, whose blocks can be run stage by stage
struct Passes {
  explicit Passes(const ModelConfig& config) : loud(config, AttentionKind::kFlash) {
    batch = {loud.tokens, loud.targets};
    saved = allocate_saved(loud.arena, loud.model, kKeepAll);
    layers.blocks.resize(static_cast<size_t>(config.layers), std::vector<Fp8Linear>(std::size(kLinear)));
    dropout.probabilities = config.dropout;
  }
  Pass pass() const { return {.stream = loud.cpu, .model = loud.model, .batch = batch, .dropout = dropout}; }
  const BlockParams& gradients(size_t layer) const {
    return loud.store.gradient_home().whole().blocks[layer];
  }
  LoudModel loud;
  Batch batch;
  Saved saved;
  ActiveDropout dropout;
  Fp8Layers layers;
};

// A stage that has no form in a decode step, or a part that its form does not compute, is never left out.
TEST(Stages, WithoutADecodeFormRefuseADecodeStep) {
  EXPECT_EQ(why_no_decode(kGelu, kPlainStages), "");
  StageRow forgotten = row_of(Stage::kOut);
  forgotten.decode = {};
  BlockKind kind = kGelu;
  *std::ranges::find(kind.stages, Stage::kOut, &StageRow::stage) = &forgotten;
  EXPECT_EQ(why_no_decode(kind, kPlainStages), forgotten.name);
  for (const auto& [name, model] : staged_models()) {
    SCOPED_TRACE(name);
    Passes run(model);
    const Pass pass = run.pass();
    const Block block(pass, run.saved, 0);
    DecodeBuilder builder;
    if (model.norm_place != NormPlace::kBefore) {
      EXPECT_THROW(decode_stages(block, builder), Error);
    }
    const bool has_form = model.norm_place == NormPlace::kBefore && !model.norm_plus_one &&
                          (model.mlp == Mlp::kSwiglu || !is_gated(model.mlp)) &&
                          model.qk_norm != QkNorm::kAllHeads && !model.lora && !model.attention_sinks &&
                          model.attention_cap == 0 && model.positions != Positions::kAlibi &&
                          !model.experts.in_block(0);
    EXPECT_EQ(why_no_decode(block.kind, model).empty(), has_form);
  }
}

TEST(Stages, WriteAllThatTheySaveAndNothingOfLaterOnes) {
  for (const auto& [name, model] : staged_models()) {
    SCOPED_TRACE(name);
    Passes run(model);
    forward(run.loud.cpu, {.model = run.loud.model, .batch = run.batch, .saved = run.saved});
    const BlockKind& kind = run.loud.model.kind(0);
    const SavedShape shape{.config = model, .kind = kind, .plan = run.loud.model.attention.of(0)};
    const auto each = [&](const auto& visit) { visit_block_saved(run.saved.blocks[0], shape, visit); };
    each([](Stage, const SavedInfo&, Tensor& t) { std::memset(t.data, 0xFF, t.bytes()); });  // NaN
    const Pass pass = run.pass();
    const Block block(pass, run.saved, 0);
    for (const StageRow* row : kind.stages) {
      row->forward(block, {});
      each([&](Stage stage, const SavedInfo& info, Tensor& tensor) {
        const auto written = [](float x) { return !std::isnan(x); };
        if (stage == row->stage) {
          EXPECT_TRUE(std::ranges::all_of(floats(tensor), written)) << info.name;
        }
        if (stage > row->stage) {
          EXPECT_TRUE(std::ranges::none_of(floats(tensor), written)) << info.name;
        }
      });
    }
  }
}

// Whether the writer of a linear layer's dy sums its bias, and whether it writes dy in FP8 as well
struct Handed {
  bool bias, fp8;
  bool operator==(const Handed&) const = default;
};
std::map<Stage, Handed> handed(Passes& run, size_t layer) {
  const Pass pass = run.pass();
  run.loud.model.fp8 = &run.layers;
  std::map<Stage, Handed> all;
  for (const Stage stage : kLinear) {
    const Handover handover =
        between(pass, {.layer = layer, .gradients = run.gradients(layer), .row = row_of(stage)});
    all[stage] = {static_cast<bool>(handover.bias), handover.fp8 != nullptr};
    if (handover.fp8) {
      EXPECT_EQ(handover.fp8, &run.layers.blocks[layer][all.size() - 1]);
    }
  }
  return all;
}

TEST(Stages, HandOverGradients) {
  constexpr Handed kBoth{true, true}, kNone{false, false}, kFp8{false, true};
  const auto expect = [](const ModelConfig& model, const std::vector<Handed>& of_linear) {
    Passes run(model);
    size_t i = 0;
    for (const auto& [stage, found] : handed(run, 1))
      EXPECT_EQ(found, of_linear[i++]) << static_cast<int>(stage);
  };
  ModelConfig gated = kPlainStages, unbiased = kPlainStages, dropping = kPlainStages,
              dropping_attention = kPlainStages;
  gated.mlp = Mlp::kSwiglu;
  unbiased.bias = Bias::kNone;
  dropping.dropout.residual = 0.25;
  dropping_attention.dropout = {.embedding = 0.25, .attention = 0.25};
  expect(kPlainStages, {kNone, kBoth, kBoth, kBoth});
  expect(gated, {kNone, kBoth, kFp8, kBoth});  // what multiplies gate and up does not sum
  expect(unbiased, {kNone, kFp8, kFp8, kFp8});
  expect(dropping, {kNone, kNone, kBoth, kNone});
  expect(dropping_attention, {kNone, kBoth, kBoth, kBoth});
}

// What runs again in FP8 would overwrite the dy of its block's last layer. The bias is handed over all the
// same.
TEST(Stages, HandNoFp8ToABlockWhoseLinearLayersRunAgain) {
  using R = Recomputed;
  const std::map<R, bool> overwrites{{R::kNorms, false}, {R::kAttention, true}, {R::kActivation, false},
                                     {R::kMlp, true},    {R::kLinear, true},    {R::kBlock, true}};
  for (const R word : values_with_words<R>())
    for (const ModelConfig& model : {kPlainStages, [] {
                                       ModelConfig gated = kPlainStages;
                                       gated.mlp = Mlp::kSwiglu;
                                       return gated;
                                     }()}) {
      SCOPED_TRACE(name_of(word));
      Passes run(model);
      run.loud.model.keep = Keep{word};
      for (const size_t layer : {0, 1, 2}) {
        const bool runs_again = layer < 2;  // the last block's values are still there
        std::map<Stage, Handed> found = handed(run, layer);
        EXPECT_TRUE(found[Stage::kContract].bias);
        EXPECT_EQ(found[Stage::kContract].fp8, !(runs_again && overwrites.at(word)));
        EXPECT_TRUE(found[Stage::kOut].fp8 && found[Stage::kExpand].fp8);
      }
      const Pass pass = run.pass();
      EXPECT_TRUE(to_block_below(pass, 3, &run.gradients(2)).fp8 != nullptr);
    }
}

// In chunks, the last block's runs again as well; and what enters an MLP is rounded chunk by chunk.
TEST(Stages, HandNoFp8IntoAnMlpInChunks) {
  for (const bool gated : {false, true}) {
    ModelConfig model = kPlainStages;
    if (gated) model.mlp = Mlp::kSwiglu;
    Passes run(model);
    run.loud.model.keep = kKeepAllButMlp, run.loud.model.mlp_chunk = 5;
    for (const size_t layer : {0, 1, 2}) {
      std::map<Stage, Handed> found = handed(run, layer);
      EXPECT_EQ(found[Stage::kContract], (Handed{.bias = true, .fp8 = false}));
      EXPECT_TRUE(found[Stage::kOut].fp8 && found[Stage::kExpand].fp8);
    }
    const Pass pass = run.pass();
    const Block block(pass, run.saved, 1);
    const auto takes_x = [&](Stage stage) {
      return between(block, row_of(stage), Keep::nothing()).fp8 != nullptr;
    };
    EXPECT_TRUE(takes_x(Stage::kQkv) && takes_x(Stage::kContract));
    EXPECT_FALSE(takes_x(Stage::kExpand));
  }
}

// x in FP8 comes from a writer that runs, for a reader that runs.
TEST(Stages, HandOverXInFp8) {
  using R = Recomputed;
  Passes run(kPlainStages);
  run.loud.model.fp8 = &run.layers;
  const Pass pass = run.pass();
  const Block block(pass, run.saved, 1);
  const auto handed_x = [&](Keep kept) {
    std::vector<bool> all;
    for (const Stage stage : kLinear) all.push_back(between(block, row_of(stage), kept).fp8 != nullptr);
    return all;
  };
  EXPECT_EQ(handed_x(Keep::nothing()), (std::vector{true, false, true, true}));  // attention writes no FP8
  EXPECT_EQ(handed_x({R::kBlock}), (std::vector{true, false, true, false}));  // contract does not run again
  EXPECT_EQ(handed_x({R::kNorms}), (std::vector{false, false, false, false}));
  EXPECT_EQ(handed_x({R::kAttention}), (std::vector{false, false, false, false}));
  EXPECT_EQ(handed_x({R::kMlp}), (std::vector{false, false, true, false}));
  EXPECT_EQ(handed_x({R::kNorms, R::kAttention}), (std::vector{true, false, false, false}));
}

TEST(BlockSpecs, OfBlocksThatAreAlikeShareAPlan) {
  for (const auto& [name, model] : staged_models()) {
    const BlockKinds kinds(model);
    const AttentionPlans plans(kinds, {.kind = AttentionKind::kFlash,
                                       .shape = {.batch = 1, .tokens = 4, .heads = 2, .head_dim = 8},
                                       .dtype = DType::kF32,
                                       .device = {}});
    for (size_t layer = 0; layer < static_cast<size_t>(model.layers); ++layer) {
      const bool alike = model.window.at(layer) == model.window.at(0) &&
                         model.experts.in_block(static_cast<int64_t>(layer)) == model.experts.in_block(0);
      EXPECT_EQ(&kinds.of(layer) == &kinds.of(0), alike) << name;
      EXPECT_EQ(&plans.of(layer) == &plans.of(0), alike) << name;
      const int64_t window = model.window.at(layer);
      EXPECT_EQ(plans.of(layer).shape.mask.window, window < 4 ? window : 0) << name;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
