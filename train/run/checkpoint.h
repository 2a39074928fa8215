// Checkpoints: a folder `step_00001000` that holds
//   model.safetensors      the weights, in fp32 or bf16, with the names and layouts of the model's family.
//                          Large weights are several files and model.safetensors.index.json; the same holds
//                          for optimizer.safetensors
//   config.json            of that family, so that Hugging Face's transformers loads the folder
//   optimizer.safetensors  AdamW's moments, named `first_moment.` and `second_moment.` + the weight's name;
//                          with bf16 weights also `master.`: the fp32 weights that they were rounded from
//                          (in memory they are stored otherwise: kernels/base/master.h).
//                          There is none of these for a weight that train.freeze names
//   adapter/               with train.lora: the adapters in PEFT's format (model/formats/peft.h)
//   state.json             the step, the data position, the seed, what they depend on (run_state.h)
//   config.yaml            the run's configuration
//   tokenizer.json, ...    files of the folder that the run started from: CopiedFiles
//   checksums.json         the size and the checksum of each of these files
//
// Moments in the file are fp32 whatever optimizer.moments is. Converting bf16 to fp32 and back loses nothing,
// so a run resumes bit for bit, and a run with another optimizer.moments can resume from the same checkpoint.
//
// With train.gemm_dtype=fp8, state.json also has the scales that the next step uses. They are powers of two,
// so it stores their exponents. A run in FP8 that resumes from a checkpoint without scales finds its own in
// its first step.
//
// With train.lora, model.safetensors holds the weights with the adapters added, so that every program can use
// it. optimizer.safetensors holds only the fp32 adapters and their moments. The weights that the adapters
// belong to are not in the checkpoint: a run that resumes loads them from train.init_from again, and their
// checksum has to be the one in state.json.
//
// One rank writes each file of tensors, and the ranks share the files in their order. Which tensors are in
// which file depends only on the sizes of the tensors, so any number of ranks writes the same files.
//
// Ranks whose folders are on several disks write the same files, each on its own disk. Files without tensors
// are then on every disk, and machines.json says which machine wrote which of the other files. The checkpoint
// gets its name on all disks before an older one is removed from any.
//
// A checkpoint is written under another name, synced to the disk and renamed, so a folder with this name is
// complete. Checksums reveal later damage to its files. Values that are not finite are never saved. Any
// number of ranks may resume from a checkpoint.
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

// A checkpoint that is being written, from copies, while its rank goes on: training may change the weights as
// soon as this object exists. Copies take at most half of the memory that was free. If they would need more,
// the constructor waits for the disk.
class PendingCheckpoint {
 public:
  // Writes `folder`/step_N. Every rank makes an object and writes its files; the first rank also writes all
  // files without tensors. Error: as finish().
  PendingCheckpoint(const std::filesystem::path& folder, TrainState& state, const RunState& run,
                    const CheckpointOptions& options = {});
  ~PendingCheckpoint();  // if finish() was not called, the files stay unfinished, as if the run had been
                         // killed

  bool done_within(double seconds);  // waits for at most so long; returns whether finish() would now return
                                     // without waiting
  // Waits until all files of this rank are on the disk. The rank that leads a disk waits for all ranks that
  // write there, and gives the checkpoint its name. Every rank calls it; with several disks they call it
  // together. Returns the path. Error: the disk is full, there is no permission, or weights or moments are
  // not finite; no other checkpoint is touched.
  std::filesystem::path finish();
  // After finish(), on the first rank: the parts of older checkpoints that could not be removed, and why
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
  std::vector<int64_t> others_ = {};  // on a rank that leads a disk: the other ranks that write on it
  FileChecksums files_ = {};          // what this rank has written; in the end, on a rank that leads a disk,
                                      // all files on it
  bool replaces_;
  std::function<void()> check_folder_;
  std::vector<std::string> leftovers_ = {};
  std::unique_ptr<WriteQueue> queue_;
};

// Writes and finishes a checkpoint at once
std::filesystem::path save_checkpoint(const std::filesystem::path& folder, TrainState& state,
                                      const RunState& run, const CheckpointOptions& options = {});

// Error: something is missing or malformed, or the checkpoint is of another model; the message has both
// sizes.
RunState read_state(const std::filesystem::path& checkpoint, const ModelConfig& model,
                    int64_t least_step = 1);
// The weights that adapters belong to
struct BaseWeights {
  std::filesystem::path folder;  // train.init_from
  FolderOptions options = {};
  std::string checksum = "";  // RunState::base
};
// `base`: for a model with adapters. A rank reads the parameters of which it holds a part, one after the
// other. Returns their bytes in the files. Error: the base's weights do not have the checksum.
int64_t load_checkpoint(const std::filesystem::path& checkpoint, TrainState& state,
                        const BaseWeights& base = {});
// Loads only the weights, of one of our checkpoints or of another program; otherwise as above. Error: as
// check_weights().
int64_t load_weights(const std::filesystem::path& folder, TrainState& state,
                     const FolderOptions& options = {});
// Loads the weights that adapters belong to. Every rank reads all of them. Returns the checksum of the
// values.
std::string load_base(const std::filesystem::path& folder, TrainState& state, const FolderOptions& options);

// Loads weights that are never updated, of a reference or a teacher. Returns the checksum of the values.
std::string load_fixed(const std::filesystem::path& folder, Session& session, const FolderOptions& options);
// The same checksum, without memory for the weights
std::string checksum_of_weights(const std::filesystem::path& folder, const ModelConfig& model,
                                const FolderOptions& options);

}  // namespace tessera
