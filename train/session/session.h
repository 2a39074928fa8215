// Session: the weights of a model on one device, and the forward over them. It computes losses and logits,
// and a Decoder (decoder.h) continues texts with it. It has no gradients and no optimizer: TrainState
// (train_state.h) adds those.
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

// Whether a forward computes the adapters of a model (train.lora)
enum class Adapters : uint8_t { kOn, kOff };

class Session {
 public:
  // Allocates the weights, which are zero until initialize() or load_weights(), and the kernels' workspace.
  // `context` joins the ranks of shape.context; none is needed for one.
  Session(Backend& be, Arena& arena, const SessionShape& shape, const ParamStore::Homes& homes = {},
          Communicator* context = nullptr);
  Session(const Session&) = delete;

  void initialize(uint64_t seed);  // random weights

  // All fail, before any kernel, on an id outside the vocabulary. The ranks of a context compute losses
  // together, each those of its tokens: what the two below return is 0 for others, and adds up over the
  // ranks.
  //
  // Mean loss of `count` sequences over the tokens that count; 0 if none does. The sum of the losses at each
  // position, in the document where the session has documents, is added to `by_position`, [T], unless it is
  // empty.
  double evaluate(const SequencesView& sequences, int64_t count, std::span<double> by_position = {});
  // The loss of every token of `count` sequences of T tokens, [count, T]; 0 where the target does not count.
  // At most as many tokens, and as long sequences, as an evaluation's batch: then it needs no more memory.
  std::vector<float> losses(const SequencesView& sequences, int64_t count, int64_t T,
                            Adapters adapters = Adapters::kOn);
  struct Largest {
    std::vector<int32_t> ids;   // [count, T, K]
    std::vector<float> values;  // [count, T, K + 1]
  };
  // The LargestLogits after each token, K of them: as losses(). Not by the ranks of a context.
  Largest largest_logits(const SequencesView& sequences, int64_t count, int64_t T, double temperature);
  // Logits after each of the last `count` of 1 to model.context tokens, in one forward: [count, V]
  std::vector<float> last_logits(std::span<const int32_t> tokens, int64_t count);

  const SessionShape& shape() const { return shape_; }
  const Model& model() const { return model_; }
  Model without_adapters() const;  // at the largest batch
  Model training_model(
      const ByBlock<Keep>& keep) const;             // at the largest batch of this rank, with its dropout
  ParamStore& store() { return store_; }            // of the weights
  const Stream& stream() const { return stream_; }  // with the workspace that all operations share
  Arena& arena() const { return arena_; }

 private:
  Model model_at(int64_t batch, int64_t tokens, bool documents) const;
  // The model of batches of sequences of so many tokens, each shared by the ranks of the context
  Model shared_model(int64_t batch, int64_t all_tokens, bool dropout) const;
  std::vector<float> shared_losses(const SequencesView& sequences, int64_t count, int64_t T,
                                   Adapters adapters);
  void check_batch(int64_t count, int64_t T) const;
  void send(const SequencesView& sequences, Batch& batch);
  // The losses of a batch of the model's size, to which fill() gives ids, and tables where it needs them
  std::vector<float> losses_of(const Model& model, const std::function<void(Batch&)>& fill);

  Stream stream_;
  Arena& arena_;
  SessionShape shape_;
  Communicator* context_;  // null: of one rank
  ParamStore store_;
  SparseLists sparse_;
  Model model_;  // at the largest batch, of whole sequences
};

// The weights of a folder: one of our checkpoints, or of another program. Error: as check_weights.
void load_weights(const std::filesystem::path& folder, Session& session, const FolderOptions& options = {});

}  // namespace tessera
