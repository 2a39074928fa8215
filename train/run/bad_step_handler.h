// What a run does after a bad step, as train.on_bad_step says: it skips the step, goes back, or stops.
#pragma once

#include <filesystem>
#include <string>

#include "train/run/bad_step.h"
#include "train/run/open_run.h"
#include "train/run/run_checkpoints.h"

namespace tessera {

class BadStepHandler {
 public:
  BadStepHandler(OpenRun& run, RunCheckpoints& checkpoints)  // which outlive it
      : run_(run), checkpoints_(checkpoints) {}

  enum class Done : uint8_t {
    kSkipped,  // run.now is the state after the step, which changed no weight
    kWentBack  // run.now is the state of an earlier step
  };
  // For a step that took `seconds` and made no update. All ranks call it. Error: the run stops; the message
  // says why the step was bad, and where it is kept.
  Done handle(BadStep bad, double seconds);

 private:
  Done skip(const BadStep& bad, double seconds);
  Done go_back(const BadStep& bad, double seconds);
  [[noreturn]] void stop_at(const BadStep& bad, const StepInputs& inputs, const std::string& used_up);
  std::filesystem::path keep(const BadStep& bad, const std::string& report);

  OpenRun& run_;
  RunCheckpoints& checkpoints_;
};

}  // namespace tessera
