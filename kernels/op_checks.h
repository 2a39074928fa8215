// The checks that several operations (ops.h) share. Each throws an Error with the operation's name, what was
// expected and what was found.
#pragma once

#include <initializer_list>

#include "kernels/base/dropout.h"
#include "kernels/base/tensor.h"
#include "kernels/base/view.h"

namespace tessera {

struct Fp8Output;  // fp8_matrix.h

// The message is built only on failure, because these checks run before every launch.
struct Field {
  const char* name;
  const Tensor& tensor;
  DType dtype;
  Shape shape;
  bool optional = false;
};
void check_fields(const char* op, Device device, std::initializer_list<Field> fields);

// fp32 or bf16
bool is_real(DType dtype);
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
// Checks what an operation writes in FP8 beside `result`, if it writes anything.
void check_fp8_output(const char* op, Device device, const char* name, const Fp8Output& output, DType format,
                      const Tensor& result);

// Checks the tensor with which all other shapes of an operation are compared.
void check_anchor(const char* op, const char* name, const Tensor& t, int rank, Device device);

// Checks that the tensor has `count` heads in this range.
void check_range(const char* op, const char* name, const Heads& heads, int64_t count);
// Checks heads of a tensor [B, T, any number, D] whose B, T and D must be those of the anchor.
void check_heads(const char* op, const char* name, const Heads& heads, const Heads& anchor, Device device);

// Heads of one tensor may be the same ones or have none in common.
bool are_same(const Heads& a, const Heads& b);
bool share_memory(const Heads& a, const Heads& b);

// Checks the probability of dropout, which is a threshold.
void check_threshold(const char* op, const Dropout& dropout);

// Checks the sinks of attention: `field` describes them, and `has` says whether the plan has sinks.
void check_sinks(const char* op, Device device, const Field& field, bool has);

// Checks attention's own scratch, whose size the plan says.
void check_scratch(const char* op, const Tensor& workspace, int64_t bytes, Device device);

}  // namespace tessera
