// A training step of the run's own code, and what was seen of it: the losses of its tokens, the attention
// output of each block, every gradient. An observer of the backend reads the operations' tensors; nothing of
// the model is written a second time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/sequences.h"
#include "kernels/backend.h"
#include "train/prove/row_check.h"
#include "train/session/train_state.h"

namespace tessera {

// The values of a parameter, or of this rank's part of it, from element `first` on
struct ParamValues {
  std::string name;
  int64_t block, first;
  Shape shape;                            // of the whole parameter
  std::shared_ptr<const float[]> memory;  // of several parameters, as a rule
  std::span<const float> values;          // in it
};

struct StepRecord {
  double loss = 0;       // this rank's: the mean over the ranks is that of the step
  double grad_norm = 0;  // of all ranks' gradients
  // Of each token of this rank, [S, T], where it has the sequences whole; with a loss of pairs or of a
  // teacher only the mean of the step
  std::vector<float> losses;
  std::vector<std::vector<float>> attention;  // of each block: some rows of the output, [rows, H D]
  std::vector<std::vector<float>> lse;        // of each block: log-sum-exp, [S, H, T]; empty: it keeps none
  std::vector<ParamValues> gradients;
};

using BackendMaker = std::function<std::unique_ptr<Backend>(const DeviceTraits&)>;

struct StepJob {
  const RunShape& shape;
  SequencesView sequences;
  double counted;  // of all ranks, as TrainState::step() takes it
  OptimizerConfig optimizer = {};
  double learning_rate = 0;
  bool sees_attention = false;  // by `attention` and `lse` of the record
  bool sees_gradients = true;
  RowCheck* rows = nullptr;      // checks rows of attention meanwhile
  HostMemory* memory = nullptr;  // of gradients; null: of their own
};

// A run of steps over one TrainState, which it allocates. Error: OutOfMemory; a stop signal
class StepRunner {
 public:
  StepRunner(Backend& be, const RunShape& shape, const StepAxes& axes = {});

  StepRecord step(const StepJob& job, int64_t number = 1);
  TrainState& state() { return *state_; }

 private:
  Backend& be_;
  Arena arena_;
  std::unique_ptr<TrainState> state_;
};

// The gradients of the last step, this rank's part. All ranks call it, and the next two.
std::vector<ParamValues> gradients_of(TrainState& state, HostMemory& memory);
// The weights in fp32, whole; of a model with adapters, these
std::vector<ParamValues> weights_of(TrainState& state, HostMemory& memory);
// Of the bits of the same values
std::string checksum_of_weights(TrainState& state, HostMemory& memory);

}  // namespace tessera
