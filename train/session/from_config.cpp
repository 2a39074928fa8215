#include "train/session/from_config.h"

#include <algorithm>
#include <bit>

#include "model/distillation.h"
#include "model/formats/peft.h"
#include "model/preference_loss.h"
#include "train/session/fastest_shape.h"

namespace tessera {
namespace {

// Above this vocabulary, train.classifier_chunk=auto divides the logits of a micro-batch. That changes how
// the gradient of the classifier is rounded, so GPT-2's stay whole.
constexpr int64_t kLargeVocab = 65536;
constexpr int64_t kMostLogitBytes = int64_t{1} << 30;

// Rows, in powers of two: 4096 of Llama 3's vocabulary in bf16
int64_t classifier_chunk(const Config& c, DType dtype) {
  if (c.train.classifier_chunk != kAutoChunk) return c.train.classifier_chunk;
  if (c.model.vocab_size <= kLargeVocab) return 0;
  const int64_t row = c.model.padded_vocab() * static_cast<int64_t>(size_of(dtype));
  return static_cast<int64_t>(
      std::bit_floor(static_cast<uint64_t>(std::max(kMostLogitBytes / row, int64_t{1}))));
}

LossRule loss_rule(const Config::Train& train) {
  const auto pairs = [&](PreferenceKind kind) {
    const auto& of = train.preference;
    return preference_loss({.kind = kind,
                            .beta = of.beta,
                            .label_smoothing = of.label_smoothing,
                            .gamma = of.gamma,
                            .cross_entropy = of.cross_entropy,
                            .desirable = of.desirable,
                            .undesirable = of.undesirable},
                           train.stored_reference ? ReferenceFrom::kBatch : ReferenceFrom::kModel);
  };
  switch (train.loss) {
    case LossKind::kCrossEntropy:
      break;
    case LossKind::kDpo:
      return pairs(PreferenceKind::kDpo);
    case LossKind::kIpo:
      return pairs(PreferenceKind::kIpo);
    case LossKind::kSimpo:
      return pairs(PreferenceKind::kSimpo);
    case LossKind::kOrpo:
      return pairs(PreferenceKind::kOrpo);
    case LossKind::kKto:
      return pairs(PreferenceKind::kKto);
  }
  if (train.distils())
    return distillation({.temperature = train.distillation.temperature,
                         .cross_entropy = train.distillation.cross_entropy,
                         .reverse = train.distillation.reverse},
                        train.teacher_logits);
  return cross_entropy({.z_loss = train.z_loss, .label_smoothing = train.label_smoothing});
}

std::optional<ModelConfig> teacher_config(const Config& c) {
  const std::string& folder = c.train.teacher;
  if (!c.train.runs_teacher()) return {};
  ModelConfig teacher = read_model_config(folder, c.train.ignore_fields).model;
  teacher.dropout = {};
  check(teacher.vocab_size == c.model.vocab_size,
        "train.teacher, {}, has a vocabulary of {} tokens, and model.vocab_size is {}: a teacher and its "
        "student share a tokenizer and the size of the vocabulary",
        folder, teacher.vocab_size, c.model.vocab_size);
  check(c.sequence_length() <= teacher.context,
        "train.teacher, {}, reads at most {} tokens, and the sequences have {}: set train.sequence_length={}",
        folder, teacher.context, c.sequence_length(), teacher.context);
  return teacher;
}

// The longest text of sample_text(): a prompt has at most as many tokens as bytes and one before them, and
// the last token drawn is never an input.
int64_t longest_sample(const Config& c) {
  if (c.sampling.every == 0) return kNoSamples;
  return std::min(c.model.context, static_cast<int64_t>(c.sampling.prompt.size()) + c.sampling.tokens);
}

// Each rank must get the same number of whole micro-batches.
void check_shares(const Config& c) {
  const int64_t context = c.parallel.context, data = c.data_ranks();
  check(c.ranks % context == 0,
        "parallel.context={} ranks share each sequence, and the run has {}: start a multiple of {} with "
        "--ranks or --gpus, or set parallel.context=1",
        context, c.ranks, context);
  const int64_t micro_batch = std::max<int64_t>(c.train.micro_batch, 1);
  const int64_t one = micro_batch * c.sequence_length(), unit = one * data;
  const int64_t tokens = c.train.tokens_per_step, below = tokens / unit * unit;
  if (tokens % unit == 0) return;
  int64_t ranks = std::min(data, tokens / one);
  while (ranks > 1 && tokens % (ranks * one) != 0) --ranks;
  const std::string shared = context > 1 ? fmt::format(" ({} for each sequence)", context) : "";
  fail(
      "{} ranks{} cannot share a step evenly: train.tokens_per_step is {}, not a multiple of {} x {} x {} "
      "tokens. Set it to {}{}, or start {} with --ranks {}",
      c.ranks, shared, tokens, data > 1 || context == 1 ? fmt::format("{} ranks", data) : "1 group of ranks",
      micro_batch == 1 ? "1 sequence" : fmt::format("{} sequences", micro_batch), c.sequence_length(),
      below > 0 ? fmt::format("{} or ", below) : "", below + unit, ranks * context == 1 ? "one" : "fewer",
      std::max<int64_t>(ranks, 1) * context);
}

// That each replica has all ranks of its sequences, and something to split
void check_replicas(const Config& c) {
  const int64_t replicas = std::max<int64_t>(c.parallel.replicas, 1), context = c.parallel.context;
  if (replicas == 1) return;
  check(
      c.data_ranks() % replicas == 0,
      "parallel.replicas={} divides the ranks into equal groups{}, and the run has {}: set parallel.replicas "
      "to a divisor of {}, or to auto",
      replicas, context > 1 ? fmt::format(" that have whole sequences, each of {} ranks", context) : "",
      c.ranks, c.data_ranks());
  check(
      c.parallel.shard != Shard::kNone,
      "parallel.replicas={} says how many groups of ranks split the parameters, and with parallel.shard=none "
      "no ranks do: set parallel.shard to optimizer, gradients, weights or auto, or parallel.replicas to "
      "auto",
      replicas);
}

// That attention can be shared by several ranks
void check_context(const Config& c) {
  if (c.parallel.context == 1) return;
  check(c.model.attention != AttentionKind::kCudnn,
        "parallel.context={} needs model.attention=flash or naive, found {}", c.parallel.context,
        name_of(c.model.attention));
  const int64_t heads = c.parallel.context_heads, all = model_config(c).kv_heads;
  check(heads == 0 || all % heads == 0,
        "parallel.context_heads is auto or divides the {} heads of keys of the model, found {}", all, heads);
}

// That the device multiplies in FP8
void check_fp8(const Config& c, const DeviceTraits& device, DType dtype) {
  if (!c.train.fp8 || device.device != Device::kCuda) return;
  check(dtype == DType::kBF16,
        "train.gemm_dtype=fp8 rounds what is bf16 otherwise, and train.precision is {}: set "
        "train.precision=auto, or train.gemm_dtype=bf16",
        name_of(c.train.precision));
  check(device.arch >= 89,
        "train.gemm_dtype=fp8 needs a GPU of compute capability 8.9 or newer, and {} has {}.{}: set "
        "train.gemm_dtype=bf16",
        device.name, device.arch / 10, device.arch % 10);
}
// cuBLASLt needs multiples of 16 in FP8, of rows too.
void check_fp8_rows(const RunShape& shape, const DeviceTraits& device) {
  constexpr int64_t kUnit = 16;
  if (!shape.fp8 || device.device != Device::kCuda) return;
  check(shape.rows() % kUnit == 0,
        "train.gemm_dtype=fp8 needs a multiple of {} tokens in a micro-batch, and {} sequences of {} are {}: "
        "set train.micro_batch to a multiple of {}",
        kUnit, shape.micro_batch, shape.sequence_length, shape.rows(), kUnit);
  check(shape.mlp_chunk % kUnit == 0,
        "train.gemm_dtype=fp8 needs a train.mlp_chunk of 0, auto or a multiple of {}, found {}", kUnit,
        shape.mlp_chunk);
  check(!shape.fp8.head || shape.classifier_chunk % kUnit == 0,
        "train.fp8.head=true needs train.classifier_chunk=all or a multiple of {}, found {}", kUnit,
        shape.classifier_chunk);
}

}  // namespace

FolderOptions folder_options(const Config& config) {
  return {.extension = config.model.position_extension, .ignored_fields = config.train.ignore_fields};
}

ModelConfig model_config(const Config& c) {
  ModelConfig model = c.model.resolved();
  model.lora = c.train.lora;
  if (model.lora) model.lora.split_qkv = splits_qkv(model);
  return model;
}

OptimizerConfig optimizer_config(const Config& c) {
  return {.beta1 = c.optimizer.beta1,
          .beta2 = c.optimizer.beta2,
          .epsilon = c.optimizer.epsilon,
          .weight_decay = c.optimizer.weight_decay,
          .max_grad_norm = c.optimizer.max_grad_norm,
          // Seeds are not negative, so no seed has this key: it is independent of the initial weights'
          .random_key = ~static_cast<uint64_t>(c.train.seed)};
}

RunShape run_shape(const Config& config, const DeviceTraits& device) {
  return run_shape(config, device, present_memory(device.device, config.ranks));
}

RunShape run_shape(const Config& c, const DeviceTraits& device, const MemoryLimit& limit,
                   const EarlierChoices& earlier) {
  const bool cuda = device.device == Device::kCuda;
  check(cuda || c.train.precision != Precision::kBf16,
        "train.precision=bf16 needs a GPU; the CPU computes in fp32. Use --set train.precision=auto");
  check_shares(c);
  check_context(c);
  check_replicas(c);
  const int64_t sequences = c.train.tokens_per_step / c.sequence_length() / c.data_ranks();
  const DType dtype = cuda && c.train.precision != Precision::kFp32 ? DType::kBF16 : DType::kF32;
  check_fp8(c, device, dtype);
  const int64_t mlp_chunk =
      c.train.mlp_chunk == kAutoChunk ? earlier.mlp_chunk.value_or(kAutoChunk) : c.train.mlp_chunk;
  const int64_t replicas = c.parallel.replicas > 0 ? c.parallel.replicas : earlier.replicas;
  RunShape shape{.model = model_config(c),
                 .micro_batch = 1,
                 .micro_steps = sequences,
                 .sequence_length = c.sequence_length(),
                 .dtype = dtype,
                 .rule = c.optimizer.rule == OptimizerRule::kMuon
                             ? muon(c.optimizer.muon, c.optimizer.moments)
                             : adamw(c.optimizer.moments),
                 .loss = loss_rule(c.train),
                 .teacher = teacher_config(c),
                 .teacher_base = c.train.teacher_base,
                 .reference_without_adapters = c.train.reference_without_adapters(),
                 .router_losses = c.train.experts,
                 .attention = c.model.attention,
                 .deterministic = c.train.deterministic,
                 .keep = c.train.recompute.value_or(kKeepAll),
                 .freeze = c.train.lora ? Freeze::all_but_adapters() : c.train.freeze,
                 .classifier_chunk = classifier_chunk(c, dtype),
                 .mlp_chunk = std::max<int64_t>(mlp_chunk, 0),
                 .documents = c.data.masks(),
                 .sample_tokens = longest_sample(c),
                 .sample_cache = c.sampling.cache_dtype,
                 .seed = static_cast<uint64_t>(c.train.seed),
                 .cuda_graphs = c.train.cuda_graphs,
                 .fp8 = c.train.fp8,
                 .base = c.train.lora_base.form,
                 .base_of_experts = c.train.lora_base.of_experts(c.model),
                 .fused_head = dtype == DType::kBF16 && device.runs_own_gemms() &&
                               c.train.gemm_backend != GemmSource::kCublasLt,
                 .inside_every = c.train.inside_every,
                 .qk_clip = c.optimizer.qk_clip,
                 .mesh = {.data = c.data_ranks(),
                          .context = c.parallel.context,
                          .replicas = std::max<int64_t>(replicas, 1)},
                 .nodes = c.nodes,
                 .links = c.links,
                 .context_heads = c.parallel.context_heads,
                 .offload = cuda ? c.memory.offload.value_or(Offload{}) : Offload{},
                 .shard = c.parallel.shard.value_or(earlier.shard.value_or(Shard::kOptimizer)),
                 .reduce_in_fp32 = c.train.reduce == DType::kF32};
  const bool has_to_split = shape.offload.weights && shape.mesh.ranks_of_shard() > 1;
  check(
      !has_to_split || !c.parallel.shard || shape.shard == Shard::kWeights,
      "memory.offload={} of {} ranks: each has its part of the weights in host memory. Set parallel.shard to "
      "weights or auto, found {}",
      text_of(shape.offload), shape.ranks(), name_of(shape.shard));
  if (has_to_split) shape.shard = Shard::kWeights;
  const bool as_before = earlier.micro_batch > 0 && sequences % earlier.micro_batch == 0;
  if (const int64_t given = c.train.micro_batch > 0 ? c.train.micro_batch
                            : as_before             ? earlier.micro_batch
                                                    : 0)
    shape.micro_batch = given, shape.micro_steps = sequences / given;
  shape = fastest_shape(shape,
                        {.micro_batch = c.train.micro_batch == 0 && !as_before,
                         .keep = !c.train.recompute,
                         .mlp_chunk = mlp_chunk == kAutoChunk,
                         .shard = !c.parallel.shard && !earlier.shard && !has_to_split,
                         .replicas = replicas == 0 && c.parallel.shard != Shard::kNone,
                         .offload = !c.memory.offload},
                        device, limit);
  check_fp8_rows(shape, device);
  return shape;
}

bool finds_shape(const Config& c) {
  return !c.train.recompute || c.train.mlp_chunk == kAutoChunk || !c.parallel.shard || !c.memory.offload ||
         c.finds_replicas();
}

std::vector<std::string> found_for_auto(const Config& config, const RunShape& shape) {
  std::vector<std::string> found;
  const auto tell = [&](const char* key, const auto& value) {
    found.push_back(fmt::format("{}={}", key, value));
  };
  if (config.train.micro_batch == 0) tell("train.micro_batch", shape.micro_batch);
  if (!config.train.recompute) tell("train.recompute", text_of(shape.keep));
  if (config.train.mlp_chunk == kAutoChunk) tell("train.mlp_chunk", shape.mlp_chunk);
  if (!config.parallel.shard) tell("parallel.shard", name_of(shape.shard));
  if (config.parallel.replicas == 0 && shape.nodes > 1) tell("parallel.replicas", shape.mesh.replicas);
  if (!config.memory.offload) tell("memory.offload", text_of(shape.offload));
  return found;
}

SessionShape inference_shape(const ModelConfig& model, const DeviceTraits& device, Precision precision,
                             AttentionKind attention, int64_t longest) {
  check(device.device == Device::kCuda || precision != Precision::kBf16,
        "--precision bf16 needs a GPU; the CPU computes in fp32. Use --precision auto");
  Config config;
  config.model = Config::Model(model);
  config.model.attention = attention;
  config.train.precision = precision;
  config.train.sequence_length = config.train.tokens_per_step = longest;
  config.train.micro_batch = 1;
  config.sampling.every = 0;
  SessionShape shape = run_shape(config, device).session();
  shape.sample_tokens = longest;
  return shape;
}

}  // namespace tessera
