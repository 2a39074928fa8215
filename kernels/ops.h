// The operations of a transformer: a struct of arguments each, in a header of its family, and the one list of
// them, AnyOp, here.
//
// A new operation is a struct in such a header, with its check in the .cpp beside it, a name in AnyOp, an
// implementation on each device (kernels/cpu/cpu_backend.h, kernels/cuda/cuda_backend.h) and a test. Nothing
// else lists operations.
//
// Shape letters: B batch, T tokens of a sequence, C channels, H heads, D head dim, F width of the MLP, V
// vocabulary, N = B T rows, O output features.
//
// Documents: several may share a sequence. documents[b, t] = {begin, end} of the document of token t, counted
// in tokens of the sequence; the end is the token after its last. Attention stays within a document, and
// positions count from its beginning. Without the tensor a sequence is one document.
//
// Caches: when a text is continued, the keys and values of its tokens are kept, so that a step computes only
// those of the new tokens. starts[b] is the number of tokens of sequence b in the cache, which is the place
// of its first new token. If it is below 0 the sequence is idle: its activations are written as zeros, and
// nothing else of it is written.
//
// Rules for every operation:
//   - It allocates nothing. Scratch comes from the workspace of its launch (backend.h); attention has its
//     own.
//   - Gradients of parameters are added to what is there; with accumulate = false, as in the first
//     micro-batch of a step, they overwrite it. Gradients of activations always overwrite.
//   - Unless a field says otherwise, tensors share one dtype: fp32 on the CPU; bf16 or fp32 on CUDA.
//     Statistics and sums are fp32. Arithmetic inside an operation is fp32 whatever the dtype; a result is
//     rounded once.
//   - CUDA enqueues on the stream of the launch and returns; a Copy to or from host memory waits.
//   - Same arguments, same bits, unless AttentionPlan::deterministic is off.
// Error: a shape, dtype or device that does not fit, with the name of the field (check_on()).
#pragma once

#include <variant>

#include "kernels/attention_ops.h"
#include "kernels/decode_ops.h"
#include "kernels/layer_ops.h"
#include "kernels/linear_ops.h"
#include "kernels/loss_ops.h"
#include "kernels/memory_ops.h"
#include "kernels/update_ops.h"

namespace tessera {

// The operations of a mixture of experts: expert_ops.h
struct RouterForward;
struct RouterBackward;
struct ChooseExperts;
struct ChooseExpertsBackward;
struct AssignExperts;
struct ExpertsForward;
struct ExpertsBackward;
struct GatedExpertsBackward;
struct ExpertsLoraForward;
struct ExpertsLoraBackward;
struct ExpertsLoraInput;
struct RouterSample;
struct SumExperts;
struct AddShared;
struct AddSharedBackward;

// The operations on the largest score of each head: score_ops.h
struct LargestScores;
struct ClipHeads;

using AnyOp = std::variant<
    const FillZero*, const Copy*, const SplitMasters*, const JoinMasters*, const Accumulate*,
    const RandomNormal*, const EmbeddingForward*, const EmbeddingBackward*, const LayerNormForward*,
    const LayerNormBackward*, const RmsNormForward*, const RmsNormBackward*, const HeadsNormForward*,
    const HeadsNormBackward*, const RotaryForward*, const RotaryBackward*, const GatedForward*,
    const GatedBackward*, const RouterForward*, const RouterBackward*, const ChooseExperts*,
    const ChooseExpertsBackward*, const AssignExperts*, const RouterSample*, const ExpertsForward*,
    const ExpertsBackward*, const GatedExpertsBackward*, const ExpertsLoraForward*,
    const ExpertsLoraBackward*, const ExpertsLoraInput*, const SumExperts*, const AddShared*,
    const AddSharedBackward*, const Quantise*, const CountSaturated*, const Dequantise*,
    const RoundToFourBits*, const RoundScales*, const WidenFourBits*, const TransposeFp8*,
    const UpdateScales*, const LinearForward*, const LinearBackward*, const FusedLinear*, const LoraForward*,
    const LoraBackward*, const AttentionForward*, const AttentionBackward*, const AttentionSample*,
    const LargestScores*, const DeadUnits*, const MoveHeads*, const CacheAppend*, const RotaryAppend*,
    const DecodeAttention*, const QuantiseCache*, const DequantiseCache*, const FusedDecodeStep*,
    const SampleTokens*, const ApplyDropout*, const CapLogits*, const CrossEntropy*, const Distillation*,
    const LargestLogits*, const PreferenceLoss*, const HeadLoss*, const HeadGradient*, const GlobalNorm*,
    const SumLosses*, const JudgeStep*, const Inspect*, const AdamW*, const AdamWNorms*, const MuonMomentum*,
    const Orthogonalise*, const NormaliseRows*, const MuonUpdate*, const MuonNorms*, const ClipHeads*>;

const char* name_of(const AnyOp& op);

}  // namespace tessera
