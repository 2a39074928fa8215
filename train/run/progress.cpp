#include "train/run/progress.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/ledger.h"
#include "kernels/base/text.h"
#include "model/dropout.h"
#include "model/fp8.h"
#include "model/params.h"
#include "train/config/config_values.h"
#include "train/memory/plan_advice.h"
#include "train/run/checkpoint_folder.h"
#include "train/run/epochs.h"

namespace tessera {
namespace {

// Steps of models of 100 million parameters and more reach 0.6 to 0.7 of the GEMM peak on both kinds of
// device (docs/results.md); smaller ones less, but their steps are short.
constexpr double kShareOfPeak = 0.6;
constexpr double kLongSeconds = 30;   // a longer step gets a notice
constexpr double kShortSeconds = 20;  // what the notice suggests

// The largest 1, 2, 4, 8, ... times `unit` that is at most `most`, and at least `unit`.
int64_t power_of_two_units(double most, int64_t unit) {
  int64_t units = unit;
  while (static_cast<double>(2 * units) <= most) units *= 2;
  return units;
}

std::string notice_of_step(const RunShape& shape, int64_t micro_batch, double seconds) {
  const int64_t tokens = shape.tokens_per_step(), T = shape.sequence_length;
  const int64_t unit = std::max<int64_t>(micro_batch, 1) * T * shape.mesh.data;
  const double token_seconds = seconds / static_cast<double>(tokens);
  const int64_t fewer = power_of_two_units(kShortSeconds / token_seconds, unit);
  const std::string text = fmt::format("a step of {} tokens will take about {} on this device",
                                       format_count(static_cast<double>(tokens)), format_about(seconds));
  if (fewer >= tokens) return text + "; a smaller model or a shorter train.sequence_length takes less";
  const double then = token_seconds * static_cast<double>(fewer);
  return fmt::format("{}; --set train.tokens_per_step={} makes it {}{}", text, fewer, format_about(then),
                     then > kLongSeconds ? ", a smaller model or a shorter train.sequence_length less" : "");
}

}  // namespace

int64_t evaluated_sequences(const Config& config, const RunData& data) {
  return std::min(config.evaluation.sequences, data.validation().sequences_per_epoch());
}

namespace {

std::string count_of(int64_t value) { return format_count(static_cast<double>(value)); }

std::string packing_text(const RunData::Source& source) {
  if (!source.packing) return "";
  const PackingFigures& figures = source.packing->figures();
  return fmt::format(", of {} {}, {:.2g}% padding", count_of(figures.documents),
                     source.pairs ? "pairs" : "documents", 100 * figures.padding);
}

// A line for one source; for several, a line for each and one for all
void add_data_lines(const RunDescription& run, std::vector<std::string>& lines) {
  const std::vector<RunData::Source>& sources = run.data.sources();
  const int64_t T = run.shape.sequence_length, all = run.data.train().sequences_per_epoch();
  const std::string held_out =
      run.data.evaluates()
          ? fmt::format(", {} held out", count_of(run.data.validation().sequences_per_epoch()))
          : "";
  if (sources.size() == 1) {
    lines.push_back(labelled(
        "data", fmt::format("{}: {} sequences of {} tokens to train on{}{}", sources[0].stream.describe(),
                            count_of(all), T, held_out, packing_text(sources[0]))));
    return;
  }
  double weights = 0;
  for (const auto& source : sources) weights += source.weight;
  for (const auto& source : sources) {
    const double share = source.weight / weights;
    lines.push_back(labelled(
        "data",
        fmt::format("{}: {} sequences of {} tokens{}; {:.3g}% of the run's, each {:.3g} times an epoch",
                    source.stream.describe(), count_of(source.sequences), T, packing_text(source),
                    100 * share, share * static_cast<double>(all) / static_cast<double>(source.sequences))));
  }
  lines.push_back(labelled("data", fmt::format("{} sources: {} sequences an epoch to train on{}",
                                               sources.size(), count_of(all), held_out)));
}

}  // namespace

std::vector<std::string> describe(const RunDescription& run) {
  const RunShape& shape = run.shape;
  const ModelConfig& model = shape.model;
  std::vector<std::string> lines{
      labelled(
          "model",
          fmt::format(
              "{} parameters{}: {} layers, {} heads{}, {} channels, context {}, vocabulary {}",
              count_of(model.base().parameters()),
              model.experts ? fmt::format(" ({} of them for a token, {} of {} experts)",
                                          count_of(model.base().active_parameters()), model.experts.active,
                                          model.experts.count)
                            : "",
              model.layers, model.heads,
              model.kv_heads == model.heads ? "" : fmt::format(" ({} of keys and values)", model.kv_heads),
              model.channels, model.context, model.vocab_size)),
      labelled("device",
               fmt::format("{}, {}, {} attention, {} {:.{}f} TFLOP/s", run.device.traits.name,
                           name_of(shape.dtype), name_of(shape.attention), name_of_peak(bool(shape.fp8)),
                           run.peak_flops / 1e12, run.peak_flops < 1e13 ? 2 : 0)),
  };
  if (!run.gemms.empty()) lines.push_back(labelled("GEMMs", "algorithms: " + run.gemms));
  add_data_lines(run, lines);
  if (!run.device.notice.empty()) lines.insert(lines.begin() + 2, labelled("notice", run.device.notice));
  if (shape.freeze)
    lines.insert(lines.begin() + 1,
                 labelled(model.lora ? "lora" : "frozen",
                          frozen_text(model, shape.freeze, shape.base, shape.base_of_experts)));
  if (shape.fp8) lines.insert(lines.begin() + 1, labelled("fp8", fp8_text(model, shape.fp8)));
  if (model.dropout) lines.insert(lines.begin() + 1, labelled("dropout", text_of(model.dropout)));
  const bool built_in = std::ranges::any_of(
      run.config.data.train, [](const DataSource& source) { return source.path == kBuiltinData; });
  if (built_in)
    lines.push_back(
        labelled("notice",
                 "this is the built-in corpus, Tessera's own sources; --set data.train=PATH trains "
                 "on a text file or on token shards"));
  if (!run.data.tokenizer() && run.config.sampling.every > 0)
    lines.push_back(
        labelled("notice", "these shards do not name their tokenizer, so there will be no samples of text"));
  lines.push_back(labelled("step", fmt::format("{} tokens: {}{} x {} sequences of {}{}; {}, folder {}",
                                               count_of(shape.tokens_per_step()), shape.ranks_text(),
                                               shape.micro_steps, shape.micro_batch, shape.sequence_length,
                                               shape.context_text(), length_of(run.config), run.folder)));
  if (finds_shape(run.config))
    lines.push_back(labelled("auto", fmt::format("{}", fmt::join(found_for_auto(run.config, shape), " "))));
  if (run.config.train.report)
    lines.push_back(labelled("report", (std::filesystem::path(run.folder) / "report.html").string()));
  if (run.config.phases() > 1)
    lines.push_back(labelled("phases", "sequence lengths by the steps done before: " +
                                           Phases{}.write(run.config.train.context_schedule)));
  return lines;
}

std::string describe_phase(const RunDescription& run, int64_t step) {
  const RunShape& shape = run.shape;
  return fmt::format(
      "step {}: {}{}{} x {} sequences of {}{} a step, {} to train on{}", step,
      phase_name(run.config, run.config.phase_after(step)), shape.ranks_text(), shape.micro_steps,
      shape.micro_batch, shape.sequence_length, shape.context_text(), run.data.train().sequences_per_epoch(),
      run.data.evaluates() ? fmt::format(", {} held out", run.data.validation().sequences_per_epoch()) : "");
}

std::string phase_name(const Config& config, size_t phase) {
  if (config.phases() == 1) return "";
  const ContextPhase& it = config.train.context_schedule[phase];
  return fmt::format("phase {} of train.context_schedule, sequences of {} tokens from step {} on: ",
                     phase + 1, it.sequence_length, it.from_step + 1);
}

std::vector<std::string> describe_best(const Config& config, const RunState& now,
                                       const std::filesystem::path& checkpoints) {
  const auto& best = now.best;
  if (!best) return {};
  const std::filesystem::path kept = checkpoints / checkpoint_name(best->step);
  const bool is_kept = std::filesystem::exists(kept);
  std::vector<std::string> lines{
      fmt::format("the lowest validation loss was {:.4f}, after step {}{}", best->validation_loss, best->step,
                  is_kept ? ": " + kept.string() : "; checkpoint.keep_best=true keeps such a checkpoint")};
  if (!is_kept) return lines;
  const Config::Data& data = config.data;
  const auto path = [](const char* key, const std::string& text) {  // in a shell, and there in YAML
    return fmt::format("{}={}", key, in_shell(text) == text ? text : in_quotes(text));
  };
  const std::string held_out = data.validation.empty()
                                   ? fmt::format("data.validation_fraction={}", data.validation_fraction)
                                   : path("data.validation", data.validation);
  std::vector<std::string> data_keys{data.train.size() == 1 ? path("data.train", data.train[0].path)
                                                            : "data.train=" + Sources().write(data.train),
                                     held_out};
  if (data.masks()) data_keys.push_back("data.documents=mask");
  lines.push_back(
      fmt::format("to train from it: ./train --config finetune.yaml \\\n  {} \\\n  {} \\\n  {}",
                  set_switches({path("train.init_from", kept.string())}), set_switches(data_keys),
                  set_switches({fmt::format("train.tokens_per_step={}", config.train.tokens_per_step)})));
  return lines;
}

double expected_step_seconds(const RunShape& shape, double peak_flops) {
  return static_cast<double>(shape.tokens_per_rank()) * shape.flops_per_token() / (kShareOfPeak * peak_flops);
}

double expected_evaluation_seconds(const RunShape& shape, double peak_flops, int64_t sequences) {
  const double per_rank = static_cast<double>(sequences) / static_cast<double>(shape.sequences_per_rank()) /
                          static_cast<double>(shape.ranks());
  return expected_step_seconds(shape, peak_flops) * per_rank / 3;  // a forward is a third of a step
}

std::vector<std::string> slowness_notices(const RunDescription& run) {
  std::vector<std::string> notices;
  const double step = expected_step_seconds(run.shape, run.peak_flops);
  if (step > kLongSeconds) notices.push_back(notice_of_step(run.shape, run.config.train.micro_batch, step));
  if (!run.data.evaluates()) return notices;
  const int64_t validation_sequences = evaluated_sequences(run.config, run.data);
  const double evaluation = expected_evaluation_seconds(run.shape, run.peak_flops, validation_sequences);
  if (evaluation <= kLongSeconds) return notices;
  const double sequences = static_cast<double>(validation_sequences) * kShortSeconds / evaluation;
  const int64_t fewer = power_of_two_units(sequences, 1);
  notices.push_back(fmt::format(
      "an evaluation of {} sequences will take about {}; --set evaluation.sequences={} makes it {}{}",
      validation_sequences, format_about(evaluation), fewer,
      format_about(evaluation * static_cast<double>(fewer) / static_cast<double>(validation_sequences)),
      run.config.evaluation.at_start ? ", --set evaluation.at_start=false omits the one before the first step"
                                     : ""));
  return notices;
}

std::string format_about(double seconds) {
  return seconds < 90          ? fmt::format("{:.0f} s", std::max(1.0, seconds))
         : seconds < 90 * 60.0 ? fmt::format("{:.0f} min", seconds / 60)
                               : fmt::format("{:.1f} h", seconds / 3600);
}

TimeLeft::TimeLeft(const Config& config)
    : steps_(config.steps()),
      every_{1, config.evaluation.every, config.sampling.every,
             config.checkpoint.every > 0 ? config.checkpoint.every : config.steps()} {}

void TimeLeft::took(Task task, double seconds) {
  double& smoothed = seconds_[task];
  smoothed = smoothed == 0 ? seconds : 0.9 * smoothed + 0.1 * seconds;
}

double TimeLeft::after(int64_t step) const {
  double left = seconds_[kStep] * static_cast<double>(steps_ - step);
  for (const Task task : {kEvaluation, kSample, kCheckpoint}) {
    const int64_t every = every_[task];
    if (every == 0) continue;
    const int64_t due = steps_ / every - (step - 1) / every + (steps_ % every != 0);  // one more at the end
    left += seconds_[task] * static_cast<double>(due);
  }
  return left;
}

std::vector<StatusPart> step_status(const StepFigures& f) {
  const double tokens = static_cast<double>(f.tokens_per_step),
               tokens_per_second = tokens / std::max(f.interval.mean(f.interval.seconds), 1e-9),
               counted = 1 - f.interval.mean(f.interval.uncounted) / tokens;
  const double mfu = tokens_per_second * f.flops_per_token / f.peak_flops;
  std::vector<StatusPart> parts{{fmt::format("step {}/{}", f.step, f.steps), 1},
                                {fmt::format("loss {:.4f}", f.interval.mean(f.interval.loss)), 2},
                                {fmt::format("norm {:.2f}", f.grad_norm), 6},
                                {fmt::format("lr {:.2e}", f.learning_rate), 7},
                                {fmt::format("{} tok/s", format_count(tokens_per_second)), 3},
                                {fmt::format("MFU {:.1f}%{}", 100 * mfu, f.fp8 ? " of FP8's peak" : ""), 5},
                                {format_bytes(f.memory_bytes), 8},
                                {"ETA " + format_duration(f.seconds_left), 4}};
  if (f.pairs)
    parts.insert(parts.begin() + 2,
                 {{fmt::format("accuracy {:.0f}%", 100 * f.interval.mean(f.interval.accuracy)), 9},
                  {fmt::format("margin {:.3f}", f.interval.mean(f.interval.margin)), 9}});
  if (counted < 1) parts.insert(parts.begin() + 2, {fmt::format("{:.0f}% loss tokens", 100 * counted), 9});
  if (f.interval.clipped_heads > 0)
    parts.insert(parts.begin() + 2, {fmt::format("{:.0f} heads clipped", f.interval.clipped_heads), 9});
  return parts;
}

std::vector<StatusPart> task_status(const TaskFigures& task) {
  const double done = static_cast<double>(task.done), total = static_cast<double>(task.total);
  const double rate = done / std::max(task.seconds, 1e-9), left = (total - done) / std::max(rate, 1e-9);
  return {{task.where, 1},
          {fmt::format("{} {:.0f}%", task.what, 100 * done / total), 2},
          {fmt::format("{} of {} {}", task.done, task.total, task.unit), 4},
          {rate >= 1 ? fmt::format("{:.1f}/s", rate) : fmt::format("{:.1f} s each", 1 / rate), 5},
          {format_duration(left) + " left", 3}};
}

}  // namespace tessera
