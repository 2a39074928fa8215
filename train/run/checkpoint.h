// Checkpoints: a folder `step_00001000` that holds
//   model.safetensors      the weights, in fp32 or bf16, with the names and layouts of the model's family
//                          If they are large, several files, and model.safetensors.index.json; likewise:
//   config.json            of that family, so that Hugging Face's transformers loads the folder
//   optimizer.safetensors  AdamW's moments, named `first_moment.` and `second_moment.` + the weight's name;
//                          beside bf16 weights also `master.`: the fp32 weights that they were rounded from
//                          (they are kept otherwise: kernels/base/master.h)
//                          neither has moments of what train.freeze names
//   adapter/               with train.lora: the adapters in PEFT's format (model/formats/peft.h)
//   state.json             the step, the data position, the seed, what they depend on (run_state.h)
//   config.yaml            the run's configuration
//   tokenizer.json, ...    what the folder had that the run started from: CopiedFiles
//   checksums.json         the size and the checksum of each of these files
//
// Moments are fp32 in the file whatever optimizer.moments is: bf16 to fp32 and back loses nothing, so a run
// resumes bit for bit, and a run with the other kind of moments can resume from the same checkpoint.
//
// With train.gemm_dtype=fp8, state.json also has the scales that the next step uses: powers of two, so
// exponents. A run in FP8 that resumes from a checkpoint without them finds its own in its first step.
//
// With train.lora, model.safetensors holds the weights with the adapters added, so that every program can
// use it, and optimizer.safetensors the fp32 adapters and their moments alone. The weights that the adapters
// belong to are not in the checkpoint: a run that resumes loads them from train.init_from again, and their
// checksum has to be that of state.json.
//
// Each file of tensors is written by one rank, file after file by rank after rank. Which tensors are in
// which file depends on their sizes alone, so any number of ranks writes the same files.
//
// Ranks whose folders are on several disks write the same files, each on its own. What is no tensor is then
// on every disk, and machines.json says which machine wrote which of the others. It gets its name on all
// disks, before an older one is removed from any.
//
// A checkpoint is written under another name, synced to the disk and renamed, so a folder with this name is
// complete; later damage to its files is found by the checksums. Values that are not finite are never saved.
// Any number of ranks may resume from a checkpoint.
#pragma once

#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/file_checksums.h"
#include "model/formats/folder.h"
#include "train/run/checkpoint_options.h"
#include "train/run/run_state.h"
#include "train/run/write_queue.h"
#include "train/session/train_state.h"

namespace tessera {

// A checkpoint that is being written, from copies, beside whatever its rank does: training may go on, and
// change the weights, as soon as it exists. Copies take at most half of the memory that was free; with less,
// the constructor waits for the disk.
class PendingCheckpoint {
 public:
  // Writes `folder`/step_N. Every rank makes one, and writes its files; the first one all that are no
  // tensors. Error: as finish().
  PendingCheckpoint(const std::filesystem::path& folder, TrainState& state, const RunState& run,
                    const CheckpointOptions& options = {});
  ~PendingCheckpoint();  // without finish(): the files stay unfinished, as if the run had been killed

  bool done_within(double seconds);  // whether finish() would not wait; waits for that at most so long
  // Waits until all of this rank is on the disk; the rank that leads a disk waits for all that write there,
  // and gives the checkpoint its name. Every rank calls it; with several disks they call it together.
  // Returns the path. Error: disk full, no permission, weights or moments that are not finite; no other
  // checkpoint is touched.
  std::filesystem::path finish();
  // After finish(), on the first rank: what is left of older ones and could not be removed, and why
  const std::vector<std::string>& leftovers() const { return leftovers_; }

 private:
  [[noreturn]] void fail_with(const std::exception& error) const;
  bool others_are_done() const;
  void take_files_of_others();
  void take_files_of_disks();

  std::filesystem::path folder_, path_, pending_;
  int64_t step_, bytes_, rank_;
  Disks disks_;
  Exchange exchange_;
  std::vector<int64_t> others_ = {};  // who leads: the ranks that write on the same disk, too
  FileChecksums files_ = {};          // that this rank has written, and where it leads in the end all
  bool replaces_;
  std::function<void()> check_folder_;
  std::vector<std::string> leftovers_ = {};
  std::unique_ptr<WriteQueue> queue_;
};

// One that is written and finished at once
std::filesystem::path save_checkpoint(const std::filesystem::path& folder, TrainState& state,
                                      const RunState& run, const CheckpointOptions& options = {});

// Error: anything missing or malformed, or a checkpoint of another model, with both sizes.
RunState read_state(const std::filesystem::path& checkpoint, const ModelConfig& model,
                    int64_t least_step = 1);
// The weights that adapters belong to
struct BaseWeights {
  std::filesystem::path folder;  // train.init_from
  FolderOptions options = {};
  std::string checksum = "";  // RunState::base
};
// `base`: with adapters. A rank reads the parameters of which it keeps something, one after the other;
// returns their bytes in the files. Error: the base's weights are not those of the checksum.
int64_t load_checkpoint(const std::filesystem::path& checkpoint, TrainState& state,
                        const BaseWeights& base = {});
// The weights alone, of one of our checkpoints or of another program; likewise. Error: as check_weights.
int64_t load_weights(const std::filesystem::path& folder, TrainState& state,
                     const FolderOptions& options = {});
// Those that adapters belong to. Every rank reads all; returns the checksum of the values.
std::string load_base(const std::filesystem::path& folder, TrainState& state, const FolderOptions& options);

// Weights that are never updated, of a reference or a teacher; returns the checksum of the values.
std::string load_fixed(const std::filesystem::path& folder, Session& session, const FolderOptions& options);
// That checksum, without a place for the weights
std::string checksum_of_weights(const std::filesystem::path& folder, const ModelConfig& model,
                                const FolderOptions& options);

}  // namespace tessera
