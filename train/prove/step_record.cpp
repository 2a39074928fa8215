#include "train/prove/step_record.h"

#include <algorithm>
#include <set>

#include "kernels/base/checksum.h"
#include "kernels/base/signals.h"
#include "train/session/device.h"
#include "train/session/memory_plan.h"

namespace tessera {
namespace {

// Elements of attention outputs that are kept of a step; of longer ones every n-th row
constexpr int64_t kKeptElements = int64_t{1} << 26;

// Fills a StepRecord while the backend runs a step
class StepWatch final : public OpObserver {
 public:
  StepWatch(const StepJob& job, Backend& be, StepRecord& record) : job_(job), be_(be), record_(record) {
    const RunShape& s = job.shape;
    const int64_t all =
        s.model.layers * s.sequences_per_rank() * s.sequence_length * s.model.attention_width();
    every_ = (all + kKeptElements - 1) / kKeptElements;
    if (job.sees_attention) {
      record.attention.resize(static_cast<size_t>(s.model.layers));
      record.lse.resize(record.attention.size());
    }
    be.add_observer(*this);
  }
  ~StepWatch() override { be_.remove_observer(*this); }
  StepWatch(const StepWatch&) = delete;

  void before(const AnyOp& op, Backend& be, const Launch& on) override {
    if (const int number = stop_signal()) fail("stopped by {}; nothing was written", name_of_signal(number));
    if (const auto* backward = std::get_if<const AttentionBackward*>(&op); backward && job_.rows)
      job_.rows->before_backward(be.place().block, be.place().micro_batch * job_.shape.micro_batch,
                                 **backward, be, on);
  }
  void after(const AnyOp& op, Backend& be, const Launch& on) override {
    const OpPlace& at = be.place();
    const int64_t first = at.micro_batch * job_.shape.micro_batch;  // sequence
    if (const auto* forward = std::get_if<const AttentionForward*>(&op)) {
      // Where it runs again it is not asked, and neither are a reference and a teacher, which run later.
      if (!at.backward && at.block < job_.shape.model.layers && seen_.insert({at.block, first}).second)
        take(at.block, first, **forward, be, on);
    } else if (const auto* backward = std::get_if<const AttentionBackward*>(&op)) {
      if (job_.rows) job_.rows->after_backward(at.block, first, **backward, be, on);
    } else if (const auto* loss = std::get_if<const CrossEntropy*>(&op)) {
      take_all((*loss)->losses, record_.losses, be, on);
    } else if (const auto* fused = std::get_if<const HeadLoss*>(&op)) {
      take_all((*fused)->losses, record_.losses, be, on);
    }
  }

 private:
  void take(int64_t block, int64_t first, const AttentionForward& op, Backend& be, const Launch& on) {
    if (job_.rows) job_.rows->forward(block, first, op, be, on);
    if (!job_.sees_attention) return;
    const Tensor& y = op.y.tensor;
    const std::shared_ptr<const float[]> values = memory_.read(y, be, on);
    memory_.forget();
    if (op.plan.kind != AttentionKind::kNaive)
      take_all(op.saved, record_.lse[static_cast<size_t>(block)], be, on);
    const int64_t rows = y.shape[0] * y.shape[1], width = y.numel() / rows;
    std::vector<float>& kept = record_.attention[static_cast<size_t>(block)];
    for (int64_t n = 0; n < rows; ++n)
      if ((first * job_.shape.sequence_length + n) % every_ == 0)
        kept.insert(kept.end(), &values[n * width], &values[n * width] + width);
  }
  void take_all(const Tensor& tensor, std::vector<float>& to, Backend& be, const Launch& on) {
    const std::shared_ptr<const float[]> values = memory_.read(tensor, be, on);
    memory_.forget();
    to.insert(to.end(), values.get(), values.get() + tensor.numel());
  }

  const StepJob& job_;
  Backend& be_;
  StepRecord& record_;
  HostMemory memory_;
  std::set<std::pair<int64_t, int64_t>> seen_;  // blocks, and the first sequences of micro-batches
  int64_t every_;
};

}  // namespace

StepRunner::StepRunner(Backend& be, const RunShape& shape, const StepAxes& axes)
    : be_(be), arena_(make_arena(be.traits())) {
  arena_.reserve(plan_memory(shape, be.traits()).peak_bytes());
  state_ = std::make_unique<TrainState>(be, arena_, shape, axes);
}

StepRecord StepRunner::step(const StepJob& job, int64_t number) {
  StepRecord record;
  {
    StepWatch watch(job, be_, record);
    state_->step(job.sequences, job.counted, job.optimizer, job.learning_rate, number);
    const TrainState::StepResult result = state_->finish_step();
    record.loss = result.loss, record.grad_norm = result.grad_norm;
    if (job.shape.loss.pairs || record.losses.empty()) record.losses = {static_cast<float>(result.loss)};
  }
  HostMemory own;
  if (job.sees_gradients) record.gradients = gradients_of(*state_, job.memory ? *job.memory : own);
  return record;
}

std::vector<ParamValues> gradients_of(TrainState& state, HostMemory& memory) {
  ParamStore& store = state.store();
  const Part part = store.part();
  std::vector<ParamValues> all;
  const std::vector<Tensor>& buckets = store.gradient_home().summed();
  for (size_t b = 0; b < buckets.size(); ++b) {
    if (!buckets[b]) continue;
    const int64_t count = buckets[b].numel(), begin = part.index * count;
    const auto host = memory.read(buckets[b], state.stream().backend(), state.stream().launch());
    for (const ParamPlace& place : store.layout().places) {
      if (place.bucket != b || !place.trained) continue;
      const int64_t first = std::max(place.first, begin),
                    end = std::min(place.first + place.info.shape.numel(), begin + count);
      if (first < end)
        all.push_back({.name = place.info.name,
                       .block = place.info.block,
                       .first = first - place.first,
                       .shape = place.info.shape,
                       .memory = host,
                       .values = {&host[first - begin], static_cast<size_t>(end - first)}});
    }
  }
  memory.forget();
  return all;
}

namespace {

// Calls visit(place, values) with the weights that weights_of() returns.
void each_weight(
    TrainState& state, HostMemory& memory,
    const std::function<void(const ParamPlace&, const std::shared_ptr<const float[]>& values)>& visit) {
  ParamStore& store = state.store();
  const bool adapters = static_cast<bool>(state.shape().model.lora);
  for (size_t b = 0; b < store.layout().buckets.size(); ++b)
    store.with_whole(kMaster, b, [&](const ParamReader& read) {
      for (const ParamPlace& place : store.layout().places) {
        if (place.bucket != b || (adapters && !place.trained)) continue;
        const std::shared_ptr<float[]> values = memory.take(place.info.shape.numel());
        read(place, {values.get(), DType::kF32, place.info.shape, Device::kCpu});
        state.stream().synchronize();
        visit(place, values);
      }
    });
}

std::span<const float> values_of(const ParamPlace& place, const std::shared_ptr<const float[]>& memory) {
  return {memory.get(), static_cast<size_t>(place.info.shape.numel())};
}

}  // namespace

std::vector<ParamValues> weights_of(TrainState& state, HostMemory& memory) {
  std::vector<ParamValues> all;
  each_weight(state, memory, [&](const ParamPlace& place, const std::shared_ptr<const float[]>& values) {
    all.push_back({.name = place.info.name,
                   .block = place.info.block,
                   .first = 0,
                   .shape = place.info.shape,
                   .memory = values,
                   .values = values_of(place, values)});
  });
  return all;
}

std::string checksum_of_weights(TrainState& state, HostMemory& memory) {
  Checksum checksum;
  each_weight(state, memory, [&](const ParamPlace& place, const std::shared_ptr<const float[]>& values) {
    checksum.update(std::as_bytes(values_of(place, values)));
  });
  return checksum.digits();
}

}  // namespace tessera
