#include "train/config/check_config.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "model/formats/family.h"
#include "model/formats/folder.h"
#include "model/params.h"

namespace tessera {
namespace {

constexpr const char* kEvaluate = "set evaluation.every=250";

std::string nearest_multiples(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return below > 0 ? fmt::format("the nearest are {} and {}", below, below + unit)
                   : fmt::format("the least is {}", unit);
}

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
  sourced.require(
      config.parallel.context == 1, key, "cannot be dealt over ranks with", "parallel.context",
      "set parallel.context=1: what a sparse block does not see costs no time on one rank either");
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

// Every length is one that train.sequence_length would take, and every phase has a step.
void check_schedule(const SourcedConfig& sourced) {
  const Config& config = sourced.config;
  const auto& train = config.train;
  const char* key = "train.context_schedule";
  sourced.require(train.sequence_length == 0, key, "is given together with", "train.sequence_length",
                  "set train.sequence_length=auto, or train.context_schedule=none");
  sourced.require(train.epochs == 0, key, "names steps, and their number is not known with", "train.epochs",
                  "set train.epochs=none and train.steps=N");
  for (const ContextPhase& phase : train.context_schedule) {
    const int64_t T = phase.sequence_length, unit = T * std::max<int64_t>(train.micro_batch, 1);
    sourced.require(T <= config.model.context, key,
                    fmt::format("has sequences of {} tokens, which is more than", T), "model.context");
    sourced.require(train.tokens_per_step % T == 0, "train.tokens_per_step",
                    fmt::format("is not a multiple of {}, a length of", T), key,
                    nearest_multiples(train.tokens_per_step, T));
    sourced.require(train.tokens_per_step % unit == 0, "train.tokens_per_step",
                    fmt::format("is not a multiple of {} tokens, a length of train.context_schedule, x", T),
                    "train.micro_batch", nearest_multiples(train.tokens_per_step, unit));
    sourced.require(phase.from_step < train.steps, key,
                    fmt::format("has a phase after {} steps, which never begins with", phase.from_step),
                    "train.steps");
  }
}

void check_step(const SourcedConfig& sourced) {
  const Config& config = sourced.config;
  const auto& train = config.train;
  const int64_t T = config.sequence_length();
  const std::string_view sequence = train.sequence_length > 0 ? "train.sequence_length" : "model.context";
  sourced.require(T <= config.model.context, "train.sequence_length", "is more than", "model.context");
  sourced.require(
      train.tokens_per_step % T == 0, "train.tokens_per_step", "is not a multiple of", sequence,
      fmt::format("{}; or set train.sequence_length={}", nearest_multiples(train.tokens_per_step, T),
                  longest_divisor(train.tokens_per_step, T)));
  if (train.micro_batch > 0) {
    const int64_t tokens = T * train.micro_batch;
    sourced.require(train.tokens_per_step % tokens == 0, "train.tokens_per_step",
                    fmt::format("is not a multiple of {} tokens x", T), "train.micro_batch",
                    nearest_multiples(train.tokens_per_step, tokens));
  }
}

void check_recompute(const SourcedConfig& sourced) {
  const Config& config = sourced.config;
  const auto& train = config.train;
  const bool gated = is_gated(config.model.mlp);
  const bool names_activation = train.recompute && train.recompute->any_of([](Keep keep) {
    return keep.recomputes(Recomputed::kActivation);
  });
  sourced.require(gated || !names_activation, "train.recompute",
                  "names the activation of a gated MLP, and there is none with", "model.mlp",
                  "mlp recomputes the hidden layer of any MLP: set train.recompute=mlp");
}

// That what is given for numbers of blocks is for those that there are
void check_blocks(const SourcedConfig& sourced) {
  const int64_t layers = sourced.config.model.layers;
  const auto require = [&](std::string_view key, int64_t found, bool of_all) {
    sourced.require(found <= layers && (!of_all || found == layers), key,
                    fmt::format("is for {} {}, with", found, found == 1 ? "block" : "blocks"), "model.layers",
                    of_all ? "the numbers of blocks must add up to that, or the last entry be without one"
                           : fmt::format("it may be for at most {}", layers));
  };
  if (const auto& recompute = sourced.config.train.recompute)
    require("train.recompute", recompute->counted(), !recompute->has_rest());
  if (const auto& offload = sourced.config.memory.offload; offload && offload->blocks != Offload::kAllBlocks)
    require("memory.offload", offload->blocks, false);
}

void check_freeze(const SourcedConfig& sourced) {
  const Freeze& freeze = sourced.config.train.freeze;
  const ModelConfig model = sourced.config.model.resolved();
  sourced.require(
      freeze.last_block() < model.layers, "train.freeze",
      fmt::format("names block {}, and the last is block {} with", freeze.last_block(), model.layers - 1),
      "model.layers");
  sourced.require(!freeze.names(ParamPart::kHead) || !model.tied, "train.freeze",
                  "names the head, which is the token table with", "model.tied", "embeddings freezes both");
  sourced.require(frozen_parameters(model, freeze) < model.parameters(), "train.freeze",
                  "leaves nothing to train, with", "model.layers");
}

void check_lora(const SourcedConfig& sourced) {
  const auto& train = sourced.config.train;
  const LoraConfig defaults;
  const int64_t channels = sourced.config.model.channels;
  sourced.require(train.lora || train.lora.alpha == defaults.alpha, "train.lora.alpha", "has no effect with",
                  "train.lora.rank", "set the rank too, such as --set train.lora.rank=16");
  sourced.require(train.lora || train.lora.parts == defaults.parts, "train.lora.parts", "has no effect with",
                  "train.lora.rank", "set the rank too, such as --set train.lora.rank=16");
  sourced.require(!train.lora || train.lora.parts, "train.lora.parts", "names no layer for",
                  "train.lora.rank", "attention+mlp names all");
  sourced.require(!train.lora || train.lora.rank <= channels, "train.lora.rank", "is more than",
                  "model.channels", "8 to 64 are usual");
  sourced.require(train.lora || train.lora_base.form == LoraBase::kAuto, "train.lora.base",
                  "has no effect with", "train.lora.rank",
                  "set the rank too, such as --set train.lora.rank=16");
  sourced.require(train.lora_base.form != LoraBase::kAuto || train.lora_base.parts == LoraBaseParts::kAuto,
                  "train.lora.base_parts", "has no effect with", "train.lora.base",
                  "set the form too, such as --set train.lora.base=mxfp4");
  sourced.require(train.lora_base.parts != LoraBaseParts::kExperts || sourced.config.model.experts,
                  "train.lora.base_parts", "has no effect with", "model.experts.count",
                  "the model has no experts: set train.lora.base_parts=blocks");
  sourced.require(train.lora_base.form == LoraBase::kAuto || !train.fp8, "train.lora.base",
                  "is widened to train.precision, and is given together with", "train.gemm_dtype",
                  "set train.lora.base=auto for weights in FP8, or train.gemm_dtype=bf16");
  sourced.require(!train.lora || !train.freeze, "train.freeze", "is given together with", "train.lora.rank",
                  "which freezes all but its own matrices: set train.freeze=none");
}

void check_fp8(const SourcedConfig& sourced) {
  const Fp8Config& fp8 = sourced.config.train.fp8;
  const ModelConfig model = sourced.config.model.resolved();
  const Fp8Config defaults;
  const char* key = "train.gemm_dtype";
  const auto needs = [&](bool is_default, const char* used) {
    sourced.require(fp8 || is_default, used, "has no effect with", key, "set train.gemm_dtype=fp8 too");
  };
  needs(fp8.scaling == defaults.scaling, "train.fp8.scaling");
  needs(fp8.edges == defaults.edges, "train.fp8.edges");
  needs(fp8.head == defaults.head, "train.fp8.head");
  needs(fp8.dw == defaults.dw, "train.fp8.dw");
  if (!fp8) return;
  sourced.require(!sourced.config.train.lora || !fp8.dw, "train.fp8.dw", "has no effect with",
                  "train.lora.rank", "adapters alone have gradients, in bf16: set train.fp8.dw=false");
  sourced.require(!sourced.config.train.freeze, key, "is given together with", "train.freeze",
                  "all weights are trained in FP8: set train.gemm_dtype=bf16");
  constexpr int64_t kUnit = 16;  // of the GPU's GEMMs in FP8
  sourced.require(model.channels % kUnit == 0, key, "needs a multiple of 16, unlike", "model.channels",
                  nearest_multiples(model.channels, kUnit));
  sourced.require(model.mlp_width % kUnit == 0, key, "needs a multiple of 16, unlike", "model.mlp_width",
                  nearest_multiples(model.mlp_width, kUnit));
  sourced.require(model.experts.shared_width % kUnit == 0, key, "needs a multiple of 16, unlike",
                  "model.experts.shared_width", nearest_multiples(model.experts.shared_width, kUnit));
  sourced.require(model.attention_width() % kUnit == 0 && model.qkv_heads() * model.head_dim % kUnit == 0,
                  key, "needs multiples of 16 as the widths of q, k and v, which follow from",
                  "model.head_dim", "set model.head_dim=16, or a multiple of it");
  sourced.require(fp8.edges || fp8.head || model.layers > 2, key,
                  "has no effect, as the first and the last block do not use FP8, with", "model.layers",
                  "set train.fp8.edges=true too");
}

// What a loss of pairs cannot be used with
void check_pairs(const SourcedConfig& sourced) {
  const Config& config = sourced.config;
  const auto& train = config.train;
  const bool pairs = train.trains_pairs();
  const char* const with = "cannot be used with";
  sourced.require(!pairs || config.data.masks(), "train.loss", with, "data.documents",
                  "set data.documents=mask");
  sourced.require(!pairs || !config.evaluation.by_position, "train.loss", with, "evaluation.by_position",
                  "set evaluation.by_position=false");
  for_each_dropout_key(config.model.dropout, [&](const char* key, const auto& value) {
    sourced.require(!pairs || value == 0, "train.loss", with, key, fmt::format("set {}=0", key));
  });
  sourced.require(!pairs || train.z_loss == 0, "train.loss", with, "train.z_loss", "set train.z_loss=0");
  sourced.require(!pairs || train.label_smoothing == 0, "train.loss", with, "train.label_smoothing",
                  "set train.preference.label_smoothing");
  const LossKind loss = train.loss;
  const auto& weights = train.preference;
  const bool kto = loss == LossKind::kKto;
  sourced.require(kto || weights.desirable == 1, "train.preference.desirable", "has no effect with",
                  "train.loss", "only kto has it");
  sourced.require(kto || weights.undesirable == 1, "train.preference.undesirable", "has no effect with",
                  "train.loss", "only kto has it");
  sourced.require(!kto || weights.desirable + weights.undesirable > 0, "train.preference.desirable",
                  "leaves nothing to train, with", "train.preference.undesirable",
                  "one of the two has to be above 0");
  sourced.require(loss == LossKind::kDpo || loss == LossKind::kSimpo || train.preference.label_smoothing == 0,
                  "train.preference.label_smoothing", "has no effect with", "train.loss",
                  "only dpo and simpo have it");
  sourced.require(
      (pairs && loss != LossKind::kOrpo && loss != LossKind::kKto) || train.preference.cross_entropy == 0,
      "train.preference.cross_entropy", "has no effect with", "train.loss",
      "dpo, ipo and simpo have it, and orpo adds the cross entropy once");
  sourced.require(train.needs_reference() || train.reference.empty(), "train.reference", "has no effect with",
                  "train.loss", "only dpo, ipo and kto have a reference");
  sourced.require(train.needs_reference() || !train.stored_reference, "train.stored_reference",
                  "has no effect with", "train.loss", "only dpo, ipo and kto have a reference");
  sourced.require(!train.stored_reference || train.lora_base.form == LoraBase::kAuto,
                  "train.stored_reference", with, "train.lora.base",
                  "set train.lora.base=auto: stored numbers are of weights that are not rounded");
  sourced.require(!train.stored_reference || !train.fp8, "train.stored_reference", with, "train.gemm_dtype",
                  "set train.gemm_dtype=bf16: stored numbers are of GEMMs that are not rounded");
  // A run with adapters needs train.init_from anyway.
  sourced.require(!train.needs_reference() || train.lora || !train.reference_folder().empty(), "train.loss",
                  "needs a reference, which is by default what the training starts from, in",
                  "train.init_from", "set train.init_from=FOLDER or train.reference=FOLDER");
}

void check_teacher(const SourcedConfig& sourced) {
  const Config& config = sourced.config;
  const auto& train = config.train;
  const bool stored = train.teacher_logits > 0, teacher = train.distils();
  const char* const key = train.teacher.empty() ? "train.teacher_logits" : "train.teacher";
  const char* const with = "cannot be used with";
  sourced.require(!teacher || !train.trains_pairs(), key, with, "train.loss", "set train.loss=cross_entropy");
  sourced.require(!teacher || train.z_loss == 0, key, with, "train.z_loss", "set train.z_loss=0");
  sourced.require(!teacher || train.label_smoothing == 0, key, with, "train.label_smoothing",
                  "set train.label_smoothing=0");
  sourced.require(!teacher || config.model.logit_cap == 0, key, with, "model.logit_cap");
  sourced.require(!teacher || !(train.fp8 && train.fp8.head), key, with, "train.fp8.head",
                  "set train.fp8.head=false");
  sourced.require(train.runs_teacher() || train.teacher_base == TeacherBase::kAuto, "train.teacher_base",
                  "has no effect with", stored ? "train.teacher_logits" : "train.teacher",
                  stored ? "no teacher is in memory: set train.teacher_base=auto"
                         : "name the teacher too, with --set train.teacher=FOLDER");
  sourced.require(!stored || config.data.masks(), "train.teacher_logits", with, "data.documents",
                  "set data.documents=mask: the logits are those of documents that do not see each other");
  sourced.require(!stored || train.context_schedule.empty(), "train.teacher_logits", with,
                  "train.context_schedule", "the logits are of sequences of one length");
}

void check_bad_step(const SourcedConfig& sourced) {
  const OnBadStep& rule = sourced.config.train.on_bad_step;
  sourced.require(rule.judges_spikes() || rule.spike_score == OnBadStep().spike_score,
                  "train.on_bad_step.spike_score", "has no effect with", "train.on_bad_step.spike",
                  "set train.on_bad_step.spike=skip, rewind or stop too");
}

void check_optimizer(const SourcedConfig& sourced) {
  const Config::Optimizer& optimizer = sourced.config.optimizer;
  const MuonConfig defaults;
  const auto needs = [&](bool is_default, const char* key) {
    sourced.require(optimizer.rule == OptimizerRule::kMuon || is_default, key, "has no effect with",
                    "optimizer.rule", "set optimizer.rule=muon too");
  };
  needs(optimizer.muon.momentum == defaults.momentum, "optimizer.muon.momentum");
  needs(optimizer.muon.method == defaults.method, "optimizer.muon.method");
  needs(optimizer.muon.variance == defaults.variance, "optimizer.muon.variance");
  needs(optimizer.muon.cautious_decay == defaults.cautious_decay, "optimizer.muon.cautious_decay");
  sourced.require(optimizer.muon.variance || optimizer.muon.beta2 == defaults.beta2, "optimizer.muon.beta2",
                  "has no effect with", "optimizer.muon.variance", "set optimizer.muon.variance=true too");
}

// Where weights do not decide how large scores become, or are not trained
void check_qk_clip(const SourcedConfig& sourced) {
  const Config& config = sourced.config;
  const char *const key = "optimizer.qk_clip", *const none = "has no effect with",
                    *const off = "set optimizer.qk_clip=0";
  if (config.optimizer.qk_clip == 0) return;
  sourced.require(
      config.model.qk_norm == QkNorm::kNone, key, none, "model.qk_norm",
      "set optimizer.qk_clip=0: queries and keys that are normed keep scores small by themselves");
  sourced.require(config.model.attention_cap == 0, key, none, "model.attention_cap",
                  "set optimizer.qk_clip=0: no score is above its cap");
  sourced.require(!config.train.lora, key, none, "train.lora.rank", off);
  sourced.require(!config.train.freeze.names(ParamPart::kAttention), key, none, "train.freeze", off);
}

void check_data(const SourcedConfig& sourced) {
  const Config::Data& data = sourced.config.data;
  sourced.require(!data.masks() || data.shift != Shift::kOn, "data.shift",
                  "cuts documents that follow one another, and none do with", "data.documents",
                  "set data.shift=auto, or data.documents=join");
}

}  // namespace

int64_t longest_divisor(int64_t tokens, int64_t most) {
  int64_t found = 1;
  for (int64_t low = 1; low * low <= tokens; ++low) {
    if (tokens % low != 0) continue;
    for (const int64_t divisor : {low, tokens / low})
      if (divisor <= most) found = std::max(found, divisor);
  }
  return found;
}

void check_init_from(const Config& config) {
  check(config.train.init_from != kRequired,
        "train.init_from is \"{}\": this configuration trains a model that exists, and none is named. Name "
        "its folder with --set train.init_from=FOLDER",
        kRequired);
}

void check_across(const SourcedConfig& sourced) {
  const bool by_epochs = sourced.config.train.epochs > 0, by_steps = sourced.config.train.steps > 0;
  sourced.require(!by_epochs || !by_steps, "train.epochs", "is given together with", "train.steps",
                  "neither wins: set train.steps=auto to train by epochs, or train.epochs=none to train by "
                  "steps");
  sourced.require(by_epochs || by_steps, "train.steps", "leaves the length of the run open with",
                  "train.epochs", "set train.steps=1000, or train.epochs=3");
  check_heads(sourced);
  check_norms(sourced);
  check_windows(sourced);
  check_sparse(sourced);
  check_experts(sourced);
  check_rope(sourced);
  check_family(sourced);
  sourced.config.train.context_schedule.empty() ? check_step(sourced) : check_schedule(sourced);
  check_recompute(sourced);
  check_blocks(sourced);
  check_freeze(sourced);
  check_qk_clip(sourced);
  check_lora(sourced);
  check_fp8(sourced);
  check_data(sourced);
  check_pairs(sourced);
  check_teacher(sourced);
  check_bad_step(sourced);
  check_optimizer(sourced);
  const auto& optimizer = sourced.config.optimizer;
  sourced.require(optimizer.min_learning_rate <= optimizer.learning_rate, "optimizer.min_learning_rate",
                  "is more than", "optimizer.learning_rate");
  const auto& checkpoint = sourced.config.checkpoint;
  if (checkpoint.keep_every > 0)
    sourced.require(checkpoint.every > 0 && checkpoint.keep_every % checkpoint.every == 0,
                    "checkpoint.keep_every", "is not a multiple of", "checkpoint.every",
                    checkpoint.every > 0 ? nearest_multiples(checkpoint.keep_every, checkpoint.every)
                                         : "which writes one only at the end");
  if (checkpoint.keep_best)
    sourced.require(sourced.config.evaluation.every > 0, "checkpoint.keep_best",
                    "needs evaluations, and there are none with", "evaluation.every", kEvaluate);
  const auto& evaluation = sourced.config.evaluation;
  sourced.require(evaluation.tasks.empty() || evaluation.every > 0, "evaluation.tasks",
                  "needs evaluations, and there are none with", "evaluation.every", kEvaluate);
  const auto& patience = sourced.config.train.patience;
  sourced.require(patience == 0 || sourced.config.evaluation.every > 0, "train.patience",
                  "needs evaluations, and there are none with", "evaluation.every", kEvaluate);
  sourced.require(patience == 0 || checkpoint.keep_best, "train.patience",
                  "ends a run after its best step, which is not kept with", "checkpoint.keep_best",
                  "set checkpoint.keep_best=true");
}

}  // namespace tessera
