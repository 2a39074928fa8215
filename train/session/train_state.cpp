#include "train/session/train_state.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "train/session/mean_loss.h"
#include "train/session/token_ids.h"

namespace tessera {
namespace {

Tensor allocate_discarded(Arena& arena, const RunShape& shape, const ParamLayout& layout) {
  const int64_t elements = layout.discarded_elements();
  if (elements == 0) return {};
  return arena.alloc(MemoryTag::kGradients, "gradients of frozen norms", shape.dtype, {elements});
}

}  // namespace

TrainState::TrainState(Backend& be, Arena& arena, const RunShape& shape, Communicator* comm)
    : arena_(arena),
      shape_(shape),
      alone_(comm ? nullptr : make_plan_communicator(be.device(), 0, 1)),
      comm_(comm ? comm : alone_.get()),
      session_(be, arena, shape.session(), shape.parts(), shape.freeze),
      model_(session_.training_model(shape.keep)),
      fp8_(arena, model_,
           {.config = shape.fp8,
            .rows = shape.rows(),
            .logit_rows =
                shape.classifier_chunk > 0 ? std::min(shape.classifier_chunk, shape.rows()) : shape.rows(),
            .rank = comm_->rank(),
            .ranks = shape.ranks()}),
      discarded_(allocate_discarded(arena, shape, session_.layout())),
      grads_(session_.layout().gradients(
          shape.model,
          allocate_trained(arena, MemoryTag::kGradients, "gradients", shape.dtype, session_.layout()),
          discarded_)),
      optimizer_(arena, model_.params,
                 {.model = shape.model,
                  .rule = shape.rule,
                  .part = {.index = shape.parts() > 1 ? comm_->rank() : 0, .count = shape.parts()},
                  .freeze = shape.freeze}),
      host_(arena.is_plan() ? Arena::plan(Device::kCpu) : Arena::pinned(be.device())) {
  model_.fused_head = shape.fused_head;
  check(comm_->size() == shape.ranks(), "a run of {} ranks was given a communicator of {}", shape.ranks(),
        comm_->size());
  const bool in_fp32 = shape.ranks() > 1 && shape.reduce_in_fp32 && shape.dtype != DType::kF32;
  if (in_fp32 && shape.parts() > 1) {
    reduced_ = allocate_trained(arena, MemoryTag::kGradients, "summed gradients", DType::kF32,
                                optimizer_.layout(), shape.parts());
  } else {
    for (const Tensor& bucket : grads_.buckets)
      reduced_.push_back(bucket ? optimizer_.part().of(bucket) : Tensor{});
  }
  if (in_fp32) {
    int64_t largest = 0;
    for (const Tensor& bucket : grads_.buckets)
      if (bucket) largest = std::max(largest, bucket.numel());
    sums_ = arena.alloc(MemoryTag::kCommunication, "sums of gradients", DType::kF32, {largest});
  }
  for (const Tensor& bucket : grads_.buckets)
    if (bucket) stream().run(FillZero{bucket});
  gathered_.resize(grads_.buckets.size());
  const Shape per_token{shape.micro_steps, shape.rows()};
  const auto take = [&](const char* name, DType dtype, const Shape& of) {
    return arena.alloc(MemoryTag::kData, name, dtype, of);
  };
  tokens_ = {stream(), host_, take("tokens", DType::kI32, per_token)};
  targets_ = {stream(), host_, take("targets", DType::kI32, per_token)};
  if (shape.documents)
    documents_ = {stream(), host_, take("documents", DType::kI32, {shape.micro_steps, shape.rows(), 2})};
  losses_ = {stream(), host_, take("losses", DType::kF32, per_token)};
  norms_ = {stream(), host_, optimizer_.grad_norms()};
  gradient_scale_ = {stream(), host_, take("gradient scale", DType::kF32, {1})};
  set_counted(shape.tokens_per_step());
}

void TrainState::initialize(uint64_t seed, InitialOf which) {
  optimizer_.clear(stream());
  fp8_.forget();
  recorded_ = {};  // they have the scales of FP8 that were forgotten
  init_weights(shape_.model, seed,
               {.values = writer(),
                .normal =
                    [weights = session_.normal_writer(), masters = optimizer_.normal_writer(stream())](
                        const ParamPlace& place, const NormalValues& values) {
                      weights(place, values);
                      masters(place, values);
                    }},
               which);
}

ParamSink TrainState::writer(const std::string& name) {
  const ParamSink keep = optimizer_.writer(stream(), name);
  if (name != kMaster) return keep;
  return [this, weights = session_.writer(), keep](const ParamPlace& place, const Tensor& values) {
    weights(place, values);
    // Values that need no rounding are on the device by now.
    keep(place, values.dtype == shape_.dtype ? session_.weight(place) : values);
  };
}

Session& TrainState::session() {
  comm_->wait();
  return session_;
}

// As far as one rank can tell
void TrainState::check_counted(std::span<const int32_t> targets, int64_t counted_tokens) const {
  const int64_t mine = counted(targets), others = shape_.tokens_per_step() - shape_.tokens_per_rank();
  const int64_t least = std::max<int64_t>(mine, 1);
  check(least <= counted_tokens && counted_tokens <= mine + others,
        "counted_tokens is {}, wanted {} to {}: {} of this rank's {} targets count, and the other ranks have "
        "{} tokens",
        counted_tokens, least, mine + others, mine, targets.size(), others);
}

void TrainState::set_counted(int64_t counted_tokens) {
  counted_tokens_ = counted_tokens;
  const auto scale = static_cast<float>(1.0 / static_cast<double>(counted_tokens));
  gradient_scale_.send(std::span(&scale, 1));
}

bool TrainState::step(const SequencesView& sequences, int64_t counted_tokens, const OptimizerConfig& config,
                      double learning_rate, int64_t step, const std::function<bool(int64_t)>& continues) {
  std::vector<int32_t> room;
  const std::span<const int32_t> documents =
      checked_documents(sequences.documents, shape_.sequence_length, documents_.device(), room);
  check_ids(Ids::kTokens, sequences.tokens, shape_.model.vocab_size, tokens_.device());
  check_ids(Ids::kTargets, sequences.targets, shape_.model.vocab_size, targets_.device());
  check_counted(sequences.targets, counted_tokens);
  tokens_.send(sequences.tokens);
  targets_.send(sequences.targets);
  documents_.send(documents);
  if (counted_tokens != counted_tokens_) set_counted(counted_tokens);
  return compute_step(shape_.micro_steps, config, learning_rate, step, continues);
}

void TrainState::walk_step(int64_t micro_steps) { compute_step(micro_steps, {}, 0, 1, {}); }

bool TrainState::compute_step(int64_t micro_steps, const OptimizerConfig& config, double learning_rate,
                              int64_t step, const std::function<bool(int64_t)>& continues) {
  const auto bucket_of = [&](int64_t layer) {
    return layer < 0 || layer == shape_.model.layers ? ParamLayout::kOutside
                                                     : ParamLayout::bucket_of_block(layer);
  };
  const OnLayer await_weights = [&](int64_t layer) {
    comm_->wait_for(gathered_[bucket_of(layer)]);
    fp8_.quantise_weights(stream(), layer);
  };
  // A tied token table has its gradient from both ends of the model: all outside the blocks waits for the
  // last.
  const OnLayer reduce = [&](int64_t layer) {
    if (layer < shape_.model.layers) reduce_gradients(bucket_of(layer));
  };
  // Of this rank's sequences in the step
  const int64_t first = shape_.mesh.place(Axis::kData, rank()).rank * shape_.sequences_per_rank();
  const bool shared = shape_.ranks() > 1;
  const auto copy_row = [&](const Tensor& rows, int64_t from, int64_t to) {
    if (rows && from != to) stream().run(Copy{rows.rows(from, 1), rows.rows(to, 1)});
  };
  losses_.values(), norms_.values();  // of the step before, if nobody asked for them
  fp8_.begin_step(stream());
  for (int64_t layer = 0; !shared && layer <= shape_.model.layers; ++layer)
    fp8_.quantise_weights(stream(), layer);
  for (int64_t m = 0; m < micro_steps; ++m) {
    Arena::Phase phase(arena_, "micro-batch", m + 1, Arena::Phase::kRecordFirstFew);
    const bool last = m + 1 == micro_steps;
    for (const SentTensor* input : {&tokens_, &targets_, &documents_}) copy_row(input->device(), m, 0);
    run({.first = m == 0,
         .dropout = {.probabilities = shape_.model.dropout,
                     .key = dropout_key(shape_.seed, step),
                     .first_sequence = static_cast<uint32_t>(first + m * shape_.micro_batch)},
         .hooks = {.before_forward = shared && m == 0 ? await_weights : OnLayer(),
                   .after_backward = shared && last ? reduce : OnLayer()}});
    copy_row(losses_.device(), shape_.micro_steps - 1, m);
    keep_pace();
    if (continues && !continues(m + 1) && !last) return false;
  }
  losses_.start();
  comm_->wait();
  update_weights(config, learning_rate, step);
  stepped_ = true;
  return true;
}

// Recordings are enqueued at once. A host that waits for the micro-step before this one still stays ahead of
// the device, and can drop a step while it runs.
void TrainState::keep_pace() {
  if (arena_.is_plan() || shape_.micro_steps == 1) return;
  if (!enqueued_) {
    enqueued_ = make_timer(stream());
  } else {
    enqueued_->milliseconds();
  }
  enqueued_->start();
  enqueued_->stop();
}

void TrainState::compute(const MicroStep& micro_step) {
  const Shape shape{shape_.micro_batch, shape_.sequence_length};
  const Tensor &documents = documents_.device(), &losses = losses_.device();
  Batch batch{.tokens = tokens_.device().rows(0, 1).view(shape),
              .targets = targets_.device().rows(0, 1).view(shape)};
  if (documents) batch.documents = documents.rows(0, 1).view({shape[0], shape[1], 2});
  train_batch(stream(), arena_,
              {.model = model_,
               .batch = batch,
               .gradient_scale = gradient_scale_.device(),
               .losses = losses.rows(shape_.micro_steps - 1, 1).view({shape_.rows()}),
               .grads = grads_,
               .dropout = micro_step.dropout,
               .hooks = micro_step.hooks,
               .accumulate = !micro_step.first});
}

bool TrainState::can_record(const MicroStep& micro_step) const {
  return shape_.recorded && stepped_ && !micro_step.dropout.probabilities &&
         !micro_step.hooks.before_forward && !micro_step.hooks.after_backward && !arena_.ledger().recording();
}

// At a place where it has run before, a micro-step allocates nothing from the driver, and its libraries have
// loaded what they load at their first use: neither may happen while it is recorded.
void TrainState::run(const MicroStep& micro_step) {
  RecordedMicroStep& recorded = recorded_[micro_step.first ? 0 : 1];
  if (!can_record(micro_step) || recorded.place != arena_.place()) {
    recorded = {.operations = {}, .place = arena_.place()};
    return compute(micro_step);
  }
  if (!recorded.operations)
    recorded.operations = stream().backend().make_graph(
        stream().queue(), [this, first = micro_step.first] { compute({.first = first}); });
  recorded.operations->run();
}

void TrainState::reduce_gradients(size_t bucket) {
  const Tensor& whole = grads_.buckets[bucket];
  if (!whole) return;
  const Tensor sums = sums_ ? sums_.rows(0, whole.numel()) : Tensor{};
  if (shape_.parts() > 1) {
    comm_->reduce_scatter_sum({.whole = whole, .part = reduced_[bucket], .sums = sums});
  } else {
    comm_->all_reduce_sum({.tensor = whole, .sums = sums});
  }
}

void TrainState::update_weights(const OptimizerConfig& config, double learning_rate, int64_t step) {
  Arena::Phase phase(arena_, "optimizer");
  const bool sharded = shape_.parts() > 1;
  optimizer_.measure(stream(), reduced_);
  if (fp8_) {
    if (shape_.ranks() > 1) comm_->all_gather({.part = fp8_.own_amaxes(), .whole = fp8_.amaxes()});
    comm_->wait();
    fp8_.end_step(stream());
  }
  if (sharded) {
    const Tensor norms = optimizer_.grad_norms();
    comm_->all_gather({.part = optimizer_.part().of(norms), .whole = norms});
    comm_->wait();
  }
  norms_.start();
  std::vector<size_t> buckets(reduced_.size());
  std::iota(buckets.begin(), buckets.end(), size_t{0});
  if (!sharded) return optimizer_.update(stream(), buckets, reduced_, config, learning_rate, step);
  for (const size_t b : buckets) {  // one by one: a bucket is gathered while the next is updated
    optimizer_.update(stream(), {&b, 1}, reduced_, config, learning_rate, step);
    if (!reduced_[b]) continue;
    const Tensor weights = optimizer_.layout().trained(model_.params.buckets, b);
    comm_->all_gather({.part = optimizer_.part().of(weights), .whole = weights});
    gathered_[b] = comm_->started();
  }
}

void TrainState::with_whole(const std::string& name, size_t bucket,
                            const std::function<void(const Tensor&)>& use) {
  const Tensor& mine = optimizer_.kept(name, bucket);
  comm_->wait();
  if (!mine) return use(mine);
  if (shape_.parts() == 1) return use(mine);
  if (name == kMaster && shape_.dtype == DType::kF32)
    return use(optimizer_.layout().trained(model_.params.buckets, bucket));
  Arena::Scope scope(arena_);
  const Tensor whole = arena_.alloc(MemoryTag::kCommunication, "gathered from all ranks", mine.dtype,
                                    {mine.numel() * shape_.parts()});
  comm_->all_gather({.part = mine, .whole = whole});
  comm_->wait();
  use(whole);
}

TrainState::StepResult TrainState::finish_step() {
  const double counted_per_rank = static_cast<double>(counted_tokens_) / static_cast<double>(shape_.ranks()),
               loss = mean_loss(losses_.values(), counted_per_rank);
  double squares = 0;
  for (const float norm : norms_.values()) squares += static_cast<double>(norm) * norm;
  return {.loss = loss, .grad_norm = std::sqrt(squares)};
}

}  // namespace tessera
