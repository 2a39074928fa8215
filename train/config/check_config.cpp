#include "train/config/check_config.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "model/formats/family.h"
#include "model/formats/folder.h"
#include "model/params.h"
#include "train/config/check_model.h"

namespace tessera {
namespace {

constexpr const char* kEvaluate = "set evaluation.every=250";

std::string nearest_multiples(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return below > 0 ? fmt::format("the nearest are {} and {}", below, below + unit)
                   : fmt::format("the least is {}", unit);
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
  sourced.require(train.lora || train.lora_base.form == BaseForm::kAuto, "train.lora.base",
                  "has no effect with", "train.lora.rank",
                  "set the rank too, such as --set train.lora.rank=16");
  sourced.require(train.lora_base.form != BaseForm::kAuto || train.lora_base.parts == LoraBaseParts::kAuto,
                  "train.lora.base_parts", "has no effect with", "train.lora.base",
                  "set the form too, such as --set train.lora.base=mxfp4");
  sourced.require(train.lora_base.parts != LoraBaseParts::kExperts || sourced.config.model.experts,
                  "train.lora.base_parts", "has no effect with", "model.experts.count",
                  "the model has no experts: set train.lora.base_parts=blocks");
  sourced.require(train.lora_base.form == BaseForm::kAuto || !train.fp8, "train.lora.base",
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
  sourced.require(!train.stored_reference || train.lora_base.form == BaseForm::kAuto,
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
  sourced.require(train.runs_teacher() || train.teacher_base == BaseForm::kAuto, "train.teacher_base",
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
  check_model(sourced);
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
