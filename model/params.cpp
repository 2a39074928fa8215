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

// "blocks.3.attention.qkv" of the names of its weight, bias and adapter
std::string_view layer_of(const ParamInfo& info) {
  return std::string_view(info.name).substr(0, info.name.rfind('.'));
}

}  // namespace

int64_t ModelConfig::parameters() const {
  Params none;
  none.blocks.resize(1);  // all blocks are alike, and every step asks
  int64_t count = 0;
  for_each_param(none, *this, [&](const ParamInfo& info, const Tensor&) {
    count += (info.shape.numel() - info.padding * channels) * (info.block < 0 ? 1 : layers);
  });
  return count;
}

double ModelConfig::attention_span(double T) const {
  double sum = 0;
  for (const auto& [size, blocks] : window.counts(layers)) {
    const auto w = static_cast<double>(size);
    const bool sees_all = size == Windows::kFull || w >= T;
    sum += static_cast<double>(blocks) * (sees_all ? T : 2 * w - 1 - w * (w - 1) / T);
  }
  return sum / static_cast<double>(layers);
}

double ModelConfig::flops_of_span(double attention_span) const {
  const int64_t looked_up = tied ? 0 : vocab_size * channels;
  return 6.0 * static_cast<double>(parameters() - looked_up) +
         6.0 * static_cast<double>(layers * attention_width()) * attention_span;
}

StoredAs StorageRule::of(const ParamPlace& place, const ModelConfig& model) const {
  const ParamInfo& info = place.info;
  const bool is_layer = info.decay && info.adapter == AdapterMatrix::kNone,
             is_tied = model.tied && info.name == kTokenTable;
  const bool multiplied = info.block >= 0
                              ? config.has_block(info.block, model.layers)
                              : config && config.head && (is_tied || info.part == ParamPart::kHead);
  if (!is_layer || !multiplied) return StoredAs::kNo;
  if (is_tied) return StoredAs::kCopied;
  if (!place.trained) return StoredAs::kOnly;
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
  for_each_param(none, config, [&](const ParamInfo& info, const Tensor&) {
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
  take([](const ParamPlace& place) { return place.trained && place.info.decay; });
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
  for_each_param(params, config, [&](const ParamInfo&, Tensor& tensor) {
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
  if (!weight.info.decay || weight.info.adapter != AdapterMatrix::kNone) return {};
  const auto find = [&](AdapterMatrix matrix) {
    const auto found = std::ranges::find_if(places, [&](const ParamPlace& place) {
      return place.info.adapter == matrix && layer_of(place.info) == layer_of(weight.info);
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
  for_each_param(grads, config, [&](const ParamInfo& info, Tensor& tensor) {
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
    if (info.decay && !looked_up) flops += 2.0 * static_cast<double>(elements);
  });
  return flops;
}

std::string frozen_text(const ModelConfig& config, const Freeze& freeze) {
  const auto count = [](int64_t value) { return format_count(static_cast<double>(value)); };
  if (config.lora)
    return fmt::format("{}: {} parameters are trained, beside {} frozen", text_of(config.lora),
                       count(config.parameters() - frozen_parameters(config, freeze)),
                       count(config.base().parameters()));
  const bool classifier = config.tied && freeze.names(ParamPart::kEmbeddings);
  return fmt::format("{}: {} of {} parameters{}", text_of(freeze), count(frozen_parameters(config, freeze)),
                     count(config.parameters()),
                     classifier ? "; the classifier is the token table, so it is frozen, too" : "");
}

}  // namespace tessera
