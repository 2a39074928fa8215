// RunState: what a run needs to resume as if it had never stopped, and state.json, which stores it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "data/fingerprint.h"
#include "data/loader.h"
#include "kernels/base/tensor.h"
#include "model/fp8.h"
#include "train/config/config.h"
#include "train/run/recent_steps.h"

namespace tessera {

// Tells whether a run trains and evaluates on the same tokens as before, wherever their files are
struct DataFingerprint {
  struct Source {
    StreamFingerprint stream;
    TokenRange range;          // the part that is not held out
    double weight = 1;         // if there are several sources
    std::string packing = "";  // Packing::checksum(); "": documents are joined
  };
  std::vector<Source> train;
  std::optional<StreamFingerprint> validation;  // nothing: validation uses the rest of `train`, or the run
                                                // does not evaluate
};

// The facts about the data, one in each line, so that ranks can say where theirs differ
std::string lines_of(const DataFingerprint& data);

struct BestEvaluation {
  int64_t step = 0;
  double validation_loss = 0;
};

// Random draws depend only on (seed, step).
struct RunState {
  int64_t step = 0;           // optimizer steps done
  int64_t data_position = 0;  // the training sequences used so far
  int64_t seed = 0;
  int64_t micro_batch = 0;
  int64_t sequence_length = 0;
  int64_t ranks = 1;
  std::optional<Shard> shard = {};          // what the ranks split; not known in checkpoints without it
  int64_t replicas = 0;                     // of the parameters; 0: not known
  std::optional<int64_t> mlp_chunk = {};    // of a run that is resumed; 0 in checkpoints without it
  Device device = Device::kCpu;             // of the run that wrote the checkpoint
  std::string data;                         // the training data, as text_of() names it
  bool shift = false;                       // of the training sequences; false in checkpoints without it
  Documents documents = Documents::kJoin;   // data.documents; join in checkpoints without it
  std::string freeze = "none";              // train.freeze; none in checkpoints without it
  std::string lora = "none";                // train.lora; none in checkpoints without it
  int64_t skipped_updates = 0;              // how many of the steps made no update; 0 in checkpoints without
                                            // it
  int64_t rewinds = 0;                      // how often the run went back
  int64_t passed_over_tokens = 0;           // of data_position, those without effect: of steps that the run
                                            // went back over, and of the bad steps
  std::set<int64_t> before_bad_steps = {};  // steps of the checkpoints that were the newest one at a bad step
  RecentSteps recent = {};                  // empty if train.on_bad_step.spike is ignore
  Fp8Scales fp8_scales = {};  // train.gemm_dtype=fp8: for the next step; save_checkpoint() fills it in
  std::string base = "";      // with adapters: what load_base() returned for their base weights
  std::string reference = "", teacher = "";  // checksums of their weights; "": there are none, or not known
  std::optional<DataFingerprint> fingerprint = {};  // nothing in checkpoints of the first format
  std::optional<BestEvaluation> best = {};          // the lowest validation loss up to this step
  int64_t evaluations_since_best = 0;               // since the run's start, if there is no best

  int64_t tokens() const {
    return data_position * sequence_length - passed_over_tokens;
  }  // the tokens
     // trained on
};

inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kStateFormat = "tessera checkpoint 2";
inline constexpr const char* kStateWithoutChecksums = "tessera checkpoint 1";  // can be read as well

// Records an evaluation after run.step. Returns whether its loss is the lowest so far. A loss that is not
// finite is never the lowest. An evaluation at step 0 is not recorded, because there is no checkpoint of that
// step.
bool note_evaluation(RunState& run, double validation_loss);

// Where a run with sequences of `tokens` tokens continues in the data: after as many tokens as `was` has
// used, rounded up to whole sequences.
int64_t position_with_length(const RunState& was, int64_t tokens);

nlohmann::ordered_json json_of(const RunState& run);

// The step that the state.json in `checkpoint` names. Error: unreadable, another format, no such step.
int64_t read_step(const std::filesystem::path& checkpoint);

// Error: something is missing, mistyped or out of range; with the file and the value found. The checkpoints
// of a run have step 1 or later.
RunState read_run_state(const std::filesystem::path& checkpoint, int64_t least_step = 1);

}  // namespace tessera
