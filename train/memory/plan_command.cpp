#include "train/memory/plan_command.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/attention/cudnn.h"
#include "kernels/attention/family.h"
#include "kernels/base/output.h"
#include "kernels/base/text.h"
#include "model/fp8.h"
#include "model/params.h"
#include "train/config/check_config.h"
#include "train/memory/data_weights.h"
#include "train/memory/memory_report.h"
#include "train/memory/plan_advice.h"
#include "train/memory/plan_fit.h"
#include "train/session/step_estimate.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

std::string with_bytes(int64_t bytes) { return fmt::format("{:>12} {:>18}", format_bytes(bytes), bytes); }

std::string lines_of(const Config& config, const PlannedRun& run) {
  std::string lines;
  if (config.train.epochs > 0 && run.steps)
    lines = fmt::format("epochs   {} = {} steps\n", config.train.epochs, *run.steps);
  for (const std::string& notice : run.notices) lines += fmt::format("notice   {}\n", notice);
  return lines;
}

// What train.freeze or train.lora saves: gradients, moments and masters, and with them a part of the peak
std::string frozen_line(const RunPlan& plan) {
  if (!plan.shape.freeze) return "";
  RunShape all = plan.shape;
  all.freeze = {};
  all.model.lora = {};
  return fmt::format(
      "{:<8} {}; saves {}\n", plan.shape.model.lora ? "lora" : "frozen",
      frozen_text(plan.shape.model, plan.shape.freeze, plan.shape.base, plan.shape.base_of_experts),
      format_bytes(plan_memory(all, plan.device).peak_bytes() - plan.peak()));
}

// What train.gemm_dtype=fp8 adds to the peak: weights in one byte, twice, and room for an operand. Frozen
// weights have one byte alone, which saves more.
std::string fp8_line(const RunPlan& plan) {
  if (!plan.shape.fp8) return "";
  RunShape without = plan.shape;
  without.fp8 = {};
  const int64_t bytes = plan.peak() - plan_memory(without, plan.device).peak_bytes();
  return fmt::format("fp8      {}; {} {}\n", fp8_text(plan.shape.model, plan.shape.fp8),
                     bytes < 0 ? "saves" : "takes", format_bytes(std::abs(bytes)));
}

// The step without its reference or its teacher; nothing if there is none
std::optional<RunShape> without_other_model(RunShape shape) {
  if (shape.loss.needs_reference) {
    shape.loss.needs_reference = false, shape.loss.stored_reference = true;
    return shape;
  }
  if (!shape.teacher) return {};
  shape.loss = cross_entropy();
  shape.teacher.reset();
  return shape;
}

// Of a GPU; a CPU's speed is hardly known.
std::string speed_line(const RunShape& shape, const DeviceTraits& device) {
  if (device.device == Device::kCpu) return "";
  const StepEstimate step = estimate_step(shape, device);
  const std::string waits = shape.ranks() > 1 ? fmt::format(", {:.1f}% of it waits for other ranks",
                                                            100 * step.waits / step.seconds)
                                              : "";
  std::string other;
  if (const std::optional<RunShape> without = without_other_model(shape)) {
    const double seconds = step.seconds - estimate_step(*without, device).seconds;
    other = fmt::format(", {:.0f} ms of it the {}", 1e3 * seconds,
                        shape.teacher ? "teacher" : "reference's forward");
  }
  return fmt::format("speed    about {} tokens/s on {}: a step of {:.0f} ms{}{}\n",
                     format_count(tokens_per_second(shape, step)), speed_of(device).card, 1e3 * step.seconds,
                     other, waits);
}

void print_limits(const RunPlan& plan) {
  const MemoryLimit& limit = plan.limit;
  const int64_t ranks = plan.shape.ranks();
  const std::string share = ranks > 1 ? fmt::format(", 1/{} of it", ranks) : "",
                    share_of_device = plan.device.device == Device::kCpu ? share : "";
  if (limit.pinned_given)
    fmt::print("  {:<48} {}\n", "given by --host-memory" + share, with_bytes(limit.pinned));
  if (!limit.known() && plan.fits()) {
    fmt::print(
        "fits?    not known: no such device is present. Give a memory size with --device-memory 80GiB\n");
    return;
  }
  if (limit.known())
    fmt::print("  {:<48} {}\n",
               (limit.given ? "given by --device-memory" : "free now, by the system") + share_of_device,
               with_bytes(limit.bytes + limit.not_ours));
  if (!limit.others.empty()) fmt::print("  {}\n", limit.others);
  if (limit.not_ours) {
    fmt::print("  {:<48} {}\n",
               fmt::format("allowance: {}kernels, cuBLASLt, cuDNN{}", limit.given ? "CUDA context, " : "",
                           ranks > 1 ? ", NCCL" : ""),
               with_bytes(limit.not_ours));
    fmt::print("  {:<48} {}\n", "available to the run", with_bytes(limit.bytes));
  }
  if (plan.fits_device() && !plan.fits_host())
    fmt::print("fits?    no, {} of the host's memory too much\n", format_bytes(-plan.spare_of_host()));
  else
    fmt::print("fits?    {}, {} {}\n", plan.fits() ? "yes" : "no", format_bytes(std::abs(plan.spare())),
               plan.fits() ? "to spare" : "too much");
}

void print_plan(const Config& config, const PlannedRun& run, const RunPlan& plan, const std::string& notice) {
  const RunShape& s = plan.shape;
  const MemoryLedger& ledger = plan.memory.ledger;
  fmt::print("model    {} parameters{}, context {}, {}, {} attention\n",
             format_count(static_cast<double>(s.model.base().parameters())),
             s.model.experts
                 ? fmt::format(" ({} of them for a token, {} of {} experts)",
                               format_count(static_cast<double>(s.model.base().active_parameters())),
                               s.model.experts.active, s.model.experts.count)
                 : "",
             s.model.context, name_of(s.dtype), name_of(s.attention));
  fmt::print("{}{}", frozen_line(plan), fp8_line(plan));
  fmt::print("step     {} tokens: {}{} x {}{} sequences of {}{}\n",
             format_count(static_cast<double>(s.tokens_per_step())), s.ranks_text(), s.micro_steps,
             s.micro_batch, config.train.micro_batch == 0 ? " (auto)" : "", s.sequence_length,
             s.context_text());
  if (finds_shape(config)) fmt::print("auto     {}\n", set_switches(found_for_auto(config, s)));
  fmt::print("{}", lines_of(config, run));
  const int arch = plan.device.arch;  // 0 on the CPU
  fmt::print("device   {}{}\n", plan.device.name,
             arch ? fmt::format(", compute capability {}.{}", arch / 10, arch % 10) : "");
  if (!notice.empty()) fmt::print("notice   {}\n", notice);
  const std::string cudnn = s.attention == AttentionKind::kCudnn
                                ? attention::cudnn_sums_note(arch, config.train.deterministic)
                                : "";
  if (!cudnn.empty()) fmt::print("notice   {}\n", cudnn);
  if (!plan.memory.attention.empty()) fmt::print("notice   {}\n", plan.memory.attention);
  if (arch && !plan.memory.decode.empty()) fmt::print("samples  {}\n", plan.memory.decode);
  fmt::print("{}", speed_line(s, plan.device));
  fmt::print("peak     {}in {}, at \"{}\"; bytes\n", s.ranks() > 1 ? "of each rank, " : "",
             plan.memory.peak_stage, ledger.peak_name());
  for (int i = 0; i < kMemoryTags; ++i)
    if (ledger.at_peak()[i])
      fmt::print("  {:<48} {}\n", name_of(static_cast<MemoryTag>(i)), with_bytes(ledger.at_peak()[i]));
  fmt::print("  {:<48} {}\n", "all tags", with_bytes(plan.peak()));
  if (const int64_t host = plan.memory.host_bytes; host > 0)
    fmt::print("  {:<48} {}\n", "beside it, pinned memory of the host", with_bytes(host));
  print_limits(plan);
}

// Each key once, with its last value: the change overrides the user's switches.
std::string command(const PlanOptions& options, const Change& change) {
  std::vector<std::string> written = options.overrides, all;
  written.insert(written.end(), change.switches.begin(), change.switches.end());
  const auto key_of = [](std::string_view text) { return text.substr(0, text.find('=')); };
  for (auto at = written.begin(); at != written.end(); ++at)
    if (std::none_of(at + 1, written.end(), [&](const auto& l) { return key_of(l) == key_of(*at); }))
      all.push_back(*at);
  return fmt::format("./train --config {} {}{}", in_shell(options.config_name), set_switches(all),
                     change.config.ranks > 1 ? fmt::format(" --ranks {}", change.config.ranks) : "");
}

void print_fit(const Fit& fit, const PlanOptions& options) {
  if (fit.value == 0) {
    fmt::print("fit      no {} fits: {}. The plan of {}:\n", fit.what, fit.beyond, fit.step);
    return;
  }
  fmt::print("fit      {} {} is the largest, in steps of {}: {}\n  {}\n", fit.what, fit.value, fit.step,
             fit.beyond, command(options, fit.change));
  if (fit.same_step)
    fmt::print("  with train.tokens_per_step as it is:\n  {}\n", command(options, *fit.same_step));
}

Json to_json(const RunPlan& plan, const std::vector<Advice>& changes) {
  const RunShape& s = plan.shape;
  const StepEstimate step = estimate_step(s, plan.device);
  Json json{{"device", plan.device.name},
            {"arch", plan.device.arch},
            {"parameters", s.model.parameters()},
            {"active_parameters", s.model.active_parameters()},
            {"context", s.model.context},
            {"ranks", s.ranks()},
            {"context_ranks", s.mesh.context},
            {"micro_batch", s.micro_batch},
            {"micro_steps", s.micro_steps},
            {"sequence_length", s.sequence_length},
            {"precision", name_of(s.dtype)},
            {"gemm_dtype", name_of(s.fp8.gemm_dtype)},
            {"lora_base", name_of(s.base)},
            {"teacher_base", name_of(s.teacher_base)},
            {"attention", name_of(s.attention)},
            {"recompute", text_of(s.keep)},
            {"mlp_chunk", s.mlp_chunk},
            {"shard", name_of(s.shards().what)},
            {"replicas", s.mesh.replicas},
            {"offload", text_of(s.offload)},
            {"tokens_per_second", tokens_per_second(s, step)},
            {"step_seconds", step.seconds},
            {"step_waits", step.waits},
            {"peak_bytes", plan.peak()},
            {"host_bytes", plan.memory.host_bytes},
            {"host_available_bytes", nullptr},
            {"peak_stage", plan.memory.peak_stage},
            {"peak_at", plan.memory.ledger.peak_name()},
            {"bytes_by_tag", by_tag_json(plan.memory.ledger.at_peak())},
            {"own_peak_by_tag", by_tag_json(plan.memory.ledger.peak_of_each())},
            {"fits", nullptr}};
  if (plan.limit.pinned_known()) json["host_available_bytes"] = plan.limit.pinned;
  if (plan.limit.known() || !plan.fits()) json["fits"] = plan.fits();
  if (plan.limit.known()) {
    json["memory_bytes"] = plan.limit.total;
    json["allowance_bytes"] = plan.limit.not_ours;
    json["available_bytes"] = plan.limit.bytes;
  }
  if (!plan.fits()) {
    json["advice"] = Json::array();
    for (const Advice& a : changes)
      json["advice"].push_back({{"set", a.switches},
                                {"peak_bytes", a.peak},
                                {"fits", a.fits},
                                {"tokens_per_second", a.tokens_per_second}});
  }
  return json;
}

}  // namespace

namespace {

// One plan for every phase of train.context_schedule
int plan_each_phase(const Config& config, const PlanOptions& options, const PlanTarget& target,
                    const PlannedRun& run) {
  if (options.fit != FitSearch::kNone)
    fail(
        "--fit {} searches for one length, and train.context_schedule has {}: set "
        "train.context_schedule=none for the search",
        name_of(options.fit), config.phases());
  Json json{{"phases", Json::array()}};
  bool all_fit = true;
  for (size_t i = 0; i < config.phases(); ++i) {
    const Config phase = config.of_phase(i);
    const RunPlan plan = with_weights(plan_run(phase, target.device, target.limit), run.weights);
    const std::vector<Advice> changes = plan.fits() ? std::vector<Advice>() : advice(phase, plan, false);
    const int64_t from_step = config.train.context_schedule[i].from_step;
    fmt::print("{}phase    {} of {}: sequences of {} tokens, from step {} on\n", i > 0 ? "\n" : "", i + 1,
               config.phases(), phase.sequence_length(), from_step + 1);
    print_plan(phase, i == 0 ? run : PlannedRun(), plan, i == 0 ? target.notice : "");
    if (!plan.fits()) fmt::print("{}", advice_text(changes));
    Json one = to_json(plan, changes);
    one["from_step"] = from_step;
    json["phases"].push_back(std::move(one));
    all_fit &= plan.fits();
  }
  write_output(options.json, json.dump(2) + "\n");
  return all_fit ? 0 : kExitDoesNotFit;
}

}  // namespace

int plan_command(const Config& config, const PlanOptions& options) {
  check_writable(options.json);
  check_init_from(config);
  const PlanTarget target = choose_plan_target(config.device, config.ranks, options.target);
  const PlannedRun run = options.planned_run ? options.planned_run(config) : PlannedRun();
  if (config.phases() > 1) return plan_each_phase(config, options, target, run);
  std::optional<Fit> fit;
  if (options.fit == FitSearch::kContext) fit = fit_context(config, target.device, target.limit, run.weights);
  if (options.fit == FitSearch::kBatch) fit = fit_batch(config, target.device, target.limit, run.weights);
  const RunPlan plan =
      fit ? fit->plan : with_weights(plan_run(config, target.device, target.limit), run.weights);
  const Config& planned = fit ? fit->change.config : config;
  std::vector<Advice> changes;
  if (!plan.fits()) changes = advice(planned, plan, false);

  Json json = to_json(plan, changes);
  if (fit) {
    json["fit"] = {
        {"what", fit->what}, {"step", fit->step}, {"value", fit->value}, {"set", fit->change.switches}};
    if (fit->same_step) json["fit"]["set_with_same_step"] = fit->same_step->switches;
  }
  write_output(options.json, json.dump(2) + "\n");

  if (fit) print_fit(*fit, options);
  print_plan(planned, run, plan, target.notice);
  if (!plan.fits()) fmt::print("{}", advice_text(changes));
  return plan.fits() ? 0 : kExitDoesNotFit;
}

}  // namespace tessera
