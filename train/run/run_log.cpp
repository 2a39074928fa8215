#include "train/run/run_log.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/present.h"
#include "kernels/base/signals.h"
#include "kernels/base/text.h"
#include "train/memory/memory_report.h"
#include "train/run/inside_line.h"
#include "train/session/sampler.h"

namespace tessera {
namespace {

constexpr double kQuietSeconds = 60;   // without output, after which a log gets a status line
constexpr double kWorthANotice = 1.1;  // times the peak that was last printed
constexpr const char* kCommandOutput = "metrics_command.log";

// Of pairs, by the means of PreferenceFigures::at()
void add_pairs(const std::vector<double>& figures, int64_t pairs, LossKind loss,
               nlohmann::ordered_json& line) {
  if (figures.empty()) return;
  line.update({{"pairs", pairs},
               {"reward_chosen", figures[1]},
               {"reward_rejected", figures[2]},
               {"reward_margin", figures[1] - figures[2]},
               {"reward_accuracy", figures[5]},
               {"logp_chosen", figures[3]},
               {"logp_rejected", figures[4]}});
  if (loss == LossKind::kKto)
    line.update({{"desirable", figures[6]}, {"divergence", std::max(0.0, figures[PreferenceFigures::kDivergence])}});
}

// Of what is not finite a line has null.
nlohmann::ordered_json figures_of(const BadStep& bad) {
  nlohmann::ordered_json figures{{"loss", bad.loss}, {"grad_norm", bad.grad_norm}};
  if (bad.is_spike())
    figures.update({{"loss_score", bad.scores.loss}, {"grad_norm_score", bad.scores.grad_norm}});
  figures["worst_sequences"] = bad.worst;
  return figures;
}

}  // namespace

RunLog::RunLog(const Config& config, const RunState& run, bool speaks)
    : config_(config), run_(run), line_(STDOUT_FILENO, kQuietSeconds, speaks), time_left_(config) {}

void RunLog::open_metrics(const std::filesystem::path& path, int64_t keep_to_step,
                          std::function<void()> check_folder) {
  check_folder_ = std::move(check_folder);
  metrics_.emplace(path, keep_to_step);
  report_.emplace(config_, line_, check_folder_);
  const std::string& command = config_.train.metrics_command;
  if (!command.empty()) command_.emplace(command, path.parent_path() / kCommandOutput);
}

void RunLog::tell_of_command() {
  if (!command_) return;
  if (const std::string trouble = command_->take_trouble(); !trouble.empty()) line_.notice(trouble);
}

// A line of metrics.jsonl: what every line has, then the figures of its type.
void RunLog::record(const char* type, const nlohmann::ordered_json& figures) {
  if (!metrics_) return;
  nlohmann::ordered_json line{{"type", type},
                              {"step", run_.step},
                              {"tokens", run_.tokens()},
                              {"epoch", static_cast<double>(run_.data_position) / sequences_per_epoch_},
                              {"elapsed", std::chrono::duration<double>(Clock::now() - started_).count()},
                              {"time", utc_time()}};
  line.update(figures);
  check_folder_();
  const std::string text = metrics_->write(line);
  if (const std::string notice = metrics_->take_notice(); !notice.empty()) line_.notice(notice);
  if (command_) command_->write(text);
  tell_of_command();
}

void RunLog::take(const RunDescription& description) {
  shape_ = description.shape;
  time_left_ = TimeLeft(config_);
  sequences_per_epoch_ = static_cast<double>(description.data.train().sequences_per_epoch());
}

void RunLog::begin(const RunDescription& description, const std::filesystem::path& resumed) {
  take(description);
  peak_flops_ = peak_printed_ = description.peak_flops;
  if (!resumed.empty()) line_.print_wrapped("resumed from " + resumed.string(), kLabelColumns);
  for (const std::string& line : describe(description)) line_.print_wrapped(line, kLabelColumns);
  for (const std::string& text : slowness_notices(description)) line_.notice(text);
  std::string dataset;
  for (const RunData::Source& source : description.data.sources())
    dataset += (dataset.empty() ? "" : "; ") + source.stream.describe();
  nlohmann::ordered_json figures{
      {"name", std::filesystem::weakly_canonical(description.folder).filename().string()},
      {"device", description.device.traits.name},
      {"ranks", shape_.ranks()},
      {"context_ranks", shape_.mesh.context},
      {"parameters", shape_.model.parameters()},
      {"active_parameters", shape_.model.active_parameters()},
      {"tokens_per_step", shape_.tokens_per_step()},
      {"sequence_length", shape_.sequence_length},
      {"steps", config_.steps()},
      {"flops_per_token", shape_.flops_per_token()},
      {"peak_flops", peak_flops_},
      {"peak_dtype", shape_.fp8 ? "fp8" : name_of(shape_.dtype)},
      {"precision", name_of(shape_.dtype)},
      {"attention", name_of(config_.model.attention)},
      {"dataset", dataset}};
  if (!description.gemms.empty()) figures["gemms"] = description.gemms;
  if (!resumed.empty()) figures["checkpoint"] = resumed.string();
  record(resumed.empty() ? "start" : "resume", figures);
  if (report_) report_->refresh();
}

void RunLog::begin_phase(const RunDescription& description) {
  take(description);
  interval_ = {};
  line_.print_wrapped(describe_phase(description, run_.step), 2);
  for (const std::string& text : slowness_notices(description)) line_.notice(text);
  record("phase", {{"sequence_length", shape_.sequence_length},
                   {"micro_batch", shape_.micro_batch},
                   {"flops_per_token", shape_.flops_per_token()}});
}

// It has no loss and no gradient: the line lacks them.
void RunLog::step_without_loss(double learning_rate, double seconds) {
  record("step", {{"learning_rate", learning_rate}, {"seconds", seconds}, {"loss_tokens", 0}});
  line_.notice(
      fmt::format("step {}: none of its {} tokens is a target that counts; the weights stay as they are",
                  run_.step, shape_.tokens_per_step()));
}

void RunLog::skipped_step(const BadStep& bad, double seconds) {
  nlohmann::ordered_json figures = figures_of(bad);
  figures.update({{"learning_rate", bad.learning_rate}, {"seconds", seconds}, {"skipped", bad.kind()}});
  record("step", figures);
  line_.notice(fmt::format(
      "step {}: {}; the step is skipped: weights and optimizer stay as they are. So far {} of at most {}. "
      "The highest loss has {}",
      bad.step, bad.figures(), run_.skipped_updates, config_.train.on_bad_step.most_skips,
      bad.worst.empty() ? "none" : bad.worst[0]));
}

void RunLog::go_back(const BadStep& bad, double seconds) {
  interval_ = {};
  line_.notice(fmt::format(
      "step {}: {}; the run goes back to step {}, and on with the data after the bad step: {} sequences are "
      "left out. So far {} of at most {} times. The highest loss has {}",
      bad.step, bad.figures(), run_.step, (bad.step - run_.step) * shape_.sequences_per_step(), run_.rewinds,
      config_.train.on_bad_step.most_rewinds, bad.worst.empty() ? "none" : bad.worst[0]));
  if (!metrics_) return;
  report_.reset();  // it follows the file
  check_folder_();
  metrics_->drop_after(run_.step);
  report_.emplace(config_, line_, check_folder_);
  nlohmann::ordered_json figures{{"bad_step", bad.step}, {"reason", bad.kind()}};
  figures.update(figures_of(bad));
  figures["seconds"] = seconds;
  record("rewind", figures);
  sync();
}

void RunLog::step(const TrainState::StepResult& result, const StepTokens& tokens, double learning_rate,
                  const StepSeconds& times, const MemoryLedger& ledger) {
  if (!metrics_) return;
  const double seconds = times.all;
  if (tokens.counted == 0) return step_without_loss(learning_rate, seconds);
  const double tokens_per_second = static_cast<double>(shape_.tokens_per_step()) / seconds;
  const double flops_per_token = shape_.flops_of_span(tokens.attention_span);
  raise_peak(tokens_per_second * flops_per_token / static_cast<double>(shape_.ranks()));
  const double peak_flops = peak_flops_ * static_cast<double>(shape_.ranks());
  const int64_t memory = ledger.peak_bytes();
  time_left_.took(TimeLeft::kStep, seconds);
  steps_ += 1;
  const double most = config_.optimizer.max_grad_norm;
  if (most > 0 && result.grad_norm > most) clipped_steps_ += 1;
  const bool pairs = !result.figures.empty();
  const int64_t uncounted = pairs ? 0 : shape_.tokens_per_step() - tokens.counted;
  interval_.add({.loss = result.loss,
                 .seconds = seconds,
                 .uncounted = static_cast<double>(uncounted),
                 .attention_span = tokens.attention_span,
                 .accuracy = pairs ? result.figures[5] : 0,
                 .margin = pairs ? result.figures[1] - result.figures[2] : 0,
                 .clipped_heads = result.scores ? static_cast<double>(result.scores->clipped) : 0});
  nlohmann::ordered_json figures{{"loss", result.loss},
                                 {"grad_norm", result.grad_norm},
                                 {"learning_rate", learning_rate},
                                 {"seconds", seconds},
                                 {"tokens_per_second", tokens_per_second},
                                 {"mfu", tokens_per_second * flops_per_token / peak_flops},
                                 {"memory_bytes", memory}};
  if (uncounted > 0) figures["loss_tokens"] = tokens.counted;
  if (shape_.ranks() > 1)
    figures.update({{"waited", times.waited}, {"wait_for_slowest", times.wait_for_slowest}});
  add_pairs(result.figures, tokens.counted, config_.train.loss, figures);
  if (result.scores)
    figures.update({{"largest_score", result.scores->largest}, {"clipped_heads", result.scores->clipped}});
  record("step", figures);
  if (memory > std::exchange(memory_recorded_, memory))
    record("memory", {{"bytes_by_tag", by_tag_json(ledger.at_peak())}});
  present(report_).refresh();
  const std::vector<StatusPart> status =
      step_status({.step = run_.step,
                   .steps = config_.steps(),
                   .interval = interval_,
                   .grad_norm = result.grad_norm,
                   .learning_rate = learning_rate,
                   .tokens_per_step = shape_.tokens_per_step(),
                   .flops_per_token = shape_.flops_of_span(interval_.mean(interval_.attention_span)),
                   .peak_flops = peak_flops,
                   .fp8 = bool(shape_.fp8),
                   .pairs = pairs,
                   .memory_bytes = memory,
                   .seconds_left = time_left_.after(run_.step)});
  if (run_.step % config_.train.log_every != 0 && run_.step != config_.steps()) return line_.show(status);
  line_.keep(status);
  interval_ = {};
}

void RunLog::inside(const InsideFigures& figures) {
  if (!metrics_) return;
  nlohmann::ordered_json line = inside_json(figures);
  if (config_.optimizer.max_grad_norm > 0) line["clipped"] = clipped_steps_ / steps_;
  steps_ = clipped_steps_ = 0;
  record("inside", line);
}

// A step cannot exceed the device's peak of its GEMMs: if it does, the peak was measured under load.
void RunLog::raise_peak(double flops) {
  peak_flops_ = std::max(peak_flops_, flops);
  if (peak_flops_ < kWorthANotice * peak_printed_) return;
  line_.notice(fmt::format(
      "step {} reached {:.3g} TFLOP/s, more than the {} of {:.3g} that was measured while "
      "other programs used the device. MFU is now relative to {:.3g}",
      run_.step, flops / 1e12, name_of_peak(bool(shape_.fp8)), peak_printed_ / 1e12, flops / 1e12));
  peak_printed_ = flops;
}

void RunLog::progress(int64_t step, const std::string& what, int64_t done, int64_t total,
                      const std::string& unit, double seconds) {
  if (!line_.due()) return;
  line_.show(task_status({.where = fmt::format("step {}/{}", step, config_.steps()),
                          .what = what,
                          .done = done,
                          .total = total,
                          .unit = unit,
                          .seconds = seconds}));
}

void RunLog::evaluation(const DataLoss& found, double seconds, const PositionLosses& positions,
                        const std::vector<TaskResult>& tasks) {
  time_left_.took(TimeLeft::kEvaluation, seconds);
  nlohmann::ordered_json figures{
      {"validation_loss", found.loss}, {"validation_sequences", found.sequences}, {"seconds", seconds}};
  const bool pairs = !found.figures.empty();
  const bool all_count = pairs || found.counted == found.sequences * shape_.sequence_length;
  add_pairs(found.figures, found.counted, config_.train.loss, figures);
  if (!all_count) figures["loss_tokens"] = found.counted;
  if (!positions.ends.empty()) {
    figures["position_ends"] = positions.ends;
    figures["position_losses"] = positions.losses;
  }
  for (const TaskResult& task : tasks) figures["tasks"][task.name] = accuracies_json(task);
  record("evaluation", figures);
  if (pairs)
    line_.print(fmt::format(
        "step {}: validation loss {:.4f}, reward accuracy {:.1f}%, margin {:.4f}, on {} pairs", run_.step,
        found.loss, 100 * found.figures[5], found.figures[1] - found.figures[2], found.counted));
  else
    line_.print(fmt::format("step {}: validation loss {:.4f}, perplexity {:.2f}, on {} sequences{}", run_.step,
                            found.loss, std::exp(found.loss), found.sequences,
                            all_count ? "" : fmt::format(", {} loss tokens", found.counted)));
  for (const TaskResult& task : tasks) line_.print(fmt::format("step {}: {}", run_.step, task_line(task)));
}

void RunLog::sample(const std::string& text, double seconds) {
  time_left_.took(TimeLeft::kSample, seconds);
  record("sample", {{"prompt", config_.sampling.prompt}, {"sample", text}});
  line_.print(fmt::format("--- sample after step {} ---\n{}{}\n---", run_.step,
                          printable(config_.sampling.prompt), printable(text)));
}

void RunLog::checkpoint(const std::filesystem::path& path, int64_t step, double seconds, bool best) {
  const bool beside_training = step != run_.step;
  if (!beside_training) time_left_.took(TimeLeft::kCheckpoint, seconds);
  nlohmann::ordered_json figures{{"path", path.string()}, {"seconds", seconds}};
  if (best) figures["best"] = true;
  record("checkpoint", figures);
  sync();
  line_.print_wrapped(fmt::format("step {}: checkpoint {} written in {:.1f} s{}", step, path.string(),
                                  seconds, beside_training ? ", beside training" : ""),
                      2);
}

void RunLog::signal(int number) { record("signal", {{"signal", name_of_signal(number)}}); }

void RunLog::stop(const char* reason, const std::string& message) {
  record("stop", {{"reason", reason}, {"message", message}});
  if (metrics_) metrics_->finish();
  report_.reset();  // writes the page a last time
  if (command_) command_->finish();
  tell_of_command();
}

}  // namespace tessera
