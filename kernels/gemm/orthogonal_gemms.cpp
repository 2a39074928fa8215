#include "kernels/gemm/orthogonal_gemms.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera {
namespace {

// With A = X X^T, or X^T X of a tall X: A, then B = b A + c A A, then a X + B X, or a X + X B. X is in the
// room and in the matrix by turns, and an odd number of polynomials ends in the matrix.
OrthogonalGemms gemms_of(const Orthogonalise& op, const Tensor& matrix, const Tensor& room) {
  const int64_t m = matrix.shape[0], n = matrix.shape[1], s = std::min(m, n), k = std::max(m, n);
  const bool tall = m > n;
  const DType dtype = matrix.dtype;
  const int64_t x_room = Orthogonalise::piece(m * n), a_room = Orthogonalise::piece(s * s);
  const GemmMatrix a{.data = room.rows(x_room, s * s).data, .ld = s},
      b{.data = room.rows(x_room + a_room, s * s).data, .ld = s};
  OrthogonalGemms all{.first = room.rows(0, m * n).view({m, n}), .gemms = {}};
  GemmMatrix x{.data = all.first.data, .ld = n}, next{.data = matrix.data, .ld = n};
  for (size_t i = 0; i < op.polynomials.size(); ++i) {
    const Orthogonalise::Polynomial& p = op.polynomials[i];
    const bool is_last = i + 1 == op.polynomials.size();
    const double scale = is_last ? op.rms * std::sqrt(static_cast<double>(k)) : 1;
    GemmMatrix transposed = x;
    transposed.transposed = true;
    all.gemms.push_back({.dtype = dtype,
                         .m = s,
                         .n = s,
                         .k = k,
                         .a = tall ? transposed : x,
                         .b = tall ? x : transposed,
                         .d = a,
                         .symmetric = true});
    all.gemms.push_back({.dtype = dtype,
                         .m = s,
                         .n = s,
                         .k = s,
                         .a = a,
                         .b = a,
                         .d = b,
                         .c = a.data,
                         .alpha = static_cast<float>(p.c),
                         .beta = static_cast<float>(p.b),
                         .symmetric = true});
    all.gemms.push_back({.dtype = dtype,
                         .m = m,
                         .n = n,
                         .k = s,
                         .a = tall ? x : b,
                         .b = tall ? b : x,
                         .d = next,
                         .c = x.data,
                         .alpha = static_cast<float>(scale),
                         .beta = static_cast<float>(scale * p.a)});
    std::swap(x, next);
  }
  return all;
}

}  // namespace

std::vector<OrthogonalGemms> gemms_of(const Orthogonalise& op) {
  const Tensor room = op.room.view({op.room.numel()});
  std::vector<OrthogonalGemms> all;
  int64_t used = 0;
  for (const Tensor& matrix : op.matrices) {
    const int64_t wanted = Orthogonalise::room_for(matrix);
    all.push_back(gemms_of(op, matrix, room.rows(used, wanted)));
    used += wanted;
  }
  return all;
}

}  // namespace tessera
