// The number formats of a tensor in a file: how fp32 is rounded to them, and read back.
//
//   fp32, fp16, bf16   IEEE single and half, and bfloat16; rounded to nearest even
//   q8_0               blocks of 32 values: a scale d = max|x| / 127 in fp16, then 32 numbers q in int8, each
//                      nearest to x / d; the value is d q. This is ggml's format; a block has 34 bytes
//   mxfp4              blocks of 32 values: a scale in E8M0, then 32 numbers of 4 bits, rounded as
//                      kernels/base/mxfp4.h says. This is ggml's format; a block has 17 bytes: byte i has
//                      number i in its lower half and number i + 16 in its upper half
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

// Error: the dtype is int32, which holds no weights
NumberFormat number_format(DType dtype);

// How many values are encoded together: 32 for q8_0 and mxfp4, else 1
int64_t block_of(NumberFormat format);
// `elements`: a multiple of block_of(format)
int64_t bytes_of(NumberFormat format, int64_t elements);

uint16_t half_from_float(float value);  // to nearest even; above 65519: infinity
float float_from_half(uint16_t half);

enum class Values : uint8_t {
  kFinite,
  kAny  // also NaN and infinity; only in fp32
};
// Calls visit(bytes) for the encoded values, piece by piece, in their order. Error: a value is not finite
// though it has to be, or is too large for the format. `name` is the tensor's, for messages.
void encode(NumberFormat format, std::span<const float> values, const std::string& name,
            const std::function<void(std::span<const std::byte>)>& visit, Values which = Values::kFinite);

// The inverse, for all values of a tensor: `bytes` and `out` hold the same number of values. Threads share
// the work, as in copy_bytes().
void decode(NumberFormat format, std::span<const std::byte> bytes, std::span<float> out);

// The first value that is not finite, as "inf", "-inf" or "nan"; nullopt: all are finite. Uses all threads,
// as copy_bytes()
struct NotFinite {
  size_t index;
  const char* value;
};
std::optional<NotFinite> find_not_finite(NumberFormat format, std::span<const std::byte> bytes);

// Copies with all threads: the bytes of a mapped file are read from disk when they are touched, and a single
// thread would have only one such read under way.
void copy_bytes(std::span<const std::byte> from, std::byte* to);

}  // namespace tessera
