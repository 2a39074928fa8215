#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/documents.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {

void run(const EmbeddingForward& a, const Launch& /*on*/) {
  const int64_t B = a.y.shape[0], T = a.y.shape[1], C = a.y.shape[2], V = a.token_table.shape[0];
  const int32_t* tokens = a.tokens.as<int32_t>();
  const int32_t *positions = a.positions.as<int32_t>(), *starts = a.starts.as<int32_t>();
  const auto is_idle = [&](int64_t n) { return starts && starts[n / T] < 0; };
  for (int64_t n = 0; n < B * T; ++n) {
    if (is_idle(n)) continue;
    check(tokens[n] >= 0 && tokens[n] < V, "{}: token {} at row {} is outside the table of {} rows", a.kName,
          tokens[n], n, V);
    const int64_t position = given_position(positions, starts, n, T);
    check(position >= 0, "{}: row {} has position {}, expected 0 or more", a.kName, n, position);
    check(!a.position_table || position < a.position_table.shape[0],
          "{}: row {} has place {}, and the table has {} positions", a.kName, n, position,
          a.position_table ? a.position_table.shape[0] : 0);
  }
#pragma omp parallel for
  for (int64_t n = 0; n < B * T; ++n) {
    float* y = a.y.as<float>() + n * C;
    if (is_idle(n)) {
      std::fill_n(y, C, 0.0f);
      continue;
    }
    const float* token = a.token_table.as<float>() + tokens[n] * C;
    if (!a.position_table && a.scale == 1) {
      std::memcpy(y, token, static_cast<size_t>(C) * sizeof(float));
      continue;
    }
    const float* position = a.position_table
                                ? a.position_table.as<float>() + given_position(positions, starts, n, T) * C
                                : nullptr;
    for (int64_t c = 0; c < C; ++c) y[c] = a.scale * token[c] + (position ? position[c] : 0);
  }
}

void run(const EmbeddingBackward& a, const Launch& /*on*/) {
  const int64_t B = a.dy.shape[0], T = a.dy.shape[1], C = a.dy.shape[2];
  const int32_t *tokens = a.tokens.as<int32_t>(), *positions = a.positions.as<int32_t>();
  // Channels a task owns: many rows may share a token, no two tasks share a channel
  constexpr int64_t kChunk = 64;
#pragma omp parallel for
  for (int64_t first = 0; first < C; first += kChunk) {
    const int64_t last = std::min(C, first + kChunk);
    for (int64_t n = 0; n < B * T; ++n) {
      const float* dy = a.dy.as<float>() + n * C;
      float* token = a.d_token_table.as<float>() + tokens[n] * C;
      for (int64_t c = first; c < last; ++c) token[c] += a.scale * dy[c];
      if (!a.d_position_table) continue;
      float* position =
          a.d_position_table.as<float>() + given_position<int64_t>(positions, nullptr, n, T) * C;
      for (int64_t c = first; c < last; ++c) position[c] += dy[c];
    }
  }
}

}  // namespace tessera::cpu
