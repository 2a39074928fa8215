#include "model/formats/positions.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {
namespace {

// Row i of the extended table: (1 - share) of one row and share of another.
struct Mix {
  int64_t one, other;
  double share;
};

Mix interpolated(int64_t i, int64_t rows, int64_t out_rows) {
  const double step = static_cast<double>(rows - 1) / static_cast<double>(out_rows - 1);
  const double at = static_cast<double>(i) * step;
  const int64_t below = std::min(static_cast<int64_t>(at), rows - 1);
  return {below, std::min(below + 1, rows - 1), at - static_cast<double>(below)};
}

// A copy begins every `period` rows and fades in over the last rows of the previous copy.
Mix blended(int64_t i, int64_t rows) {
  const int64_t overlap = rows / kBlendShare, period = rows - overlap;
  const int64_t row = i % period;
  if (i < period || row >= overlap) return {row, row, 0};
  return {period + row, row, static_cast<double>(row + 1) / static_cast<double>(overlap + 1)};
}

}  // namespace

void extend_positions(PositionExtension kind, std::span<const float> table, int64_t channels,
                      std::span<float> out) {
  const int64_t rows = static_cast<int64_t>(table.size()) / channels,
                out_rows = static_cast<int64_t>(out.size()) / channels;
  check(kind != PositionExtension::kNone && rows > 0 && out_rows > rows,
        "{} positions are not extended to {}", rows, out_rows);
  for (int64_t i = 0; i < out_rows; ++i) {
    const Mix mix = kind == PositionExtension::kInterpolate ? interpolated(i, rows, out_rows)
                    : kind == PositionExtension::kBlend     ? blended(i, rows)
                                                            : Mix{i % rows, i % rows, 0};
    const float* one = table.data() + mix.one * channels;
    const float* other = table.data() + mix.other * channels;
    for (int64_t c = 0; c < channels; ++c)
      out[static_cast<size_t>(i * channels + c)] =
          static_cast<float>((1 - mix.share) * one[c] + mix.share * other[c]);
  }
}

}  // namespace tessera
