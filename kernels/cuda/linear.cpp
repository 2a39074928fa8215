#include "kernels/base/check.h"
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/skinny_linear.h"
#include "kernels/gemm/linear_gemms.h"
#include "kernels/workspace.h"

namespace tessera {

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

void write_fp8(gemm::Problem& problem, const Fp8Output& to) {
  if (!to) return;
  problem.fp8.d = to.y.data.as<uint8_t>();
  problem.fp8.scale = to.y.scale.as<float>();
  problem.fp8.amax = to.amax.as<uint32_t>();
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

// A few rows that no backward will follow run as in FusedLinear. Otherwise y[N, O] = x[N, C] weight[O,
// C]^T is a GEMM, by cuBLASLt with bias, add, or GELU and its input fused where it can. Other activations
// are then a pass of their own over the sum.
void CudaBackend::run_op(const LinearForward& a, const Launch& on) {
  const cuda::SkinnyLinear few = skinny(a.x, a.weight, a.y, a.bias, a.add);
  check_aligned(a.kName, {{"fp8_y", a.fp8_y.y.data}});
  if (!a.pre_activation && !a.fp8_x && cuda::serves(few))
    return cuda::run(few, {multiprocessors_, overlaps(), on.stream});
  const LinearForwardGemms gemms = gemms_of(a);
  if (auto problem = gemms.own ? gemms_.own(*gemms.own) : std::nullopt) {
    write_fp8(*problem, a.fp8_y);
    return gemm::run(*problem, multiprocessors_, on.stream);
  }
  const Tensor& sum = a.pre_activation ? a.pre_activation : a.y;
  const bool fused = try_gemm(gemms.fused, on);
  if (!fused) {  // sizes that the epilogues refuse: rows that are no multiple of 16 bytes
    gemm(gemms.plain, on);
    if (a.bias) cuda::add_bias(sum, a.bias, on.stream);
  }
  if (a.pre_activation && !(fused && gemms.fuses_activation))
    cuda::activate(a.activation, sum, a.y, a.fp8_y, on.stream);
}

// dweight[O, C] += dy[N, O]^T x[N, C], and with it dbias[O] += sum of dy over its rows
// dx[N, C] = add[N, C] + dy[N, O] weight[O, C], times activation'(pre_activation): after those, as it may
// overwrite x
// dx_sum[C] += sum of dx over its rows
void CudaBackend::run_op(const LinearBackward& a, const Launch& on) {
  check_aligned(a.kName, {{"fp8_dx", a.fp8_dx.y.data}});
  const LinearBackwardGemms gemms = gemms_of(a);
  if (gemms.dweight) {
    gemm(*gemms.dweight, on);
    if (a.dbias && a.fp8_dy_transposed)
      cuda::sum_rows(a.dy, a.dbias, a.accumulate, on.scratch(a.kName, cuda::kGemmWorkspaceBytes), on.stream);
    tell_part(LinearBackward::Part::kWeight, on);
  }
  if (input_gradient(a, gemms, on) || !a.dx_sum) return;
  tell_part(LinearBackward::Part::kInput, on);
  cuda::sum_rows(a.dx, a.dx_sum, a.accumulate, on.scratch(a.kName, cuda::kGemmWorkspaceBytes), on.stream);
}

// Computes dx. Returns whether its sum was computed as well, which costs our own GEMM little.
bool CudaBackend::input_gradient(const LinearBackward& a, const LinearBackwardGemms& gemms,
                                 const Launch& on) {
  if (auto problem = gemms.own_dx ? gemms_.own(*gemms.own_dx) : std::nullopt) {
    write_fp8(*problem, a.fp8_dx);
    const int64_t slabs = gemm::partial_rows(problem->m);
    const bool sums = a.dx_sum && slabs <= cuda::kMaxSlabs;
    if (sums)
      problem->partials =
          reinterpret_cast<float*>(on.scratch(a.kName, cuda::column_partials_bytes(slabs, problem->n)));
    gemm::run(*problem, multiprocessors_, on.stream);
    if (sums) cuda::add_slabs(problem->partials, slabs, {a.dx_sum}, a.accumulate, on.stream);
    return sums;
  }
  const bool fused = gemms.fused_dx && try_gemm(*gemms.fused_dx, on);
  if (!fused) gemm(gemms.dx, on);
  if (a.pre_activation && !fused)
    cuda::activate_backward(a.activation, a.pre_activation, a.dx, a.fp8_dx, on.stream);
  return false;
}

}  // namespace tessera
