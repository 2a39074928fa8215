// CudaBackend: the operations of ops.h on the current CUDA device, in bf16 or fp32.
//
// Every result has the same bits each time: no floating-point atomics, fixed partial sums, and algorithms
// that depend only on shapes. Rows are read in packs of 16 bytes. So channels, MLP widths and padded
// vocabularies must be multiples of 8 in bf16 and of 4 in fp32. Exceptions are LinearForward, LinearBackward
// and ApplyDropout, which support all sizes, and RotaryForward and RotaryBackward, which support even head
// dims up to 256.
#pragma once

#include <cuda_runtime.h>

#include <initializer_list>

#include "kernels/backend.h"
#include "kernels/cuda/gemm_runner.h"
#include "kernels/expert_ops.h"
#include "kernels/score_ops.h"

namespace tessera {

namespace attention {
class CudnnAttention;
}
struct LinearBackwardGemms;  // kernels/gemm/linear_gemms.h

class CudaBackend final : public Backend {
 public:
  CudaBackend();
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  const DeviceTraits& traits() const override { return traits_; }
  void synchronize(CUstream_st* stream) override;
  CUstream_st* stream() const override { return stream_; }
  GemmLibrary* gemms() override { return &gemms_; }
  std::unique_ptr<Transfer> fetch(CUstream_st* stream, const Tensor& from, const Tensor& to) override;
  std::unique_ptr<Transfer> send(CUstream_st* stream, const Tensor& from, const Tensor& to) override;
  std::unique_ptr<CopyQueue> make_copy_queue(CUstream_st* stream, Poison poison) override;

 private:
  struct Named {
    const char* name;
    const Tensor& tensor;
  };
  class CapturedGraph;
  void do_(const AnyOp& op, const Launch& on) override;
  std::unique_ptr<DeviceGraph> capture(CUstream_st* stream, const std::function<void()>& operations) override;
  // Whether kernels are launched so that they may start before the kernel in front of them has ended
  bool overlaps() const { return capturing_ && traits_.arch >= 90; }
  void run_op(const FillZero& a, const Launch& on);
  void run_op(const Copy& a, const Launch& on);
  void run_op(const SplitMasters& a, const Launch& on);
  void run_op(const JoinMasters& a, const Launch& on);
  void run_op(const Accumulate& a, const Launch& on);
  void run_op(const RandomNormal& a, const Launch& on);
  void run_op(const EmbeddingForward& a, const Launch& on);
  void run_op(const EmbeddingBackward& a, const Launch& on);
  void run_op(const LayerNormForward& a, const Launch& on);
  void run_op(const LayerNormBackward& a, const Launch& on);
  void run_op(const RmsNormForward& a, const Launch& on);
  void run_op(const RmsNormBackward& a, const Launch& on);
  void run_op(const HeadsNormForward& a, const Launch& on);
  void run_op(const HeadsNormBackward& a, const Launch& on);
  void run_op(const RotaryForward& a, const Launch& on);
  void run_op(const RotaryBackward& a, const Launch& on);
  void run_op(const GatedForward& a, const Launch& on);
  void run_op(const GatedBackward& a, const Launch& on);
  void run_op(const RouterForward& a, const Launch& on);
  void run_op(const RouterBackward& a, const Launch& on);
  void run_op(const ChooseExperts& a, const Launch& on);
  void run_op(const ChooseExpertsBackward& a, const Launch& on);
  void run_op(const AssignExperts& a, const Launch& on);
  void run_op(const RouterSample& a, const Launch& on);
  void run_op(const ExpertsForward& a, const Launch& on);
  void run_op(const ExpertsBackward& a, const Launch& on);
  void run_op(const ExpertsLoraForward& a, const Launch& on);
  void run_op(const ExpertsLoraBackward& a, const Launch& on);
  void run_op(const ExpertsLoraInput& a, const Launch& on);
  void run_op(const GatedExpertsBackward& a, const Launch& on);
  void run_op(const SumExperts& a, const Launch& on);
  void run_op(const AddShared& a, const Launch& on);
  void run_op(const AddSharedBackward& a, const Launch& on);
  void run_op(const Quantise& a, const Launch& on);
  void run_op(const CountSaturated& a, const Launch& on);
  void run_op(const Dequantise& a, const Launch& on);
  void run_op(const RoundToFourBits& a, const Launch& on);
  void run_op(const RoundScales& a, const Launch& on);
  void run_op(const WidenFourBits& a, const Launch& on);
  void run_op(const TransposeFp8& a, const Launch& on);
  void run_op(const UpdateScales& a, const Launch& on);
  void run_op(const LinearForward& a, const Launch& on);
  void run_op(const LinearBackward& a, const Launch& on);
  void run_op(const FusedLinear& a, const Launch& on);
  void run_op(const LoraForward& a, const Launch& on);
  void run_op(const LoraBackward& a, const Launch& on);
  void run_op(const AttentionForward& a, const Launch& on);
  void run_op(const AttentionBackward& a, const Launch& on);
  void run_op(const AttentionSample& a, const Launch& on);
  void run_op(const LargestScores& a, const Launch& on);
  void run_op(const DeadUnits& a, const Launch& on);
  void run_op(const MoveHeads& a, const Launch& on);
  void run_op(const CacheAppend& a, const Launch& on);
  void run_op(const RotaryAppend& a, const Launch& on);
  void run_op(const DecodeAttention& a, const Launch& on);
  void run_op(const QuantiseCache& a, const Launch& on);
  void run_op(const DequantiseCache& a, const Launch& on);
  void run_op(const FusedDecodeStep& a, const Launch& on);
  void run_op(const SampleTokens& a, const Launch& on);
  void run_op(const ApplyDropout& a, const Launch& on);
  void run_op(const CapLogits& a, const Launch& on);
  void run_op(const CrossEntropy& a, const Launch& on);
  void run_op(const Distillation& a, const Launch& on);
  void run_op(const LargestLogits& a, const Launch& on);
  void run_op(const PreferenceLoss& a, const Launch& on);
  void run_op(const HeadLoss& a, const Launch& on);
  void run_op(const HeadGradient& a, const Launch& on);
  void run_op(const GlobalNorm& a, const Launch& on);
  void run_op(const SumLosses& a, const Launch& on);
  void run_op(const JudgeStep& a, const Launch& on);
  void run_op(const Inspect& a, const Launch& on);
  void run_op(const AdamW& a, const Launch& on);
  void run_op(const AdamWNorms& a, const Launch& on);
  void run_op(const MuonMomentum& a, const Launch& on);
  void run_op(const Orthogonalise& a, const Launch& on);
  void run_op(const NormaliseRows& a, const Launch& on);
  void run_op(const MuonUpdate& a, const Launch& on);
  void run_op(const MuonNorms& a, const Launch& on);
  void run_op(const ClipHeads& a, const Launch& on);

  // Fails unless every tensor begins at a multiple of 16 bytes and its rows are whole packs.
  void check_packs(const char* op, std::initializer_list<Named> tensors) const;
  void check_aligned(const char* op, std::initializer_list<Named> tensors) const;
  void gemm(const Gemm& gemm, const Launch& on);
  bool try_gemm(const Gemm& gemm, const Launch& on);
  bool input_gradient(const LinearBackward& a, const LinearBackwardGemms& gemms, const Launch& on);
  void naive_attention_forward(const AttentionForward& a, const Launch& on);
  void naive_attention_backward(const AttentionBackward& a, const Launch& on);
  void complete_means(const CacheAppend& a, const Launch& on);
  void rotate(const RotaryForward& a, const CacheAppend* append, const Launch& on);
  attention::CudnnAttention& cudnn();  // made at the first call, which loads the library

  DeviceTraits traits_;
  int multiprocessors_ = 0;
  int64_t max_shared_bytes_ = 0;  // of a block
  cudaStream_t stream_ = nullptr;
  cudaStream_t fetch_stream_ = nullptr;  // for copies that later operations do not wait for
  bool capturing_ = false;
  cuda::GemmRunner gemms_;
  std::unique_ptr<attention::CudnnAttention> cudnn_;
};

}  // namespace tessera
