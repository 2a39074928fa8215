// Operations on the elements of tensors, whatever these mean. The rules for all operations are in ops.h.
#pragma once

#include "kernels/base/inspected.h"
#include "kernels/base/tensor.h"

namespace tessera {

struct FillZero {
  static constexpr const char* kName = "fill zero";
  Tensor tensor;

  void check_on(Device device) const;
};

// Copies, between host and device and from fp32 to bf16 or back, as the devices and dtypes of the two tensors
// say.
struct Copy {
  static constexpr const char* kName = "copy";
  Tensor from, to;  // equal element counts

  void check_on(Device device) const;
};

// The masters of bf16 weights are kept as the weights and the lower 16 bits of the masters
// (kernels/base/master.h). As with Copy, the masters may be on the host of a GPU. On the CPU this operation
// works on bf16 as well.
struct SplitMasters {
  static constexpr const char* kName = "split masters";
  Tensor masters;  // fp32, n elements
  Tensor weights;  // [n] bf16, rounded from them
  Tensor low;      // [n] uint16; none: the lower bits are not kept, or another rank keeps them

  void check_on(Device device) const;
};
struct JoinMasters {
  static constexpr const char* kName = "join masters";
  Tensor weights, low;  // [n] bf16 and uint16
  Tensor masters;       // fp32, n elements

  void check_on(Device device) const;
};

// y[i] += x[i], rounded to the dtype of y
struct Accumulate {
  static constexpr const char* kName = "accumulate";
  Tensor x, y;  // [n] of one dtype, fp32 or bf16

  void check_on(Device device) const;
};

// y[i] = deviation x Philox(seed, stream).normal(first + i), rounded to fp32, with the bits of the CPU on
// every device. A bf16 y is rounded from that as a weight is rounded from its master; the CPU can do this as
// well. On CUDA the host waits for the operation.
struct RandomNormal {
  static constexpr const char* kName = "random normal";
  Tensor y;         // of any shape
  Tensor low = {};  // uint16, like y: the lower bits of the masters; only with a bf16 y
  double deviation;
  uint64_t seed, stream;
  int64_t first = 0;  // the index of y's first element, if y is a slice of a larger tensor

  void check_on(Device device) const;
};

// Finds the range of a tensor's finite elements, how many are not finite, and where the first of these is:
// see Inspected (kernels/base/inspected.h). It is for searches: it takes two passes, and is not written for
// speed.
struct Inspect {
  static constexpr const char* kName = "inspect";
  Tensor x;         // real numbers, or FP8 without its scale
  int64_t row = 0;  // if not 0: rows have this many elements, and only `count` from `first` on are looked at
  int64_t first = 0, count = 0;
  Tensor result;  // [kInspectedWords] int32, the words of an Inspected

  void check_on(Device device) const;
};

}  // namespace tessera
