// View: the heads of a tensor by their strides, for host and device code. The elements of one head of a token
// are contiguous.
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

// The heads of a tensor [B, T, heads, D] from number `first` on. The caller guarantees that T is the tensor's
// dtype; with void the dtype stays open.
template <class T>
View<T> heads_of(const Tensor& t, int64_t first = 0) {
  const int64_t tokens = t.shape[1], D = t.shape[-1], row = t.numel() / (t.shape[0] * tokens);
  void* begin = t.data ? t.as<char>() + first * D * static_cast<int64_t>(size_of(t.dtype)) : nullptr;
  return {.data = static_cast<T*>(begin), .batch = tokens * row, .row = row, .head = D};
}

// Some heads of a tensor [B, T, heads, D]: `count` of them from `first` on. With H query heads and K heads of
// keys and of values in one tensor qkv, the queries are {qkv, 0, H}, the keys {qkv, H, K} and the values
// {qkv, H + K, K}.
struct Heads {
  Tensor tensor;
  int64_t first = 0, count = 0;

  explicit operator bool() const { return static_cast<bool>(tensor); }
};

// All heads of a tensor [B, T, heads, D]
inline Heads all_heads(const Tensor& tensor) { return {tensor, 0, tensor.shape[2]}; }

template <class T>
View<T> heads_of(const Heads& heads) {
  return heads_of<T>(heads.tensor, heads.first);
}

}  // namespace tessera
