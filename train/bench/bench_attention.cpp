// ./bench attention: every way to attend, side by side in one run.
//
// The protocol of a time: inputs are random and larger than, or driven out of, the L2 cache; each contender
// is warmed up; then the contenders take turns, call by call, so that a drift of the clock hits all alike; a
// call's time is that between two events around it, enqueued while the device is busy with something else, so
// that the host's launches are hidden where they can be; the median is reported. A contender with an
// extra takes its turns behind the same one without.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/attention/cudnn.h"
#include "kernels/base/check.h"
#include "kernels/base/output.h"
#include "kernels/base/status_line.h"
#include "kernels/gemm/peak.h"
#include "kernels/timer.h"
#include "train/bench/attention_results.h"
#include "train/bench/attention_run.h"
#include "train/bench/attention_sweep.h"
#include "train/bench/bench.h"
#include "train/session/device.h"

namespace tessera {
namespace {

constexpr int kWarmupCalls = 2, kFewestRepeats = 3;
constexpr double kLongEnough = 1000;  // ms of one direction after which no more repeats are needed

// A contender on a problem: what is filled in as it goes.
struct Entry {
  AttentionCell cell;
  std::unique_ptr<AttentionRun> run;
  std::unique_ptr<Timer> timers[2];
  std::vector<double> samples[2];  // ms, forward and backward
};

bool has_yardstick(const std::vector<Contender>& contenders) {
  return std::ranges::any_of(contenders, [](const Contender& c) { return c.name == kYardstick; });
}

class Bench {
 public:
  Bench(const BenchAttentionOptions& options, const DeviceTraits& device)
      : options_(options),
        device_(device),
        backend_(make_backend(device)),
        arena_(make_arena(device)),
        stream_(*backend_, arena_.alloc(MemoryTag::kWorkspace, "kernel workspace", DType::kF32,
                                        {workspace_bytes(device.device, 1, 1, 1) / 4})) {}

  AttentionResults run() {
    const std::vector<Contender> contenders =
        with_extras(contenders_of(options_.rungs, device_), options_.extras);
    const std::vector<PlannedProblem> problems = problems_of(options_, device_.device);
    AttentionResults results{.device = device_.name,
                             .cudnn = has_yardstick(contenders) ? attention::cudnn_version() : "",
                             .gemm_peak = gemm_peak(*backend_),
                             .cudnn_deterministic = options_.cudnn_deterministic,
                             .repeats = options_.repeats,
                             .cells = {}};
    if (device_.device == Device::kCuda) {
      flush_ =
          arena_.alloc(MemoryTag::kWorkspace, "what is read between calls", DType::kF32, {kColdCacheBytes / 4});
      norm_ = arena_.alloc(MemoryTag::kWorkspace, "norm", DType::kF32, {1});
      stream_.run(FillZero{flush_});
    }
    fmt::print("attention on {}{}; GEMM peak {:.4g} TFLOP/s, median of {}\n", device_.name,
               results.cudnn.empty() ? "" : ", beside cuDNN " + results.cudnn, results.gemm_peak / 1e12,
               options_.repeats);
    const std::string warning =
        old_cudnn_warning(has_yardstick(contenders) ? attention::cudnn_version_number() : 0);
    if (!warning.empty()) print_stderr(fmt::format("bench: {}\n", warning));
    for (const PlannedProblem& planned : problems) {
      std::vector<AttentionCell> cells = measure(planned, contenders);
      fmt::print("\n{}", problem_table(cells, results.gemm_peak, results.cudnn));
      std::fflush(stdout);
      results.cells.insert(results.cells.end(), cells.begin(), cells.end());
    }
    return results;
  }

 private:
  // What a call should take at the speed of the contender's last problem like this one, in ms.
  double estimate(const Contender& contender, const AttnProblem& p, bool backward) {
    const auto found = speeds_.find(series(contender, p, backward));
    const double speed = found == speeds_.end() ? contender.least_flops(device_.device) : found->second;
    return attention_flops(p, backward) / speed * 1e3;
  }
  static std::string series(const Contender& contender, const AttnProblem& p, bool backward) {
    return fmt::format("{} {} {} {} {} {} {}", contender.name, contender.extra.name, p.head_dim, p.mask.causal,
                       p.mask.window > 0, p.mask.documents != nullptr, backward);
  }

  std::vector<AttentionCell> measure(const PlannedProblem& planned,
                                     const std::vector<Contender>& contenders) {
    Arena arena = make_arena(device_);
    std::map<AttnDtype, AttentionInputs> inputs;
    std::vector<Entry> entries(contenders.size());
    for (size_t i = 0; i < contenders.size(); ++i) {
      const Contender& contender = contenders[i];
      AttentionCell& cell = entries[i].cell;
      cell.rung = contender.name;
      cell.mask = planned.mask;
      cell.problem = planned.problem;
      cell.problem.dtype = attn_dtype(contender.dtype(device_.device));
      contender.extra.add_to(cell.problem);
      cell.extra = contender.extra.name;
      cell.in_sweep = planned.in_sweep;
      cell.why_not = contender.why_not(cell.problem, device_);
      if (cell.why_not.empty() && std::max(estimate(contender, cell.problem, false),
                                           estimate(contender, cell.problem, true)) > options_.longest_ms)
        cell.why_not = fmt::format("over --longest-ms {}", options_.longest_ms);
      if (!cell.why_not.empty()) continue;
      try {
        auto& input = inputs[cell.problem.dtype];
        if (!input.qkv) input = random_inputs(stream_, arena, cell.problem);
        AttentionInputs own = input;
        own.extra = contender.extra;
        entries[i].run = make_attention_run(contender, stream_, own, options_.cudnn_deterministic);
        cell.saved_bytes = entries[i].run->saved_bytes();
        cell.workspace_bytes = entries[i].run->workspace_bytes();
        if (contender.rung && contender.extra.name.empty()) {
          cell.forward = contender.rung->forward_traffic(cell.problem, device_.arch);
          cell.backward = contender.rung->backward_traffic(cell.problem, device_.arch);
        }
        for (auto& timer : entries[i].timers) timer = make_timer(stream_);
        for (int call = 0; call < kWarmupCalls; ++call) time_both(entries[i]);
        for (auto& samples : entries[i].samples) samples.clear();
      } catch (const OutOfMemory&) {
        entries[i].run.reset();
        cell.why_not = "out of memory";
      } catch (const Error& error) {  // one contender's refusal is not the others'
        entries[i].run.reset();
        cell.why_not = "failed, as said above";
        print_stderr(fmt::format("bench: {} on {}: {}\n", contender.name, to_string(cell), error.what()));
      }
    }
    for (int64_t repeat = 0; repeat < options_.repeats; ++repeat) {
      for (Entry& entry : entries)
        if (entry.run && !enough(entry)) time_both(entry);
    }
    std::vector<AttentionCell> cells;
    for (size_t i = 0; i < entries.size(); ++i) {
      Entry& entry = entries[i];
      if (entry.run) {
        for (const bool backward : {false, true}) {
          std::vector<double>& samples = entry.samples[backward];
          std::sort(samples.begin(), samples.end());
          const double median = samples[samples.size() / 2];
          (backward ? entry.cell.backward_ms : entry.cell.forward_ms) = median;
          speeds_[series(contenders[i], entry.cell.problem, backward)] =
              attention_flops(entry.cell.problem, backward) / median * 1e3;
        }
      }
      cells.push_back(entry.cell);
    }
    return cells;
  }

  static bool enough(const Entry& entry) {
    double total = 0;
    for (const double ms : entry.samples[1]) total += ms;
    return entry.samples[1].size() >= kFewestRepeats && total > kLongEnough;
  }

  void time_both(Entry& entry) {
    const auto time = [&](Timer& timer, auto&& call) {
      if (flush_) stream_.run(GlobalNorm{.tensors = {&flush_, 1}, .norm = norm_});
      timer.start();
      call();
      timer.stop();
    };
    time(*entry.timers[0], [&] { entry.run->forward(); });
    time(*entry.timers[1], [&] { entry.run->backward(); });
    for (const int direction : {0, 1})
      entry.samples[direction].push_back(entry.timers[direction]->milliseconds());
  }

  const BenchAttentionOptions& options_;
  DeviceTraits device_;
  std::unique_ptr<Backend> backend_;
  Arena arena_;
  Stream stream_;
  Tensor flush_, norm_;
  std::map<std::string, double> speeds_;  // FLOP/s
};

}  // namespace

void bench_attention(const BenchAttentionOptions& options) {
  check(options.group > 0, "--group must be a positive number, found {}", options.group);
  check_writable(options.json);
  check_writable(options.svg);
  const DeviceTraits device = choose_device(options.device).traits;
  const AttentionResults results = Bench(options, device).run();
  const auto means = mean_ratios(results);
  if (!means.empty()) fmt::print("\ntimes as fast as cuDNN, geometric means: forward, backward\n");
  for (const auto& [rung, mean] : means)
    fmt::print("  {:<13}{:>8.3f}{:>8.3f}   over {} problems\n", rung, mean.forward, mean.backward,
               mean.problems);
  const auto prices = extra_prices(results);
  if (!prices.empty()) fmt::print("\nwhat these add, geometric means: forward, backward, both\n");
  for (const auto& [which, price] : prices)
    fmt::print("  {:<13}{:<13}{:>+7.1f}%{:>+7.1f}%{:>+7.1f}%   over {} problems\n", which.first, which.second,
               100 * price.forward, 100 * price.backward, 100 * price.both, price.problems);
  write_output(options.json, to_json(results).dump(2) + "\n");
  write_output(options.svg, to_svg(results));
}

}  // namespace tessera
