// What a run prints about itself: its settings at the start, its progress, and the time that remains.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/base/status_line.h"
#include "train/config/config.h"
#include "train/run/run_data.h"
#include "train/session/device.h"
#include "train/session/run_shape.h"

namespace tessera {

struct RunDescription {
  const Config& config;
  const RunShape& shape;
  const DeviceChoice& device;
  const RunData& data;
  double peak_flops;  // of one device
  std::string folder;
  std::string gemms = {};  // where the algorithms of GEMMs come from; empty: there is no choice
};
// The lines printed at the start of a run
std::vector<std::string> describe(const RunDescription& run);

// The line printed where a phase of train.context_schedule begins
std::string describe_phase(const RunDescription& run, int64_t step);
// "phase 2 of train.context_schedule, sequences of 8192 tokens from step 801 on: ", before a message; ""
// for a run of one phase
std::string phase_name(const Config& config, size_t phase);

// Which step was the best, where its checkpoint in the folder `checkpoints` is, and the command that trains
// from it; nothing without an evaluation
std::vector<std::string> describe_best(const Config& config, const RunState& now,
                                       const std::filesystem::path& checkpoints);

// Sequences in one evaluation, if the run evaluates
int64_t evaluated_sequences(const Config& config, const RunData& data);

// The seconds of a step and of an evaluation. They are estimated before the first one from the FLOPs and a
// typical share of the GEMM peak.
double expected_step_seconds(const RunShape& shape, double peak_flops);
double expected_evaluation_seconds(const RunShape& shape, double peak_flops, int64_t sequences);

// Notices for a step or an evaluation that will take more than half a minute: how long it will take, and
// which keys shorten it
std::vector<std::string> slowness_notices(const RunDescription& run);

std::string format_about(double seconds);  // "20 s", "21 min", "2.5 h"

// The time that remains, from the tasks measured so far. A kind of task that was not measured yet counts as
// 0.
class TimeLeft {
 public:
  enum Task { kStep, kEvaluation, kSample, kCheckpoint };
  explicit TimeLeft(const Config& config);
  void took(Task task, double seconds);
  // After `step`, before the tasks that are due after it
  double after(int64_t step) const;

 private:
  int64_t steps_;
  std::array<int64_t, 4> every_;     // by task; 0: never
  std::array<double, 4> seconds_{};  // smoothed
};

// The steps since the last printed line: their number, and sums over them.
struct Interval {
  int64_t steps = 0;
  double loss = 0, seconds = 0;
  double uncounted = 0;       // tokens whose loss does not count
  double attention_span = 0;  // see StepTokens
  double accuracy = 0, margin = 0;  // of rewards, with a loss of pairs
  double clipped_heads = 0;         // by optimizer.qk_clip

  void add(const Interval& step) {
    ++steps;
    loss += step.loss;
    seconds += step.seconds;
    uncounted += step.uncounted;
    attention_span += step.attention_span;
    accuracy += step.accuracy;
    margin += step.margin;
    clipped_heads += step.clipped_heads;
  }
  double mean(double sum) const { return sum / static_cast<double>(std::max<int64_t>(steps, 1)); }
};

struct StepFigures {
  int64_t step, steps;
  Interval interval;
  double grad_norm, learning_rate;
  int64_t tokens_per_step;
  double flops_per_token, peak_flops;  // the peak of all ranks together
  bool fp8;                            // the peak is that of GEMMs in FP8
  bool pairs = false;                  // the loss is of pairs
  int64_t memory_bytes;
  double seconds_left;
};
std::vector<StatusPart> step_status(const StepFigures& figures);

struct TaskFigures {
  std::string where, what;
  int64_t done, total;
  std::string unit;
  double seconds;  // since the task started
};
// "step 3/100 | evaluation 19% | 12 of 64 sequences | 3.0/s | 0:17 left"
std::vector<StatusPart> task_status(const TaskFigures& task);

}  // namespace tessera
