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
#include "train/parallel/peers.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

struct StepTimes {
  std::vector<double> seconds;  // of each step, shortest first
  double waited = 0;            // seconds a step that stood still for other ranks

  double median() const { return seconds[seconds.size() / 2]; }
};

// Steps on random tokens: the arithmetic does not depend on them.
StepTimes time_steps(Backend& be, const RunShape& shape, const OptimizerConfig& optimizer, int64_t warmup,
                     int64_t steps, OpTimes* times, Communicator* comm) {
  Arena arena = make_arena(be.traits());
  arena.reserve(plan_memory(shape, be.traits()).peak_bytes());
  TrainState state(be, arena, shape, comm);
  state.initialize(1);
  std::vector<int32_t> tokens(static_cast<size_t>(shape.tokens_per_rank()) + 1);
  const Philox random(1, 0);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(random.bits(i)[0] % static_cast<uint32_t>(shape.model.vocab_size));
  const auto inputs = std::span(tokens).first(tokens.size() - 1),
             targets = std::span(tokens).last(tokens.size() - 1);
  StepTimes result;
  for (int64_t i = 0; i < warmup + steps; ++i) {
    if (i == warmup && times) times->clear();
    if (i == warmup && comm) comm->take_waited_seconds();
    const Clock::time_point start = Clock::now();
    state.step(inputs, targets, optimizer, 1e-4, i + 1);
    state.finish_step();
    if (i >= warmup) result.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  if (comm) result.waited = comm->take_waited_seconds() / static_cast<double>(steps);
  std::sort(result.seconds.begin(), result.seconds.end());
  return result;
}

}  // namespace

void bench_step(const Config& config, const BenchStepOptions& options, const World& world) {
  Peers peers(world, config);
  const DeviceTraits device = choose_device(config.device, world.local_rank).traits;
  RunShape shape = run_shape(config, device);
  shape.micro_steps = 1;
  RunShape alone = shape;
  alone.ranks = 1;
  const std::unique_ptr<Backend> be = make_backend(device);
  const double peak = gemm_peak(*be);
  const int64_t planned = plan_memory(shape, device).peak_bytes();
  const OptimizerConfig optimizer = optimizer_config(config);
  Communicator* comm = peers.connect(*be);
  // All ranks at the same time, as they share power and memory of a machine. The slowest counts.
  StepTimes one = time_steps(*be, alone, optimizer, options.warmup, options.steps, nullptr, nullptr);
  const std::vector<double> ones = peers.gather(one.median());
  StepTimes all =
      comm ? time_steps(*be, shape, optimizer, options.warmup, options.steps, nullptr, comm) : one;
  const std::vector<double> waited = peers.gather(all.waited);
  OpTimes times;
  const int64_t timed_steps = std::min<int64_t>(options.steps, 3);
  const std::unique_ptr<Backend> timed = make_timed_backend(*be, times);
  time_steps(*timed, alone, optimizer, 1, timed_steps, &times, nullptr);
  peers.leave();
  if (!peers.leads()) return;

  const double median = all.median();
  const double slowest_alone = *std::max_element(ones.begin(), ones.end());
  const double hidden_not = *std::max_element(waited.begin(), waited.end());
  const double tokens_per_second = static_cast<double>(shape.tokens_per_step()) / median;
  const double flops = tokens_per_second * shape.model.flops_per_token(shape.sequence_length);
  const double peak_of_all = peak * static_cast<double>(shape.ranks);
  fmt::print("{} parameters, {}{} x {} tokens, {}, {} attention, deterministic {}, on {}\n",
             format_count(static_cast<double>(shape.model.parameters())),
             shape.ranks > 1 ? fmt::format("{} ranks x ", shape.ranks) : "", shape.micro_batch,
             shape.sequence_length, name_of(shape.dtype), name_of(shape.attention), shape.deterministic,
             device.name);
  fmt::print("  step          {:>10.2f} ms    median of {}; {:.2f} to {:.2f}\n", 1e3 * median,
             all.seconds.size(), 1e3 * all.seconds.front(), 1e3 * all.seconds.back());
  fmt::print("  tokens        {:>10} /s\n", format_count(tokens_per_second));
  fmt::print("  arithmetic    {:>10.2f} TFLOP/s, {:.1f}% of the GEMM peak measured here, {:.2f}\n",
             flops / 1e12, 100 * flops / peak_of_all, peak_of_all / 1e12);
  if (shape.ranks > 1) {
    fmt::print(
        "  scaling       {:>10.1f} %     of {} times one rank alone, the slowest, in the same run: {:.2f} "
        "ms\n",
        100 * slowest_alone / median, shape.ranks, 1e3 * slowest_alone);
    fmt::print(
        "  communication {:>10.3f} ms    a step that was not hidden, at the rank that waited most; ZeRO {}, "
        "gradients summed in {}\n",
        1e3 * hidden_not, shape.shard_optimizer ? 1 : 0, config.train.reduce);
  }
  fmt::print("  memory        {:>10}\n", format_bytes(planned));
  double sum = 0;
  for (const auto& [op, time] : times) sum += time.seconds;
  std::vector<std::pair<std::string, OpTime>> rows(times.begin(), times.end());
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  fmt::print("  by operation, each waited for, a step{}\n", shape.ranks > 1 ? " of one rank alone" : "");
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
                                    {"ranks", shape.ranks},
                                    {"micro_batch", shape.micro_batch},
                                    {"sequence_length", shape.sequence_length},
                                    {"precision", name_of(shape.dtype)},
                                    {"attention", name_of(shape.attention)},
                                    {"deterministic", shape.deterministic},
                                    {"step_ms", 1e3 * median},
                                    {"tokens_per_second", tokens_per_second},
                                    {"tflops", flops / 1e12},
                                    {"gemm_peak_tflops", peak / 1e12},
                                    {"step_ms_alone", 1e3 * slowest_alone},
                                    {"exposed_communication_ms", 1e3 * hidden_not},
                                    {"memory_bytes", planned},
                                    {"ms_by_operation", by_op}};
  write_output(options.json, json.dump(2) + "\n");
}

}  // namespace tessera
