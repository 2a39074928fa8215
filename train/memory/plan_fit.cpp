#include "train/memory/plan_fit.h"

#include <unistd.h>

#include <algorithm>

#include "kernels/base/status_line.h"
#include "train/memory/data_weights.h"

namespace tessera {
namespace {

// The upper ends of the configuration's keys (config_fields.h)
constexpr double kQuietSeconds = 5;  // without output: a vocabulary of millions has long plans
constexpr int64_t kMostContext = 10'000'000, kMostMicroBatch = 1'000'000, kMostTokensPerStep = 1'000'000'000;

Fit fit(const char* what, int64_t step, int64_t most, const MemoryLimit& limit,
        const std::function<RunPlan(const Config&)>& plan, const std::function<Change(int64_t)>& change_to) {
  check(limit.known(),
        "--fit needs the size of the memory, and no such device is present: give one with --device-memory "
        "80GiB");
  const auto plan_of = [&](int64_t value) { return plan(change_to(value).config); };
  StatusLine line(STDERR_FILENO, kQuietSeconds);
  plan_of(step);  // an error at the smallest value is an Error, not a value that is too large
  const auto why_not = [&](int64_t value) -> std::string {
    line.show({{.text = fmt::format("--fit: planning a {} of {}", what, value), .rank = 1}});
    try {
      const RunPlan its = plan_of(value);
      if (its.fits()) return "";
      if (!its.fits_device())
        return fmt::format("{} needs {}, {} too much", value, format_bytes(its.peak()),
                           format_bytes(-its.spare()));
      return fmt::format("{} needs {} of the host, {} too much", value, format_bytes(its.memory.host_bytes),
                         format_bytes(-its.spare_of_host()));
    } catch (const Error& error) {
      return fmt::format("{} is refused: {}", value, error.what());
    }
  };
  Fit found{.what = what, .step = step, .value = 0, .change = {}, .plan = {}, .beyond = {}};
  found.value = largest_that_fits(step, most, [&](int64_t value) { return why_not(value).empty(); });
  const int64_t next = found.value + step;
  found.beyond =
      next <= most ? why_not(next) : fmt::format("{} is above the limit of the configuration", next);
  found.change = change_to(std::max(found.value, step));
  found.plan = plan_of(std::max(found.value, step));
  line.clear();
  return found;
}

std::function<RunPlan(const Config&)> planner(const DeviceTraits& device, const MemoryLimit& limit,
                                              bool weights) {
  return [&device, &limit, weights](const Config& config) {
    return with_weights(plan_run(config, device, limit), weights);
  };
}

}  // namespace

Fit fit_context(const Config& config, const DeviceTraits& device, const MemoryLimit& limit, bool weights) {
  const int64_t micro_batch = std::max<int64_t>(config.train.micro_batch, 1);
  // train.init_from has a fixed number of positions, unless its table is extended.
  const bool fixed =
      !config.train.init_from.empty() && config.model.position_extension == PositionExtension::kNone;
  const int64_t most = std::min(fixed ? config.model.context : kMostContext,
                                kMostTokensPerStep / micro_batch / config.data_ranks());
  return fit("context", kContextStep, most, limit, planner(device, limit, weights), [&](int64_t tokens) {
    Change change{config, {}};
    change.config.train.micro_batch = micro_batch;  // so that train.tokens_per_step becomes a multiple of it
    change =
        fixed ? with_sequence_length(std::move(change), tokens) : with_context(std::move(change), tokens);
    if (config.train.micro_batch == 0)
      change.switches.push_back(fmt::format("train.micro_batch={}", micro_batch));
    return change;
  });
}

Fit fit_batch(const Config& config, const DeviceTraits& device, const MemoryLimit& limit, bool weights) {
  const int64_t most =
      std::min(kMostMicroBatch, kMostTokensPerStep / config.sequence_length() / config.data_ranks());
  const auto change_to = [&](int64_t micro_batch) { return with_micro_batch({config, {}}, micro_batch); };
  Fit found = fit("micro-batch", 1, most, limit, planner(device, limit, weights), change_to);
  const int64_t sequences = config.train.tokens_per_step / config.sequence_length() / config.data_ranks();
  int64_t divisor = std::min(found.value, sequences);
  while (divisor > 0 && sequences % divisor != 0) --divisor;
  if (divisor > 0 && divisor != found.value) found.same_step = change_to(divisor);
  return found;
}

}  // namespace tessera
