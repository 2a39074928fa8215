#include "kernels/update_ops.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/op_checks.h"
#include "kernels/score_ops.h"

namespace tessera {

void GlobalNorm::check_on(Device device) const {
  check_fields(kName, device, {{"norm", norm, DType::kF32, {1}}});
  for (const Tensor& t : tensors)
    if (!(t && t.device == device && is_real(t.dtype)))
      fail("{}: tensors must be real tensors on {}, found {}", kName, name_of(device), t.to_string());
}

void JudgeStep::check_on(Device device) const {
  check_anchor(kName, "losses", losses, 1, device);
  check_anchor(kName, "grad_norm", grad_norm, 1, device);
  check_fields(kName, device,
               {{"losses", losses, DType::kF32, losses.shape},
                {"grad_norm", grad_norm, DType::kF32, grad_norm.shape},
                {"limits", limits, DType::kF32, {2}},
                {"verdict", verdict, DType::kF32, {1}}});
}

void AdamW::check_on(Device device) const {
  for (const Part& part : parts) {
    const Tensor& param = part.param;
    if (!(param && computes_in(param.dtype, device) && param.device == device))
      fail("{}: param must be a tensor in {} on {}, found {}", kName, names_of_dtypes(device),
           name_of(device), param.to_string());
    const Part& first = parts.front();
    const Shape& s = param.shape;
    const DType of_grad = first.grad && first.grad.dtype == DType::kF32 ? DType::kF32 : first.param.dtype;
    const DType moments = first.m && first.m.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
    check_fields(kName, device,
                 {{"param", param, first.param.dtype, s},
                  {"low", part.low, DType::kU16, s, param.dtype == DType::kF32},
                  {"grad", part.grad, of_grad, s},
                  {"m", part.m, moments, s},
                  {"v", part.v, moments, s}});
    const int64_t count = param.numel();
    check(part.decayed >= 0 && part.decayed <= count && (part.decayed % 8 == 0 || part.decayed == count),
          "{}: decayed must be a multiple of 8 up to {}, or that, found {}", kName, count, part.decayed);
    check(part.first_element >= 0 && part.first_element % 8 == 0,
          "{}: first_element must be a multiple of 8 of at least 0, found {}", kName, part.first_element);
  }
  const int64_t norms = grad_norm && grad_norm.numel() > 0 ? grad_norm.numel() : 1;
  check_fields(
      kName, device,
      {{"grad_norm", grad_norm, DType::kF32, {norms}}, {"verdict", verdict, DType::kF32, {1}, true}});
  check(step >= 1, "{}: step counts from 1, found {}", kName, step);
}

void AdamWNorms::check_on(Device device) const {
  step.check_on(device);
  check_fields(kName, device, {{"sums", sums, DType::kF32, {std::ssize(ranges), 3}}});
  for (const Range& range : ranges) {
    check(range.part < step.parts.size(), "{}: part must be one of {}, found {}", kName, step.parts.size(),
          range.part);
    const int64_t count = step.parts[range.part].param.numel();
    check(range.first >= 0 && range.first % 8 == 0 && range.count >= 0 && range.first + range.count <= count,
          "{}: a range must begin at a multiple of 8 and lie within {} elements, found {} from {} on", kName,
          count, range.count, range.first);
  }
}

void MuonMomentum::check_on(Device device) const {
  check(direction && computes_in(direction.dtype, device) && direction.device == device,
        "{}: direction must be a tensor in {} on {}, found {}", kName, names_of_dtypes(device),
        name_of(device), direction.to_string());
  const Shape& s = direction.shape;
  check_fields(
      kName, device,
      {{"gradient", gradient, gradient && gradient.dtype == DType::kF32 ? DType::kF32 : direction.dtype, s},
       {"mean", mean, mean && mean.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32, s},
       {"grad_norm", grad_norm, DType::kF32, {grad_norm ? grad_norm.numel() : 1}},
       {"verdict", verdict, DType::kF32, {1}, true}});
  check(first_element >= 0 && first_element % 8 == 0,
        "{}: first_element must be a multiple of 8 of at least 0, found {}", kName, first_element);
}

void Orthogonalise::check_on(Device device) const {
  check(!matrices.empty() && matrices.size() <= kMost, "{}: there must be 1 to {} matrices, found {}", kName,
        kMost, matrices.size());
  const DType dtype = matrices.front().dtype;
  int64_t wanted = 0;
  for (const Tensor& matrix : matrices) {
    check(matrix && computes_in(matrix.dtype, device) && matrix.dtype == dtype && matrix.device == device &&
              matrix.shape.rank() == 2,
          "{}: matrices must be [m, n] each, in one of {} on {}, found {}", kName, names_of_dtypes(device),
          name_of(device), matrix.to_string());
    wanted += room_for(matrix);
  }
  check(room && room.dtype == dtype && room.device == device && room.numel() >= wanted,
        "{}: room must have {} elements of {}, found {}", kName, wanted, name_of(dtype), room.to_string());
  check(polynomials.size() % 2 == 1, "{}: the number of polynomials must be odd, found {}", kName,
        polynomials.size());
  check(margin >= 1, "{}: margin must be at least 1, found {}", kName, margin);
}

void MuonUpdate::check_on(Device device) const {
  check(param && computes_in(param.dtype, device) && param.device == device,
        "{}: param must be a tensor in {} on {}, found {}", kName, names_of_dtypes(device), name_of(device),
        param.to_string());
  const Shape& s = param.shape;
  check_fields(kName, device,
               {{"low", low, DType::kU16, s, param.dtype == DType::kF32},
                {"direction", direction, param.dtype, s},
                {"grad_norm", grad_norm, DType::kF32, {grad_norm ? grad_norm.numel() : 1}},
                {"verdict", verdict, DType::kF32, {1}, true}});
}

void NormaliseRows::check_on(Device device) const {
  check(matrix && computes_in(matrix.dtype, device) && matrix.device == device && matrix.shape.rank() == 2,
        "{}: matrix must be [m, n] in {} on {}, found {}", kName, names_of_dtypes(device), name_of(device),
        matrix.to_string());
  check_fields(kName, device,
               {{"squares", squares, DType::kF32, {matrix.shape[0]}},
                {"grad_norm", grad_norm, DType::kF32, {grad_norm ? grad_norm.numel() : 1}},
                {"verdict", verdict, DType::kF32, {1}, true}});
}

void MuonNorms::check_on(Device device) const {
  step.check_on(device);
  const int64_t n = step.param.numel();
  check(first >= 0 && count >= 0 && first + count <= n,
        "{}: a range must lie within {} elements, found {} from {} on", kName, n, count, first);
  check_fields(
      kName, device,
      {{"gradient", gradient, gradient && gradient.dtype == DType::kF32 ? DType::kF32 : step.param.dtype,
        step.param.shape},
       {"sums", sums, DType::kF32, {3}}});
}

void ClipHeads::check_on(Device device) const {
  check(param && computes_in(param.dtype, device) && param.device == device,
        "{}: param must be a tensor in {} on {}, found {}", kName, names_of_dtypes(device), name_of(device),
        param.to_string());
  check(largest && largest.dtype == DType::kI32 && largest.device == device && largest.shape.rank() == 3,
        "{}: largest must be [ranks, layers, heads] in int32 on {}, found {}", kName, name_of(device),
        largest.to_string());
  check_fields(kName, device,
               {{"low", low, DType::kU16, param.shape, param.dtype == DType::kF32},
                {"grad_norm", grad_norm, DType::kF32, {grad_norm ? grad_norm.numel() : 1}},
                {"verdict", verdict, DType::kF32, {1}, true}});
  const int64_t H = largest.shape[2];
  check(kv_heads > 0 && H % kv_heads == 0, "{}: the heads of keys must divide {} of queries, found {}", kName,
        H, kv_heads);
  check(layer >= 0 && layer < largest.shape[1], "{}: there are {} layers, found layer {}", kName,
        largest.shape[1], layer);
  const int64_t all = (H + 2 * kv_heads) * head_dim * columns;
  check(first_element >= 0 && first_element + param.numel() <= all,
        "{}: a slice must lie within {} elements, found {} from {} on", kName, all, param.numel(),
        first_element);
  check(most > 0, "{}: the largest score that stays must be above 0, found {}", kName, most);
}

}  // namespace tessera
