// The sizes and choices of a run, without its configuration: what a Session and a TrainState are built from.
#pragma once

#include <optional>
#include <string>

#include "kernels/attention/choose.h"
#include "kernels/base/link_rates.h"
#include "kernels/base/text.h"
#include "model/config.h"
#include "model/fp8_config.h"
#include "model/losses/loss_rule.h"
#include "model/offload.h"
#include "model/params.h"
#include "model/saved.h"
#include "model/shards.h"
#include "model/update_rule.h"
#include "train/parallel/mesh_shape.h"
#include "train/session/context_deal.h"

namespace tessera {

inline constexpr int64_t kNoSamples = -1;  // SessionShape::sample_tokens where no text is continued

// The shape of a forward. Evaluation and sampling need no more.
struct SessionShape {
  ModelConfig model;
  int64_t batch;            // B: the most sequences in a batch of an evaluation
  int64_t sequence_length;  // T, of these sequences
  DType dtype = DType::kF32;
  AttentionKind attention = AttentionKind::kFlash;
  bool deterministic = true;
  int64_t classifier_chunk = 0;  // see Model
  int64_t mlp_chunk = 0;         // see Model
  bool documents = false;        // sequences may hold several documents, and attention stays within each
  AxisPlace context = {};        // the ranks that share the tokens of each sequence
  int64_t context_heads = 0;     // heads of keys in a part of attention: see model/context.h; 0:
                                 // heads_of_part()
  int64_t largest_logits = 0;    // K of Session::largest_logits()
  // The longest text that a Decoder of the session holds; 0: model.context
  int64_t sample_tokens = 0;
  CacheDtype sample_cache = CacheDtype::kAuto;  // of that Decoder

  int64_t longest_sample() const {
    return sample_tokens == kNoSamples ? 0 : sample_tokens == 0 ? model.context : sample_tokens;
  }
};

// The shape of a training step
struct RunShape {
  ModelConfig model;
  int64_t micro_batch;      // B: sequences in one forward and backward
  int64_t micro_steps;      // micro-batches in an optimizer step, on each rank
  int64_t sequence_length;  // T
  DType dtype = DType::kF32;
  UpdateRule rule = adamw();  // its moments: optimizer.moments
  LossRule loss = cross_entropy();
  std::optional<ModelConfig> teacher = {};  // where the loss needs one
  BaseForm teacher_base = BaseForm::kAuto;
  bool reference_without_adapters = false;  // the loss's reference is the model with its adapters left out
  bool weights = false;                     // the data has weights for the losses
  RouterLosses router_losses = {};          // train.experts
  AttentionKind attention = AttentionKind::kFlash;
  bool deterministic = true;
  ByBlock<Keep> keep = {};       // train.recompute
  Freeze freeze = {};            // train.freeze; with LoRA everything but the adapters
  int64_t classifier_chunk = 0;  // see Model
  int64_t mlp_chunk = 0;         // see Model; it adds `mlp` to what `keep` drops
  bool documents = false;        // see SessionShape
  int64_t sample_tokens = 0;     // see SessionShape, also for the next
  CacheDtype sample_cache = CacheDtype::kAuto;
  uint64_t seed = 0;                // for the masks of model.dropout
  bool cuda_graphs = false;         // train.cuda_graphs
  Fp8Config fp8 = {};               // train.gemm_dtype and train.fp8
  BaseForm base = BaseForm::kAuto;  // train.lora.base
  bool base_of_experts = false;     // only of experts: train.lora.base_parts
  bool fused_head = false;          // see Model
  int64_t inside_every = 0;         // train.inside_every
  double qk_clip = 0;               // optimizer.qk_clip

  MeshShape mesh = {};              // the ranks of the run
  int64_t nodes = 1;                // machines of the run, with as many ranks on each; 1 where that varies
  LinkRates links = {};             // between the machines; if not known: the rates of DeviceSpeed
  int64_t context_heads = 0;        // see SessionShape
  Offload offload = {};             // memory.offload
  Poison poison = Poison::kNo;      // for offloaded activations, in tests: see CopyQueue
  Shard shard = Shard::kOptimizer;  // parallel.shard; used with several ranks
  bool reduce_in_fp32 = false;      // bf16 gradients are summed over ranks in fp32

  int64_t tokens() const {
    return mesh.context == 1 ? sequence_length
                             : dealt_tokens(sequence_length, mesh.context, seen_keys_of(model));
  }                                                                    // of a sequence, at this rank
  int64_t rows() const { return micro_batch * tokens(); }              // N
  int64_t pair_rows() const { return micro_batch * sequence_length; }  // of pairs, at each rank of a context
  bool counts_choices() const { return router_losses != RouterLosses{} && model.experts; }
  int64_t sequences_per_rank() const { return micro_batch * micro_steps; }  // of a step
  int64_t tokens_per_rank() const { return sequences_per_rank() * sequence_length / mesh.context; }
  int64_t sequences_per_step() const { return sequences_per_rank() * mesh.data; }
  int64_t tokens_per_step() const { return sequences_per_step() * sequence_length; }
  int64_t ranks() const { return mesh.ranks(); }
  // Whether collectives on the axis go from one machine to another
  bool crosses_nodes(Axis axis) const {
    const bool neighbours = axis == Axis::kContext || axis == Axis::kShard;
    return nodes > 1 && (!neighbours || mesh.place(axis, 0).size > ranks() / nodes);
  }
  Shards shards() const {
    return {.what = shard, .parts = shard == Shard::kNone ? 1 : mesh.ranks_of_shard()};
  }

  // "2 ranks x 4 x " before "8 sequences of 1024", and what follows that: ", 2 ranks for each sequence, 2
  // replicas"
  std::string ranks_text() const {
    return mesh.context == 1 ? format_ranks(mesh.data)
           : mesh.data > 1   ? fmt::format("{} groups x ", mesh.data)
                             : "";
  }
  std::string context_text() const {
    return (mesh.context > 1 ? fmt::format(", {} ranks for each sequence", mesh.context) : "") +
           (mesh.replicas > 1 ? fmt::format(", {} replicas", mesh.replicas) : "");
  }

  double flops_per_token() const {
    return flops_of_span(model.attention_span(static_cast<double>(sequence_length)));
  }
  // The FLOPs of a step. `attention_span`: the mean over the tokens of ModelConfig's span, for the document
  // of each token
  double flops_of_span(double attention_span) const {
    return model.flops_of_span(attention_span) - frozen_flops_per_token(model, freeze);
  }

  SessionShape session(int64_t rank = 0) const {
    return {.model = model,
            .batch = micro_batch,
            .sequence_length = sequence_length,
            .dtype = dtype,
            .attention = attention,
            .deterministic = deterministic,
            .classifier_chunk = classifier_chunk,
            .mlp_chunk = mlp_chunk,
            .documents = documents,
            .context = mesh.place(Axis::kContext, rank),
            .context_heads = context_heads,
            .sample_tokens = sample_tokens,
            .sample_cache = sample_cache};
  }
};

}  // namespace tessera
