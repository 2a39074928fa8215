#include "kernels/gemm/orthogonal_gemms.h"

#include <algorithm>
#include <utility>

namespace tessera {

// With A = X X^T, or X^T X of a tall X: A, then B = b A + c A A, then a X + B X, or a X + X B. X is in the
// room and in the matrix by turns, and an odd number of polynomials ends in the matrix.
OrthogonalGemms gemms_of(const Orthogonalise& op, size_t matrix) {
  const Tensor& own = op.matrices[matrix];
  const int64_t m = own.shape[0], n = own.shape[1], s = std::min(m, n), k = std::max(m, n);
  const bool tall = m > n;
  const DType dtype = own.dtype;
  const int64_t each = Orthogonalise::room_for(m, n);
  const Tensor room = op.room.view({op.room.numel()}).rows(static_cast<int64_t>(matrix) * each, each);
  const int64_t x_room = Orthogonalise::piece(m * n), a_room = Orthogonalise::piece(s * s);
  const GemmMatrix a{.data = room.rows(x_room, s * s).data, .ld = s},
      b{.data = room.rows(x_room + a_room, s * s).data, .ld = s};
  OrthogonalGemms all{.first = room.rows(0, m * n).view({m, n}), .gemms = {}};
  GemmMatrix x{.data = all.first.data, .ld = n}, next{.data = own.data, .ld = n};
  for (size_t i = 0; i < op.polynomials.size(); ++i) {
    const Orthogonalise::Polynomial& p = op.polynomials[i];
    const double scale = i + 1 == op.polynomials.size() ? op.scale : 1;
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

}  // namespace tessera
