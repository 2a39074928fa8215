// TrainState: a Session, gradients and an optimizer on one device, and the training step.
//
// Each of several ranks has one, computes its share of a step's sequences, and exchanges gradients: the
// gradients of a block are summed over ranks while those of the previous block are computed. With ZeRO stage
// 1 (Rajbhandari et al., arXiv:1910.02054) a rank gets the sum of its part of the gradients and updates that
// part of the weights; the weights are gathered while the next parts are updated and the next forward runs.
//
// The same code runs over an empty arena with a backend that does nothing: see memory_plan.h.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "model/optimizer.h"
#include "train/parallel/communicator.h"
#include "train/session/session.h"

namespace tessera {

class TrainState {
 public:
  // Allocates; contents of weights and optimizer are undefined until initialize() or load. `comm` joins
  // shape.ranks ranks; none is needed for one.
  TrainState(Backend& be, Arena& arena, const RunShape& shape, Communicator* comm = nullptr);

  void initialize(uint64_t seed);  // random weights, zero moments
  ParamSink writer(Kept kept);     // masters go to the weights, too

  // Evaluates and samples, with the weights of the last step: waits for those that other ranks send. Ask for
  // it again after a step.
  Session& session();

  // Enqueues one optimizer step over this rank's sequences, micro_steps times B of them. `counted_tokens`
  // is how many targets of all ranks' sequences are not kNoTarget: the loss of the step is the sum of
  // theirs over that number, and so are the gradients. `step` counts from 1. Error, before any kernel: an
  // id outside the vocabulary; a counted_tokens that cannot be, 0 too: such a step has no loss.
  // `continues` gets the number of enqueued micro-steps. If it returns false before the last one, the
  // step is dropped: weights and optimizer stay as they were, and step() returns false. All ranks must agree
  // on that, as the last micro-step exchanges gradients.
  bool step(const SequencesView& sequences, int64_t counted_tokens, const OptimizerConfig& config,
            double learning_rate, int64_t step, const std::function<bool(int64_t)>& continues = {});
  // A step's allocations, for a plan: all micro-steps allocate and release the same, so one is enough.
  void walk_step();
  struct StepResult {
    double loss;       // this rank's, nats: the mean over the ranks is the loss of the step
    double grad_norm;  // of all ranks' gradients, before clipping
  };
  StepResult finish_step();  // waits for the device

  // Calls use() with all trained elements of a bucket, on the device; an empty tensor if there are none.
  // Every rank has to call it.
  void with_whole(Kept kept, size_t bucket, const std::function<void(const Tensor&)>& use);

  const RunShape& shape() const { return shape_; }
  int64_t rank() const { return comm_->rank(); }
  const Stream& stream() const { return session_.stream(); }
  const Model& model() const { return model_; }  // that steps run
  Optimizer& optimizer() { return optimizer_; }
  const Grads& grads() const { return grads_; }

 private:
  void check_counted(std::span<const int32_t> targets, int64_t counted_tokens) const;
  bool compute_step(int64_t micro_steps, const OptimizerConfig& config, double learning_rate, int64_t step,
                    const std::function<bool(int64_t)>& continues);
  void reduce_gradients(size_t bucket);
  void update_weights(const OptimizerConfig& config, double learning_rate, int64_t step);

  Arena& arena_;
  RunShape shape_;
  std::unique_ptr<Communicator> alone_;  // of one rank
  Communicator* comm_;
  Session session_;
  Model model_;       // the session's; keeps what the backward needs
  Tensor discarded_;  // gradients of frozen norms
  Grads grads_;
  Optimizer optimizer_;
  std::vector<Tensor> reduced_;    // a bucket's gradients that are summed over ranks: this rank's part
                                   // a bucket without trained parameters has none
  std::vector<int64_t> gathered_;  // how many collectives a bucket's weights wait for
  Tensor sums_;                    // fp32, room for a bucket; only where bf16 gradients are summed in fp32
  Tensor tokens_, targets_;        // [micro_steps, B T]
  Tensor documents_;               // [micro_steps, B T, 2]; with shape.documents
  Tensor losses_;                  // [micro_steps, B T]
  int64_t counted_tokens_;         // of the step, on all ranks
};

}  // namespace tessera
