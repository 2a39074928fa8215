// View: the heads of a tensor with strides, the same for host and device code. Elements of a head's row are
// contiguous.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/base/tensor.h"

namespace tessera {

template <class T>
struct View {
  T* data;
  int64_t batch, row, head;  // strides in elements: from one batch, token, head to the next

  TESSERA_HOST_DEVICE T* head_begin(int64_t b, int64_t h) const { return data + b * batch + h * head; }
  TESSERA_HOST_DEVICE T* row_begin(int64_t token) const { return data + token * row; }  // of the first head
  TESSERA_HOST_DEVICE View one_head(int64_t b, int64_t h) const {
    return {head_begin(b, h), batch, row, head};
  }
};

// Heads first .. first + count of a tensor [B, T, heads, D]. Packed projections are one tensor qkv
// [B, T, H + 2K, D]: q = Heads{qkv, 0, H}, k = Heads{qkv, H, K}, v = Heads{qkv, H + K, K}.
struct Heads {
  Tensor tensor;
  int64_t first, count;
};

// The caller vouches for the dtype; void leaves it open.
template <class T>
View<T> heads_of(const Heads& heads) {
  const Tensor& t = heads.tensor;
  const int64_t tokens = t.shape[1], D = t.shape[3], row = t.shape[2] * D;
  void* begin = t.data ? t.as<char>() + heads.first * D * static_cast<int64_t>(size_of(t.dtype)) : nullptr;
  return {.data = static_cast<T*>(begin), .batch = tokens * row, .row = row, .head = D};
}
template <class T>
View<T> heads_of(const Tensor& t) {  // all of them
  return heads_of<T>(Heads{t, 0, t.shape[2]});
}

}  // namespace tessera
