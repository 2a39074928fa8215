// Session: the weights of a model on one device, and the forward over them. It computes losses and logits,
// and a Decoder (decoder.h) continues texts with it. It has no gradients and no optimizer: TrainState
// (train_state.h) adds these.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "data/sequences.h"
#include "kernels/stream.h"
#include "model/formats/folder.h"
#include "model/transformer.h"
#include "train/session/run_shape.h"

namespace tessera {

// Whether a forward uses the model's adapters (train.lora)
enum class Adapters : uint8_t { kOn, kOff };

class Session {
 public:
  // Allocates the weights, which are zero until initialize() or load_weights(), and the kernels' workspace.
  // `context` connects the ranks of shape.context; a single rank needs none.
  Session(Backend& be, Arena& arena, const SessionShape& shape, const ParamStore::Homes& homes = {},
          Communicator* context = nullptr);
  Session(const Session&) = delete;

  void initialize(uint64_t seed);  // random weights

  // These functions fail, before any kernel runs, on an id outside the vocabulary. The ranks of a context
  // compute losses together, each for its own tokens. The first two functions return 0 for the tokens of
  // other ranks, so that the results add up over the ranks.
  //
  // The mean loss of `count` sequences over the tokens that count; 0 if no token counts. Unless `by_position`
  // is empty, the sum of the losses at each position is added to it, [T]. If the session has documents,
  // positions are those in the document.
  double evaluate(const SequencesView& sequences, int64_t count, std::span<double> by_position = {});
  // The loss of every token of `count` sequences of T tokens, [count, T]; 0 where the target does not count.
  // Neither the number of tokens nor the length may exceed those of an evaluation's batch: then it needs no
  // more memory.
  std::vector<float> losses(const SequencesView& sequences, int64_t count, int64_t T,
                            Adapters adapters = Adapters::kOn);
  struct Largest {
    std::vector<int32_t> ids;   // [count, T, K]
    std::vector<float> values;  // [count, T, K + 1]
  };
  // The LargestLogits after each token, K of them; otherwise as losses(). The ranks of a context cannot
  // compute it.
  Largest largest_logits(const SequencesView& sequences, int64_t count, int64_t T, double temperature);
  // The logits after each of the last `count` tokens of a text of 1 to model.context tokens, in one forward:
  // [count, V]
  std::vector<float> last_logits(std::span<const int32_t> tokens, int64_t count);

  const SessionShape& shape() const { return shape_; }
  const Model& model() const { return model_; }
  Model without_adapters() const;                         // at the largest batch
  Model training_model(const ByBlock<Keep>& keep) const;  // at this rank's largest batch, with its dropout
  ParamStore& store() { return store_; }                  // of the weights
  const Stream& stream() const { return stream_; }        // with the workspace that all operations share
  Arena& arena() const { return arena_; }

 private:
  Model model_at(int64_t batch, int64_t tokens, bool documents) const;
  // The model for batches of sequences of so many tokens, each shared by the ranks of the context
  Model shared_model(int64_t batch, int64_t all_tokens, bool dropout) const;
  std::vector<float> shared_losses(const SequencesView& sequences, int64_t count, int64_t T,
                                   Adapters adapters);
  void check_batch(int64_t count, int64_t T) const;
  void send(const SequencesView& sequences, Batch& batch);
  // The losses of a batch of the model's size. fill() gives the batch its ids, and its tables if it needs
  // them.
  std::vector<float> losses_of(const Model& model, const std::function<void(Batch&)>& fill);

  Stream stream_;
  Arena& arena_;
  SessionShape shape_;
  Communicator* context_;  // null: the context has one rank
  ParamStore store_;
  SparseLists sparse_;        // for whole sequences
  SparseLists dealt_sparse_;  // for this rank's tokens, if the context has several
  Model model_;               // for the largest batch, of whole sequences
};

// Loads the weights of a folder: one of our checkpoints, or a folder of another program. Error: as
// check_weights().
void load_weights(const std::filesystem::path& folder, Session& session, const FolderOptions& options = {});

}  // namespace tessera
