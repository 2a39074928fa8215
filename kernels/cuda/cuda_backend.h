// CudaBackend: the operations of backend.h on the current CUDA device, in bf16 or fp32, all on one stream.
//
// Every result has the same bits each time: no floating-point atomics, fixed partial sums, algorithms chosen
// by shape alone. Rows are read in packs of 16 bytes, so but for linear_*, whose sizes are free, channels and
// padded vocabularies are multiples of 8 in bf16 and of 4 in fp32; other sizes are refused.
#pragma once

#include <cuda_runtime.h>

#include <initializer_list>

#include "kernels/backend.h"
#include "kernels/cuda/gemm.h"

namespace tessera {

namespace attention {
class CudnnAttention;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend();
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  const DeviceTraits& traits() const override { return traits_; }
  void lend_workspace(Tensor workspace) override;

  void embedding_forward(const EmbeddingForward& a) override;
  void embedding_backward(const EmbeddingBackward& a) override;
  void layernorm_forward(const LayerNormForward& a) override;
  void layernorm_backward(const LayerNormBackward& a) override;
  void linear_forward(const LinearForward& a) override;
  void linear_backward(const LinearBackward& a) override;
  void attention_forward(const AttentionForwardOp& a) override;
  void attention_backward(const AttentionBackwardOp& a) override;
  void cross_entropy(const CrossEntropy& a) override;
  void global_norm(const GlobalNorm& a) override;
  void adamw(const AdamW& a) override;

  void fill_zero(Tensor tensor) override;
  void copy(Tensor from, Tensor to) override;
  void synchronize() override;
  CUstream_st* stream() const override { return stream_; }

 private:
  struct Named {
    const char* name;
    const Tensor& tensor;
  };
  // The lent workspace from its start; fails if it is smaller than `bytes`. An operation asks for it once, or
  // knows that what it put there before has been used up by then.
  char* scratch(const char* op, int64_t bytes) const;
  // Fails unless every tensor begins at a multiple of 16 bytes and its rows are whole packs.
  void check_packs(const char* op, std::initializer_list<Named> tensors) const;
  void check_aligned(const char* op, std::initializer_list<Named> tensors) const;
  void gemm(const cuda::Gemm& gemm);
  bool try_gemm(const cuda::Gemm& gemm);
  void naive_attention_forward(const AttentionForwardOp& a);
  void naive_attention_backward(const AttentionBackwardOp& a);
  attention::CudnnAttention& cudnn();  // made, and its library loaded, when first asked for

  DeviceTraits traits_;
  int multiprocessors_ = 0;
  int64_t max_shared_bytes_ = 0;  // that a block can ask for
  cudaStream_t stream_ = nullptr;
  cuda::GemmRunner gemms_;
  std::unique_ptr<attention::CudnnAttention> cudnn_;
  Tensor workspace_;
};

}  // namespace tessera
