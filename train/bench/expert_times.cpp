#include "train/bench/expert_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/expert_ops.h"
#include "kernels/ops.h"
#include "kernels/timer.h"
#include "kernels/workspace.h"
#include "train/session/device.h"

namespace tessera {
namespace {

constexpr int kRepeats = 10;

struct Layer {
  Tensor x, gate_up, hidden, y;                   // [N, C] [R, 2 F] [R, F] [R, C]
  Tensor expand, contract, d_expand, d_contract;  // [E, 2 F, C] [E, C, F]
  Tensor logits, choices, weights, offsets, rows, places;
};

class ExpertBench {
 public:
  ExpertBench(Backend& be, const RunShape& shape)
      : of_(shape.model.experts),
        arena_(make_arena(be.traits())),
        stream_(be, tensor(DType::kF32, {workspace_bytes(be.device(), 1, 1, 1) / 4})) {
    const int64_t tokens = shape.micro_batch * shape.sequence_length, choices = tokens * of_.active;
    const int64_t channels = shape.model.channels, width = of_.width, count = of_.count;
    const DType dtype = shape.dtype;
    l_ = {.x = random(dtype, {tokens, channels}),
          .gate_up = random(dtype, {choices, 2 * width}),
          .hidden = random(dtype, {choices, width}),
          .y = tensor(dtype, {choices, channels}),
          .expand = random(dtype, {count, 2 * width, channels}),
          .contract = random(dtype, {count, channels, width}),
          .d_expand = tensor(dtype, {count, 2 * width, channels}),
          .d_contract = tensor(dtype, {count, channels, width}),
          .logits = random(DType::kF32, {tokens, count}),
          .choices = tensor(DType::kI32, {tokens, of_.active}),
          .weights = tensor(DType::kF32, {tokens, of_.active}),
          .offsets = tensor(DType::kI32, {count + 1}),
          .rows = tensor(DType::kI32, {choices}),
          .places = tensor(DType::kI32, {tokens, of_.active})};
    if (be.device() == Device::kCuda) flush_ = tensor(DType::kF32, {kColdCacheBytes / 4});
    stream_.run(
        ChooseExperts{.logits = l_.logits, .rule = of_.rule(), .choices = l_.choices, .weights = l_.weights});
    stream_.run(
        AssignExperts{.choices = l_.choices, .offsets = l_.offsets, .rows = l_.rows, .places = l_.places});
    first_flops_ = 2 * choices * channels * 2 * width, second_flops_ = 2 * choices * channels * width;
  }

  std::vector<ExpertTime> run() {
    const ExpertsForward first{
        .x = l_.x, .weight = l_.expand, .y = l_.gate_up, .offsets = l_.offsets, .x_rows = l_.rows};
    const ExpertsForward second{.x = l_.hidden, .weight = l_.contract, .y = l_.y, .offsets = l_.offsets};
    ExpertsBackward of_first{.dy = l_.gate_up,
                             .x = l_.x,
                             .weight = l_.expand,
                             .dx = l_.y,
                             .offsets = l_.offsets,
                             .x_rows = l_.rows,
                             .accumulate = false};
    ExpertsBackward of_second{.dy = l_.x,
                              .x = l_.hidden,
                              .weight = l_.contract,
                              .dx = l_.hidden,
                              .offsets = l_.offsets,
                              .dy_rows = l_.rows,
                              .weights = l_.weights,
                              .accumulate = false};
    std::vector<ExpertTime> times;
    const auto add = [&](std::string_view products, int64_t flops, const auto& op) {
      times.push_back({.products = std::string(products), .flops = flops, .ms = median(op)});
    };
    add("first layer, forward", first_flops_, first);
    add("second layer, forward", second_flops_, second);
    add("second layer, dX", second_flops_, of_second);
    add("first layer, dX", first_flops_, of_first);
    of_second.dweight = l_.d_contract, of_first.dweight = l_.d_expand;
    add("second layer, dX and dW", 2 * second_flops_, of_second);
    add("first layer, dX and dW", 2 * first_flops_, of_first);
    const auto sum = [&](std::string_view products, std::initializer_list<size_t> of) {
      ExpertTime all{.products = std::string(products)};
      for (const size_t i : of) all.flops += times[i].flops, all.ms += times[i].ms;
      times.push_back(all);
    };
    sum("forward", {0, 1});
    sum("forward and backward, frozen", {0, 1, 2, 3});
    sum("forward and backward", {0, 1, 4, 5});
    return times;
  }

 private:
  Tensor tensor(DType dtype, Shape shape) {
    return arena_.alloc(MemoryTag::kWorkspace, "layer of experts", dtype, shape);
  }
  Tensor random(DType dtype, Shape shape) {
    const Tensor to = tensor(dtype, shape);
    stream_.run(RandomNormal{.y = to, .deviation = 0.5, .seed = 0, .stream = ++streams_});
    return to;
  }
  // From an L2 cache that the call before did not leave its operands in
  double median(const auto& op) {
    std::vector<std::unique_ptr<Timer>> timers;
    stream_.run(op);
    for (int i = 0; i < kRepeats; ++i) {
      if (flush_) stream_.run(FillZero{flush_});
      timers.push_back(make_timer(stream_));
      timers.back()->start();
      stream_.run(op);
      timers.back()->stop();
    }
    std::vector<double> times;
    for (const auto& timer : timers) times.push_back(timer->milliseconds());
    std::ranges::sort(times);
    return times[times.size() / 2];
  }

  ExpertsConfig of_;
  Arena arena_;
  Stream stream_;
  Tensor flush_;
  Layer l_;
  int64_t first_flops_ = 0, second_flops_ = 0;
  uint64_t streams_ = 0;
};

double tflops(const ExpertTime& time) { return static_cast<double>(time.flops) / time.ms / 1e9; }

}  // namespace

std::vector<ExpertTime> time_experts(Backend& be, const RunShape& shape) {
  if (!shape.model.experts) return {};
  return ExpertBench(be, shape).run();
}

std::string table_of(const std::vector<ExpertTime>& times, double peak_flops) {
  std::string text =
      fmt::format("{:<32}{:>9}{:>9}{:>9}\n", "products of a layer of experts", "ms", "TFLOP/s", "of peak");
  for (const ExpertTime& time : times)
    text += fmt::format("{:<32}{:>9.4f}{:>9.1f}{:>8.1f}%\n", time.products, time.ms, tflops(time),
                        100e12 * tflops(time) / peak_flops);
  return text;
}

nlohmann::ordered_json to_json(const std::vector<ExpertTime>& times) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const ExpertTime& time : times)
    rows.push_back({{"products", time.products}, {"ms", time.ms}, {"tflops", tflops(time)}});
  return rows;
}

}  // namespace tessera
