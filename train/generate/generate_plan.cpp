#include "train/generate/generate_plan.h"

#include <algorithm>
#include <cstdlib>

#include "kernels/base/check.h"
#include "kernels/base/text.h"
#include "train/memory/plan_command.h"
#include "train/memory/run_plan.h"
#include "train/session/from_config.h"

namespace tessera {
namespace {

// The longest context that fits; 0: not even one of kContextStep, or of the model's if that is shorter
int64_t longest_context(GenerateShape shape, const DeviceTraits& device, const MemoryLimit& limit) {
  const auto fits = [&](int64_t context) {
    shape.context = context;
    return plan_generate(shape, device).peak() <= limit.bytes;
  };
  const int64_t most = shape.model.context;
  return fits(most) ? most : largest_that_fits(std::min(kContextStep, most), most, fits);
}

std::string texts(int64_t count) { return count == 1 ? "1 text" : fmt::format("{} texts", count); }

}  // namespace

GeneratePlan plan_generate(const GenerateShape& shape, const DeviceTraits& device) {
  const std::unique_ptr<Backend> be = make_plan_backend(device);
  Arena arena = Arena::plan(device.device);
  GeneratePlan plan{
      .shape = inference_shape(shape.model, device, shape.precision, shape.attention, shape.context),
      .settings = {.slots = shape.slots,
                   .capacity = shape.context,
                   .known = shape.known,
                   .factors_by_length = true,
                   .cache = shape.cache},
      .ledger = {},
      .cache_bytes = 0,
      .token_bytes = 0,
      .decode = {}};
  Session session(*be, arena, plan.shape);
  Decoder decoder(session, plan.settings);
  decoder.start(0, std::vector<int32_t>(static_cast<size_t>(shape.context)), 0);
  decoder.next({}, 0);
  plan.ledger = arena.ledger();
  plan.decode = decoder.kernels_text();
  const CacheDtype cache = checked_cache(shape.cache, plan.shape.dtype);
  plan.cache_bytes = shape.slots * kv_cache_bytes(shape.model, plan.shape.dtype, shape.context, cache);
  plan.token_bytes = kv_cache_bytes_of_token(shape.model, plan.shape.dtype, shape.context, cache);
  return plan;
}

void check_fits(const GenerateShape& shape, const GeneratePlan& plan, const DeviceTraits& device,
                const MemoryLimit& limit) {
  if (!limit.known() || plan.peak() <= limit.bytes) return;
  const int64_t longest = longest_context(shape, device, limit);
  fail("{} of {} tokens do not fit: they need {}, of which {} are the cache, and {}. {}",
       texts(shape.slots), shape.context, format_bytes(plan.peak()), format_bytes(plan.cache_bytes),
       limit.free_text(),
       longest > 0
           ? fmt::format("Use --context {}{}", longest, shape.slots > 1 ? ", or a smaller --batch" : "")
           : "Use a smaller --batch, or a smaller model");
}

int print_generate_plan(const GenerateShape& shape, const PlanTarget& target) {
  const GeneratePlan plan = plan_generate(shape, target.device);
  const auto row = [](std::string_view what, int64_t bytes) {
    fmt::print("  {:<48} {:>12} {:>18}\n", what, format_bytes(bytes), bytes);
  };
  fmt::print("model    {} parameters, context {}, {}, {} attention\n",
             format_count(static_cast<double>(shape.model.parameters())), shape.model.context,
             name_of(plan.shape.dtype), name_of(shape.attention));
  const int arch = target.device.arch;  // 0 on the CPU
  fmt::print("device   {}{}\n", target.device.name,
             arch ? fmt::format(", compute capability {}.{}", arch / 10, arch % 10) : "");
  if (!target.notice.empty()) fmt::print("notice   {}\n", target.notice);
  fmt::print("cache    {} of up to {} tokens{}: {}, {} a token\n", texts(shape.slots), shape.context,
             cache_text(shape.cache), format_bytes(plan.cache_bytes),
             format_bytes(static_cast<int64_t>(plan.token_bytes)));
  if (arch) fmt::print("decode   {}\n", plan.decode);
  fmt::print("peak     at \"{}\"; bytes\n", plan.ledger.peak_name());
  for (int i = 0; i < kMemoryTags; ++i)
    if (plan.ledger.at_peak()[i]) row(name_of(static_cast<MemoryTag>(i)), plan.ledger.at_peak()[i]);
  row("all tags", plan.peak());
  const MemoryLimit& limit = target.limit;
  if (!limit.known()) {
    fmt::print(
        "fits?    not known: no such device is present. Give a memory size with --device-memory 80GiB\n");
    return 0;
  }
  row(limit.given ? "given by --device-memory" : "free now, by the system", limit.bytes + limit.not_ours);
  if (limit.not_ours) {
    row("allowance: CUDA context, kernels, cuBLASLt, cuDNN", limit.not_ours);
    row("available", limit.bytes);
  }
  const int64_t spare = limit.bytes - plan.peak();
  fmt::print("fits?    {}, {} {}\n", spare >= 0 ? "yes" : "no", format_bytes(std::abs(spare)),
             spare >= 0 ? "to spare" : "too much");
  const int64_t longest = longest_context(shape, target.device, limit);
  fmt::print("longest  {}\n",
             longest == 0 ? fmt::format("no context fits with {}", texts(shape.slots))
             : longest == shape.model.context
                 ? fmt::format("--context {}, the model's, fits with {}", longest, texts(shape.slots))
                 : fmt::format("--context {} is the longest that fits with {}", longest, texts(shape.slots)));
  return spare >= 0 ? 0 : kExitDoesNotFit;
}

}  // namespace tessera
