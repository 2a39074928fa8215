// TrainState: a Session, gradients and an optimizer on one device, and the training step.
//
// Each rank has a TrainState. It computes its share of a step's sequences and exchanges gradients: the
// gradients of a block are summed over the ranks while those of the previous block are computed. How ranks
// split the optimizer's tensors, gradients and weights is the task of the store (model/store/param_store.h).
//
// From the second step on, a micro-step is one graph (Backend::make_graph). On CUDA this is one launch
// instead of hundreds, of the same kernels. These run without a graph: micro-steps with dropout, whose masks
// change from step to step; micro-steps that communicate or copy activations to the host; and all micro-steps
// of a run whose memory is recorded.
//
// A memory plan runs the same code on an empty arena, with a backend that does nothing: see memory_plan.h.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "kernels/base/present.h"
#include "kernels/communicator.h"
#include "kernels/timer.h"
#include "model/activation_offload.h"
#include "model/fp8.h"
#include "model/optimizer.h"
#include "train/session/host_tensors.h"
#include "train/session/inside.h"
#include "train/session/session.h"
#include "train/session/step_limits.h"
#include "train/session/step_tensors.h"

namespace tessera {

class TrainState {
 public:
  // Allocates. The values of weights and optimizer are undefined until initialize() or until they are loaded.
  // `axes` are the axes of shape.mesh. Error: an axis has another number of ranks.
  TrainState(Backend& be, Arena& arena, const RunShape& shape, const StepAxes& axes = {});

  // Random weights, and moments of zero. With kAdapters only the adapters are set: the other weights are to
  // be loaded.
  void initialize(uint64_t seed, InitialOf which = InitialOf::kAll);
  Session& session() { return session_; }  // evaluates and samples, with the weights of the last step
  ParamStore& store() { return session_.store(); }
  // The reference. It exists if shape.loss needs one, unless that is the model without its adapters. It is
  // whole on each rank, zero until it is initialized or loaded, and never updated.
  Session& reference() { return present(reference_).session; }
  bool has_reference() const { return reference_.has_value(); }
  Session& teacher() {
    return present(teacher_).session;
  }  // exists with shape.teacher; otherwise as the
     // reference
  bool has_teacher() const { return teacher_.has_value(); }
  // The losses of the reference, as Session::losses() returns them
  std::vector<float> reference_losses(const SequencesView& sequences, int64_t count, int64_t T);

  // Enqueues one optimizer step over this rank's sequences: micro_steps times B of them. All ranks of a
  // context get the same sequences, and each takes its part of the tokens. `counted_tokens` is the number of
  // targets of all ranks' sequences that are not kNoTarget. The loss of the step is the sum of their losses
  // divided by this number, and gradients are divided by it too. With a loss of pairs it is the number of
  // pairs. With weights it is the sum of the weights of these tokens or pairs, whose losses are multiplied by
  // the weights. `step` counts from 1. Error, before any kernel runs: an id outside the vocabulary; an
  // impossible counted_tokens, also 0, since such a step has no loss. `continues` gets the number of
  // micro-steps that are enqueued. If it returns false before the last one, the step is dropped: weights and
  // optimizer stay as they were, and step() returns false. All ranks must agree on that, because the last
  // micro-step exchanges gradients.
  bool step(const SequencesView& sequences, double counted_tokens, const OptimizerConfig& config,
            double learning_rate, int64_t step, const std::function<bool(int64_t)>& continues = {});
  // If a step's loss or gradient norm is not finite, or above its limit, the step makes no update: weights
  // and optimizer stay as they were, on all ranks. The device decides this, so nothing waits for the host.
  // Limits are in force from the next step() on, and must be the same on all ranks.
  void set_limits(const StepLimits& limits) { limits_ = limits; }
  // How many earlier steps made no update. The optimizer needs it, since it counts updates.
  void set_skipped_updates(int64_t count) { skipped_updates_ = count; }
  // Call it after a step that made no update, before the next step(), which may be the same step or another.
  // Without this call a next step in FP8 would use the scales that follow from the step without an update.
  void take_back_step() { fp8_.take_back_step(stream()); }
  // Runs the operations of a step for a plan. All micro-steps allocate and release the same, so one is
  // enough.
  void walk_step(int64_t micro_steps = 1);
  struct StepResult {
    double loss;       // this rank's, nats: the mean over the ranks is the loss of the step
    double grad_norm;  // of all ranks' gradients, before clipping
    StepVerdict verdict = StepVerdict::kUpdate;
    // With a loss of pairs: the sums over this rank's pairs, in the order of PreferenceFigures::at()
    std::vector<double> figures = {};
    // With shape.qk_clip: the largest score of all heads, and how many heads had a larger score than that
    // limit. The update has clipped these heads.
    struct Scores {
      double largest = 0;
      int64_t clipped = 0;
    };
    std::optional<Scores> scores = {};
  };
  // The result of the last step. Waits until it is known; the device may then still be updating the weights.
  StepResult finish_step();
  // Figures of the last step; none unless it is one of the steps with figures (shape.inside_every). Call it
  // after finish_step().
  std::optional<InsideFigures> inside();
  // The sum of the losses of each sequence of the last step. In a context: over this rank's tokens
  std::vector<double> sequence_losses();

  const RunShape& shape() const { return shape_; }
  int64_t rank() const { return all_ ? all_->rank() : 0; }
  const Stream& stream() const { return session_.stream(); }
  const Model& model() const { return model_; }  // the model that steps run
  // The ledger of what lies in host memory for the device; null: nothing does
  const MemoryLedger* host_ledger() const { return offloaded_ ? &offloaded_->ledger() : nullptr; }
  Fp8& fp8() { return fp8_; }
  const Grads& grads() { return store().gradient_home().whole(); }
  // What the memory of the device at this address holds now: "blocks.3.mlp.expand.weight", "MLP hidden
  // layer"; "": not known
  std::string name_at(const void* address);

 private:
  // How a micro-step is run
  struct MicroStep {
    bool first, last;  // in its step
    bool observed;     // inside_ observes its step
    ActiveDropout dropout = {};
  };
  struct MicroStepGraph {
    std::unique_ptr<OpGraph> operations = {};
    std::optional<Arena::Place> place = {};  // where its tensors lie; none before the first run
  };

  struct FixedModel {
    Session session;
    Model model;  // its weights, at the batch size of a micro-step
    FixedModel(Backend& be, Arena& arena, const SessionShape& shape, const ParamStore::Homes& homes,
               Communicator* context)
        : session(be, arena, shape, homes, context), model(session.training_model({})) {}
  };

  // Gathers the rows of all ranks in a tensor with one row for each rank.
  void share_row(const Tensor& rows);
  void check_counted(const SequencesView& sequences, double counted_tokens) const;
  void set_counted(double counted_tokens);
  void send_limits();
  std::vector<double> pair_figures();
  bool finds_scores() const { return observed_ || shape_.qk_clip > 0; }
  Tensor own_scores() const {  // [L, H]
    return largest_scores_.rows(rank(), 1).view({shape_.model.layers, shape_.model.heads});
  }
  std::vector<std::vector<double>> largest_scores();
  std::optional<StepResult::Scores> clipped_scores();
  bool compute_step(int64_t micro_steps, const OptimizerConfig& config, double learning_rate, int64_t step,
                    const std::function<bool(int64_t)>& continues);
  Batch batch_of(int64_t micro_step);
  void count_choices(int64_t micro_steps, const std::function<ActiveDropout(int64_t)>& dropout);
  bool has_divergence() const { return static_cast<bool>(divergence_); }
  void measure_divergences(int64_t micro_steps);
  void share_divergence();
  bool counts_apart() const { return choice_counts_ && shape_.micro_steps > 1; }
  void run(const MicroStep& micro_step);
  void compute(const MicroStep& micro_step);
  bool can_be_graph(const MicroStep& micro_step);
  void keep_pace();
  void update_weights(const OptimizerConfig& config, double learning_rate, int64_t step);
  void judge();

  Arena& arena_;
  RunShape shape_;
  Communicator* all_;               // the ranks of the run; null: there is one
  std::optional<Arena> offloaded_;  // host memory; none: nothing is offloaded
  Session session_;
  Fp8 fp8_;
  Model model_;  // the session's model; it keeps what the backward needs
  std::optional<FixedModel> reference_, teacher_;
  std::optional<Model> without_adapters_;  // with shape.reference_without_adapters
  Optimizer optimizer_;
  std::optional<ActivationOffload> activations_;
  Arena host_;  // for the tensors that the host sends and fetches
  StepTensors inputs_;
  FetchedTensor losses_;   // [micro_steps, B T]; a micro-step writes the last row, which is then copied
  FetchedTensor figures_;  // [micro_steps, PreferenceFigures::kCount, B T_all], in the same way; with a loss
                           // of pairs
  FetchedTensor norms_;    // the optimizer's grad_norms()
  int64_t skipped_updates_ = 0;
  Tensor loss_sums_;      // [ranks] fp32
  Tensor choice_counts_;  // [ranks, E] int32, in a step; with losses of routers
  // For kto: [micro_steps], [ranks] and [1], of the micro-batches, the ranks and the step. See
  // Batch::Divergence
  Tensor divergences_, divergence_sums_, divergence_;
  StepLimits limits_;
  std::array<float, 2> limits_sent_ = {};
  SentTensor device_limits_;   // [2] fp32, see JudgeStep
  FetchedTensor verdict_;      // [1] fp32: a StepVerdict
  double counted_tokens_;      // of the step, over all ranks: see step()
  SentTensor gradient_scale_;  // [1] fp32: 1 / counted_tokens_
  // The graphs of the first micro-step of a step and of the others; steps that inside_ observes have their
  // own
  std::array<std::array<MicroStepGraph, 2>, 2> graphs_;
  std::unique_ptr<Timer> enqueued_;  // the micro-batch enqueued before; if a step has several
  std::optional<Inside> inside_;     // with shape_.inside_every
  Tensor largest_scores_;            // [ranks, L, H] int32: of the step, see LargestScores; with
  FetchedTensor fetched_scores_;     // shape_.inside_every or shape_.qk_clip
  bool observed_ = false;            // inside_ observed the last step
  bool stepped_ = false;             // the first step is over
};

}  // namespace tessera
