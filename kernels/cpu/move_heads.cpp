#include <algorithm>

#include "kernels/base/view.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {

void run(const MoveHeads& a, const Launch& /*on*/) {
  const Shape& made = a.to.tensor.shape;
  const int64_t N = made[0] * made[1], width = a.to.count * made[3];
  const View<float> from = heads_of<float>(a.from), to = heads_of<float>(a.to);
  const int32_t* rows = a.rows.as<int32_t>();
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    const int64_t row = rows ? rows[n] : n;
    if (row < 0)
      std::fill_n(to.row_begin(n), width, 0.0f);
    else
      std::copy_n(from.row_begin(row), width, to.row_begin(n));
  }
}

}  // namespace tessera::cpu
