// What the checks of several operations (ops.h) have in common. Each refuses by an Error with the
// operation's name, what was expected and what was found.
#pragma once

#include <initializer_list>

#include "kernels/base/tensor.h"
#include "kernels/base/view.h"

namespace tessera {

struct Fp8Output;  // ops.h

// The message is built on failure only: these checks run before every launch.
struct Field {
  const char* name;
  const Tensor& tensor;
  DType dtype;
  Shape shape;
  bool optional = false;
};
void check_fields(const char* op, Device device, std::initializer_list<Field> fields);

// The dtypes that a device computes in
bool computes_in(DType dtype, Device device);
const char* names_of_dtypes(Device device);

// The two operands of a GEMM in FP8: both or none
struct Fp8Field {
  const char* name;
  const Tensor &data, &scale;
  DType format;
  Shape shape;
};
void check_fp8(const char* op, Device device, const Fp8Field& a, const Fp8Field& b);
// What is written beside `result` in FP8, if anything
void check_fp8_output(const char* op, Device device, const char* name, const Fp8Output& output, DType format,
                      const Tensor& result);

// The tensor that all other shapes of an operation are compared with
void check_anchor(const char* op, const char* name, const Tensor& t, int rank, Device device);

// `count` heads that the tensor has
void check_range(const char* op, const char* name, const Heads& heads, int64_t count);
// Heads of a tensor [B, T, any number, D], as large as those of the anchor
void check_heads(const char* op, const char* name, const Heads& heads, const Heads& anchor, Device device);

// Sinks of attention, as `field` says, of a plan that `has` them
void check_sinks(const char* op, Device device, const Field& field, bool has);

// Attention's own scratch, as its plan says
void check_scratch(const char* op, const Tensor& workspace, int64_t bytes, Device device);

}  // namespace tessera
