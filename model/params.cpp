#include "model/params.h"

#include <algorithm>

#include "kernels/base/text.h"

namespace tessera {
namespace {

int64_t round_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

template <class Visit>
void for_each_frozen(const ModelConfig& config, const Freeze& freeze, Visit&& visit) {
  if (!freeze) return;
  Params none;  // for_each_param() goes by its number of blocks
  none.blocks.resize(static_cast<size_t>(config.layers));
  for_each_param(none, config, [&](const ParamInfo& info, const Tensor&) {
    if (freeze.freezes(info)) visit(info, info.shape.numel() - info.padding * config.channels);
  });
}

// `prefix`: "blocks.3."
void visit_linear(const LinearOfStage& of, BlockParams& block, const std::string& prefix, int64_t layer,
                  const ParamVisit& visit) {
  const Linear& linear = of.linear;
  auto& weights = const_cast<LinearWeights&>(of.weights(block));
  const std::string name = prefix + linear.name;
  ParamInfo info{.name = name + ".weight",
                 .shape = linear.weight_shape(),
                 .init = linear.init,
                 .decay = true,
                 .block = layer,
                 .part = linear.part,
                 .matrices = linear.rows,
                 .linear = linear};
  visit(info, weights.weight);
  if (!linear.bias) return;
  info.name = name + ".bias", info.shape = linear.bias_shape(), info.init = Init::kZero;
  info.decay = false, info.matrices = {};
  visit(info, weights.bias);
}

void visit_adapter(const LinearOfStage& of, BlockParams& block, const LoraConfig& lora,
                   const std::string& prefix, int64_t layer, const ParamVisit& visit) {
  const Linear& linear = of.linear;
  if (!adapts(lora, linear)) return;
  auto& weights = const_cast<LinearWeights&>(of.weights(block));
  const std::string name = prefix + linear.name;
  const LayerParts layers = adapter_rows(lora, linear);
  ParamInfo info{.name = name + ".lora_a",
                 .shape = linear.matrix_shape(count_of(layers) * lora.rank, linear.columns),
                 .init = Init::kUniform,
                 .decay = true,
                 .block = layer,
                 .part = linear.part,
                 .adapter = AdapterMatrix::kA,
                 .layers = layers,
                 .matrices = {},
                 .linear = linear};
  std::fill_n(info.matrices.begin(), count_of(layers), lora.rank);
  visit(info, weights.lora_a);
  info.name = name + ".lora_b", info.shape = linear.matrix_shape(linear.outputs(), lora.rank),
  info.init = Init::kZero;
  info.adapter = AdapterMatrix::kB, info.matrices = layers;
  visit(info, weights.lora_b);
}

std::string prefix_of(int64_t layer) { return fmt::format("blocks.{}.", layer); }

}  // namespace

void visit_block_weights(BlockParams& block, const BlockKind& kind, int64_t layer, const ParamVisit& visit) {
  const std::string prefix = prefix_of(layer);
  for (const Stage stage : kStages) {
    for (const LinearOfStage& linear : kind.linears_of(stage))
      visit_linear(linear, block, prefix, layer, visit);
    for (const VectorOfStage& vector : kind.vectors)
      if (vector.stage == stage)
        visit({.name = prefix + vector.name,
               .shape = {vector.size},
               .init = vector.init,
               .block = layer,
               .part = vector.part},
              const_cast<Tensor&>(vector.tensor(block)));
  }
}

void for_each_param(Params& params, const ModelConfig& config, const BlockKinds& kinds,
                    const ParamVisit& visit) {
  const int64_t C = config.channels, V = config.padded_vocab(), padding = V - config.vocab_size;
  const auto table = [&](const char* name, int64_t rows, ParamPart part, Tensor& tensor, int64_t unused = 0) {
    visit({.name = name,
           .shape = {rows, C},
           .init = Init::kNormal,
           .decay = true,
           .padding = unused,
           .part = part},
          tensor);
  };
  const auto norm = [&](const std::string& name, ParamPart part, NormWeights& weights) {
    visit({.name = name + ".weight", .shape = {C}, .init = norm_init(config), .part = part}, weights.weight);
    if (config.norm == NormKind::kLayerNorm)
      visit({.name = name + ".bias", .shape = {C}, .init = Init::kZero, .part = part}, weights.bias);
  };
  table(kTokenTable, V, ParamPart::kEmbeddings, params.token_table, padding);
  if (config.positions == Positions::kLearned)
    table(kPositionTable, config.context, ParamPart::kEmbeddings, params.position_table);
  if (config.norm_embeddings) norm("embedding_norm", ParamPart::kEmbeddings, params.embedding_norm);
  const int64_t layers = std::ssize(params.blocks);
  const auto block = [&](int64_t l) -> BlockParams& { return params.blocks[static_cast<size_t>(l)]; };
  for (int64_t l = 0; l < layers; ++l)
    visit_block_weights(block(l), kinds.of(static_cast<size_t>(l)), l, visit);
  norm("norm", ParamPart::kNorms, params.norm);
  if (!config.tied) table(kHead, V, ParamPart::kHead, params.head_weight, padding);
  for (int64_t l = 0; config.lora && l < layers; ++l)
    for (const LinearOfStage& linear : kinds.of(static_cast<size_t>(l)).linears)
      visit_adapter(linear, block(l), config.lora, prefix_of(l), l, visit);
}

void for_each_param(Params& params, const ModelConfig& config, const ParamVisit& visit) {
  for_each_param(params, config, BlockKinds(config), visit);
}

void for_each_param(const Params& params, const ModelConfig& config,
                    const std::function<void(const ParamInfo&, const Tensor&)>& visit) {
  for_each_param(const_cast<Params&>(params), config, ParamVisit(visit));
}

namespace {

// Experts of a layer that a token goes through
int64_t active_of(const ParamInfo& info, const ModelConfig& config) {
  const bool is_of_experts = info.linear && info.linear->of_experts();
  return is_of_experts ? info.shape.numel() / info.linear->count * config.experts.active
                       : info.shape.numel() - info.padding * config.channels;
}

// The sum of what `count` says of each parameter. A block of each kind is walked once, since every step asks.
template <class Count>
int64_t sum_of(const ModelConfig& config, const Count& of_one) {
  const BlockKinds kinds(config);
  std::vector<int64_t> blocks_of(kinds.distinct().size());
  for (const size_t kind : kinds.of_block()) ++blocks_of[kind];
  int64_t count = 0;
  const auto add = [&](const ParamInfo& info, int64_t blocks) { count += of_one(info) * blocks; };
  Params outside;
  for_each_param(outside, config, kinds, [&](const ParamInfo& info, Tensor&) { add(info, 1); });
  for (size_t k = 0; k < kinds.distinct().size(); ++k) {
    BlockParams block;
    const auto each = [&](const ParamInfo& info, Tensor&) { add(info, blocks_of[k]); };
    visit_block_weights(block, kinds.distinct()[k], 0, each);
    for (const LinearOfStage& linear : kinds.distinct()[k].linears)
      visit_adapter(linear, block, config.lora, prefix_of(0), 0, each);
  }
  return count;
}

}  // namespace

int64_t ModelConfig::parameters() const {
  return sum_of(*this, [&](const ParamInfo& info) { return info.shape.numel() - info.padding * channels; });
}

int64_t ModelConfig::active_parameters() const {
  return sum_of(*this, [&](const ParamInfo& info) { return active_of(info, *this); });
}

StoredAs StorageRule::of(const ParamPlace& place, const ModelConfig& model) const {
  const ParamInfo& info = place.info;
  const bool is_layer = info.decay && info.adapter == AdapterMatrix::kNone,
             is_tied = model.tied && info.name == kTokenTable;
  const bool multiplied =
      info.block >= 0
          ? config.has_block(info.block, model.layers) && info.linear && can_be_in_fp8(*info.linear)
          : config && config.head && (is_tied || info.part == ParamPart::kHead);
  const bool is_named =
      experts_only ? info.linear && info.linear->of_experts() : info.part != ParamPart::kRouter;
  if (is_layer && frozen_blocks && info.block >= 0 && !place.trained && is_named) return StoredAs::kOnly;
  if (!is_layer || !multiplied) return StoredAs::kNo;
  if (is_tied) return StoredAs::kCopied;
  if (!place.trained) return StoredAs::kOnly;
  // A training step also reads W_O in its dtype.
  const bool is_read = info.block >= 0 && bias_gradient_reads_out(model);
  return trained && !is_read ? StoredAs::kBeside : StoredAs::kCopied;
}

ParamLayout::ParamLayout(const ModelConfig& config, int64_t parts, const Freeze& freeze,
                         const StorageRule& storage)
    : kinds(config) {
  buckets.push_back({.name = config.tied ? "embeddings and final norm" : "embeddings"});
  for (int64_t l = 0; l < config.layers; ++l) buckets.push_back({.name = fmt::format("block {}", l)});
  if (!config.tied) {
    head = buckets.size();
    buckets.push_back({.name = "head and final norm"});
  }

  Params none;  // for_each_param() goes by its number of blocks
  none.blocks.resize(static_cast<size_t>(config.layers));
  for_each_param(none, config, kinds, [&](const ParamInfo& info, const Tensor&) {
    const size_t bucket = info.block >= 0                       ? bucket_of_block(info.block)
                          : info.part == ParamPart::kEmbeddings ? kTables
                                                                : head;
    places.push_back({info, bucket, 0, places.size(), !freeze.freezes(info)});
    places.back().stored = storage.of(places.back(), config);
  });
  const auto take = [&](auto&& takes) {
    for (ParamPlace& place : places) {
      if (!takes(place)) continue;
      ParamBucket& bucket = buckets[place.bucket];
      place.first = bucket.elements;
      bucket.elements += round_up(place.info.shape.numel(), kParamAlignment);
    }
  };
  const auto is_router = [](const ParamPlace& place) { return place.info.part == ParamPart::kRouter; };
  take([&](const ParamPlace& place) { return place.trained && place.info.decay && !is_router(place); });
  for (ParamBucket& bucket : buckets) bucket.matrices = bucket.elements;
  take([&](const ParamPlace& place) { return place.trained && place.info.decay && is_router(place); });
  for (ParamBucket& bucket : buckets) bucket.decayed = bucket.elements;
  take([](const ParamPlace& place) { return place.trained && !place.info.decay; });
  for (ParamBucket& bucket : buckets)
    bucket.trained = bucket.elements = round_up(bucket.elements, kParamAlignment * parts);
  take([](const ParamPlace& place) { return !place.trained && place.stored != StoredAs::kOnly; });
  for (ParamBucket& bucket : buckets)
    bucket.elements = bucket.trained + round_up(bucket.elements - bucket.trained, kParamAlignment * parts);
  place_stored(parts);
}

// What is beside trained elements lies as they do, so that a rank rounds its part of these.
void ParamLayout::place_stored(int64_t parts) {
  for (ParamPlace& place : places) {
    if (place.stored <= StoredAs::kCopied) continue;
    ParamBucket& bucket = buckets[place.bucket];
    bucket.stored = place.stored;
    if (place.stored == StoredAs::kBeside) {
      bucket.stored_elements = bucket.trained, place.stored_first = place.first;
      continue;
    }
    place.stored_first = bucket.stored_elements;
    bucket.stored_elements += round_up(place.info.shape.numel(), kParamAlignment);
  }
  for (ParamBucket& bucket : buckets)
    bucket.stored_elements = round_up(bucket.stored_elements, kParamAlignment * parts);
}

Tensor ParamLayout::view(const std::vector<Tensor>& all, const ParamPlace& place) const {
  return all[place.bucket].rows(place.first, place.info.shape.numel()).view(place.info.shape);
}

Params ParamLayout::params(const ModelConfig& config, std::vector<Tensor> all) const {
  Params params;
  params.blocks.resize(static_cast<size_t>(config.layers));
  auto place = places.begin();
  for_each_param(params, config, kinds, [&](const ParamInfo&, Tensor& tensor) {
    if (place->stored != StoredAs::kOnly) tensor = view(all, *place);
    ++place;
  });
  if (config.tied) params.tied_weight = params.token_table;
  params.buckets = std::move(all);
  return params;
}

int64_t ParamLayout::discarded_elements() const {
  int64_t most = 0;
  for (const ParamPlace& place : places)
    if (!place.trained && place.info.part == ParamPart::kNorms)
      most = std::max(most, round_up(place.info.shape.numel(), kParamAlignment));
  return 2 * most;  // an operation writes two vectors at most, to a half each
}

std::optional<ParamLayout::Adapter> ParamLayout::adapter_of(const ParamPlace& weight) const {
  if (!is_matrix_of_block(weight.info) || weight.info.adapter != AdapterMatrix::kNone) return {};
  const auto find = [&](AdapterMatrix matrix) {
    const auto found = std::ranges::find_if(places, [&](const ParamPlace& place) {
      return place.info.adapter == matrix && place.info.block == weight.info.block &&
             std::string_view(place.info.linear->name) == weight.info.linear->name;
    });
    return found == places.end() ? nullptr : &*found;
  };
  const Adapter found{.a = find(AdapterMatrix::kA), .b = find(AdapterMatrix::kB)};
  return found.a ? std::optional(found) : std::nullopt;
}

Grads ParamLayout::gradients(const ModelConfig& config, std::vector<Tensor> all,
                             const Tensor& discarded) const {
  Grads grads;
  grads.blocks.resize(static_cast<size_t>(config.layers));
  auto place = places.begin();
  int64_t half = 0;
  for_each_param(grads, config, kinds, [&](const ParamInfo& info, Tensor& tensor) {
    if (place->trained) {
      tensor = view(all, *place);
    } else if (info.part == ParamPart::kNorms) {
      tensor = discarded.rows(half * discarded.shape[0] / 2, info.shape.numel()).view(info.shape);
      half = 1 - half;
    }
    ++place;
  });
  if (config.tied) grads.tied_weight = grads.token_table;
  grads.buckets = std::move(all);
  return grads;
}

std::vector<Tensor> allocate_buckets(Arena& arena, MemoryTag tag, std::string_view kind, DType dtype,
                                     const ParamLayout& layout, int64_t parts) {
  std::vector<Tensor> buckets;
  for (const ParamBucket& bucket : layout.buckets)
    buckets.push_back(
        arena.alloc(tag, fmt::format("{} {}", kind, bucket.name), dtype, {bucket.elements / parts}));
  return buckets;
}

std::vector<Tensor> allocate_trained(Arena& arena, MemoryTag tag, std::string_view kind, DType dtype,
                                     const ParamLayout& layout, int64_t parts) {
  std::vector<Tensor> buckets;
  for (const ParamBucket& bucket : layout.buckets)
    buckets.push_back(bucket.trained == 0 ? Tensor{}
                                          : arena.alloc(tag, fmt::format("{} {}", kind, bucket.name), dtype,
                                                        {bucket.trained / parts}));
  return buckets;
}

int64_t frozen_parameters(const ModelConfig& config, const Freeze& freeze) {
  int64_t count = 0;
  for_each_frozen(config, freeze, [&](const ParamInfo&, int64_t elements) { count += elements; });
  return count;
}

double frozen_flops_per_token(const ModelConfig& config, const Freeze& freeze) {
  double flops = 0;
  for_each_frozen(config, freeze, [&](const ParamInfo& info, int64_t elements) {
    const bool looked_up = info.part == ParamPart::kEmbeddings && (!config.tied || info.name != kTokenTable);
    const int64_t active = info.linear && info.linear->of_experts() ? active_of(info, config) : elements;
    if (info.decay && !looked_up) flops += 2.0 * static_cast<double>(active);
  });
  return flops;
}

std::string frozen_text(const ModelConfig& config, const Freeze& freeze, BaseForm base,
                        bool base_of_experts) {
  const auto count = [](int64_t value) { return format_count(static_cast<double>(value)); };
  const char* const parts = base_of_experts ? "experts" : "matrices of blocks";
  if (config.lora)
    return fmt::format(
        "{}: {} parameters are trained, beside {} frozen{}", text_of(config.lora),
        count(config.parameters() - frozen_parameters(config, freeze)), count(config.base().parameters()),
        base == BaseForm::kNf4         ? fmt::format(", {} in NF4", parts)
        : base == BaseForm::kNf4Double ? fmt::format(", {} in NF4 with scales in 8 bits", parts)
        : base == BaseForm::kMxfp4     ? fmt::format(", {} in MXFP4", parts)
                                       : "");
  const bool classifier = config.tied && freeze.names(ParamPart::kEmbeddings);
  return fmt::format("{}: {} of {} parameters{}", text_of(freeze), count(frozen_parameters(config, freeze)),
                     count(config.parameters()),
                     classifier ? "; the classifier is the token table, so it is frozen, too" : "");
}

}  // namespace tessera
