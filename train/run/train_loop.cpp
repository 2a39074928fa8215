#include "train/run/train_loop.h"

#include <numeric>

#include "kernels/base/clock.h"
#include "kernels/base/nan.h"
#include "kernels/base/present.h"
#include "kernels/base/signals.h"
#include "kernels/base/system_error.h"
#include "kernels/base/text.h"
#include "train/memory/memory_profile.h"
#include "train/memory/memory_report.h"
#include "train/run/collective_walk.h"
#include "train/run/data_loss.h"
#include "train/run/epochs.h"
#include "train/run/resume.h"
#include "train/run/schedule.h"
#include "train/run/stop_signals.h"
#include "train/session/equal_work.h"
#include "train/session/from_config.h"
#include "train/session/pair_figures.h"
#include "train/session/sampler.h"

namespace tessera {
namespace {

// What the ranks add up of their sequences of a step: the tokens that count, or the pairs of a loss of these,
// their weights, and the attention span of each token. Of the ranks that share sequences, the first counts.
constexpr size_t kCounts = 3;
std::vector<double> counts_of(const Sequences& sequences, const RunShape& shape, const AxisPlace& context) {
  if (context.rank > 0) return std::vector<double>(kCounts);
  const int64_t T = shape.sequence_length;
  double spans = 0;
  for (int64_t first = 0; first < std::ssize(sequences.tokens); first += T) {
    const std::span documents = SequencesView(sequences).tokens_from(first, T).documents;
    spans += attention_spans(shape.model, documents.empty() ? std::vector{T} : document_lengths(documents));
  }
  const int64_t count = shape.loss.pairs ? count_pairs(sequences, T) : counted(sequences.targets);
  const double weight = shape.loss.pairs ? weight_of_pairs(sequences, T) : weight_of_targets(sequences);
  return {static_cast<double>(count), weight, spans};
}

}  // namespace

TrainLoop::TrainLoop(OpenRun& run)
    : run_(run),
      stopping_(run.ranks, [this](int number) { run_.log.signal(number); }),
      checkpoints_(run),
      bad_steps_(run, checkpoints_) {}

// `counts` begins with the sums of counts_of() over all ranks
void TrainLoop::count_next(std::span<const double> counts) {
  next_tokens_ = {.counted = static_cast<int64_t>(counts[0]),
                  .weight = counts[1],
                  .attention_span = counts[2] / static_cast<double>(shape().tokens_per_step())};
}

// Of a loss of pairs that has a reference
std::function<std::vector<float>(const SequencesView&, int64_t)> TrainLoop::reference_losses() {
  if (!shape().loss.pairs || !shape().loss.needs_reference) return {};
  return [this](const SequencesView& sequences, int64_t count) {
    return phase().state().reference_losses(sequences, count, shape().sequence_length);
  };
}

// The validation loss, the same on all ranks; nothing if a signal stopped the evaluation. It is a mean
// over the tokens that count, and a batch has the weight of the sequences that so many tokens fill.
std::optional<double> TrainLoop::evaluate() {
  Arena::Phase arena_phase(phase().arena(), "evaluation", MemoryRecording::kNone,
                           Arena::Phase::kRecordFirstFew);
  const Clock::time_point start = Clock::now();
  const int64_t total = evaluated_sequences(run_.config, phase().data());
  run_.ranks.enter_phase("an evaluation");
  set_stopping_point("this batch of the evaluation");
  Session& session = phase().state().session();
  const LossJob job{.data = phase().data().validation(),
                    .sequences = total,
                    .by_position = run_.config.evaluation.by_position,
                    .pairs = shape().loss.pairs ? &present(shape().loss.pairs) : nullptr,
                    .reference = reference_losses()};
  SharedBatches batches = loss_batches(session, job);
  batches.progress = [&](int64_t done) {
    if (done > 0)
      run_.log.progress(run_.now.step, "evaluation", done * session.shape().batch, total, "sequences",
                        seconds_since(start));
  };
  const std::optional<std::vector<double>> results = run_batches(stopping_, batches);
  run_.log.line().clear();
  if (!results) return {};
  const DataLoss found = data_loss(session, job, *results);
  check(found.counted > 0,
        "there is no validation loss: no token of the {} sequences evaluated is a target that counts. Set "
        "data.validation to data with targets, or evaluation.sequences higher",
        total);
  if (job.by_position)
    positions_ =
        position_losses(run_.now.step, shape().sequence_length, found.position_sums, found.position_tokens);
  const std::vector<TaskResult> tasks = evaluate_tasks();
  if (stopping_.signal() != 0) return {};
  run_.log.evaluation(found, seconds_since(start), positions_, tasks);
  return found.loss;
}

// evaluation.tasks, the same on all ranks. A signal may stop them: then the results are not complete.
std::vector<TaskResult> TrainLoop::evaluate_tasks() {
  std::vector<TaskResult> results;
  Session& session = phase().state().session();
  for (const Task& task : run_.tasks) {
    const Clock::time_point start = Clock::now();
    run_.ranks.enter_phase("the task " + task.name);
    const TaskBatches batches(task, session.shape());
    const auto progress = [&](int64_t done) {
      if (done > 0)
        run_.log.progress(run_.now.step, task.name, batches.choices_before(done), batches.choices(),
                          "choices", seconds_since(start));
    };
    const std::optional<std::vector<double>> scores =
        run_batches(stopping_, task_batches(session, batches, progress));
    run_.log.line().clear();
    if (!scores) break;
    results.push_back(task_result(task, *scores));
  }
  return results;
}

// All ranks draw the same text in step, by the draws of each, until rank 0 has its end.
void TrainLoop::sample() {
  run_.ranks.enter_phase("a sample", Timeout::kNone);
  if (!tokenizer()) return;
  Arena::Phase arena_phase(phase().arena(), "sampling", MemoryRecording::kNone,
                           Arena::Phase::kRecordFirstFew);
  const Clock::time_point start = Clock::now();
  set_stopping_point("this token of the sample");
  const std::optional<std::string> text =
      sample_text(phase().state().session(), *tokenizer(), run_.config.sampling,
                  static_cast<uint64_t>(run_.config.train.seed), run_.now.step,
                  [&](bool done) { return stopping_.goes_on(done); });
  if (text) run_.log.sample(*text, seconds_since(start));
}

void TrainLoop::write_profile() {
  run_.check_folder();  // it may lie there
  write_memory_profile(
      run_.paths.profile,
      {.ledger = phase().arena().ledger(),
       .plan = phase().plan().memory.ledger,
       .reserved_bytes = phase().arena().reserved_bytes(),
       .device = run_.device.choice.traits,
       .run = fmt::format("{} parameters, {} attention, {} x {} sequences of {} tokens, in {}",
                          format_count(static_cast<double>(shape().model.parameters())),
                          name_of(run_.config.model.attention), shape().micro_steps, shape().micro_batch,
                          shape().sequence_length, name_of(shape().dtype))});
}

// All ranks find the same ones, and exchange what these are.
void TrainLoop::tell_of_slow_ranks(std::span<const double> own) {
  const std::vector<SlowRanks::Slow> slow = slow_ranks_.add(own);
  if (slow.empty()) return;
  const bool gpu = run_.device.choice.traits.device == Device::kCuda;
  const std::vector<std::string> places =
      run_.ranks.exchange(gpu ? fmt::format("GPU {} ({}) of {}", run_.ranks.local_rank(),
                                            run_.device.choice.traits.name, run_.ranks.machine())
                              : run_.ranks.machine());
  for (const auto& [rank, seconds, median] : slow)
    run_.log.line().notice(fmt::format(
        "rank {} on {} is slow, and all others wait for it: its own work of a step takes {:.0f} ms, the "
        "median is {:.0f} ms. Look at {}",
        rank, places[static_cast<size_t>(rank)], 1e3 * seconds, 1e3 * median,
        gpu ? "its clock and temperature (nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE), and at other "
              "programs on the GPU and on its machine"
            : "other programs on its machine"));
}

void TrainLoop::report_ranks() {
  if (run_.ranks.size() == 1) return;
  std::string text = "memory at its peak, by rank:";
  for (const double bytes : run_.ranks.gather(static_cast<double>(phase().arena().ledger().peak_bytes())))
    text += " " + format_bytes(static_cast<int64_t>(bytes));
  run_.log.line().print(text);
}

// A step without any token that counts has no loss and no gradient: it is skipped, weights and optimizer stay
// as they are, and the log says so.
TrainLoop::Outcome TrainLoop::train_step(int64_t step) {
  checkpoints_.step_begins();
  run_.ranks.enter_phase(fmt::format("step {}", step));
  run_.ranks.take_past_waits();  // of what came before
  const Clock::time_point start = Clock::now();
  const double learning_rate = learning_rate_at(step - 1, run_.config.steps(), run_.config.optimizer);
  Arena::Phase arena_phase(phase().arena(), "step", step, Arena::Phase::kRecordFirstFew);
  const auto continues = [&](int64_t done) {
    run_.ranks.enter_phase(fmt::format("step {}: after micro-batch {}", step, done));
    const double elapsed = seconds_since(start);
    if (elapsed > 1)
      run_.log.progress(step, "this step", done, shape().micro_steps, "micro-batches", elapsed);
    return !stopping_.drops_step(done, elapsed);
  };
  const StepTokens tokens = next_tokens_;
  const bool skips = tokens.counted == 0;
  const StepLimits limits = limits_of(run_.now.recent, run_.config.train.on_bad_step.spike_score);
  phase().state().set_skipped_updates(run_.now.skipped_updates);
  phase().state().set_limits(limits);
  if (!skips && !phase().state().step(phase().next(), tokens.weight, optimizer_config(run_.config),
                                      learning_rate, step, continues))
    return Outcome::kDropped;
  const int64_t position = run_.now.data_position + shape().sequences_per_step();
  phase().fetch_step(position, run_.ranks.place(Axis::kData));  // while the device works
  TrainState::StepResult result{};
  if (!skips) result = phase().state().finish_step();
  const double seconds_of_step = seconds_since(start);
  std::vector<double> mine = counts_of(phase().next(), shape(), run_.ranks.place(Axis::kContext));
  mine.insert(mine.end(), {result.loss, seconds_of_step});
  // A step that is skipped has none.
  result.figures.resize(shape().loss.pairs ? PreferenceFigures::kCount : 0);
  mine.insert(mine.end(), result.figures.begin(), result.figures.end());
  const size_t times = mine.size();  // from here on, of each rank its own
  mine.resize(times + static_cast<size_t>(run_.ranks.size()));
  mine[times + static_cast<size_t>(run_.ranks.rank())] = seconds_of_step - run_.ranks.take_past_waits();
  const std::vector<double> all = stopping_.sum(mine);
  count_next(all);
  const double all_loss = all[kCounts], all_seconds = all[kCounts + 1];
  if (shape().loss.pairs)
    result.figures =
        mean_figures({all.begin() + kCounts + 2, all.begin() + static_cast<std::ptrdiff_t>(times)},
                     static_cast<double>(tokens.counted), tokens.weight);
  const std::span own_times = std::span(all).subspan(times);
  if (!skips) tell_of_slow_ranks(own_times);
  const double ranks = static_cast<double>(run_.ranks.size()), own_loss = result.loss;
  result.loss = without_sign_if_nan(all_loss / ranks);
  arena_phase.end();
  if (result.verdict != StepVerdict::kUpdate)
    return take_bad_step({.step = step,
                          .verdict = result.verdict,
                          .loss = result.loss,
                          .grad_norm = result.grad_norm,
                          .own_loss = own_loss,
                          .counted_tokens = tokens.weight,
                          .learning_rate = learning_rate,
                          .limits = limits},
                         seconds_since(start));
  run_.now.step = step;
  run_.now.data_position = position;
  if (!skips) step_seconds_ = all_seconds / ranks;
  if (!skips && run_.config.train.on_bad_step.judges_spikes())
    run_.now.recent.add(result.loss, result.grad_norm);
  run_.log.step(result, tokens, learning_rate,
                {.all = seconds_since(start),
                 .waited = (all_seconds - std::accumulate(own_times.begin(), own_times.end(), 0.0)) / ranks,
                 .wait_for_slowest = wait_for_slowest(own_times)},
                phase().arena().ledger());
  if (const auto inside = skips ? std::nullopt : phase().state().inside()) run_.log.inside(*inside);
  return Outcome::kDone;
}

TrainLoop::Outcome TrainLoop::take_bad_step(const BadStep& bad, double seconds) {
  if (bad_steps_.handle(bad, seconds) == BadStepHandler::Done::kSkipped) return Outcome::kDone;
  if (positions_.step > run_.now.step) positions_ = {};
  expect_steps();
  return Outcome::kWentBack;
}

bool TrainLoop::is_out_of_patience() const {
  const int64_t patience = run_.config.train.patience;
  return patience > 0 && run_.now.evaluations_since_best >= patience;
}

TrainLoop::Due TrainLoop::due_after(int64_t step) const {
  const auto due = [&](int64_t every) {
    return every > 0 && (step % every == 0 || step == run_.config.steps());
  };
  return {.evaluation = due(run_.config.evaluation.every),
          .sample = due(run_.config.sampling.every) && tokenizer(),
          .checkpoint = due(run_.config.checkpoint.every)};
}

std::string TrainLoop::patience_text() const {
  return fmt::format("{} evaluations in a row had no new lowest validation loss, and train.patience is {}",
                     run_.now.evaluations_since_best, run_.config.train.patience);
}

// Whether a run ends early, with a sample
bool TrainLoop::has_last_sample() const {
  return is_out_of_patience() && run_.config.sampling.every > 0 && tokenizer();
}

void TrainLoop::work(const Due& due) {
  bool samples = due.sample, saves = due.checkpoint && run_.now.step > checkpoints_.newest();
  if (due.evaluation)
    if (const std::optional<double> loss = evaluate()) {
      const bool is_best = note_evaluation(run_.now, *loss);
      // The evaluation of a step that a signal had saved goes into that checkpoint's state.json.
      saves |= run_.config.checkpoint.keep_best && run_.now.step > 0 &&
               (is_best || run_.now.step == checkpoints_.newest());
      samples |= has_last_sample();
    }
  if (samples && stopping_.signal() == 0) sample();
  if (saves) checkpoints_.save();
  if (due.evaluation || due.sample || due.checkpoint) stopping_.agreed();  // these tasks may have taken long
}

// The tasks before the next step: the evaluation of a fresh run; in a resumed one, the evaluation and sample
// of the checkpoint's step if a signal stopped the run before them.
TrainLoop::Due TrainLoop::due_before_steps() {
  if (run_.paths.resumed.empty()) return {.evaluation = evaluates_first()};
  const std::vector<double> had =
      run_.ranks.sum({run_.log.has("evaluation") ? 1.0 : 0.0, run_.log.has("sample") ? 1.0 : 0.0});
  const Due all = due_after(run_.now.step);
  const bool begins_phase = run_.config.begins_phase(run_.now.step);
  const Due due{.evaluation = (all.evaluation && had[0] == 0) || (begins_phase && evaluates_first()),
                .sample = (all.sample || has_last_sample()) && had[1] == 0};
  if (due.evaluation || due.sample) return due;
  if (run_.now.step == run_.config.steps())
    run_.log.line().print_wrapped(fmt::format("nothing is left to do: the run is at step {}, and {}",
                                              run_.now.step, advice_on_length(run_.config)),
                                  2);
  else if (is_out_of_patience())
    run_.log.line().print_wrapped(
        fmt::format(
            "nothing is left to do: train.patience is {}. To continue, set a larger one, or 0 for none",
            run_.config.train.patience),
        2);
  return due;
}

// Once for the shape and the data of a run or a phase: the time of a step, and what the next step counts
void TrainLoop::expect_steps() {
  std::vector<double> mine = counts_of(phase().next(), shape(), run_.ranks.place(Axis::kContext));
  mine.push_back(expected_step_seconds(shape(), run_.device.peak_flops));
  const std::vector<double> all = run_.ranks.sum(mine);
  count_next(all);
  step_seconds_ = all[kCounts] / static_cast<double>(run_.ranks.size());
}

// Before the first step of a run, or of a phase of train.context_schedule
bool TrainLoop::evaluates_first() const {
  return run_.config.evaluation.every > 0 && run_.config.evaluation.at_start;
}

// The next phase of train.context_schedule starts from a checkpoint of the last step, as a run that was
// stopped there does.
void TrainLoop::begin_phase() {
  checkpoints_.save_if_new();
  checkpoints_.finish(/*waits=*/true);
  run_.begin_next_phase();
  run_.log.begin_phase(run_.description());
  expect_steps();
  work({.evaluation = evaluates_first()});
  stopping_.agreed();
}

void TrainLoop::train_all() {
  run_.log.begin(run_.description(), run_.paths.resumed);
  if (run_.config.begins_phase(run_.now.step)) run_.log.begin_phase(run_.description());
  for (const std::string& notice : run_.notices) run_.log.line().notice(notice);
  catch_stop_signals(run_.ranks.is_rank_0());
  expect_steps();
  const Due due = due_before_steps();
  if (!stopping_.agreed()) work(due);
  const int64_t first = run_.now.step + 1;
  Outcome outcome = Outcome::kDone;
  while (run_.now.step < run_.config.steps() && stopping_.signal() == 0 && !is_out_of_patience()) {
    const int64_t step = run_.now.step + 1;
    stopping_.expect_step(shape().micro_steps, step_seconds_);
    outcome = train_step(step);
    if (outcome == Outcome::kDropped) break;
    if (outcome == Outcome::kWentBack) continue;  // what is due after that step was done
    // Most of the profile is known now: it is written before the end of a long run.
    if (!run_.paths.profile.empty() && step == first + MemoryRecording::kFirstFew - 1) {
      Arena::Phase writing(phase().arena(), "memory profile");
      write_profile();
    }
    checkpoints_.finish(/*waits=*/false);
    work(due_after(step));
    if (run_.config.begins_phase(step) && stopping_.signal() == 0 && !is_out_of_patience()) begin_phase();
  }
  if (outcome == Outcome::kDropped)
    run_.log.line().print(fmt::format("step {} is not finished; it is dropped", run_.now.step + 1));
  checkpoints_.save_if_new();  // the last step, or the last before the signal
  run_.ranks.enter_phase("a checkpoint", Timeout::kNone);
  checkpoints_.finish(/*waits=*/true);
  end();
}

void TrainLoop::end() {
  const int signal = stopping_.signal();
  const bool is_early = signal == 0 && run_.now.step < run_.config.steps();
  if (is_early)
    run_.log.line().print_wrapped(fmt::format("stopped after step {}: {}", run_.now.step, patience_text()),
                                  2);
  if (!positions_.ends.empty()) run_.log.line().print(position_table(positions_));
  for (const std::string& line : describe_best(run_.config, run_.now, run_.paths.checkpoints))
    run_.log.line().print_wrapped(line, 2);
  run_.log.line().print(
      memory_table(phase().arena().ledger(), phase().arena().reserved_bytes(), run_.device.choice.traits));
  report_ranks();
  if (!run_.paths.profile.empty()) {
    write_profile();
    run_.log.line().print(fmt::format("memory profile: {}{}", (run_.paths.profile / "memory.html").string(),
                                      run_.ranks.size() > 1 ? ", and one for each other rank" : ""));
  }
  run_.ranks.finish();
  if (is_early) return run_.log.stop("patience", patience_text());
  if (signal == 0) return run_.log.stop("finished", fmt::format("step {} is done", run_.now.step));
  const std::string message = fmt::format(
      "stopped by a signal ({}); {}", name_of_signal(signal),
      run_.now.step > 0 ? fmt::format("--resume continues from step {}", run_.now.step)
                        : "no step was finished, so there is nothing to resume: start the run again");
  run_.log.line().print(message);
  run_.log.stop("signal", message);
}

void TrainLoop::run() {
  try {
    train_all();
  } catch (const std::exception& error) {
    try {
      if (!run_.disks.several()) checkpoints_.finish(/*waits=*/true);  // the others may never come
    } catch (const std::exception&) {                                  // the first error is reported
    }
    try {
      run_.log.stop("error", error_text(error));
    } catch (const std::exception&) {  // the first error is reported
    }
    throw;
  }
}

}  // namespace tessera
