#include "kernels/gemm/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace tessera {
namespace {

int64_t alignment_of(const void* data) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(kFullAlignment);
  return static_cast<int64_t>(address & -address);
}

GemmKey::Matrix matrix_key(const GemmMatrix& from, DType dtype) {
  return {.dtype = from.dtype.value_or(dtype),
          .transposed = from.transposed,
          .ld = from.ld,
          .batch_stride = from.batch_stride,
          .alignment = alignment_of(from.data)};
}

GemmMatrix matrix_of(const GemmKey::Matrix& from) {
  return {
      .ld = from.ld, .transposed = from.transposed, .batch_stride = from.batch_stride, .dtype = from.dtype};
}

}  // namespace

std::string word_of(GemmEpilogue epilogue, Activation activation) {
  switch (epilogue) {
    case GemmEpilogue::kNone:
      return "none";
    case GemmEpilogue::kBias:
      return "bias";
    case GemmEpilogue::kActivate:
      return fmt::format("{}_aux", name_of(activation));
    case GemmEpilogue::kActivateBias:
      return fmt::format("{}_aux_bias", name_of(activation));
    case GemmEpilogue::kActivationBackward:
      return fmt::format("d{}", name_of(activation));
  }
  fail("there is no GEMM epilogue {}", static_cast<int>(epilogue));
}

GemmKey key_of(const Gemm& gemm) {
  GemmKey key{.m = gemm.m,
              .n = gemm.n,
              .k = gemm.k,
              .a = matrix_key(gemm.a, gemm.dtype),
              .b = matrix_key(gemm.b, gemm.dtype),
              .d = matrix_key(gemm.d, gemm.dtype),
              .batch = gemm.batch,
              .epilogue = gemm.epilogue,
              .activation = has_aux(gemm.epilogue) ? gemm.activation : Activation::kGelu,
              .adds = gemm.beta != 0 || gemm.may_add,
              .summed = gemm.summed};
  if (gemm.c) key.d.alignment = std::min(key.d.alignment, alignment_of(gemm.c));
  return key;
}

Gemm gemm_of(const GemmKey& key) {
  return {.dtype = key.d.dtype,
          .m = key.m,
          .n = key.n,
          .k = key.k,
          .a = matrix_of(key.a),
          .b = matrix_of(key.b),
          .d = matrix_of(key.d),
          .beta = key.adds ? 1.0f : 0.0f,
          .batch = key.batch,
          .epilogue = key.epilogue,
          .activation = key.activation,
          .summed = key.summed};
}

// A transposed operand is named by its stored shape, and by its dtype if that is not d's.
std::string describe(const GemmKey& key) {
  const auto operand = [&](const GemmKey::Matrix& matrix, int64_t rows, int64_t columns) {
    if (matrix.transposed) std::swap(rows, columns);
    return fmt::format("{}[{}, {}]{}",
                       matrix.dtype == key.d.dtype ? "" : std::string(name_of(matrix.dtype)) + " ", rows,
                       columns, matrix.transposed ? "^T" : "");
  };
  return fmt::format(
      "{}{} x {} in {}{}{}{}", key.batch > 1 ? fmt::format("{} of ", key.batch) : "",
      operand(key.a, key.m, key.k), operand(key.b, key.k, key.n), name_of(key.d.dtype),
      key.adds ? ", adds" : "",
      key.epilogue == GemmEpilogue::kNone ? "" : fmt::format(", {}", word_of(key.epilogue, key.activation)),
      key.summed == 0 ? "" : fmt::format(", {} sums", key.summed));
}

}  // namespace tessera
