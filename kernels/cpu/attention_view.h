// Where one head's rows lie inside packed [B, T, 3, H, D] and [B, T, H, D] tensors.
#pragma once

#include "kernels/backend.h"

namespace tessera::cpu {

struct Rows {
  float* data;
  int64_t stride;  // elements from one token to the next
  float* at(int64_t token) const { return data + token * stride; }
};

// which: 0 query, 1 key, 2 value
inline Rows packed_rows(const Tensor& qkv, int64_t b, int which, int64_t h) {
  const int64_t T = qkv.shape[1], H = qkv.shape[3], D = qkv.shape[4];
  return {qkv.as<float>() + b * T * 3 * H * D + (which * H + h) * D, 3 * H * D};
}

inline Rows head_rows(const Tensor& y, int64_t b, int64_t h) {
  const int64_t T = y.shape[1], H = y.shape[2], D = y.shape[3];
  return {y.as<float>() + b * T * H * D + h * D, H * D};
}

}  // namespace tessera::cpu
