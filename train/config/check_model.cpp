#include "train/config/check_model.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "model/formats/family.h"
#include "model/formats/folder.h"

namespace tessera {
namespace {

std::string nearest_divisors(int64_t of, int64_t value) {
  int64_t below = std::min(value, of), above = value;
  while (of % below != 0) --below;
  if (value > of) return fmt::format("the nearest that does is {}", below);
  while (of % above != 0) ++above;
  return fmt::format("the nearest that do are {} and {}", below, above);
}

void check_heads(const SourcedConfig& sourced) {
  const auto& model = sourced.config.model;
  const bool auto_dim = model.head_dim == 0;
  const bool rotary = model.positions == Positions::kRope;
  sourced.require(!auto_dim || model.channels % model.heads == 0, "model.heads", "does not divide",
                  "model.channels",
                  nearest_divisors(model.channels, model.heads) + (rotary ? ", or set model.head_dim" : ""));
  sourced.require(model.kv_heads == 0 || model.heads % model.kv_heads == 0, "model.kv_heads",
                  "does not divide", "model.heads",
                  nearest_divisors(model.heads, std::max<int64_t>(model.kv_heads, 1)));
  sourced.require(auto_dim || model.heads <= kMostAttentionWidth / model.head_dim, "model.head_dim",
                  fmt::format("makes attention wider than {} with", kMostAttentionWidth), "model.heads");
  const int64_t D = model.resolved().head_dim;
  sourced.require(!rotary || !auto_dim || D % 2 == 0, "model.heads",
                  fmt::format("makes heads of {}, an odd number that cannot be rotated in pairs, of", D),
                  "model.channels", "set model.head_dim, or model.positions=learned");
}

void check_norms(const SourcedConfig& sourced) {
  const auto& model = sourced.config.model;
  const bool rms = model.norm == NormKind::kRmsNorm, before = model.norm_place == NormPlace::kBefore;
  const char* const with_rms = "set model.norm=rmsnorm";
  sourced.require(rms || before, "model.norm_place", "cannot be used with", "model.norm", with_rms);
  sourced.require(rms || !model.norm_plus_one, "model.norm_plus_one", "cannot be used with", "model.norm",
                  with_rms);
  sourced.require(before || model.dropout.residual == 0, "model.dropout.residual", "cannot be used with",
                  "model.norm_place", "what a norm has written is not dropped");
  sourced.require(before || model.residual_scale == 1, "model.residual_scale", "cannot be used with",
                  "model.norm_place", "the weights of the norm after a branch scale it");
  sourced.require(
      model.positions != Positions::kAlibi || model.position_extension == PositionExtension::kNone,
      "model.position_extension", "has no effect with", "model.positions",
      "scores with a bias by distance need no extension: set model.context alone");
  sourced.require(model.positions != Positions::kAlibi || model.attention_cap == 0, "model.attention_cap",
                  "cannot be used with", "model.positions", "scores with a bias by distance have no cap");
  sourced.require(model.scale_attention || model.query_scalar == 0, "model.query_scalar",
                  "has no effect with", "model.scale_attention", "set model.scale_attention=true");
}

void check_windows(const SourcedConfig& sourced) {
  const auto& model = sourced.config.model;
  const int64_t blocks = model.window.pattern_blocks();
  sourced.require(blocks <= model.layers, "model.window",
                  fmt::format("is a pattern of {} blocks, more than", blocks), "model.layers",
                  "a pattern repeats over the blocks: name it once");
}

// Blocks that each query chooses
void check_chosen(const SourcedConfig& sourced) {
  const Config& config = sourced.config;
  const ModelConfig model = config.model.resolved();
  const char *const key = "model.sparse", *const chosen = "chooses blocks, which has no kernels with";
  sourced.require(model.dropout.attention == 0, key, chosen, "model.dropout.attention",
                  "set model.dropout.attention=0");
  sourced.require(model.positions != Positions::kAlibi, key, chosen, "model.positions",
                  "set model.positions=rope");
  sourced.require(config.optimizer.qk_clip == 0, key,
                  "chooses blocks, of which no largest score is known, and so not", "optimizer.qk_clip",
                  "set optimizer.qk_clip=0");
  sourced.require(config.train.inside_every == 0, key,
                  "chooses blocks, of which no entropy is known, and so not", "train.inside_every",
                  "set train.inside_every=0");
}

void check_sparse(const SourcedConfig& sourced) {
  const Config& config = sourced.config;
  const ModelConfig model = config.model.resolved();
  const SparseBlocks& sparse = model.sparse;
  const char* const key = "model.sparse";
  if (sparse.all_full()) return;
  sourced.require(sparse.pattern_blocks() <= model.layers, key,
                  fmt::format("is a pattern of {} blocks, more than", sparse.pattern_blocks()),
                  "model.layers", "a pattern repeats over the blocks: name it once");
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    sourced.require(!sparse.at(l) || model.window.at(l) == Windows::kFull, key,
                    fmt::format("is of block {}, which has a window by", layer), "model.window",
                    "a block has one of them: leave the window to model.sparse=window:N");
  }
  const bool flash = config.model.attention == AttentionKind::kFlash,
             naive = config.model.attention == AttentionKind::kNaive;
  sourced.require(flash || naive, key, "has no kernels with", "model.attention", "set model.attention=flash");
  const std::vector<SparseRun> runs = sparse.runs();
  if (std::ranges::any_of(runs, [](const SparseRun& run) { return run.pattern.chosen > 0; }))
    check_chosen(sourced);
  if (std::ranges::none_of(runs, [](const SparseRun& run) { return run.pattern.window > 0; })) return;
  // What only naive has on a GPU; on the CPU flash has all of it.
  const bool may_be_gpu = flash && config.device != DeviceRequest::kCpu;
  const char* const naive_has = "set model.attention=naive, or device=cpu, which have it";
  sourced.require(!may_be_gpu || model.dropout.attention == 0, "model.dropout.attention",
                  "has no kernels on GPUs with", key,
                  fmt::format("set model.dropout.attention=0, or {}", std::string_view(naive_has).substr(4)));
  sourced.require(!may_be_gpu || model.positions != Positions::kAlibi, "model.positions",
                  "has no kernels on GPUs with", key, naive_has);
  sourced.require(!may_be_gpu || model.attention_cap == 0, "model.attention_cap",
                  "has no kernels on GPUs with", key, naive_has);
}

// A factor for each pair of channels, and a context whose logarithm divides
void check_longrope(const SourcedConfig& sourced) {
  const ModelConfig model = sourced.config.model.resolved();
  if (model.positions != Positions::kRope || model.rope.scaling != RopeScaling::kLongrope) return;
  const int64_t pairs = model.rotated_channels() / 2;
  const auto require = [&](const char* key, const std::vector<double>& factors) {
    sourced.require(
        std::ssize(factors) == pairs, key,
        fmt::format("has {} numbers, not one for each of {} pairs of channels, with", factors.size(), pairs),
        "model.rope.scaling",
        fmt::format("expected a list of {}: those of a published model are in the config.json "
                    "that train.init_from names",
                    pairs));
  };
  require("model.rope.short_factors", model.rope.short_factors);
  require("model.rope.long_factors", model.rope.long_factors);
  sourced.require(canonical(model).rope.original_context > 1, "model.rope.original_context",
                  "must be at least 2, with", "model.rope.scaling");
}

// What an expert has none of yet is refused by name.
void check_experts(const SourcedConfig& sourced) {
  const auto& model = sourced.config.model;
  const auto& train = sourced.config.train;
  const ExpertsConfig &experts = model.experts, none;
  const char* const count = "model.experts.count";
  const auto needs = [&](bool is_default, const char* key) {
    sourced.require(experts || is_default, key, "has no effect with", count,
                    "set the number of experts too, such as --set model.experts.count=8");
  };
  needs(experts.active == none.active, "model.experts.active");
  needs(experts.width == none.width, "model.experts.width");
  needs(experts.shared_width == none.shared_width, "model.experts.shared_width");
  needs(experts.router == none.router, "model.experts.router");
  needs(experts.renormalise == none.renormalise, "model.experts.renormalise");
  needs(experts.every == none.every, "model.experts.every");
  needs(experts.dense_layers == none.dense_layers, "model.experts.dense_layers");
  needs(train.experts.balance == 0, "train.experts.balance");
  needs(train.experts.z == 0, "train.experts.z");
  needs(!train.freeze.names(ParamPart::kRouter), "train.freeze");
  needs(!train.lora.parts.names(Adapted::kRouter), "train.lora.parts");
  if (!experts) return;
  sourced.require(experts.active > 0, count, "is given without", "model.experts.active",
                  "set how many of them a token goes through, such as --set model.experts.active=2");
  sourced.require(experts.active <= experts.count, "model.experts.active", "is more than", count);
  sourced.require(experts.width > 0, count, "is given without", "model.experts.width",
                  "set the width of their hidden layer, such as --set model.experts.width=512");
  sourced.require(is_gated(model.mlp), count, "is of gated MLPs, unlike", "model.mlp",
                  "set model.mlp=swiglu, geglu or clamped_swiglu");
  sourced.require(experts.shared_width == 0 || !model.has_mlp_bias(), "model.experts.shared_width",
                  "is of an expert without biases, unlike", "model.bias",
                  "set model.bias=none, qkv or attention");
  sourced.require(experts.router == Router::kSoftmax || !experts.renormalise, "model.experts.renormalise",
                  "has no effect with", "model.experts.router", "those weights always sum to 1");
  const int64_t last = experts.dense_layers.empty() ? -1 : experts.dense_layers.back();
  sourced.require(last < model.layers, "model.experts.dense_layers",
                  fmt::format("names block {}, and the last is block {} with", last, model.layers - 1),
                  "model.layers");
  int64_t blocks = 0;
  for (int64_t layer = 0; layer < model.layers; ++layer) blocks += experts.in_block(layer);
  sourced.require(blocks > 0, "model.experts.every", "leaves no block with experts, with", "model.layers",
                  "set model.experts.every=1 and model.experts.dense_layers=none");
  sourced.require(train.mlp_chunk == 0, "train.mlp_chunk", "cannot divide the rows of experts, with", count,
                  "set train.mlp_chunk=0; train.recompute=mlp saves memory too");
}

void check_rope(const SourcedConfig& sourced) {
  const auto& model = sourced.config.model;
  const Rope& rope = model.rope;
  const bool rotary = model.positions == Positions::kRope;
  sourced.require(rotary || model.qk_norm == QkNorm::kNone, "model.qk_norm", "cannot be used with",
                  "model.positions", "set model.positions=rope");
  sourced.require(!rotary || model.position_extension == PositionExtension::kNone, "model.position_extension",
                  "has no effect with", "model.positions",
                  "rotary positions need no extension: set model.context alone");
  const Config defaults;
  for_each_model_key(model, [&](std::string_view key, const auto&) {
    if (!key.starts_with("model.rope.")) return;
    const bool is_default = value_of(sourced.config, key) == value_of(defaults, key);
    sourced.require(rotary || is_default, key, "has no effect with", "model.positions",
                    "set model.positions=rope");
  });
  const ModelConfig resolved = model.resolved();
  const int64_t rotated = resolved.rotated_channels();
  sourced.require(
      !rotary || (rotated >= 2 && rotated % 2 == 0), "model.rope.share",
      fmt::format("rotates {} channels, which must be an even number of at least 2, of each head of",
                  static_cast<double>(resolved.head_dim) * rope.share),
      "model.head_dim");
  const auto needs = [&](std::string_view key, std::initializer_list<RopeScaling> users) {
    const bool used = std::find(users.begin(), users.end(), rope.scaling) != users.end();
    const bool is_default = value_of(sourced.config, key) == value_of(defaults, key);
    const std::vector<RopeScaling> words = users;
    sourced.require(used || is_default, key, "has no effect with", "model.rope.scaling",
                    "it is of " + join_words(names_of<RopeScaling>(words)));
  };
  sourced.require(rope.local_theta == 0 || !model.window.all_full(), "model.rope.local_theta",
                  "is of blocks with a window, and there is none with", "model.window",
                  "set model.window, such as --set model.window=1024*5,full");
  needs("model.rope.factor", {RopeScaling::kLinear, RopeScaling::kLlama3, RopeScaling::kYarn});
  needs("model.rope.original_context", {RopeScaling::kLlama3, RopeScaling::kYarn, RopeScaling::kLongrope});
  needs("model.rope.low_frequency", {RopeScaling::kLlama3});
  needs("model.rope.high_frequency", {RopeScaling::kLlama3});
  needs("model.rope.beta_fast", {RopeScaling::kYarn});
  needs("model.rope.beta_slow", {RopeScaling::kYarn});
  needs("model.rope.truncate", {RopeScaling::kYarn});
  needs("model.rope.attention_factor", {RopeScaling::kYarn, RopeScaling::kLongrope});
  needs("model.rope.short_factors", {RopeScaling::kLongrope});
  needs("model.rope.long_factors", {RopeScaling::kLongrope});
  check_longrope(sourced);
  sourced.require(rope.low_frequency < rope.high_frequency, "model.rope.low_frequency", "is not below",
                  "model.rope.high_frequency");
  sourced.require(rope.beta_slow < rope.beta_fast, "model.rope.beta_slow", "is not below",
                  "model.rope.beta_fast");
  // A scaling that someone asked for, and a factor that nobody set
  const bool asked = sourced.place("model.rope.scaling").origin >= Origin::kFile;
  const bool has_factor = rope.scaling != RopeScaling::kNone && rope.scaling != RopeScaling::kLongrope;
  sourced.require(
      !has_factor || rope.factor != 1 || !asked || sourced.place("model.rope.factor").origin >= Origin::kFile,
      "model.rope.scaling", "changes nothing with", "model.rope.factor",
      "set the factor too, such as --set model.rope.factor=4");
}

// A model that no family has is refused at the key that was set last, of those to change.
void check_family(const SourcedConfig& sourced) {
  const ModelConfig model = sourced.config.model.resolved();
  try {
    family_of(model);
  } catch (const Error& error) {
    const std::string_view message = error.what();
    Place blamed;
    for_each_model_key(model, [&](const std::string& key, const auto&) {
      const Place place = sourced.place(key);
      const bool is_named = message.find(key + "=") != std::string_view::npos;
      if (is_named && place.origin > blamed.origin) blamed = place;
    });
    fail("{}: {}", blamed.where, message);
  }
}

}  // namespace

void check_model(const SourcedConfig& sourced) {
  check_heads(sourced);
  check_norms(sourced);
  check_windows(sourced);
  check_sparse(sourced);
  check_experts(sourced);
  check_rope(sourced);
  check_family(sourced);
}

}  // namespace tessera
