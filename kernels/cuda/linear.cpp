#include "kernels/base/check.h"
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/skinny_linear.h"
#include "kernels/workspace.h"

namespace tessera {

using cuda::Gemm;

namespace {

cuda::SkinnyLinear skinny(const Tensor& x, const Tensor& weight, const Tensor& y, const Tensor& bias,
                          const Tensor& add) {
  return {.dtype = x.dtype,
          .N = x.shape[0],
          .C = x.shape[1],
          .O = y.shape[1],
          .x = x.data,
          .weight = weight.data,
          .y = y.data,
          .bias = bias.data,
          .add = add.data};
}

}  // namespace

void CudaBackend::run_op(const FusedLinear& a, const Launch& on) {
  cuda::SkinnyLinear one = skinny(a.x, a.weight, a.y, a.bias, a.add);
  one.epilogue = a.activation;
  one.epsilon = a.epsilon;
  one.norm_weight = a.norm_weight.data, one.norm_bias = a.norm_bias.data;
  if (a.norm_weight) one.norm = a.norm_bias ? cuda::RowNorm::kLayerNorm : cuda::RowNorm::kRmsNorm;
  if (cuda::serves(one)) return cuda::run(one, {multiprocessors_, overlaps(), on.stream});
  a.each_plain([&](const auto& op) { run_op(op, on); });
}

// Few rows that no backward will follow are a row of FusedLinear. Else
// y[N, O] = x[N, C] weight[O, C]^T; where cuBLASLt can, in one pass with bias, add, or GELU and its input.
// Its GELU is the tanh form; other activations are a pass of their own over the sum.
void CudaBackend::run_op(const LinearForward& a, const Launch& on) {
  const cuda::SkinnyLinear few = skinny(a.x, a.weight, a.y, a.bias, a.add);
  if (!a.pre_activation && cuda::serves(few))
    return cuda::run(few, {multiprocessors_, overlaps(), on.stream});
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.weight.shape[0];
  Gemm product{.dtype = a.x.dtype,
               .m = N,
               .n = O,
               .k = C,
               .a = {.data = a.x.data, .ld = C},
               .b = {.data = a.weight.data, .ld = C, .transposed = true},
               .d = {.data = a.y.data, .ld = O}};
  if (a.add) product.c = a.add.data, product.beta = 1;

  const Tensor& sum = a.pre_activation ? a.pre_activation : a.y;
  const bool fuse_gelu = a.pre_activation && a.activation == Activation::kGelu && !a.add;
  Gemm fused = product;
  fused.bias = a.bias.data;
  if (fuse_gelu) {
    fused.aux = a.pre_activation.data;
    fused.epilogue = a.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  } else {
    fused.d.data = sum.data;
    if (a.bias) fused.epilogue = CUBLASLT_EPILOGUE_BIAS;
  }
  if (try_gemm(fused, on)) {
    if (a.pre_activation && !fuse_gelu) cuda::activate(a.activation, sum, a.y, on.stream);
    return;
  }

  // Sizes that the epilogues refuse: rows that are no multiple of 16 bytes.
  product.d.data = sum.data;
  gemm(product, on);
  if (a.bias) cuda::add_bias(sum, a.bias, on.stream);
  if (a.pre_activation) cuda::activate(a.activation, sum, a.y, on.stream);
}

// dbias[O] += sum of dy[N, O] over its rows
// dweight[O, C] += dy[N, O]^T x[N, C]
// dx[N, C] = add[N, C] + dy[N, O] weight[O, C], times activation'(pre_activation): last, as it may
// overwrite x
void CudaBackend::run_op(const LinearBackward& a, const Launch& on) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.weight.shape[0];
  const DType dtype = a.x.dtype;
  if (a.dbias) {
    const int64_t slabs = cuda::slabs_for(N, O, dtype);
    auto* partials = reinterpret_cast<float*>(on.scratch(a.kName, cuda::column_partials_bytes(slabs, O)));
    cuda::sum_slabs(a.dy, partials, slabs, on.stream);
    cuda::add_slabs(partials, slabs, a.dbias, {}, on.stream);
  }
  if (a.dweight)
    gemm({.dtype = dtype,
          .m = O,
          .n = C,
          .k = N,
          .a = {.data = a.dy.data, .ld = O, .transposed = true},
          .b = {.data = a.x.data, .ld = C},
          .d = {.data = a.dweight.data, .ld = C},
          .beta = 1},
         on);
  Gemm product{.dtype = dtype,
               .m = N,
               .n = C,
               .k = O,
               .a = {.data = a.dy.data, .ld = O},
               .b = {.data = a.weight.data, .ld = C},
               .d = {.data = a.dx.data, .ld = C}};
  if (a.add) product.c = a.add.data, product.beta = 1;
  if (!a.pre_activation) return gemm(product, on);

  // cuBLASLt knows tanh to some 11 bits here: enough before a rounding to bf16, not for fp32.
  if (dtype == DType::kBF16 && a.activation == Activation::kGelu && !a.add) {
    Gemm fused = product;
    fused.epilogue = CUBLASLT_EPILOGUE_DGELU;
    fused.aux = a.pre_activation.data;
    if (try_gemm(fused, on)) return;
  }
  gemm(product, on);
  cuda::activate_backward(a.activation, a.pre_activation, a.dx, on.stream);
}

}  // namespace tessera
