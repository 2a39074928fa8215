// The numbers of a tensor in a file: how fp32 is rounded to them, and back.
//
//   fp32, fp16, bf16   IEEE single and half, and bfloat16; rounded to nearest even
//   q8_0               blocks of 32 values: a scale d = max|x| / 127 in fp16, then 32 int8 numbers q, the
//                      nearest to x / d; a value is d q. ggml's, one block 34 bytes
//   mxfp4              blocks of 32 values: a scale in E8M0, then 32 numbers of 4 bits, rounded as
//                      kernels/base/mxfp4.h says. ggml's, one block 17 bytes: byte i has numbers i and, in
//                      its upper half, i + 16
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "kernels/base/tensor.h"
#include "kernels/base/words.h"

namespace tessera {

enum class NumberFormat : uint8_t { kF32, kF16, kBF16, kQ8, kMxfp4 };
constexpr auto words_of(NumberFormat) {  // the second list has llama.cpp's words
  return std::array{Word{"fp32", NumberFormat::kF32},  Word{"fp16", NumberFormat::kF16},
                    Word{"bf16", NumberFormat::kBF16}, Word{"q8_0", NumberFormat::kQ8},
                    Word{"mxfp4", NumberFormat::kMxfp4}, Word{"f32", NumberFormat::kF32},
                    Word{"f16", NumberFormat::kF16}};
}

// Error: int32, which holds no weights
NumberFormat number_format(DType dtype);

// Values that are encoded together: 32 for q8_0 and mxfp4, else 1
int64_t block_of(NumberFormat format);
// `elements`: a multiple of block_of(format)
int64_t bytes_of(NumberFormat format, int64_t elements);

uint16_t half_from_float(float value);  // to nearest even; above 65519: infinity
float float_from_half(uint16_t half);

enum class Values : uint8_t {
  kFinite,
  kAny  // NaN and infinity, too; in fp32 alone
};
// Calls visit(bytes) for the encoded values, piece by piece, in their order. Error: a value that is not
// finite where it has to be, or too large for the format; `name` is the tensor's.
void encode(NumberFormat format, std::span<const float> values, const std::string& name,
            const std::function<void(std::span<const std::byte>)>& visit, Values which = Values::kFinite);

// The inverse, of all values of a tensor: `bytes` holds as many as `out`. Threads share the work, as in
// copy_bytes().
void decode(NumberFormat format, std::span<const std::byte> bytes, std::span<float> out);

// The first value that is not finite: "inf", "-inf" or "nan"; none: all are. By all threads, as copy_bytes()
struct NotFinite {
  size_t index;
  const char* value;
};
std::optional<NotFinite> find_not_finite(NumberFormat format, std::span<const std::byte> bytes);

// By all threads: bytes of a mapped file are read from disk where they are touched, and one thread alone has
// the disk wait for it.
void copy_bytes(std::span<const std::byte> from, std::byte* to);

}  // namespace tessera
