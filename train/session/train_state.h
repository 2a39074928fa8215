// TrainState: everything a run keeps on one device - weights, gradients, optimizer, batch buffers - and the
// step over it.
//
// Of several ranks each holds one, computes its share of a step's sequences, and exchanges gradients: the
// gradients of a block are summed over ranks while those of the block before it are computed. With ZeRO stage
// 1 (Rajbhandari et al., arXiv:1910.02054) a rank gets the sum of its part of the gradients, updates that
// part of the weights, and all gather the weights while the next parts are updated and
// the next forward runs.
//
// The same code runs over an empty arena with a backend that does nothing: plan_memory() is such a walk, so
// the plan is exact by construction.
#pragma once

#include <functional>
#include <span>

#include "kernels/stream.h"
#include "model/optimizer.h"
#include "model/transformer.h"
#include "train/parallel/communicator.h"

namespace tessera {

struct RunShape {
  ModelConfig model;
  int64_t micro_batch;      // B: sequences in one forward and backward
  int64_t micro_steps;      // of them in an optimizer step, on each rank
  int64_t sequence_length;  // T
  DType dtype = DType::kF32;
  DType moments = DType::kF32;  // optimizer.moments
  AttentionKind attention = AttentionKind::kFlash;
  bool deterministic = true;
  Keep keep = Keep::kAll;        // train.recompute
  int64_t classifier_chunk = 0;  // see Model
  int64_t sample_tokens =
      0;  // the longest text that next_token_logits() is asked to go on from; 0: model.context

  int64_t ranks = 1;            // that share the sequences of a step
  bool shard_optimizer = true;  // train.zero: 1; where there are several ranks
  bool reduce_in_fp32 = false;  // bf16 gradients are summed over ranks in fp32

  int64_t rows() const { return micro_batch * sequence_length; }            // N
  int64_t sequences_per_rank() const { return micro_batch * micro_steps; }  // of a step
  int64_t tokens_per_rank() const { return sequences_per_rank() * sequence_length; }
  int64_t tokens_per_step() const { return tokens_per_rank() * ranks; }
  int64_t parts() const { return shard_optimizer ? ranks : 1; }  // of the optimizer
};

class TrainState {
 public:
  // Allocates; contents of weights and optimizer are undefined until initialize() or load. `comm` joins
  // shape.ranks ranks; none is needed for one.
  TrainState(Backend& be, Arena& arena, const RunShape& shape, Communicator* comm = nullptr);

  void initialize(uint64_t seed);  // random weights, zero moments
  ParamSink writer(Kept kept) { return optimizer_.writer(stream_, kept); }

  // step(), evaluate() and next_token_logits() fail, before any kernel, on an id outside the vocabulary.
  // Enqueues one optimizer step over this rank's `tokens` and `targets`, [micro_steps, B, T] each. `step`
  // counts from 1.
  // `goes_on` is told how many micro-steps were enqueued. Where it returns false before the last one, the step
  // is dropped: weights and optimizer stay as they were, and step() returns false. All ranks must agree on
  // that, as the last micro-step exchanges gradients.
  bool step(std::span<const int32_t> tokens, std::span<const int32_t> targets, const OptimizerConfig& config,
            double learning_rate, int64_t step, const std::function<bool(int64_t)>& goes_on = {});
  // A step's allocations, for a plan: its micro-steps take the same and give it back, so one stands for all.
  void walk_step();
  struct StepResult {
    double loss;       // mean over this rank's tokens of the step, nats
    double grad_norm;  // of all ranks' gradients, before clipping
  };
  StepResult finish_step();  // waits for the device

  // Mean loss of `count` sequences, [count, T] tokens and targets, count <= B.
  double evaluate(std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t count);
  // Logits of the token after `tokens`, V of them; 1 to model.context tokens.
  std::vector<float> next_token_logits(std::span<const int32_t> tokens);

  // Calls use() with all of a bucket, on the device. Every rank has to call it.
  void with_whole(Kept kept, size_t bucket, const std::function<void(const Tensor&)>& use);

  const RunShape& shape() const { return shape_; }
  int64_t rank() const { return comm_->rank(); }
  const Stream& stream() const { return stream_; }
  const Model& model() const { return model_; }
  Optimizer& optimizer() { return optimizer_; }
  const Grads& grads() const { return grads_; }

 private:
  bool compute_step(int64_t micro_steps, const OptimizerConfig& config, double learning_rate, int64_t step,
                    const std::function<bool(int64_t)>& goes_on);
  void reduce_gradients(size_t bucket);
  void update_weights(const OptimizerConfig& config, double learning_rate, int64_t step);
  Model model_at(int64_t batch, int64_t tokens) const;

  Stream stream_;
  Arena& arena_;
  RunShape shape_;
  std::unique_ptr<Communicator> alone_;  // of one rank
  Communicator* comm_;
  Model model_;
  Grads grads_;
  Optimizer optimizer_;
  std::vector<Tensor> reduced_;    // a bucket's gradients that are summed over ranks: this rank's part
  std::vector<int64_t> gathered_;  // how many collectives a bucket's weights wait for
  Tensor sums_;                    // fp32, room for a bucket; only where bf16 gradients are summed in fp32
  Tensor tokens_, targets_;        // [micro_steps, B T]
  Tensor losses_;                  // [micro_steps, B T]
};

// Memory of a run of this shape on a device: the ledger after a step, an evaluation and a sample over an
// empty arena, and in which of them the peak was.
struct MemoryPlan {
  MemoryLedger ledger;
  std::string peak_stage;  // "the setup", "a training step", "an evaluation", "a sample"
};
MemoryPlan plan_stages(const RunShape& shape, const DeviceTraits& device);
MemoryLedger plan_memory(const RunShape& shape, const DeviceTraits& device);

}  // namespace tessera
