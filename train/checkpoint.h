// Checkpoints: a folder `step_00001000` that holds
//   model.safetensors      fp32 weights, with Hugging Face's GPT-2 names and layouts
//   config.json            Hugging Face's GPT2Config, so that transformers loads the folder
//   optimizer.safetensors  AdamW's moments, named `first_moment.` and `second_moment.` + the weight's name
//   state.json             the step, the data position, the seed, what they depend on, the number of ranks
//
// Moments are fp32 in the file whatever optimizer.moments is: bf16 goes to fp32 and back without loss, so a
// run goes on bit for bit, and one with the other kind of moments can go on from it too.
//
// A checkpoint is written under another name, synced to the disk and renamed, so a folder with this name is
// whole. Any number of ranks may go on from it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "train/train_state.h"

namespace tessera {

// What a run must know to go on as if it had never stopped. Random draws depend on (seed, step) alone.
struct RunState {
  int64_t step = 0;           // optimizer steps done
  int64_t data_position = 0;  // training sequences consumed
  int64_t seed = 0;
  int64_t micro_batch = 0;
  int64_t sequence_length = 0;
  int64_t ranks = 1;
  std::string device;  // of the run that wrote it: cpu or cuda
  std::string data;    // the training data, as the configuration named it
};

// Writes `folder`/step_N and returns its path. Every rank calls it; the first one writes. Error: disk full,
// no permission; `folder` is then as it was.
std::filesystem::path save_checkpoint(const std::filesystem::path& folder, TrainState& state,
                                      const RunState& run);

// The newest complete checkpoint in `folder`, if there is one.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder);

// Removes all but the newest `keep` checkpoints; 0 keeps all.
void prune_checkpoints(const std::filesystem::path& folder, int64_t keep);

// Error: anything missing or malformed, or a checkpoint of another model, with both sizes.
RunState read_state(const std::filesystem::path& checkpoint, const ModelConfig& model);
void load_checkpoint(const std::filesystem::path& checkpoint, TrainState& state);

}  // namespace tessera
