#include "train/session/train_state.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/init.h"

namespace tessera {
namespace {

Model make_model(Arena& arena, const RunShape& s, const DeviceTraits& device) {
  return {.config = s.model,
          .params = allocate_params(arena, MemoryTag::kWeights, "weights", s.dtype, s.model, s.parts()),
          .plan = choose_attention(
              {.kind = s.attention,
               .shape = {s.micro_batch, s.sequence_length, s.model.heads, s.model.head_dim()},
               .dtype = s.dtype,
               .device = device,
               .deterministic = s.deterministic}),
          .keep = s.keep,
          .classifier_chunk = s.classifier_chunk};
}

Tensor on_host(std::span<const int32_t> values, Shape shape) {
  return {const_cast<int32_t*>(values.data()), DType::kI32, shape, Device::kCpu};
}

// Kernels read and write rows of tables by these ids, and on a GPU nothing would stop them at the end of one.
void check_ids(const char* what, std::span<const int32_t> ids, int64_t vocab_size) {
  uint32_t largest = 0;  // negative ids are the largest
  for (const int32_t id : ids) largest = std::max(largest, static_cast<uint32_t>(id));
  if (largest < static_cast<uint64_t>(vocab_size)) return;
  const auto wrong = std::find(ids.begin(), ids.end(), static_cast<int32_t>(largest));
  fail(
      "{} {} (number {} of {}) is outside the model's vocabulary of {} tokens, 0 to {}. Set model.vocab_size "
      "to "
      "that of the tokenizer that made the data, or prepare the data again",
      what, *wrong, wrong - ids.begin() + 1, ids.size(), vocab_size, vocab_size - 1);
}

double mean(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

TrainState::TrainState(Backend& be, Arena& arena, const RunShape& shape, Communicator* comm)
    : stream_(be),
      arena_(arena),
      shape_(shape),
      alone_(comm ? nullptr : make_plan_communicator(be.device(), 0, 1)),
      comm_(comm ? comm : alone_.get()),
      model_(make_model(arena, shape, be.traits())),
      grads_(allocate_params(arena, MemoryTag::kGradients, "gradients", shape.dtype, shape.model,
                             shape.parts())),
      optimizer_(arena, shape.model, model_.params, shape.moments,
                 {.index = shape.parts() > 1 ? comm_->rank() : 0, .count = shape.parts()}) {
  check(comm_->size() == shape.ranks, "a run of {} ranks was given a communicator of {}", shape.ranks,
        comm_->size());
  const bool in_fp32 = shape.ranks > 1 && shape.reduce_in_fp32 && shape.dtype != DType::kF32;
  if (in_fp32 && shape.parts() > 1) {
    reduced_ = allocate_buckets(arena, MemoryTag::kGradients, "summed gradients", DType::kF32,
                                optimizer_.layout(), shape.parts());
  } else {
    for (const Tensor& bucket : grads_.buckets) reduced_.push_back(optimizer_.part().of(bucket));
  }
  if (in_fp32) {
    int64_t largest = 0;
    for (const Tensor& bucket : grads_.buckets) largest = std::max(largest, bucket.numel());
    sums_ = arena.alloc(MemoryTag::kCommunication, "sums of gradients", DType::kF32, {largest});
  }
  gathered_.resize(grads_.buckets.size());
  const Shape per_token{shape.micro_steps, shape.rows()};
  tokens_ = arena.alloc(MemoryTag::kData, "tokens", DType::kI32, per_token);
  targets_ = arena.alloc(MemoryTag::kData, "targets", DType::kI32, per_token);
  losses_ = arena.alloc(MemoryTag::kData, "losses", DType::kF32, per_token);
  const ModelConfig& model = shape.model;
  const int64_t workspace =
      workspace_bytes(be.device(), std::max(shape.rows(), model.context), model.channels,
                      std::max(3 * model.channels, model.mlp_width));  // of qkv, and of the MLP
  stream_ = Stream(be, arena.alloc(MemoryTag::kWorkspace, "kernel workspace", DType::kF32, {(workspace + 3) / 4}));
}

void TrainState::initialize(uint64_t seed) {
  optimizer_.clear(stream_);
  init_weights(shape_.model, seed, writer(Kept::kMaster));
}

Model TrainState::model_at(int64_t batch, int64_t tokens) const {
  Model model = model_;
  AttentionShape shape = model_.plan.shape;
  shape.batch = batch;
  shape.tokens = tokens;
  model.plan = choose_attention({.kind = model_.plan.kind,
                                 .shape = shape,
                                 .dtype = shape_.dtype,
                                 .device = stream_.backend().traits(),
                                 .deterministic = shape_.deterministic});
  return model;
}

bool TrainState::step(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                      const OptimizerConfig& config, double learning_rate, int64_t step,
                      const std::function<bool(int64_t)>& goes_on) {
  check_ids("token", tokens, shape_.model.vocab_size);
  check_ids("target", targets, shape_.model.vocab_size);
  stream_.run(Copy{on_host(tokens, tokens_.shape), tokens_});
  stream_.run(Copy{on_host(targets, targets_.shape), targets_});
  return compute_step(shape_.micro_steps, config, learning_rate, step, goes_on);
}

void TrainState::walk_step() { compute_step(1, {}, 0, 1, {}); }

bool TrainState::compute_step(int64_t micro_steps, const OptimizerConfig& config, double learning_rate,
                              int64_t step, const std::function<bool(int64_t)>& goes_on) {
  for (const Tensor& bucket : grads_.buckets) stream_.run(FillZero{bucket});
  const Shape batch_shape{shape_.micro_batch, shape_.sequence_length};
  const float gradient_scale = static_cast<float>(1.0 / static_cast<double>(shape_.tokens_per_step()));
  const auto bucket_of = [&](int64_t layer) {
    return layer < 0 || layer == shape_.model.layers ? ParamLayout::kOutside
                                                     : ParamLayout::bucket_of_block(layer);
  };
  const OnLayer await_weights = [&](int64_t layer) { comm_->wait_for(gathered_[bucket_of(layer)]); };
  // A tied token table has its gradient from both ends of the model: all outside the blocks waits for the
  // last.
  const OnLayer reduce = [&](int64_t layer) {
    if (layer < shape_.model.layers) reduce_gradients(bucket_of(layer));
  };
  for (int64_t m = 0; m < micro_steps; ++m) {
    Arena::Phase phase(arena_, "micro-batch", m + 1, Arena::Phase::kRecordFirstFew);
    const Batch batch{tokens_.rows(m, 1).view(batch_shape), targets_.rows(m, 1).view(batch_shape)};
    const bool last = m + 1 == micro_steps;
    train_batch(stream_, arena_, model_, batch, gradient_scale, losses_.rows(m, 1).view({shape_.rows()}), grads_,
                {.before_forward = m == 0 ? await_weights : OnLayer(),
                 .after_backward = last && shape_.ranks > 1 ? reduce : OnLayer()});
    if (goes_on && !goes_on(m + 1) && !last) return false;
  }
  comm_->wait();
  update_weights(config, learning_rate, step);
  return true;
}

void TrainState::reduce_gradients(size_t bucket) {
  const Tensor& whole = grads_.buckets[bucket];
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
  optimizer_.measure(stream_, reduced_);
  if (sharded) {
    const Tensor norms = optimizer_.grad_norms();
    comm_->all_gather({.part = optimizer_.part().of(norms), .whole = norms});
    comm_->wait();
  }
  for (size_t b = 0; b < reduced_.size(); ++b) {
    optimizer_.update(stream_, b, reduced_[b], config, learning_rate, step);
    const Tensor& weights = model_.params.buckets[b];
    if (sharded) comm_->all_gather({.part = optimizer_.part().of(weights), .whole = weights});
    gathered_[b] = comm_->begun();
  }
}

void TrainState::with_whole(Kept kept, size_t bucket, const std::function<void(const Tensor&)>& use) {
  const Tensor& mine = optimizer_.kept(kept)[bucket];
  comm_->wait();
  if (shape_.parts() == 1) return use(mine);
  if (kept == Kept::kMaster && shape_.dtype == DType::kF32) return use(model_.params.buckets[bucket]);
  Arena::Scope scope(arena_);
  const Tensor whole = arena_.alloc(MemoryTag::kCommunication, "gathered from all ranks", mine.dtype,
                                    {mine.numel() * shape_.parts()});
  comm_->all_gather({.part = mine, .whole = whole});
  comm_->wait();
  use(whole);
}

TrainState::StepResult TrainState::finish_step() {
  std::vector<float> losses(static_cast<size_t>(losses_.numel()));
  std::vector<float> norms(static_cast<size_t>(optimizer_.grad_norms().numel()));
  stream_.run(Copy{losses_, {losses.data(), DType::kF32, losses_.shape, Device::kCpu}});
  stream_.run(Copy{optimizer_.grad_norms(), {norms.data(), DType::kF32, optimizer_.grad_norms().shape, Device::kCpu}});
  stream_.synchronize();
  double squares = 0;
  for (const double norm : norms) squares += norm * norm;
  return {mean(losses), std::sqrt(squares)};
}

double TrainState::evaluate(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                            int64_t count) {
  check_ids("token", tokens, shape_.model.vocab_size);
  check_ids("target", targets, shape_.model.vocab_size);
  Arena::Phase phase(arena_, "batch", MemoryRecording::kNone, Arena::Phase::kRecordFirstFew);
  comm_->wait();
  const int64_t T = shape_.sequence_length, rows = count * T;
  const auto first_rows = [&](const Tensor& t) { return t.view({t.numel()}).rows(0, rows); };
  const Tensor device_tokens = first_rows(tokens_), device_targets = first_rows(targets_),
               device_losses = first_rows(losses_);
  stream_.run(Copy{on_host(tokens, {rows}), device_tokens});
  stream_.run(Copy{on_host(targets, {rows}), device_targets});
  evaluate_batch(stream_, arena_, model_at(count, T),
                 {device_tokens.view({count, T}), device_targets.view({count, T})}, device_losses);
  std::vector<float> losses(static_cast<size_t>(rows));
  stream_.run(Copy{device_losses, {losses.data(), DType::kF32, {rows}, Device::kCpu}});
  stream_.synchronize();
  return mean(losses);
}

std::vector<float> TrainState::next_token_logits(std::span<const int32_t> tokens) {
  check_ids("token", tokens, shape_.model.vocab_size);
  comm_->wait();
  Arena::Scope scope(arena_);
  Arena::Phase phase(arena_, "token", MemoryRecording::kNone, Arena::Phase::kRecordFirstFew);
  const int64_t T = static_cast<int64_t>(tokens.size());
  const Model model = model_at(1, T);
  const Tensor device_tokens = arena_.alloc(MemoryTag::kData, "prompt", DType::kI32, {1, T});
  stream_.run(Copy{on_host(tokens, {1, T}), device_tokens});
  const Saved saved = allocate_saved(arena_, shape_.model, model.plan, Keep::kNothing);
  forward(stream_, model, device_tokens, saved);
  const Shape logits_shape{1, shape_.model.padded_vocab()};
  const Tensor logits = arena_.alloc(MemoryTag::kActivations, "logits", shape_.dtype, logits_shape);
  logits_forward(stream_, model, saved.norm.rows(T - 1, 1), logits);
  std::vector<float> host(static_cast<size_t>(shape_.model.padded_vocab()));
  stream_.run(Copy{logits, {host.data(), DType::kF32, logits_shape, Device::kCpu}});
  stream_.synchronize();
  host.resize(static_cast<size_t>(shape_.model.vocab_size));
  return host;
}

MemoryPlan plan_stages(const RunShape& shape, const DeviceTraits& device) {
  const std::unique_ptr<Backend> be = make_plan_backend(device);
  Arena arena = Arena::plan(device.device);
  MemoryPlan plan;
  int64_t peak = 0;
  const auto stage_ended = [&](const char* stage) {
    if (arena.ledger().peak_bytes() > peak) plan.peak_stage = stage;
    peak = arena.ledger().peak_bytes();
  };
  const std::unique_ptr<Communicator> comm =
      make_plan_communicator(device.device, 0, static_cast<int>(shape.ranks));
  TrainState state(*be, arena, shape, comm.get());
  stage_ended("the setup");
  state.walk_step();
  stage_ended("a training step");
  state.evaluate({}, {}, shape.micro_batch);
  stage_ended("an evaluation");
  const int64_t longest = shape.sample_tokens > 0 ? shape.sample_tokens : shape.model.context;
  const std::vector<int32_t> prompt(static_cast<size_t>(longest));
  state.next_token_logits(prompt);
  stage_ended("a sample");
  for (const Kept kept : kAllKept)
    for (size_t b = 0; b < state.optimizer().layout().buckets.size(); ++b)
      state.with_whole(kept, b, [](const Tensor&) {});
  stage_ended("a checkpoint");
  plan.ledger = arena.ledger();
  return plan;
}

MemoryLedger plan_memory(const RunShape& shape, const DeviceTraits& device) {
  return plan_stages(shape, device).ledger;
}

}  // namespace tessera
