// Runs a training step with the run's own code, and records what it computed: the losses of its tokens, the
// attention output of each block, and every gradient. An observer of the backend reads the tensors of
// operations, so nothing of the model is written a second time.
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

// The values of a parameter, or this rank's part of it, from element `first` on
struct ParamValues {
  std::string name;
  int64_t block, first;
  Shape shape;                            // of the whole parameter
  std::shared_ptr<const float[]> memory;  // usually shared by several parameters
  std::span<const float> values;          // a part of `memory`
};

struct StepRecord {
  double loss = 0;       // of this rank; the mean over the ranks is the step's loss
  double grad_norm = 0;  // of the gradients of all ranks
  // The loss of each token of this rank, [S, T], if it has whole sequences. With a loss of pairs or with a
  // teacher there is only the mean of the step
  std::vector<float> losses;
  std::vector<std::vector<float>> attention;  // for each block: some rows of the output, [rows, H D]
  std::vector<std::vector<float>> lse;        // for each block: log-sum-exp, [S, H, T]; empty: the kernel
                                              // writes none
  std::vector<ParamValues> gradients;
};

using BackendMaker = std::function<std::unique_ptr<Backend>(const DeviceTraits&)>;

struct StepJob {
  const RunShape& shape;
  SequencesView sequences;
  double counted;  // over all ranks, as TrainState::step() takes it
  OptimizerConfig optimizer = {};
  double learning_rate = 0;
  bool sees_attention = false;  // records `attention` and `lse`
  bool sees_gradients = true;
  RowCheck* rows = nullptr;      // checks rows of attention during the step
  HostMemory* memory = nullptr;  // for gradients; null: they have their own memory
};

// Runs steps over a TrainState, which it allocates. Error: OutOfMemory; a stop signal
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

// The gradients of the last step, this rank's part. All ranks call this and the next two functions.
std::vector<ParamValues> gradients_of(TrainState& state, HostMemory& memory);
// The whole weights in fp32; if the model has adapters, the whole adapters
std::vector<ParamValues> weights_of(TrainState& state, HostMemory& memory);
// A checksum of the bits of these values
std::string checksum_of_weights(TrainState& state, HostMemory& memory);

}  // namespace tessera
