#include "model/store/gradient_home.h"

#include "kernels/base/check.h"

namespace tessera {
namespace {

class WholeGradients final : public GradientHome {
 public:
  WholeGradients(const StoreSetting& setting, DType of_sums) : GradientHome(setting) {
    set_views(allocate_whole(setting.arena));
    for (const Tensor& bucket : views_.buckets)
      if (bucket) setting.stream.run(FillZero{bucket});
    if (setting.shards.optimizer() && of_sums != setting.dtype)
      allocate_parts(setting.arena, of_sums);
    else
      take_parts_of(views_.buckets);
    allocate_room(of_sums);
  }

 private:
  void close(size_t bucket) override {
    if (!micro_step_.last) return;
    reduce(views_.buckets[bucket], summed_[bucket]);
    reduce_over_replicas(summed_[bucket]);
  }
};

}  // namespace

std::unique_ptr<GradientHome> GradientHome::create(const StoreSetting& setting, const Place& place) {
  const bool in_fp32 = setting.sums_over_ranks() && place.reduce_in_fp32;
  const DType of_sums = in_fp32 ? DType::kF32 : setting.dtype;
  if (!setting.shards.gradients() && !place.host) return std::make_unique<WholeGradients>(setting, of_sums);
  return make_gradients_in_turn(setting, place, of_sums);
}

void GradientHome::set_views(std::vector<Tensor> buckets) {
  const int64_t discarded = setting_.layout.discarded_elements();
  const Tensor of_frozen_norms =
      discarded == 0 ? Tensor{}
                     : setting_.arena.alloc(MemoryTag::kGradients, "gradients of frozen norms",
                                            setting_.dtype, {discarded});
  views_ = setting_.layout.gradients(setting_.model, std::move(buckets), of_frozen_norms);
}

void GradientHome::allocate_parts(Arena& arena, DType dtype) {
  summed_ = allocate_trained(arena, MemoryTag::kGradients, "summed gradients", dtype, setting_.layout,
                             setting_.part.count);
  for (const Tensor& bucket : summed_)
    if (bucket) setting_.stream.run(FillZero{bucket});
}

void GradientHome::take_parts_of(const std::vector<Tensor>& whole) {
  for (const Tensor& bucket : whole) summed_.push_back(bucket ? setting_.part.of(bucket) : Tensor{});
}

void GradientHome::allocate_room(DType of_sums) {
  if (of_sums == setting_.dtype) return;
  int64_t largest = 0;
  for (const ParamBucket& bucket : setting_.layout.buckets) largest = std::max(largest, bucket.trained);
  room_ = setting_.arena.alloc(MemoryTag::kCommunication, "sums of gradients", DType::kF32, {largest});
}

// Those of a head of its own lie behind those of the tables: see tensors_of_norm().
std::vector<Tensor> GradientHome::allocate_whole(Arena& arena) const {
  const ParamLayout& layout = setting_.layout;
  const int64_t of_tables = layout.buckets[ParamLayout::kTables].trained,
                of_head = layout.head_is_tied() ? 0 : layout.buckets[layout.head].trained;
  const auto take = [&](const std::string& name, int64_t elements) {
    return elements == 0
               ? Tensor{}
               : arena.alloc(MemoryTag::kGradients, "gradients " + name, setting_.dtype, {elements});
  };
  const Tensor outside = take(of_head > 0 ? "outside the blocks" : layout.buckets[ParamLayout::kTables].name,
                              of_tables + of_head);
  std::vector<Tensor> buckets;
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const int64_t count = layout.buckets[b].trained;
    if (layout.is_block(b))
      buckets.push_back(take(layout.buckets[b].name, count));
    else
      buckets.push_back(count == 0 ? Tensor{}
                                   : outside.rows(b == ParamLayout::kTables ? 0 : of_tables, count));
  }
  return buckets;
}

// Whole gradients of tables and head are summed as one tensor: a partial sum of the norm may have some of
// both.
std::vector<Tensor> GradientHome::tensors_of_norm() const {
  std::vector<Tensor> tensors = summed_;
  if (!setting_.layout.head_is_tied() && !setting_.shards.optimizer()) {
    Tensor& outside = tensors[ParamLayout::kTables];
    const Tensor head = std::exchange(tensors[setting_.layout.head], {});
    if (!outside) {
      outside = head;
    } else if (head) {
      outside.shape = {outside.numel() + head.numel()};
    }
  }
  std::erase_if(tensors, [](const Tensor& bucket) { return !bucket; });
  return tensors;
}

void GradientHome::begin_micro_step(const MicroStep& micro_step) {
  micro_step_ = micro_step;
  std::ranges::fill(scopes_left_, 1);
  if (setting_.layout.head_is_tied())
    scopes_left_[setting_.layout.head] = 2;  // of the head, and of the tables
}

bool GradientHome::transfers(const MicroStep& micro_step) const {
  return setting_.sums_over_ranks() && (micro_step.first || micro_step.last);
}

void GradientHome::begin(size_t bucket) {
  check(scopes_left_[bucket] > 0,
        "gradients of {} begin twice in a micro-step: begin_micro_step() comes first",
        setting_.layout.buckets[bucket].name);
  if (views_.buckets[bucket]) open(bucket);
}

void GradientHome::end(size_t bucket) {
  if (--scopes_left_[bucket] == 0 && views_.buckets[bucket]) close(bucket);
}

void GradientHome::reduce(const Tensor& whole, const Tensor& part) {
  if (setting_.shards.optimizer())
    setting_.axis.reduce_scatter_sum({.whole = whole, .part = part, .sums = room_for(whole)});
  else if (setting_.axis.size() > 1)
    setting_.axis.all_reduce_sum({.tensor = whole, .sums = room_for(whole)});
}

// Parts that are summed in fp32 are in fp32. A replica of one rank has no parts, and no other use for the
// room.
void GradientHome::reduce_over_replicas(const Tensor& sums) {
  if (!setting_.replicas) return;
  setting_.replicas->follow(setting_.axis);
  setting_.replicas->all_reduce_sum(
      {.tensor = sums, .sums = sums.dtype == DType::kF32 ? Tensor{} : room_for(sums)});
}

}  // namespace tessera
