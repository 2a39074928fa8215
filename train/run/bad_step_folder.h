// The folder of a bad step that stopped a run, `bad_step_00001234` in the run's folder: all that is needed to
// compute the step again (--replay), on any machine.
//   step_00001233/   a checkpoint from before the step; step_00000000 for the first step
//   batch.bin        the sequences of all ranks, int32: tokens [n, T], targets [n, T]; if a sequence holds
//                    several documents, documents [n, T, 2]; if losses have weights, weights [n, T] fp32
//   kinds.bin, log_probs.bin, teacher_ids.bin, teacher_logits.bin: what else the loss reads, as in Sequences
//   gemms.jsonl      the algorithms of GEMMs, on a GPU
//   bad_step.json    what happened, and where the sequences come from
//   checksums.json   the checksums of these files; the checkpoint has its own
//   report.txt       the message with which the run ended
// The folder is written under another name first, so a folder of this name is complete. Its weights are fp32,
// and may be NaN.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "data/sequences.h"
#include "train/run/bad_step.h"
#include "train/run/checkpoint.h"

namespace tessera {

// What bad_step.json holds
struct KeptStep {
  BadStep bad;       // without own_loss
  int64_t position;  // of the step's first sequence, in the data
  int64_t sequence_length;
  std::vector<std::string> origins;  // where each sequence comes from
  int64_t ranks;
  std::string device;       // its name
  int64_t last_checkpoint;  // the step of the run's newest checkpoint; 0: none
};

struct BadStepFolder {
  KeptStep kept;
  std::filesystem::path checkpoint, gemms;  // gemms.jsonl; empty: none
  Sequences batch;                          // of all ranks
};

struct BadStepWriting {
  RankGroup& ranks;
  TrainState& state;
  const RunState& before;  // the run before the step
  CheckpointOptions options;
  std::filesystem::path run;  // the run's folder
  const KeptStep& kept;
  const Sequences& batch;
  const std::string& report;
};
// All ranks call it. Returns the folder, the same on all ranks. If the same step with the same sequences
// stopped an earlier start of the run, its folder is replaced. If another folder of that step exists, the
// name gets a number. Error: as save_checkpoint().
std::filesystem::path write_bad_step(const BadStepWriting& what);

// Error: `folder` is not the folder of a bad step, or one of its files is damaged.
BadStepFolder read_bad_step(const std::filesystem::path& folder);

// For each bad step with a folder in the run's folder: the step of the newest checkpoint before it
std::set<int64_t> checkpoints_before_bad_steps(const std::filesystem::path& run);

}  // namespace tessera
