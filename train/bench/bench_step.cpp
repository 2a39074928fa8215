#include <algorithm>
#include <nlohmann/json.hpp>

#include "train/bench/bench.h"
#include "train/bench/output.h"
#include "train/bench/time_steps.h"
#include "train/device.h"
#include "train/metrics.h"

namespace tessera {
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
    seconds = time_steps(*be, arena, shape, optimizer_config(config), options.warmup, options.steps);
  }
  OpTimes times;
  const int64_t timed_steps = std::min<int64_t>(options.steps, 3);
  {
    Arena arena = make_arena(device);
    arena.reserve(planned);
    const std::unique_ptr<Backend> timed = make_timed_backend(*be, times);
    time_steps(*timed, arena, shape, optimizer_config(config), 1, timed_steps, &times);
  }

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
