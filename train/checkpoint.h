// Checkpoints: a folder `step_00001000` that holds
//   model.safetensors      fp32 weights, with Hugging Face's GPT-2 names and layouts
//   config.json            Hugging Face's GPT2Config, so that transformers loads the folder
//   optimizer.safetensors  AdamW's moments, named `first_moment.` and `second_moment.` + the weight's name
//   state.json             the step, the data position, the seed, and what they depend on
//
// Moments are fp32 in the file whatever optimizer.moments is: bf16 goes to fp32 and back without loss, so a
// run goes on bit for bit, and one with the other kind of moments can go on from it too.
//
// A checkpoint is written under another name, synced to the disk and renamed, so a folder with this name is
// whole.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kernels/backend.h"
#include "model/optimizer.h"
#include "model/params.h"

namespace tessera {

// What a run must know to go on as if it had never stopped. Random draws depend on (seed, step) alone.
struct RunState {
  int64_t step = 0;           // optimizer steps done
  int64_t data_position = 0;  // training sequences consumed
  int64_t seed = 0;
  int64_t micro_batch = 0;
  int64_t sequence_length = 0;
  std::string device;  // of the run that wrote it: cpu or cuda
  std::string data;    // the training data, as the configuration named it
};

struct CheckpointContents {
  const ModelConfig& model;
  const Optimizer& optimizer;  // its masters are the weights
  RunState state;
};

// Writes `folder`/step_N and returns its path. Error: disk full, no permission; `folder` is then as it was.
std::filesystem::path save_checkpoint(Backend& be, const std::filesystem::path& folder,
                                      const CheckpointContents& contents);

// The newest complete checkpoint in `folder`, if there is one.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder);

// Removes all but the newest `keep` checkpoints; 0 keeps all.
void prune_checkpoints(const std::filesystem::path& folder, int64_t keep);

// Error: anything missing or malformed, or a checkpoint of another model, with both sizes.
RunState read_state(const std::filesystem::path& checkpoint, const ModelConfig& model);
void load_checkpoint(Backend& be, const std::filesystem::path& checkpoint, const ModelConfig& model,
                     Optimizer& optimizer);

// Fills fp32 `weights` from a folder with model.safetensors and config.json: one of these checkpoints, or
// what transformers' save_pretrained() wrote for a GPT-2. With `interpolate_positions` the model may have
// more positions than the file: its table is stretched over them; where it need not be, nothing changes.
// Error: as load_checkpoint.
void load_weights(Backend& be, const std::filesystem::path& folder, const ModelConfig& model,
                  const Params& weights, bool interpolate_positions = false);

}  // namespace tessera
