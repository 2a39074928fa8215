// The one function of CUB that is called: a stable sort of pairs by key.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/emulator/include/cuda_runtime.h"

namespace cub {

struct DeviceRadixSort {
  template <class Key, class Value>
  static cudaError_t SortPairs(void* temporary, size_t& bytes, const Key* keys, Key* sorted_keys,
                               const Value* values, Value* sorted_values, int64_t count, int first_bit,
                               int end_bit, cudaStream_t stream) {
    if (!temporary) {
      bytes = 1;
      return cudaSuccess;
    }
    return emulator::enqueue(stream, [=] {
      const auto n = static_cast<size_t>(count);
      emulator::reads(keys, n * sizeof *keys), emulator::reads(values, n * sizeof *values);
      emulator::writes(sorted_keys, n * sizeof *keys), emulator::writes(sorted_values, n * sizeof *values);
      const emulator::Unseen unseen;
      const auto bits = [=](Key key) {
        return static_cast<uint64_t>(key) >> first_bit & ((uint64_t{1} << (end_bit - first_bit)) - 1);
      };
      std::vector<int64_t> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return bits(keys[a]) < bits(keys[b]); });
      for (int64_t i = 0; i < count; ++i) {
        sorted_keys[i] = keys[order[static_cast<size_t>(i)]];
        sorted_values[i] = values[order[static_cast<size_t>(i)]];
      }
    });
  }
};

}  // namespace cub
