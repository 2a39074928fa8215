#include <unistd.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "kernels/base/clock.h"
#include "kernels/base/output.h"
#include "kernels/base/status_line.h"
#include "kernels/base/text.h"
#include "train/bench/bench.h"
#include "train/bench/copy_bandwidth.h"
#include "train/bench/op_recorder.h"
#include "train/bench/op_times.h"
#include "train/bench/step_trace.h"
#include "train/bench/time_steps.h"
#include "train/run/gemm_choices.h"
#include "train/run/progress.h"
#include "train/run/rank_group.h"
#include "train/session/device.h"
#include "train/session/from_config.h"
#include "train/session/memory_plan.h"

namespace tessera {
namespace {

constexpr double kQuietStepSeconds = 60;  // see StatusLine
constexpr int64_t kStepsByOperation = 3;  // steps, at most
// A timed step makes at most so many: each further one takes as long as one in the middle.
constexpr int64_t kTimedMicroBatches = 4;

// "124,439,808 parameters, 64 x 1024 tokens, bf16, flash attention"
std::string text_of(const RunShape& shape) {
  return fmt::format("{} parameters, {}{} x {} tokens{}, {}{}, {} attention",
                     format_count(static_cast<double>(shape.model.parameters())), shape.ranks_text(),
                     shape.micro_batch, shape.sequence_length, shape.context_text(), name_of(shape.dtype),
                     shape.fp8 ? " with GEMMs in FP8" : "", name_of(shape.attention));
}

double measure_bandwidth(Backend& be) {
  Arena arena = be.device() == Device::kCuda ? Arena::cuda() : Arena::host();
  return copy_bandwidth(Stream(be), arena);
}

nlohmann::ordered_json print_by_operation(const OpTimes& times, const RunShape& shape, int64_t steps) {
  double sum = 0;
  for (const auto& [op, time] : times) sum += time.seconds;
  std::vector<std::pair<std::string, OpTime>> rows(times.begin(), times.end());
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  fmt::print("  by operation, timed one at a time, in one micro-batch and an update{}\n",
             shape.ranks() > 1 ? " of one rank alone" : "");
  nlohmann::ordered_json by_op;
  for (const auto& [op, time] : rows) {
    const double ms = 1e3 * time.seconds / static_cast<double>(steps);
    fmt::print("    {:<20} {:>10.3f} ms  {:>5.1f}%  {:>5} calls\n", op, ms, 100 * time.seconds / sum,
               time.calls / steps);
    by_op[op] = ms;
  }
  return by_op;
}

void print_notices(std::vector<std::string> notices, const std::string& of_attention) {
  if (!of_attention.empty()) notices.push_back(of_attention);
  for (const std::string& notice : notices) fmt::print("  notice        {}\n", notice);
}

RunShape with_micro_steps(RunShape shape, int64_t micro_steps) {
  shape.micro_steps = micro_steps;
  return shape;
}

std::string text_of_micro_batches(int64_t count) {
  return count == 1 ? "one micro-batch" : fmt::format("{} micro-batches", count);
}

using Measure = std::function<StepTimes(const TimedSteps&)>;

OpTimes times_by_operation(Backend& be, TimedSteps steps, const Measure& measure) {
  OpTimer timer(be);
  steps.before_step = [&](int64_t step) {
    if (step == 0) timer.clear();
  };
  measure(steps);
  return timer.times();
}

std::vector<RooflineRow> rows_of_roofline(Backend& be, const ModelConfig& model, TimedSteps steps,
                                          const Measure& measure) {
  OpRecorder recorder(be, model);
  steps.before_step = [&](int64_t step) {
    if (step == 0) recorder.clear();
    recorder.let_host_get_ahead();
  };
  measure(steps);
  return recorder.rows(steps.steps);
}

struct TracedStep {
  TracedRank own;
  std::vector<std::string> events;  // of all ranks
};

// Of the second step of two
TracedStep trace_step(Backend& be, const RunShape& shape, RankGroup& ranks, const Roofline& bounds,
                      TimedSteps steps, const Measure& measure) {
  StepTrace trace(be, shape.model, steps.axes.distinct());
  steps.warmup = 1, steps.steps = 1;
  steps.before_step = [&](int64_t step) {
    if (step == 0) be.synchronize(be.stream()), trace.begin();
  };
  measure(steps);
  const std::vector<double> begun = ranks.gather(static_cast<double>(trace.begun_ms()));
  TracedStep traced{
      .own = trace.finish(ranks.rank(), static_cast<int64_t>(*std::ranges::min_element(begun)), bounds),
      .events = {}};
  traced.events = ranks.exchange(traced.own.events);
  return traced;
}

void write_trace(const TracedStep& traced, const std::string& path, Device device) {
  const TracedRank& own = traced.own;
  write_output(path, trace_file(traced.events));
  fmt::print("  trace         {}: {} {} of rank 0 in {:.2f} ms, {:.2f} ms ({:.1f}%) without any\n", path,
             format_count(static_cast<double>(own.activities)),
             device == Device::kCuda ? "kernels and copies" : "operations", own.ms, own.idle_ms,
             own.ms > 0 ? 100 * own.idle_ms / own.ms : 0);
}

// Shows all steps that are made, whatever is measured of them
class Progress {
 public:
  Progress(StatusLine& line, double expected_seconds, int64_t steps) : line_(line), steps_(steps) {
    const std::string step =
        expected_seconds < 1 ? fmt::format("{:.2g} s", expected_seconds) : format_about(expected_seconds);
    line.print(fmt::format("  estimate      {:>10}       a step, {} for the {} steps that are made", step,
                           format_about(expected_seconds * static_cast<double>(steps)), steps));
  }
  void begin_step() {
    if (begun_++ == 0) start_ = Clock::now();
    const int64_t done = begun_ - 1;
    if (done > 0 && line_.due())
      line_.show({{fmt::format("{} of {} steps", done, steps_), 1},
                  {fmt::format("{:.2f} s each", seconds_since(start_) / static_cast<double>(done)), 2}});
  }

 private:
  StatusLine& line_;
  int64_t steps_, begun_ = 0;
  Clock::time_point start_;
};

// The step that the configuration describes, from one with fewer micro-batches. In seconds
struct WholeStep {
  const StepTimes& timed;
  int64_t micro_batches, timed_micro_batches;

  double seconds(double of_timed) const {
    return of_timed + static_cast<double>(micro_batches - timed_micro_batches) * timed.micro_batch();
  }
  double median() const { return seconds(timed.median()); }
};

// In seconds and FLOP/s
struct Speed {
  const RunShape& shape;  // of the configuration
  WholeStep step;
  double slowest_alone;  // of the ranks, one at a time; 0: what they split is too large for one
  double exposed, peak;  // communication of the timed micro-batches and an update; of a GEMM, on one device

  double tokens_per_second() const { return static_cast<double>(shape.tokens_per_step()) / step.median(); }
  double flops() const { return tokens_per_second() * shape.flops_per_token(); }
};

void print_parts(const WholeStep& step) {
  const int64_t timed = step.timed_micro_batches;
  fmt::print("                {:>10.2f} ms    {}{}\n", 1e3 * step.timed.micro_batch(),
             step.micro_batches == 1 ? "its micro-batch"
                                     : fmt::format("each of {} micro-batches", step.micro_batches),
             timed < step.micro_batches ? fmt::format("; {} of them were made in a timed step", timed) : "");
  fmt::print("                {:>10.2f} ms    update\n", 1e3 * step.timed.update());
}

void print_speed(const Speed& speed) {
  const RunShape& shape = speed.shape;
  const StepTimes& timed = speed.step.timed;
  const double flops = speed.flops(), peak_of_all = speed.peak * static_cast<double>(shape.ranks());
  fmt::print("  step          {:>10.2f} ms    median of {}; {:.2f} to {:.2f}; {} tokens\n",
             1e3 * speed.step.median(), timed.seconds.size(), 1e3 * speed.step.seconds(timed.seconds.front()),
             1e3 * speed.step.seconds(timed.seconds.back()),
             format_count(static_cast<double>(shape.tokens_per_step())));
  print_parts(speed.step);
  fmt::print("  tokens        {:>10} /s\n", format_count(speed.tokens_per_second()));
  fmt::print("  arithmetic    {:>10.2f} TFLOP/s, {:.1f}% of the {} measured here, {:.2f}\n", flops / 1e12,
             100 * flops / peak_of_all, name_of_peak(bool(shape.fp8)), peak_of_all / 1e12);
  if (shape.ranks() == 1) return;
  if (speed.slowest_alone > 0)
    fmt::print(
        "  scaling       {:>10.1f} %     of {} times one rank alone, the slowest, in the same run: {:.2f} "
        "ms\n",
        100 * speed.slowest_alone / speed.step.median() / static_cast<double>(shape.mesh.context),
        shape.ranks(), 1e3 * speed.slowest_alone);
  fmt::print(
      "  communication {:>10.3f} ms    exposed in {} and an update, on the rank that waited most; split: {}; "
      "gradients summed in {}\n",
      1e3 * speed.exposed, text_of_micro_batches(speed.step.timed_micro_batches), name_of(shape.shard),
      name_of(shape.reduce_in_fp32 ? DType::kF32 : shape.dtype));
}

nlohmann::ordered_json json_of(const Speed& speed) {
  const RunShape& shape = speed.shape;
  const StepTimes& timed = speed.step.timed;
  nlohmann::ordered_json json{{"parameters", shape.model.parameters()},
                              {"ranks", shape.ranks()},
                              {"replicas", shape.mesh.replicas},
                              {"micro_batch", shape.micro_batch},
                              {"sequence_length", shape.sequence_length},
                              {"precision", name_of(shape.dtype)},
                              {"gemm_dtype", name_of(shape.fp8.gemm_dtype)},
                              {"lora_base", name_of(shape.base)},
                              {"attention", name_of(shape.attention)},
                              {"deterministic", shape.deterministic},
                              {"tokens_per_step", shape.tokens_per_step()},
                              {"micro_batches", shape.micro_steps},
                              {"timed_micro_batches", speed.step.timed_micro_batches},
                              {"step_ms", 1e3 * speed.step.median()},
                              {"micro_batch_ms", 1e3 * timed.micro_batch()},
                              {"update_ms", 1e3 * timed.update()},
                              {"tokens_per_second", speed.tokens_per_second()},
                              {"tflops", speed.flops() / 1e12},
                              {"gemm_peak_tflops", speed.peak / 1e12},
                              {"gemm_peak_dtype", shape.fp8 ? "fp8" : name_of(shape.dtype)},
                              {"step_ms_alone", nullptr},
                              {"exposed_communication_ms", 1e3 * speed.exposed}};
  if (speed.slowest_alone > 0) json["step_ms_alone"] = 1e3 * speed.slowest_alone;
  return json;
}

void measure_step(Config config, const BenchStepOptions& options, RankGroup& ranks) {
  config.nodes = ranks.nodes();
  if (ranks.is_rank_0())
    check_writable(options.json), check_writable(options.markdown), check_writable(options.trace);
  const DeviceTraits device = choose_device(config.device, ranks.local_rank()).traits;
  const MemoryLimit limit = ranks.memory_limit(device.device);
  const RunShape shape = run_shape(config, device, limit);
  const RunShape timed_shape = with_micro_steps(shape, std::min(shape.micro_steps, kTimedMicroBatches)),
                 single = with_micro_steps(shape, 1);
  StatusLine line(STDOUT_FILENO, kQuietStepSeconds, ranks.is_rank_0());
  line.print(fmt::format("{}, deterministic {}, on {}", text_of(shape), shape.deterministic, device.name));
  if (!limit.others.empty()) line.notice(limit.others);
  const std::unique_ptr<Backend> be = make_backend(device);
  const double peak = gemm_peak(*be, bool(shape.fp8));
  const TimedSteps of_single{.warmup = std::min<int64_t>(options.warmup, 1),
                             .steps = std::min<int64_t>(options.steps, kStepsByOperation)};
  const bool times_single = options.roofline && shape.micro_steps > 1;
  Progress progress(line, expected_step_seconds(timed_shape, peak),
                    (options.warmup + options.steps) * (shape.ranks() > 1 ? 2 : 1) +
                        (of_single.warmup + of_single.steps) * (1 + options.roofline + times_single) +
                        (options.trace.empty() ? 0 : 2));
  const GemmChoices gemms = use_chosen_gemms(*be, config, {shape}, {}, ranks, line);
  const MemoryPlan plan = plan_stages(shape, device);
  const OptimizerConfig optimizer = optimizer_config(config);
  const StepAxes axes = ranks.connect(*be, timed_shape.mesh).step_axes();
  // All ranks at the same time, since they share the power and memory of a machine. The slowest one counts.
  const auto measure = [&](const RunShape& of, TimedSteps steps) {
    Arena arena = make_arena(device);
    arena.reserve(plan_memory(of, device).peak_bytes());
    steps.before_step = [&, before = steps.before_step](int64_t step) {
      progress.begin_step();
      if (before) before(step);
    };
    return time_steps(*be, arena, of, optimizer, steps);
  };
  // What ranks split may be too large for one of them: then the operations are those of a rank of the run.
  const auto alone = [](RunShape of) {
    of.mesh = {}, of.nodes = 1;
    return of;
  };
  const bool fits_alone = ranks.size() == 1 || !limit.known() ||
                          plan_memory(alone(timed_shape), device).peak_bytes() <= limit.bytes;
  const auto measure_one = [&](const RunShape& of, TimedSteps steps) {
    if (!fits_alone) steps.axes = axes;
    return measure(fits_alone ? alone(of) : of, steps);
  };
  const auto measure_single = [&](const TimedSteps& steps) { return measure_one(single, steps); };
  const StepTimes one = measure_one(timed_shape, {.warmup = options.warmup, .steps = options.steps});
  const auto whole = [&](const StepTimes& of) {
    return WholeStep{of, shape.micro_steps, timed_shape.micro_steps};
  };
  const std::vector<double> ones = ranks.gather(whole(one).median());
  const TimedSteps timed{.warmup = options.warmup, .steps = options.steps, .axes = axes};
  const StepTimes all = ranks.size() > 1 && fits_alone ? measure(timed_shape, timed) : one;
  const std::vector<double> waited = ranks.gather(all.waited);
  const OpTimes times = times_by_operation(*be, of_single, measure_single);
  Roofline roofline{.what = text_of(alone(single)), .device = device.name};
  if (options.roofline || !options.trace.empty()) {
    roofline.bytes_per_second = measure_bandwidth(*be);
    roofline.flop_per_second = shape.fp8 ? gemm_peak(*be) : peak;
    if (shape.fp8) roofline.fp8_flop_per_second = peak;
  }
  TracedStep traced;
  if (!options.trace.empty())
    traced = trace_step(*be, single, ranks, roofline, timed,
                        [&](const TimedSteps& steps) { return measure(single, steps); });
  if (options.roofline) {
    roofline.step_ms = 1e3 * (times_single ? measure_single(of_single) : one).median();
    roofline.rows = rows_of_roofline(*be, shape.model, of_single, measure_single);
    sort_by_time(roofline);
  }
  line.clear();
  ranks.finish();
  if (!ranks.is_rank_0()) return;

  const double slowest_alone = fits_alone ? *std::max_element(ones.begin(), ones.end()) : 0;
  const double exposed = *std::max_element(waited.begin(), waited.end());
  const Speed speed{
      .shape = shape, .step = whole(all), .slowest_alone = slowest_alone, .exposed = exposed, .peak = peak};
  print_speed(speed);
  fmt::print("  memory        {:>10}\n", format_bytes(plan.ledger.peak_bytes()));
  if (!gemms.summary.empty()) fmt::print("  GEMMs         {}\n", gemms.summary);
  print_notices(gemms.notices, plan.attention);
  if (!options.trace.empty()) write_trace(traced, options.trace, be->device());
  const nlohmann::ordered_json by_op = print_by_operation(times, shape, of_single.steps);
  if (options.roofline) {
    fmt::print("{}", table_of(roofline));
    write_output(options.markdown, to_markdown(roofline));
  }
  if (options.json.empty()) return;
  nlohmann::ordered_json json = json_of(speed);
  json.update({{"device", device.name},
               {"memory_bytes", plan.ledger.peak_bytes()},
               {"gemms", gemms.summary},
               {"ms_by_operation", by_op}});
  if (options.roofline) json["roofline"] = to_json(roofline);
  write_output(options.json, json.dump(2) + "\n");
}

}  // namespace

void bench_step(const Config& config, const BenchStepOptions& options, const World& world) {
  RankGroup ranks(world, config);
  ranks.guard([&] { measure_step(config, options, ranks); });
}

}  // namespace tessera
