// Prover: runs the same step in different ways.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/sequences.h"
#include "kernels/base/clock.h"
#include "kernels/base/present.h"
#include "kernels/base/status_line.h"
#include "train/prove/proof.h"
#include "train/prove/prove_options.h"
#include "train/prove/record_file.h"
#include "train/run/rank_group.h"

namespace tessera {

// The next training sequences of the model's run, or the first of --data; and a description of them for a
// person
struct ProvedData {
  Sequences sequences;
  std::string text;
};
ProvedData read_proved_data(const ProvedModel& model, const ProveOptions& options, int64_t count);

// A way to run the step. Fields that are not set are as in the run.
struct Way {
  AttentionKind attention;
  Precision precision;
  int64_t micro_batch = 1;
  bool documents;
  int64_t sequence_length;
  int64_t sequences;  // of the step, over all ranks
  MeshShape mesh = {};
  Shard shard = Shard::kOptimizer;
  Fp8Config fp8 = {};
};

class Prover {
 public:
  Prover(const ProvedModel& model, const ProveOptions& options, RankGroup& ranks, const BackendMaker& make);
  std::vector<Proof> run();
  ProofSubject subject() const;

 private:
  // The run's kind of attention; flash for flash_fp8, since in FP8 rows and sums depend on how sequences are
  // cut
  AttentionKind own_attention() const {
    const AttentionKind kind = config_.model.attention;
    return kind == AttentionKind::kFlashFp8 ? AttentionKind::kFlash : kind;
  }
  Way way() const;  // the run's way, with one sequence at a time
  MemoryLimit limit_of(const DeviceTraits& device) const;
  RunShape shape_of(const Way& way, const DeviceTraits& device) const;
  // nullopt: the way does not fit, or the device does not support it; then `why` is set
  std::optional<RunShape> shape_that_fits(const Way& way, const DeviceTraits& device, std::string& why) const;
  // The same, with the largest micro-batch that fits
  std::optional<RunShape> largest_shape(Way way, const DeviceTraits& device, std::string& why) const;
  // Loads the weights of `from` in this configuration. Returns the checksum of the weights that adapters
  // belong to.
  std::string load(TrainState& state, const ProvedModel& from) const;
  // `changes`: what the job observes in addition to losses and gradients
  StepRecord record(const RunShape& shape, const DeviceTraits& device, const SequencesView& of,
                    const std::function<void(StepJob&)>& changes = {});
  StepJob job_of(const RunShape& shape, const SequencesView& of);
  // The number by which the loss of a step is divided
  double counted_of(const SequencesView& of, int64_t T) const;
  bool asked(ProofKind kind) const;
  void show(const std::string& what) { line_.show({{"proving: " + what, 1}}); }
  const StepRecord& base();  // the run's way, at the largest micro-batch

  void prove_attention();
  void prove_fp8_attention();
  Proof prove_kind(const StepRecord& found, const std::vector<Measure>& naives, const StepRecord& exact,
                   AttentionKind kind) const;
  Proof proof_of_rows(const std::string& name, const RowCheck& rows, const std::string& of) const;
  void prove_documents();
  void prove_pairs();
  void prove_micro_batch();
  void prove_resume();
  void prove_ranks();
  Proof prove_mesh(const StepRecord& one, const MeshShape& mesh, Shard shard, const std::string& what);
  void prove_device();
  void prove_fp8();
  void prove_against();
  Proof prove_record(const RecordedStep& found, const RecordedStep& other, const std::string& name);
  Proof prove_checkpoint(const ProvedModel& other);
  using Loaded = std::function<void(TrainState& state, const std::string& base)>;  // as load() returns it
  StepRecord step_from(const ProvedModel& from, const RunShape& shape, const Loaded& loaded);
  RecordedStep recorded(int64_t micro_batch);  // with micro-batches of so many sequences, if these fit
  StepSubject subject_of(const RunShape& shape) const;
  std::vector<std::string> arguments_of_build() const;
  void add(Proof proof);
  void skip(const std::string& name, const std::string& why) {
    add({.name = name, .compared = "", .skipped = why});
  }

  const RunShape& base_shape() const { return present(base_shape_); }

  const ProvedModel& model_;
  Config config_;
  const ProveOptions& options_;
  RankGroup& ranks_;
  BackendMaker make_;
  StatusLine line_;
  DeviceTraits device_;
  MemoryLimit limit_;
  int64_t T_, S_;
  ProvedData data_;
  double counted_;  // what the loss of the step is divided by
  std::optional<RunShape> base_shape_;
  HostMemory memory_;  // for gradients and weights
  std::optional<StepRecord> base_;
  Clock::time_point last_ = Clock::now();  // when the last proof was done
  std::vector<Proof> proofs_;
};

// Compares one tensor of two records. A difference of 0 means that the bits are the same. A NaN differs also
// from a NaN. `least` is as in Difference::relative().
Measure compare_values(const std::string& what, const std::string& where, std::span<const float> found,
                       std::span<const float> expected, double allowed, double least = 0);
// Compares the attention output of each block of two records, and the log-sum-exp if both have it
std::vector<Measure> compare_attention(const StepRecord& found, const StepRecord& expected, double allowed);
// Compares the losses of all tokens and every gradient of two records. Gradients of `found` may be parts.
std::vector<Measure> compare_records(const StepRecord& found, const StepRecord& expected, double allowed);

}  // namespace tessera
