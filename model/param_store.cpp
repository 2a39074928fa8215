#include "model/param_store.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/check.h"
#include "kernels/base/present.h"

namespace tessera {
namespace {

// Buffers for the blocks: see the header. Gradients that are fetched have one more.
constexpr size_t kWeightTurns = 2, kGradientTurns = 3;

// Of the trained matrices of a block before a place
int64_t rows_of_matrices(const ParamLayout& layout, size_t bucket, size_t before) {
  int64_t rows = 0;
  for (const ParamPlace& place : layout.places)
    if (place.bucket == bucket && place.index < before && place.trained && is_matrix_of_block(place.info))
      rows += place.info.shape[0];
  return rows;
}

// Between a value for each row, on any device, and one for each element, on the host
void spread_rows(const Stream& stream, const Tensor& rows, const Tensor& elements) {
  std::vector<float> values(static_cast<size_t>(rows.numel()));
  stream.run(Copy{rows, {.data = values.data(), .shape = rows.shape}});
  stream.synchronize();
  const int64_t columns = elements.numel() / rows.numel();
  for (int64_t row = 0; row < rows.numel(); ++row)
    std::fill_n(elements.as<float>() + row * columns, columns, values[static_cast<size_t>(row)]);
}
void take_rows(const Stream& stream, const Tensor& elements, const Tensor& rows) {
  std::vector<float> values;
  const int64_t columns = elements.numel() / rows.numel();
  for (int64_t row = 0; row < rows.numel(); ++row) values.push_back(elements.as<float>()[row * columns]);
  stream.run(Copy{{.data = values.data(), .shape = rows.shape}, rows});
  stream.synchronize();
}

}  // namespace

ParamStore::ParamStore(const Stream& stream, Arena& arena, const Shape& shape)
    : stream_(stream),
      arena_(arena),
      optimizer_arena_(&arena),
      shape_(shape),
      layout_(shape.model, shape.shards.parts, shape.freeze,
              {.config = shape.fp8, .trained = (shape.host || shape.shards.weights()) && !shape.freeze}),
      alone_(make_plan_communicator(stream.device(), 0, 1)),
      axis_(alone_.get()),
      gathers_(layout_.buckets.size()),
      scopes_left_(layout_.buckets.size()),
      leases_(layout_.buckets.size()) {
  const bool split = shape.shards.weights();
  if (shape.host || split) {
    check(split || shape.shards.parts == 1,
          "weights in host memory, of which {} ranks would have all: they have to split them",
          shape.shards.parts);
    own_ = allocate_buckets(shape.host ? *shape.host : arena, MemoryTag::kWeights, "weights", shape.dtype,
                            layout_, shape.shards.parts);
    if (shape.host) copies_ = stream.backend().make_copy_queue(stream.queue(), shape.poison);
    weight_turns_.emplace(arena, MemoryTag::kWeights, "gathered weights", shape.dtype, layout_,
                          &ParamBucket::elements, kWeightTurns);
    weights_ = layout_.params(shape.model, weight_turns_->views());
  } else {
    weights_ = layout_.params(shape.model,
                              allocate_buckets(arena, MemoryTag::kWeights, "weights", shape.dtype, layout_));
  }
  for (const Tensor& bucket : weight_turns_ ? own_ : weights_.buckets) stream_.run(FillZero{bucket});
  allocate_fp8();
}

void ParamStore::prepare_training(const Training& training) {
  if (training.axis) axis_ = training.axis;
  if (training.optimizer) optimizer_arena_ = training.optimizer;
  const bool split = shape_.shards.optimizer();
  part_ = {.index = split ? axis().rank() : 0, .count = split ? shape_.shards.parts : 1};
  check(!split || axis().size() == part_.count, "{} parts of the weights, and {} ranks to share them",
        part_.count, axis().size());
  fp8_.emplace(arena_, shape_.model, training.fp8);
  fp8_is_old_.assign(static_cast<size_t>(shape_.model.layers) + 1, true);
  if (!fp8_weights_.empty() && shape_.shards.weights() && !shape_.freeze)
    fp8_amaxes_ = arena_.alloc(MemoryTag::kWeights, "FP8 largest elements of weights", DType::kF32,
                               {part_.count, 1, std::ssize(fp8_weights_)});
  allocate_gradients(training);
}

void ParamStore::allocate_gradients(const Training& training) {
  const bool in_fp32 = axis().size() > 1 && training.reduce_in_fp32 && dtype() != DType::kF32;
  const DType of_sums = in_fp32 ? DType::kF32 : dtype();
  const int64_t discarded = layout_.discarded_elements();
  const Tensor of_frozen_norms =
      discarded == 0 ? Tensor{}
                     : arena_.alloc(MemoryTag::kGradients, "gradients of frozen norms", dtype(), {discarded});
  if (shape_.shards.gradients() || training.gradients) {
    allocate_gradient_turns(training, of_sums);
    gradients_ = layout_.gradients(shape_.model, present(gradient_turns_).views(), of_frozen_norms);
  } else {
    gradients_ = layout_.gradients(shape_.model, allocate_whole_gradients(arena_), of_frozen_norms);
    for (const Tensor& bucket : gradients_.buckets)
      if (bucket) stream_.run(FillZero{bucket});
  }
  allocate_sums(training, of_sums);
  if (in_fp32) {
    int64_t largest = 0;
    for (const ParamBucket& bucket : layout_.buckets) largest = std::max(largest, bucket.trained);
    sums_ = arena_.alloc(MemoryTag::kCommunication, "sums of gradients", DType::kF32, {largest});
  }
}

void ParamStore::allocate_gradient_turns(const Training& training, DType of_sums) {
  const bool split = shape_.shards.gradients(), on_host = training.gradients != nullptr;
  gradient_turns_.emplace(arena_, MemoryTag::kGradients, "gradients", dtype(), layout_, &ParamBucket::trained,
                          kGradientTurns + (on_host && !split && training.accumulates ? 1 : 0));
  if (on_host)
    gradient_copies_ = std::make_unique<HostCopies>(stream_, gradient_turns_->size(), training.poison);
  const auto room = [&](const char* name) {
    std::vector<Tensor> by_turn;
    for (size_t turn = 0; turn < gradient_turns_->size(); ++turn) {
      const int64_t largest = gradient_turns_->largest(turn) / part_.count;
      by_turn.push_back(largest == 0 ? Tensor{}
                                     : arena_.alloc(MemoryTag::kGradients, name, of_sums, {largest}));
    }
    return by_turn;
  };
  const bool apart = on_host && shape_.shards.optimizer() && of_sums != dtype();
  if (split ? on_host || training.accumulates : apart) added_ = room("sums of a micro-step");
  if (split && on_host && training.accumulates) fetched_ = room("sums of the micro-steps before");
}

// Whole ones on the host are accumulated there, and the sums over ranks replace them, unless these are apart:
// of another dtype, or all that is written.
void ParamStore::allocate_sums(const Training& training, DType of_sums) {
  const bool split = shape_.shards.gradients(), on_host = training.gradients != nullptr,
             parts_alone =
                 shape_.shards.optimizer() && (of_sums != dtype() || (on_host && !training.accumulates));
  if (on_host && !split && (training.accumulates || !parts_alone))
    accumulated_ = allocate_whole_gradients(*training.gradients);
  if (split || parts_alone) {
    summed_ = allocate(
        MemoryTag::kGradients, "summed gradients",
        {.dtype = of_sums, .where = on_host ? training.gradients : &arena_, .split = Split::kOverAxis});
    for (const Tensor& bucket : summed_)
      if (bucket) stream_.run(FillZero{bucket});
  } else {
    for (const Tensor& bucket : on_host ? accumulated_ : gradients_.buckets)
      summed_.push_back(bucket ? part_.of(bucket) : Tensor{});
  }
}

std::vector<Tensor> ParamStore::allocate(MemoryTag tag, const std::string& name,
                                         const Placement& placement) const {
  return allocate_trained(*placement.where, tag, name, placement.dtype, layout_,
                          placement.split == Split::kOverAxis ? part_.count : 1);
}

// Those of a head of its own lie behind those of the tables: see tensors_of_norm().
std::vector<Tensor> ParamStore::allocate_whole_gradients(Arena& arena) const {
  std::vector<Tensor> buckets;
  const int64_t of_tables = layout_.buckets[ParamLayout::kTables].trained,
                of_head = layout_.head_is_tied() ? 0 : layout_.buckets[layout_.head].trained;
  Tensor outside;
  for (size_t b = 0; b < layout_.buckets.size(); ++b) {
    const bool tables = b == ParamLayout::kTables, head = !tables && b == layout_.head;
    const int64_t count = layout_.buckets[b].trained;
    const auto take = [&](const std::string& name, int64_t elements) {
      return elements == 0 ? Tensor{}
                           : arena.alloc(MemoryTag::kGradients, "gradients " + name, dtype(), {elements});
    };
    if (tables)
      outside = take(of_head > 0 ? "outside the blocks" : layout_.buckets[b].name, of_tables + of_head);
    if (count == 0) {
      buckets.push_back({});
    } else if (tables || head) {
      buckets.push_back(outside.rows(head ? of_tables : 0, count));
    } else {
      buckets.push_back(take(layout_.buckets[b].name, count));
    }
  }
  return buckets;
}

// Whole gradients of tables and head are summed as one tensor: a partial sum of the norm may have some of
// both.
std::vector<Tensor> ParamStore::tensors_of_norm() const {
  std::vector<Tensor> tensors = summed_;
  if (!layout_.head_is_tied() && !shape_.shards.optimizer()) {
    Tensor& outside = tensors[ParamLayout::kTables];
    const Tensor head = std::exchange(tensors[layout_.head], {});
    if (!outside) {
      outside = head;
    } else if (head) {
      outside.shape = {outside.numel() + head.numel()};
    }
  }
  std::erase_if(tensors, [](const Tensor& bucket) { return !bucket; });
  return tensors;
}

size_t ParamStore::bucket_at(int64_t position) const {
  if (position == 0) return ParamLayout::kTables;
  return position == position_of_head() ? layout_.head : ParamLayout::bucket_of_block(position - 1);
}

WeightLease<TableParams> ParamStore::lease_tables(LeaseFor use) {
  make_whole(0, use);
  return {leases_[ParamLayout::kTables], weights_};
}

WeightLease<BlockParams> ParamStore::lease_block(size_t layer, LeaseFor use) {
  const auto number = static_cast<int64_t>(layer);
  make_whole(number + 1, use);
  // The first that the backward adds to: half a forward ahead, when those of the last one are written
  if (fetches_ahead_ && number == shape_.model.layers / 2) {
    fetches_ahead_ = false;
    for (const size_t bucket : {ParamLayout::bucket_of_block(shape_.model.layers - 1), layout_.head})
      fetch_gradients(bucket);
  }
  return {leases_[ParamLayout::bucket_of_block(number)], views_for(use).blocks[layer]};
}

WeightLease<HeadParams> ParamStore::lease_head(LeaseFor use) {
  make_whole(position_of_head(), use);
  return {leases_[layout_.head], views_for(use)};
}

// Makes a part of the model whole before its lease, with what it needs in FP8.
void ParamStore::make_whole(int64_t position, LeaseFor use) {
  const size_t bucket = bucket_at(position);
  if (weight_turns_)
    make_whole_in_turn(position, use);
  else if (gathers_[bucket] > 0)
    axis().wait_for(std::exchange(gathers_[bucket], 0));
  make_form(bucket, use);
  if (use != LeaseFor::kInference && position > 0) make_fp8(position - 1);
}

void ParamStore::make_whole_in_turn(int64_t position, LeaseFor use) {
  const size_t bucket = bucket_at(position);
  fetch(bucket, use);
  wait_for(present(weight_turns_).of(bucket));
  if (position != position_) moves_forward_ = position > position_ || position == 0;
  position_ = position;
  // The next one. Nothing but a forward reads the tables, and the last block is still in its buffer after it.
  const int64_t next = position + (moves_forward_ && position < position_of_head() ? 1 : -1);
  if (next < 1) return;
  const size_t tenant = present(weight_turns_).of(bucket_at(next)).bucket;
  if (tenant == Turns::kNobody || leases_[tenant] == 0) fetch(bucket_at(next), use);
}

// Starts to gather or to copy a bucket, unless it is in its buffer or on its way.
void ParamStore::fetch(size_t bucket, LeaseFor use) {
  Turns::Turn& turn = present(weight_turns_).of(bucket);
  const ParamBucket& sizes = layout_.buckets[bucket];
  const bool in_fp8 = use != LeaseFor::kInference && sizes.in_fp8 == InFp8::kBeside;
  if (turn.bucket == bucket && turn.in_fp8 == in_fp8) return;
  check(turn.bucket == Turns::kNobody || leases_[turn.bucket] == 0,
        "{} is asked for while {} is in use, whose buffer it needs", sizes.name,
        turn.bucket == Turns::kNobody ? "" : layout_.buckets[turn.bucket].name);
  const Tensor& whole = present(weight_turns_).views()[bucket];
  const bool split = shape_.shards.weights();
  if (!in_fp8 && !split) copy_from_host(own_[bucket], whole);
  if (!in_fp8 && split && sizes.trained > 0) gather(own_weights(bucket, true), whole.rows(0, sizes.trained));
  if (!in_fp8 && split && sizes.elements > sizes.trained)
    gather(own_weights(bucket, false), whole.rows(sizes.trained, sizes.elements - sizes.trained));
  if (in_fp8 || sizes.in_fp8 == InFp8::kAlone) fetch_fp8(bucket);
  turn = {.bucket = bucket, .in_fp8 = in_fp8, .transfers = split ? axis().started() : copies_->started()};
}

void ParamStore::gather(const Tensor& own, const Tensor& whole) {
  Tensor part = own;
  if (copies_) {  // a collective reads the device's memory alone
    part = part_.of(whole);
    copy_from_host(own, part);
    copies_->wait_for(copies_->started());
  }
  axis().all_gather({.part = part, .whole = whole});
}

void ParamStore::copy_from_host(const Tensor& own, const Tensor& to) {
  const Copy copy{.from = own, .to = to};
  copies_->start(std::span(&copy, 1));
}

void ParamStore::wait_for(const Turns::Turn& turn) {
  if (!shape_.shards.weights()) return copies_->wait_for(turn.transfers);
  axis().wait_for(turn.transfers);
}

// Until nothing reads or writes weights but the stream
void ParamStore::wait_for_weights() {
  axis().wait();
  if (copies_) copies_->wait_for(copies_->started());
}

const Tensor& ParamStore::whole_weights(size_t bucket) {
  if (weight_turns_) {
    fetch(bucket);
    wait_for(weight_turns_->of(bucket));
  } else {
    axis().wait();
  }
  make_form(bucket, LeaseFor::kInference);
  return weights_.buckets[bucket];
}

void ParamStore::make_fp8(int64_t layer) {
  const auto l = static_cast<size_t>(layer);
  if (!fp8_is_old_[l]) return;
  present(fp8_).quantise_weights(stream_, layer);
  fp8_is_old_[l] = false;
}

void ParamStore::begin_step() {
  round_trained_weights();
  for (int64_t layer = 0; layer <= shape_.model.layers; ++layer)
    if (layout_.buckets[bucket_at(layer + 1)].trained > 0) fp8_is_old_[static_cast<size_t>(layer)] = true;
  // A micro-step may be run from a CUDA graph, which should not make them again each time.
  for (int64_t layer = 0; axis().size() == 1 && !weight_turns_ && layer <= shape_.model.layers; ++layer)
    make_fp8(layer);
  // Sums of a step that was dropped
  for (size_t turn = 0; gradient_turns_ && turn < gradient_turns_->size(); ++turn)
    (*gradient_turns_)[turn].adds_to = Turns::kNobody;
  if (gradient_copies_) gradient_copies_->drop_fetches();
}

void ParamStore::begin_micro_step(const MicroStep& micro_step) {
  micro_step_ = micro_step;
  fetches_ahead_ = gradient_copies_ && accumulates_in_place(micro_step);
  std::ranges::fill(scopes_left_, 1);
  if (layout_.head_is_tied()) scopes_left_[layout_.head] = 2;  // of the head, and of the tables
}

bool ParamStore::accumulates_in_place(const MicroStep& micro_step) const {
  return !micro_step.first && !shape_.shards.gradients();
}

bool ParamStore::communicates(const MicroStep& micro_step) const {
  return copies_ || gradient_copies_ ||
         (axis().size() > 1 && (micro_step.first || micro_step.last || gradient_turns_ || weight_turns_));
}

GradientScope<TableParams> ParamStore::table_gradients() {
  begin_gradients(ParamLayout::kTables);
  return {*this, ParamLayout::kTables, gradients_};
}

GradientScope<BlockParams> ParamStore::block_gradients(size_t layer) {
  const size_t bucket = ParamLayout::bucket_of_block(static_cast<int64_t>(layer));
  begin_gradients(bucket);
  return {*this, bucket, gradients_.blocks[layer]};
}

GradientScope<HeadParams> ParamStore::head_gradients() {
  begin_gradients(layout_.head);
  return {*this, layout_.head, gradients_};
}

void ParamStore::begin_gradients(size_t bucket) {
  check(scopes_left_[bucket] > 0,
        "gradients of {} begin twice in a micro-step: begin_micro_step() comes first",
        layout_.buckets[bucket].name);
  if (!gradient_turns_) return;
  const size_t number = gradient_turns_->turn_of(bucket);
  if (accumulates_in_place(micro_step_)) {
    fetch_gradients(bucket);
    gradient_copies_->wait_for_fetch(number);
    // The next one of a backward, the block below or the tables, unless the head is still in their buffer
    const bool in_block = bucket > 0 && bucket <= static_cast<size_t>(shape_.model.layers);
    if (in_block && gradient_turns_->of(bucket - 1).bucket == Turns::kNobody) fetch_gradients(bucket - 1);
  } else if (gradients_.buckets[bucket] && (*gradient_turns_)[number].bucket != bucket) {
    take_gradient_turn(bucket);
    // What no backward writes is zero: the gaps between parameters, and gradients that are always 0.
    stream_.run(FillZero{gradients_.buckets[bucket]});
  }
}

// Starts to copy the gradients of the micro-steps before into their buffer, unless they are there: the
// tables, after the head that they are.
void ParamStore::fetch_gradients(size_t bucket) {
  const Tensor& whole = gradients_.buckets[bucket];
  if (!whole || present(gradient_turns_).of(bucket).bucket == bucket) return;
  take_gradient_turn(bucket);
  gradient_copies_->fetch(present(gradient_turns_).turn_of(bucket),
                          {.from = accumulated_[bucket], .to = whole});
}

void ParamStore::take_gradient_turn(size_t bucket) {
  const size_t number = present(gradient_turns_).turn_of(bucket);
  settle(number);
  // Of split gradients not the buffer is written, but its sums.
  if (gradient_copies_ && !shape_.shards.gradients()) gradient_copies_->wait_for_write(number);
  size_t& tenant = present(gradient_turns_)[number].bucket;
  check(tenant == Turns::kNobody,
        "gradients of {} begin while those of {} are in use, whose buffer they need",
        layout_.buckets[bucket].name, tenant == Turns::kNobody ? "" : layout_.buckets[tenant].name);
  tenant = bucket;
}

void ParamStore::end_gradients(size_t bucket) {
  const Tensor& whole = gradients_.buckets[bucket];
  if (--scopes_left_[bucket] > 0 || !whole) return;
  if (shape_.shards.gradients() || (micro_step_.last && axis().size() > 1)) return reduce(bucket);
  if (!gradient_copies_) return;
  gradient_copies_->write(present(gradient_turns_).turn_of(bucket),
                          {.from = whole, .to = accumulated_[bucket]});
  present(gradient_turns_).of(bucket).bucket = Turns::kNobody;
}

void ParamStore::reduce(size_t bucket) {
  if (gradient_turns_) return reduce_in_turn(bucket);
  const Tensor& whole = gradients_.buckets[bucket];
  const Tensor sums = sums_ ? sums_.rows(0, whole.numel()) : Tensor{};
  if (shape_.shards.optimizer())
    axis().reduce_scatter_sum({.whole = whole, .part = summed_[bucket], .sums = sums});
  else
    axis().all_reduce_sum({.tensor = whole, .sums = sums});
}

// The sums go to what is kept, unless they have to be added to it first, or it is on the host: see settle().
void ParamStore::reduce_in_turn(size_t bucket) {
  const Tensor& whole = gradients_.buckets[bucket];
  const Tensor& kept = summed_[bucket];
  const Tensor sums = sums_ ? sums_.rows(0, whole.numel()) : Tensor{};
  const size_t number = present(gradient_turns_).turn_of(bucket);
  const bool adds = shape_.shards.gradients() && !micro_step_.first;
  if (gradient_copies_) gradient_copies_->wait_for_write(number);
  if (shape_.shards.optimizer())
    axis().reduce_scatter_sum(
        {.whole = whole, .part = adds || gradient_copies_ ? sums_in_turn(bucket) : kept, .sums = sums});
  else
    axis().all_reduce_sum({.tensor = whole, .sums = sums});
  if (adds && gradient_copies_)
    gradient_copies_->fetch(number, {.from = kept, .to = fetched_[number].rows(0, kept.numel())});
  present(gradient_turns_)[number] = {.bucket = Turns::kNobody,
                                      .transfers = axis().started(),
                                      .adds_to = adds || gradient_copies_ ? bucket : Turns::kNobody};
}

// Where the sums over ranks of this rank's part are before they are added or written
Tensor ParamStore::sums_in_turn(size_t bucket) const {
  return added_.empty() ? part_.of(gradients_.buckets[bucket])
                        : added_[present(gradient_turns_).turn_of(bucket)].rows(0, summed_[bucket].numel());
}

// Frees a buffer of gradients: waits for the sums of its last bucket, adds them, and has them written.
void ParamStore::settle(size_t number) {
  Turns::Turn& turn = present(gradient_turns_)[number];
  axis().wait_for(turn.transfers);
  const size_t bucket = std::exchange(turn.adds_to, Turns::kNobody);
  if (bucket == Turns::kNobody) return;
  const Tensor &kept = summed_[bucket], sums = sums_in_turn(bucket);
  if (!gradient_copies_) return stream_.run(Accumulate{.x = sums, .y = kept});
  if (!gradient_copies_->wait_for_fetch(number))
    return gradient_copies_->write(number, {.from = sums, .to = kept});
  const Tensor all = fetched_[number].rows(0, kept.numel());
  stream_.run(Accumulate{.x = sums, .y = all});
  gradient_copies_->write(number, {.from = all, .to = kept});
}

void ParamStore::wait_for_gradients() {
  for (size_t turn = 0; gradient_turns_ && turn < gradient_turns_->size(); ++turn) settle(turn);
  axis().wait();
  if (gradient_copies_) gradient_copies_->wait_for_writes();
}

void ParamStore::keep_masters() {
  Kept masters{.name = kMaster, .buckets = {}};
  if (dtype() == DType::kF32)
    for (size_t b = 0; b < layout_.buckets.size(); ++b) masters.buckets.push_back(updated_weights(b));
  else
    masters.buckets = allocate_kept("lower bits of masters", DType::kU16);
  kept_.push_back(std::move(masters));
}

void ParamStore::keep(const std::string& name, DType dtype, StateOf of) {
  std::string words = name;  // "first moment block 3"
  std::ranges::replace(words, '_', ' ');
  kept_.push_back({.name = name, .buckets = allocate_kept(words, dtype, of), .of = of});
}

// The elements without weight decay are the last of a bucket: all of them, or as many as a part has.
std::vector<Tensor> ParamStore::allocate_kept(const std::string& words, DType dtype, StateOf of) const {
  Arena* where = of == StateOf::kRows ? &arena_ : optimizer_arena_;  // ranks send rows to each other
  std::vector<Tensor> buckets;
  for (size_t b = 0; b < layout_.buckets.size(); ++b) {
    const ParamBucket& bucket = layout_.buckets[b];
    int64_t count = part_elements(b);
    if (of == StateOf::kOthers && layout_.is_block(b)) count = std::min(count, bucket.vectors());
    if (of == StateOf::kRows) count = rows_of_matrices(layout_, b, layout_.places.size());
    buckets.push_back(count == 0 ? Tensor{}
                                 : where->alloc(MemoryTag::kOptimizer,
                                                fmt::format("{} {}", words, bucket.name), dtype, {count}));
  }
  return buckets;
}

int64_t ParamStore::first_row(const ParamPlace& matrix) const {
  return rows_of_matrices(layout_, matrix.bucket, matrix.index);
}

StateOf ParamStore::kept_of(const std::string& name) const {
  const auto found = std::ranges::find(kept_, name, &Kept::name);
  return found == kept_.end() ? StateOf::kAll : found->of;
}

int64_t ParamStore::kept_from(const Tensor& kept, size_t bucket) const {
  return (part_.index + 1) * part_elements(bucket) - kept.numel();
}

std::vector<std::string> ParamStore::kept_names() const {
  std::vector<std::string> names;
  for (const Kept& one : kept_) names.push_back(one.name);
  return names;
}

const Tensor& ParamStore::kept(const std::string& name, size_t bucket) const {
  const auto found = std::ranges::find(kept_, name, &Kept::name);
  check(found != kept_.end(), "the optimizer keeps no \"{}\"", name);
  return found->buckets[bucket];
}

void ParamStore::clear_kept() {
  for (const Kept& one : kept_)
    for (const Tensor& bucket : one.buckets)
      if (bucket) stream_.run(FillZero{bucket});
}

Tensor ParamStore::updated_weights(size_t bucket) const {
  if (layout_.buckets[bucket].trained == 0) return {};
  return weight_turns_ ? own_weights(bucket, /*trained=*/true)
                       : part_.of(layout_.trained(weights_.buckets, bucket));
}

void ParamStore::begin_update() {
  const int64_t leases = std::accumulate(leases_.begin(), leases_.end(), int64_t{0});
  check(leases == 0,
        "the optimizer updates weights, and {} leases of them live: a forward or a decoder has to end first",
        leases);
  if (!weight_turns_) return;
  wait_for_weights();  // a transfer may still read the parts
  weight_turns_->forget();
}

void ParamStore::end_update(size_t bucket) {
  if (!shape_.shards.optimizer() || weight_turns_ || layout_.buckets[bucket].trained == 0) return;
  axis().all_gather({.part = updated_weights(bucket), .whole = layout_.trained(weights_.buckets, bucket)});
  gathers_[bucket] = axis().started();
}

// This rank's part of the trained weights of a bucket, or of the frozen ones
Tensor ParamStore::own_weights(size_t bucket, bool trained) const {
  const ParamBucket& sizes = layout_.buckets[bucket];
  const int64_t parts = shape_.shards.parts, each = sizes.trained / parts;
  return trained ? own_[bucket].rows(0, each)
                 : own_[bucket].rows(each, (sizes.elements - sizes.trained) / parts);
}

// Of `own`, whose first element is the one at `begins` in the bucket
ParamStore::Slice ParamStore::slice_of(const Tensor& own, int64_t begins, const ParamPlace& place,
                                       Range range) const {
  const int64_t first = std::max(place.first + range.first, begins),
                end = std::min(place.first + range.end, begins + own.shape[0]);
  if (first >= end) return {};
  return {.first = first - place.first, .own = own.rows(first - begins, end - first)};
}

ParamStore::Slice ParamStore::kept_slice(const std::string& name, const ParamPlace& place,
                                         Range range) const {
  const Tensor& mine = kept(name, place.bucket);
  return mine ? slice_of(mine, kept_from(mine, place.bucket), place, range) : Slice{};
}

bool ParamStore::has_low_bits(const ParamPlace& place) const {
  return dtype() != DType::kF32 && !kept_.empty() && place.trained;
}

ParamStore::Slice ParamStore::weight_slice(const ParamPlace& place, Range range) const {
  if (!weight_turns_) return slice_of(weights_.buckets[place.bucket], 0, place, range);
  const Tensor own = own_weights(place.bucket, place.trained);
  const int64_t begins =
      (place.trained ? 0 : layout_.buckets[place.bucket].trained) + part_.index * own.shape[0];
  return slice_of(own, begins, place, range);
}

// Cut where this rank's part of the lower bits begins and ends
std::vector<ParamStore::WeightSlice> ParamStore::weight_slices(const ParamPlace& place, Range range) const {
  const auto [first, weights] = weight_slice(place, range);
  if (!weights) return {};
  const Slice low = has_low_bits(place) ? kept_slice(kMaster, place, range) : Slice{};
  const int64_t count = weights.shape[0], low_begins = low.own ? low.first - first : count,
                low_ends = low.own ? low_begins + low.own.shape[0] : count;
  std::vector<WeightSlice> slices;
  const auto add = [&](int64_t from, int64_t to, const Tensor& bits) {
    if (from < to)
      slices.push_back({.first = first + from, .own = weights.rows(from, to - from), .low = bits});
  };
  add(0, low_begins, {}), add(low_begins, low_ends, low.own), add(low_ends, count, {});
  return slices;
}

// Before values come from outside of a run
void ParamStore::begin_writing() {
  wait_for_weights();
  fp8_is_old_.assign(fp8_is_old_.size(), true);
  if (weight_turns_) weight_turns_->forget();
}

void ParamStore::write_weights(const ParamPlace& given, const Tensor& values) {
  const ParamPlace& place = layout_.places[given.index];
  if (place.in_fp8 == InFp8::kAlone)
    return write_fp8(place, [&](const Tensor& whole) { stream_.run(Copy{values, whole}); });
  const bool split = dtype() != DType::kF32 && values.dtype == DType::kF32;
  for (const auto& [first, own, low] : weight_slices(place, {0, values.numel()})) {
    const Tensor from = values.view({values.numel()}).rows(first, own.shape[0]);
    if (split) {
      stream_.run(SplitMasters{.masters = from, .weights = own, .low = low});
    } else {
      stream_.run(Copy{from, own});
      if (low) stream_.run(FillZero{low});
    }
  }
  stream_.synchronize();
}

void ParamStore::write_kept(const std::string& name, const ParamPlace& given, const Tensor& values) {
  const ParamPlace& place = layout_.places[given.index];
  if (!place.trained) return;
  if (kept_of(name) == StateOf::kRows)
    return take_rows(stream_, values, kept(name, place.bucket).rows(first_row(place), place.info.shape[0]));
  const Slice slice = kept_slice(name, place, {0, values.numel()});
  if (!slice.own) return;
  stream_.run(Copy{values.view({values.numel()}).rows(slice.first, slice.own.shape[0]), slice.own});
  stream_.synchronize();
}

ParamSink ParamStore::writer(const std::string& name) {
  if (name == kMaster)
    return [this](const ParamPlace& place, const Tensor& values) {
      begin_writing();
      write_weights(place, values);
    };
  return [this, name](const ParamPlace& place, const Tensor& values) { write_kept(name, place, values); };
}

// FP8 values are made from whole parameters: their scale is of all values.
bool ParamStore::keeps(const std::string& name, const ParamPlace& given) const {
  const ParamPlace& place = layout_.places[given.index];
  const Range all{0, place.info.shape.numel()};
  if (name == kMaster) return place.in_fp8 == InFp8::kAlone || weight_slice(place, all).own;
  if (kept_of(name) == StateOf::kRows) return place.trained && is_matrix_of_block(place.info);
  return place.trained && kept_slice(name, place, all).own;
}

NormalSink ParamStore::normal_writer() {
  return [this](const ParamPlace& given, const NormalValues& values) {
    begin_writing();
    const ParamPlace& place = layout_.places[given.index];
    if (place.in_fp8 == InFp8::kAlone)
      return write_fp8(place, [&](const Tensor& whole) {
        const Tensor all = whole.view({whole.numel()});
        stream_.run(FillZero{all});
        stream_.run(values.to(all.rows(0, values.count), {}, 0));
      });
    for (const auto& [first, own, low] : weight_slices(place, {0, values.count}))
      stream_.run(values.to(own, low, first));
    for (const auto& [first, own, low] : weight_slices(place, {values.count, place.info.shape.numel()}))
      for (const Tensor& padding : {own, low})
        if (padding) stream_.run(FillZero{padding});
  };
}

void ParamStore::with_whole(const std::string& name, size_t bucket,
                            const std::function<void(const ParamReader&)>& use) {
  if (kept_of(name) == StateOf::kRows)
    return use([&](const ParamPlace& given, const Tensor& to) {
      const ParamPlace& place = layout_.places[given.index];
      spread_rows(stream_, kept(name, bucket).rows(first_row(place), place.info.shape[0]), to);
    });
  const bool masters = name == kMaster, of_weights = masters || name == kWeight,
             keeps = masters ? dtype() != DType::kF32 : !of_weights;
  const Tensor weights = of_weights ? whole_weights(bucket) : Tensor{};
  Arena::Scope scope(arena_);
  const Tensor whole = keeps ? gathered(kept(name, bucket)) : Tensor{};
  const int64_t missing = whole ? layout_.buckets[bucket].trained - whole.numel() : 0;  // before its first
  use([&](const ParamPlace& given, const Tensor& to) {
    const ParamPlace& place = layout_.places[given.index];
    const auto of_place = [&](const Tensor& all) {
      return all.rows(place.first - missing, place.info.shape.numel());
    };
    if (masters && keeps && place.trained)
      stream_.run(JoinMasters{.weights = of_place(weights), .low = of_place(whole), .masters = to});
    else
      stream_.run(Copy{of_weights ? whole_weight(place) : of_place(whole), to});
  });
}

// From this rank's part of what is kept all of it, in the caller's scope of the arena
Tensor ParamStore::gathered(const Tensor& mine) {
  axis().wait();
  if (!mine || !shape_.shards.optimizer()) return mine;
  const Tensor whole = arena_.alloc(MemoryTag::kCommunication, "gathered from all ranks", mine.dtype,
                                    {mine.numel() * part_.count});
  const Tensor part = part_.of(whole);  // a collective reads the device's memory alone
  stream_.run(Copy{mine, part});
  axis().all_gather({.part = part, .whole = whole});
  axis().wait();
  return whole;
}

const Params& ParamStore::weights() {
  check(!weight_turns_, "the weights take turns on the device: this rank has one of {} parts{}", part_.count,
        shape_.host ? ", in host memory" : "");
  check(!other_form_, "some weights have FP8 values alone");
  axis().wait();
  return weights_;
}

Tensor ParamStore::weight(const ParamPlace& place) {
  return layout_.view(weights().buckets, layout_.places[place.index]);
}

std::string ParamStore::name_at(const void* address) {
  const auto* byte = static_cast<const char*>(address);
  const auto find = [&](const std::vector<Tensor>& buckets,
                        std::optional<Turns>& turns) -> const ParamPlace* {
    for (size_t b = 0; b < buckets.size(); ++b) {
      const auto* first = buckets[b].as<char>();
      if (!first || byte < first || byte >= first + buckets[b].bytes()) continue;
      if (turns && turns->of(b).bucket != b) continue;
      const int64_t element = (byte - first) / static_cast<int64_t>(size_of(buckets[b].dtype));
      for (const ParamPlace& place : layout_.places)
        if (place.bucket == b && place.first <= element && element < place.first + place.info.shape.numel())
          return &place;
    }
    return nullptr;
  };
  if (const ParamPlace* weight = find(weights_.buckets, weight_turns_)) return weight->info.name;
  const ParamPlace* gradient = find(gradients_.buckets, gradient_turns_);
  return gradient ? "the gradient of " + gradient->info.name : "";
}

const Grads& ParamStore::gradients() const {
  check(!gradient_copies_, "the gradients lie in host memory, and take turns on the device");
  check(!gradient_turns_, "the gradients are split into {} parts, and this rank has one of them",
        part_.count);
  return gradients_;
}

}  // namespace tessera
