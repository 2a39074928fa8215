#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/base/random.h"
#include "train/bench/bench.h"
#include "train/bench/output.h"
#include "train/bench/timed_backend.h"
#include "train/device.h"
#include "train/metrics.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// Steps on random tokens: the arithmetic does not depend on them. Returns the seconds of each step.
std::vector<double> time_steps(Backend& be, Arena& arena, const RunShape& shape,
                               const OptimizerConfig& optimizer, int64_t warmup, int64_t steps,
                               OpTimes* times) {
  TrainState state(be, arena, shape);
  state.initialize(1);
  std::vector<int32_t> tokens(static_cast<size_t>(shape.tokens_per_step()) + 1);
  const Philox random(1, 0);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(random.bits(i)[0] % static_cast<uint32_t>(shape.model.vocab_size));
  const auto inputs = std::span(tokens).first(tokens.size() - 1),
             targets = std::span(tokens).last(tokens.size() - 1);
  std::vector<double> seconds;
  for (int64_t i = 0; i < warmup + steps; ++i) {
    if (i == warmup && times) times->clear();
    const Clock::time_point start = Clock::now();
    state.step(inputs, targets, optimizer, 1e-4, i + 1);
    state.finish_step();
    if (i >= warmup) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return seconds;
}

}  // namespace

void bench_step(const Config& config, const BenchStepOptions& options) {
  const DeviceTraits device = choose_device(config.device).traits;
  RunShape shape = run_shape(config, device);
  shape.micro_steps = 1;
  const std::unique_ptr<Backend> be = make_backend(device);
  const double peak = gemm_peak(*be);
  const int64_t planned = plan_memory(shape, device).peak_bytes();
  std::vector<double> seconds;
  {
    Arena arena = make_arena(device);
    arena.reserve(planned);
    seconds = time_steps(*be, arena, shape, optimizer_config(config), options.warmup, options.steps, nullptr);
  }
  OpTimes times;
  const int64_t timed_steps = std::min<int64_t>(options.steps, 3);
  {
    Arena arena = make_arena(device);
    arena.reserve(planned);
    const std::unique_ptr<Backend> timed = make_timed_backend(*be, times);
    time_steps(*timed, arena, shape, optimizer_config(config), 1, timed_steps, &times);
  }

  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double tokens_per_second = static_cast<double>(shape.tokens_per_step()) / median;
  const double flops = tokens_per_second * shape.model.flops_per_token(shape.sequence_length);
  fmt::print("{} parameters, {} x {} tokens, {}, {} attention, deterministic {}, on {}\n",
             format_count(static_cast<double>(shape.model.parameters())), shape.micro_batch,
             shape.sequence_length, name_of(shape.dtype), name_of(shape.attention), shape.deterministic,
             device.name);
  fmt::print("  step          {:>10.2f} ms    median of {}; {:.2f} to {:.2f}\n", 1e3 * median, seconds.size(),
             1e3 * seconds.front(), 1e3 * seconds.back());
  fmt::print("  tokens        {:>10} /s\n", format_count(tokens_per_second));
  fmt::print("  arithmetic    {:>10.2f} TFLOP/s, {:.1f}% of the GEMM peak measured here, {:.2f}\n",
             flops / 1e12, 100 * flops / peak, peak / 1e12);
  fmt::print("  memory        {:>10}\n", format_bytes(planned));
  double sum = 0;
  for (const auto& [op, time] : times) sum += time.seconds;
  std::vector<std::pair<std::string, OpTime>> rows(times.begin(), times.end());
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  fmt::print("  by operation, each waited for, a step\n");
  nlohmann::ordered_json by_op;
  for (const auto& [op, time] : rows) {
    const double ms = 1e3 * time.seconds / static_cast<double>(timed_steps);
    fmt::print("    {:<20} {:>10.3f} ms  {:>5.1f}%  {:>5} calls\n", op, ms, 100 * time.seconds / sum,
               time.calls / timed_steps);
    by_op[op] = ms;
  }
  if (options.json.empty()) return;
  const nlohmann::ordered_json json{{"device", device.name},
                                    {"parameters", shape.model.parameters()},
                                    {"micro_batch", shape.micro_batch},
                                    {"sequence_length", shape.sequence_length},
                                    {"precision", name_of(shape.dtype)},
                                    {"attention", name_of(shape.attention)},
                                    {"deterministic", shape.deterministic},
                                    {"step_ms", 1e3 * median},
                                    {"tokens_per_second", tokens_per_second},
                                    {"tflops", flops / 1e12},
                                    {"gemm_peak_tflops", peak / 1e12},
                                    {"memory_bytes", planned},
                                    {"ms_by_operation", by_op}};
  write_output(options.json, json.dump(2) + "\n");
}

}  // namespace tessera
