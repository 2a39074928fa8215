// The CPU backend: fp32, OpenMP across rows, heads or channels, BLAS for GEMMs. It is the oracle for the
// CUDA kernels.
//
// Every sum has an order that depends neither on timing nor on the number of threads, so the bits are the
// same every time on one kind of processor.
#pragma once

#include "kernels/attention/cpu_workspace.h"
#include "kernels/backend.h"
#include "kernels/expert_ops.h"
#include "kernels/score_ops.h"

namespace tessera::cpu {

void run(const FillZero& a, const Launch& on);
void run(const Copy& a, const Launch& on);
void run(const SplitMasters& a, const Launch& on);
void run(const JoinMasters& a, const Launch& on);
void run(const Accumulate& a, const Launch& on);
void run(const RandomNormal& a, const Launch& on);
void run(const EmbeddingForward& a, const Launch& on);
void run(const EmbeddingBackward& a, const Launch& on);
void run(const LayerNormForward& a, const Launch& on);
void run(const LayerNormBackward& a, const Launch& on);
void run(const RmsNormForward& a, const Launch& on);
void run(const RmsNormBackward& a, const Launch& on);
void run(const HeadsNormForward& a, const Launch& on);
void run(const HeadsNormBackward& a, const Launch& on);
void run(const RotaryForward& a, const Launch& on);
void run(const RotaryBackward& a, const Launch& on);
void run(const GatedForward& a, const Launch& on);
void run(const GatedBackward& a, const Launch& on);
void run(const RouterForward& a, const Launch& on);
void run(const RouterBackward& a, const Launch& on);
void run(const ChooseExperts& a, const Launch& on);
void run(const ChooseExpertsBackward& a, const Launch& on);
void run(const AssignExperts& a, const Launch& on);
void run(const RouterSample& a, const Launch& on);
void run(const ExpertsForward& a, const Launch& on);
void run(const ExpertsBackward& a, const Launch& on);
void run(const ExpertsLoraForward& a, const Launch& on);
void run(const ExpertsLoraBackward& a, const Launch& on);
void run(const ExpertsLoraInput& a, const Launch& on);
void run(const GatedExpertsBackward& a, const Launch& on);
void run(const SumExperts& a, const Launch& on);
void run(const AddShared& a, const Launch& on);
void run(const AddSharedBackward& a, const Launch& on);
void run(const Quantise& a, const Launch& on);
void run(const CountSaturated& a, const Launch& on);
void run(const Dequantise& a, const Launch& on);
void run(const RoundToFourBits& a, const Launch& on);
void run(const RoundScales& a, const Launch& on);
void run(const WidenFourBits& a, const Launch& on);
void run(const TransposeFp8& a, const Launch& on);
void run(const UpdateScales& a, const Launch& on);
void run(const LinearForward& a, const Launch& on);
void run(const FusedLinear& a, const Launch& on);
void run(const LinearBackward& a, const Launch& on);
void run(const LoraForward& a, const Launch& on);
void run(const LoraBackward& a, const Launch& on);
void run(const AttentionForward& a, const Launch& on);
void run(const AttentionBackward& a, const Launch& on);
void run(const AttentionSample& a, const Launch& on);
void run(const LargestScores& a, const Launch& on);
void run(const DeadUnits& a, const Launch& on);
void run(const MoveHeads& a, const Launch& on);
void run(const CacheAppend& a, const Launch& on);
void run(const RotaryAppend& a, const Launch& on);
void run(const DecodeAttention& a, const Launch& on);
void run(const QuantiseCache& a, const Launch& on);
void run(const DequantiseCache& a, const Launch& on);
void run(const FusedDecodeStep& a, const Launch& on);
void run(const SampleTokens& a, const Launch& on);
void run(const ApplyDropout& a, const Launch& on);
void run(const CapLogits& a, const Launch& on);
void run(const CrossEntropy& a, const Launch& on);
void run(const Distillation& a, const Launch& on);
void run(const LargestLogits& a, const Launch& on);
void run(const PreferenceLoss& a, const Launch& on);
void run(const HeadLoss& a, const Launch& on);
void run(const HeadGradient& a, const Launch& on);
void run(const GlobalNorm& a, const Launch& on);
void run(const SumLosses& a, const Launch& on);
void run(const JudgeStep& a, const Launch& on);
void run(const Inspect& a, const Launch& on);
void run(const AdamW& a, const Launch& on);
void run(const AdamWNorms& a, const Launch& on);
void run(const MuonMomentum& a, const Launch& on);
void run(const Orthogonalise& a, const Launch& on);
void run(const NormaliseRows& a, const Launch& on);
void run(const MuonUpdate& a, const Launch& on);
void run(const MuonNorms& a, const Launch& on);
void run(const ClipHeads& a, const Launch& on);

void flash_attention_forward(const AttentionForward& a, FlashTile tile = {});
void flash_attention_backward(const AttentionBackward& a, FlashTile tile = {});

void naive_attention_forward(const AttentionForward& a);
void naive_attention_backward(const AttentionBackward& a);

}  // namespace tessera::cpu
