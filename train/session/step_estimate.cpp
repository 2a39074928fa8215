#include "train/session/step_estimate.h"

#include <algorithm>
#include <array>
#include <deque>

#include "kernels/expert_ops.h"
#include "kernels/op_cost.h"
#include "train/session/plan_ranks.h"
#include "train/session/train_state.h"

namespace tessera {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9;
// H100: fitted to measured steps (docs/memory.md, "The estimate"); others: by the ratios of
// their data sheets to the H100's. In the order of `arch`
constexpr std::array kSpeeds{
    DeviceSpeed{0, "a CPU", 0.03 * kTera, 0.03 * kTera, 0.02 * kTera, 4 * kGiga, 4 * kGiga, 2 * kGiga,
                1 * kGiga},
    DeviceSpeed{80, "an A100", 225 * kTera, 225 * kTera, 160 * kTera, 1500 * kGiga, 24 * kGiga, 200 * kGiga,
                20 * kGiga},
    DeviceSpeed{86, "an A40", 100 * kTera, 100 * kTera, 75 * kTera, 560 * kGiga, 24 * kGiga, 20 * kGiga,
                3 * kGiga},
    DeviceSpeed{89, "an RTX 4090", 145 * kTera, 290 * kTera, 115 * kTera, 850 * kGiga, 24 * kGiga, 20 * kGiga,
                3 * kGiga},
    DeviceSpeed{90, "an H100", 690 * kTera, 1470 * kTera, 570 * kTera, 2950 * kGiga, 42 * kGiga, 330 * kGiga,
                40 * kGiga},
};
constexpr double kBackwardOfAttention = 1.2;
// The share of a GPU's rate of GEMMs that products of experts reach, by Hopper's kernels in bf16 and in their
// plain form
constexpr double kHopperExperts = 0.75, kPlainExperts = 0.085;
constexpr double kNotHidden = 0.3;  // of the shorter one of the two times of an operation

// A queue beside the operations: collectives, or copies in one direction. `now`: when the operations that
// the device has been given are done
class Queue {
 public:
  // `blocks`: whoever starts something waits for it.
  Queue(double& now, double bytes_per_second, bool blocks = false)
      : now_(now), bytes_per_second_(bytes_per_second), blocks_(blocks) {}

  QueueObserver observer() {
    return {.start = [this](int64_t bytes) { start(static_cast<double>(bytes) / bytes_per_second_); },
            .wait_for = [this](int64_t count) { wait_for(count); }};
  }
  double waits() const { return waits_; }  // of the operations, seconds

 private:
  void start(double seconds) {
    free_ = std::max(free_, now_) + seconds;
    ends_.push_back(free_);
    if (blocks_) wait_for(std::ssize(ends_));
  }
  void wait_for(int64_t count) {
    if (count == 0) return;
    const double end = ends_.at(static_cast<size_t>(count - 1));
    waits_ += std::max(end - now_, 0.0);
    now_ = std::max(now_, end);
  }

  double& now_;
  double bytes_per_second_, free_ = 0, waits_ = 0;
  bool blocks_;
  std::vector<double> ends_;
};

double seconds_of(const OpCost& cost, const DeviceSpeed& speed, double flops_per_second) {
  const double arithmetic =
      (cost.flops - cost.fp8_flops) / flops_per_second + cost.fp8_flops / speed.fp8_gemm;
  const double bytes = cost.bytes / speed.memory;
  return std::max(arithmetic, bytes) + kNotHidden * std::min(arithmetic, bytes);
}

// What an update reads or writes on the host crosses the bus, in both directions at once. Its accesses are
// of 8 bytes a thread and reach this part of the rate of copies: measured with Qwen2.5 7B and Llama 3.1 8B.
constexpr double kShareOfBus = 0.75;
double seconds_over_bus(const AdamW& op, const Offload& offload, const DeviceSpeed& speed) {
  double bytes = 0;
  for (const AdamW::Part& part : op.parts) {
    if (offload.gradients) bytes += static_cast<double>(part.grad.bytes());
    for (const Tensor* kept : {&part.low, &part.m, &part.v})
      if (offload.optimizer) bytes += static_cast<double>(kept->bytes());
    if (offload.weights) bytes += static_cast<double>(part.param.bytes());
  }
  return bytes / (kShareOfBus * speed.bus);
}

double seconds_over_bus(const MuonMomentum& op, const Offload& offload, const DeviceSpeed& speed) {
  double bytes = 0;
  if (offload.gradients) bytes += static_cast<double>(op.gradient.bytes());
  if (offload.optimizer) bytes += static_cast<double>(op.mean.bytes());
  return bytes / (kShareOfBus * speed.bus);
}
double seconds_over_bus(const MuonUpdate& op, const Offload& offload, const DeviceSpeed& speed) {
  double bytes = 0;
  if (offload.optimizer) bytes += static_cast<double>(op.low.bytes());
  if (offload.weights) bytes += static_cast<double>(op.param.bytes());
  return bytes / (kShareOfBus * speed.bus);
}

// Of gradients on the host
double seconds_over_bus(const GlobalNorm& op, const DeviceSpeed& speed) {
  double bytes = 0;
  for (const Tensor& tensor : op.tensors) bytes += static_cast<double>(tensor.bytes());
  return bytes / (kShareOfBus * speed.bus);
}

// The FP8 values of trained weights that lie on the host: made from a copy that one rank has there, or by
// several from their parts, which they read twice.
double seconds_over_bus(const Quantise& op, int64_t ranks, const DeviceSpeed& speed) {
  const auto read = ranks > 1 ? static_cast<double>(op.x.bytes()) : 0.0;
  return (read + static_cast<double>(op.y.data.bytes())) / speed.bus;
}

// No other rounding has neither a transposed copy nor, with its values, the largest element.
bool is_of_stored_weight(const Quantise& op) { return !op.transposed && (!op.y.data || !op.amax); }

struct OpTime {
  const DeviceSpeed& speed;
  const Offload& offload;
  int64_t ranks;

  // Of an operation of the update that reads or writes on the host
  std::optional<double> seconds_of_update(const AnyOp& op) const {
    if (!offload.optimizer && !offload.weights && !offload.gradients) return std::nullopt;
    return std::visit(
        [&]<class Op>(const Op* update) -> std::optional<double> {
          if constexpr (requires { seconds_over_bus(*update, offload, speed); })
            if (const double seconds = seconds_over_bus(*update, offload, speed); seconds > 0) return seconds;
          return std::nullopt;
        },
        op);
  }

  double share_of(const auto& experts) const {
    if (speed.arch == 0) return 1;
    return speed.arch >= 90 && experts.x.dtype == DType::kBF16 ? kHopperExperts : kPlainExperts;
  }

  double operator()(const AnyOp& op) const {
    if (const auto* const* rounding = std::get_if<const Quantise*>(&op))
      if (offload.weights && is_of_stored_weight(**rounding))
        return seconds_over_bus(**rounding, ranks, speed);
    if (const std::optional<double> of_update = seconds_of_update(op)) return *of_update;
    if (std::holds_alternative<const GlobalNorm*>(op) && offload.gradients)
      return seconds_over_bus(*std::get<const GlobalNorm*>(op), speed);
    double flops = speed.gemm;
    if (std::holds_alternative<const AttentionForward*>(op)) flops = speed.attention;
    if (std::holds_alternative<const AttentionBackward*>(op)) flops = speed.attention / kBackwardOfAttention;
    if (const auto* const* experts = std::get_if<const ExpertsForward*>(&op)) flops *= share_of(**experts);
    if (const auto* const* experts = std::get_if<const ExpertsBackward*>(&op)) flops *= share_of(**experts);
    return seconds_of(cost_of(op), speed, flops);
  }
};

// Bytes/s that each rank of an axis sends. A ring enters and leaves each machine once: what the ranks of a
// machine can send together is there for one rank's bytes. Ranks that share sequences send to each other.
double rate_of(const RunShape& shape, Axis axis, const DeviceSpeed& speed) {
  const double within = shape.links.within > 0 ? shape.links.within : speed.link,
               between = shape.links.between > 0 ? shape.links.between : speed.network;
  if (!shape.crosses_nodes(axis)) return within;
  const std::vector<int64_t> members = shape.mesh.members(axis, 0);
  const int64_t on_first_machine =
      std::ranges::count_if(members, [&](int64_t rank) { return rank < shape.ranks() / shape.nodes; });
  if (axis == Axis::kContext || on_first_machine == 1) return between;
  return std::min(within, static_cast<double>(on_first_machine) * between);
}

StepEstimate walk_clock(const RunShape& shape, const DeviceTraits& device, int64_t micro_steps) {
  const DeviceSpeed speed = speed_of(device);
  const OpTime time{.speed = speed, .offload = shape.offload, .ranks = shape.ranks()};
  double now = 0;
  std::deque<Queue> collectives, copies;  // of each axis, and in each direction
  const std::unique_ptr<Backend> be = make_plan_backend(
      device, [&](const AnyOp& op) { now += time(op); },
      [&] { return copies.emplace_back(now, speed.bus).observer(); });
  Arena arena = Arena::plan(device.device);
  const PlanRanks ranks(shape, device.device, [&](Axis axis) {
    const bool blocks = device.device == Device::kCpu;  // see kernels/communicator.h
    return collectives.emplace_back(now, rate_of(shape, axis, speed), blocks).observer();
  });
  TrainState state(*be, arena, shape, ranks.axes());
  const auto waits = [&] {
    double seconds = 0;
    for (const Queue& axis : collectives) seconds += axis.waits();
    return seconds;
  };
  const double setup = now, setup_waits = waits();
  state.walk_step(micro_steps);
  return {.seconds = now - setup, .waits = waits() - setup_waits};
}

}  // namespace

DeviceSpeed speed_of(const DeviceTraits& device) {
  const auto newer =
      std::ranges::find_if(kSpeeds, [&](const DeviceSpeed& s) { return s.arch > device.arch; });
  DeviceSpeed speed = *std::prev(newer);
  if (device.device == Device::kCpu) {
    const double threads = device.threads;
    for (double* each : {&speed.gemm, &speed.fp8_gemm, &speed.attention}) *each *= threads;
  }
  return speed;
}

// The second micro-batch of a step is as all that follow, but for the last.
StepEstimate estimate_step(const RunShape& shape, const DeviceTraits& device) {
  StepEstimate step = walk_clock(shape, device, std::min<int64_t>(shape.micro_steps, 3));
  if (shape.micro_steps <= 3) return step;
  const StepEstimate two = walk_clock(shape, device, 2);
  const auto more = static_cast<double>(shape.micro_steps - 3);
  return {.seconds = step.seconds + more * (step.seconds - two.seconds),
          .waits = step.waits + more * (step.waits - two.waits)};
}

double tokens_per_second(const RunShape& shape, const StepEstimate& step) {
  return static_cast<double>(shape.tokens_per_step()) / step.seconds;
}
double tokens_per_second(const RunShape& shape, const DeviceTraits& device) {
  return tokens_per_second(shape, estimate_step(shape, device));
}

}  // namespace tessera
