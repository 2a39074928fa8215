// ./bench memory: memory and time of a training step of one sequence, by sequence length and kind of
// attention.
//
// Each step is planned first, over an arena without memory. A step that does not fit by plan is not tried; a
// step that runs must need exactly the planned memory.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/attention/cudnn.h"
#include "kernels/base/output.h"
#include "train/bench/bench.h"
#include "train/bench/memory_results.h"
#include "train/bench/sequence_lengths.h"
#include "train/bench/time_steps.h"
#include "train/memory/plan_target.h"
#include "train/memory/run_plan.h"
#include "train/session/device.h"
#include "train/session/from_config.h"
#include "train/session/train_state.h"

namespace tessera {
namespace {

constexpr int64_t kWarmupSteps = 1;  // the first step maps the memory

class Bench {
 public:
  Bench(const Config& config, const BenchMemoryOptions& options)
      : config_(config),
        options_(options),
        device_(choose_device(config.device).traits),
        given_(options.device_memory.empty()
                   ? MemoryLimit{}
                   : given_memory(device_.device, parse_device_memory(options.device_memory))),
        backend_(make_backend(device_)) {}

  MemoryResults run() {
    MemoryResults results = describe();
    std::vector<AttentionKind> kinds;
    for (const AttentionKind kind : asked_for())
      if (can_run(kind)) kinds.push_back(kind);
    check(!kinds.empty(), "no kind of attention can run here");
    fmt::print("{}", memory_table_head(results));
    for (const int64_t tokens : options_.sequence_lengths) {
      for (const AttentionKind kind : kinds) {
        std::fflush(stdout);
        results.rows.push_back(measure(kind, tokens));
        fmt::print("{}", memory_table_line(results.rows.back()));
      }
    }
    for (const AttentionKind kind : kinds)
      if (limit().known()) results.largest.push_back(largest(kind));
    fmt::print("{}", memory_summary(results));
    return results;
  }

 private:
  MemoryResults describe() const {
    const RunShape shape = shape_of(AttentionKind::kFlash, options_.sequence_lengths.front());
    return {.device = device_.name,
            .precision = name_of(shape.dtype),
            .recompute = text_of(shape.keep),
            .layers = shape.model.layers,
            .heads = shape.model.heads,
            .channels = shape.model.channels,
            .classifier_chunk = shape.classifier_chunk,
            .deterministic = shape.deterministic,
            .steps = options_.steps};
  }

  std::vector<AttentionKind> asked_for() const {
    std::vector<AttentionKind> kinds;
    for (const AttentionKind kind : options_.attention)
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    constexpr auto all = values_with_words<AttentionKind>();
    return kinds.empty() ? std::vector<AttentionKind>(all.begin(), all.end()) : kinds;
  }

  // A kind that cannot run is an Error if the user named it, else it is skipped.
  bool can_run(AttentionKind kind) const {
    try {
      for (const int64_t tokens : options_.sequence_lengths) plan(kind, tokens);
      std::string why_not;
      check(kind != AttentionKind::kCudnn || attention::cudnn_available(why_not), "cudnn attention: {}",
            why_not);
      return true;
    } catch (const Error& error) {
      if (!options_.attention.empty()) throw;
      fmt::print("skipped: {}\n", error.what());
      return false;
    }
  }

  RunShape shape_of(AttentionKind kind, int64_t tokens) const {
    Config at = config_;
    at.model.attention = kind;
    at.model.context = std::max(tokens, config_.model.context);
    at.train.sequence_length = at.train.tokens_per_step = tokens;
    at.train.micro_batch = 1;
    return run_shape(at, device_);
  }

  struct Plan {
    RunShape shape;
    StepMemory memory;
    const char* saved_name;  // of what attention saves
  };
  Plan plan(AttentionKind kind, int64_t tokens) const {
    const RunShape shape = shape_of(kind, tokens);
    const std::unique_ptr<Backend> be = make_plan_backend(device_);
    Arena arena = Arena::plan(device_.device);
    arena.record();
    TrainState state(*be, arena, shape);
    state.walk_step();
    const char* saved_name = state.model().attention.of(0).saved_name;
    return {shape, step_memory(arena.ledger(), saved_name), saved_name};
  }

  // The memory now: as given, but at most the free memory
  MemoryLimit limit() const {
    const MemoryLimit present = present_memory(device_.device);
    return given_.known() && (!present.known() || given_.bytes < present.bytes) ? given_ : present;
  }
  static bool fits(const Plan& plan, const MemoryLimit& limit) {
    return !limit.known() || plan.memory.step <= limit.bytes;
  }

  MemoryRow measure(AttentionKind kind, int64_t tokens) const {
    const Plan planned = plan(kind, tokens);
    const MemoryLimit available = limit();
    MemoryRow row{
        .attention = kind, .tokens = tokens, .planned = planned.memory, .available = available.bytes};
    if (!fits(planned, available)) {
      row.outcome = MemoryRow::Outcome::kDoesNotFit;
      return row;
    }
    try {
      Arena arena = make_arena(device_);
      arena.record();
      arena.reserve(planned.memory.step);
      const StepTimes times = time_steps(*backend_, arena, planned.shape, optimizer_config(config_),
                                         {.warmup = kWarmupSteps, .steps = options_.steps});
      row.measured = step_memory(arena.ledger(), planned.saved_name);
      row.step_ms = 1e3 * times.median();
      check_as_planned(row);
    } catch (const OutOfMemory&) {
      row.outcome = MemoryRow::Outcome::kRanOut;
    }
    return row;
  }

  LargestSequence largest(AttentionKind kind) const {
    const MemoryLimit available = limit();
    return {.attention = kind,
            .tokens = largest_that_fits(kContextStep, kLongestSequence,
                                        [&](int64_t tokens) { return fits(plan(kind, tokens), available); }),
            .available = available.bytes};
  }

  const Config& config_;
  const BenchMemoryOptions& options_;
  DeviceTraits device_;
  MemoryLimit given_;  // by --device-memory; else not known
  std::unique_ptr<Backend> backend_;
};

}  // namespace

void bench_memory(const Config& config, const BenchMemoryOptions& options) {
  check_writable(options.json);
  check_writable(options.svg);
  const MemoryResults results = Bench(config, options).run();
  write_output(options.json, to_json(results).dump(2) + "\n");
  write_output(options.svg, to_svg(results));
}

}  // namespace tessera
