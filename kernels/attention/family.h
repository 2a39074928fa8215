// A family of kernels registers what it serves, what it needs and how it is called. attn_supports(),
// attn_forward(), messages, the ladder of `./bench attention` and its formulas of traffic all read
// families().
//
// A new family is a folder whose family.cpp defines a KernelFamily, and a line in families(). This header
// includes no CUDA: a build without CUDA has the same families, but without functions, and plans with them.
#pragma once

#include <limits>
#include <span>
#include <string>

#include "kernels/attention/attention.h"
#include "kernels/attention/small_cache.h"

namespace tessera::attention {

// Compute capabilities, times ten as in attention.h
inline constexpr int kLowestArch = 80;  // what every kernel here needs, and cuDNN as well
inline constexpr int kHopper = 90;
inline constexpr int kAnyLaterArch = std::numeric_limits<int>::max();

// How many rows of a head share what a CTA reads of the other operands, and how many heads share what it
// reads of the keys
struct TileRows {
  int queries;    // of the forward: they share keys and values
  int keys;       // of the backward: they share queries and output gradients
  int64_t heads;  // query heads of the backward that share these keys
};

// The head dims of a family: the multiples of `step` up to `most`
struct HeadDims {
  int step, most;

  constexpr bool contains(int head_dim) const {
    return head_dim > 0 && head_dim <= most && head_dim % step == 0;
  }
  constexpr bool contains(HeadDims other) const { return other.most <= most && other.step % step == 0; }
  std::string text() const {
    return "multiples of " + std::to_string(step) + " up to " + std::to_string(most);
  }
};

// Which masks a family serves
enum class Masks {
  kPlain,              // causal and full, with as many keys as queries
  kAllWithoutDropout,  // of the others only those without dropout
  kAll
};

// The statistics of rows that a backward has left in its workspace. For query tile t of a head these are
// `rows` numbers log2(e) LSE and then `rows` numbers delta = rowsum(dout out); past the end they are +inf and
// 0. The tiles of heads, and the heads of sequences, follow one another.
struct TiledRowStatistics {
  const float* data;
  int64_t tiles, rows;  // of a head; of a tile
};

// Which problems with ALiBi a family serves
enum class Alibis {
  kAll,
  kCausalWithoutDropout,  // queries see no later keys and are not dealt, and there is no dropout
};

// Which problems with a cap of scores a family serves
enum class Caps { kNone, kWithoutDropout, kAll };

struct KernelFamily {
  const char* name;
  int lowest_arch, highest_arch;
  AttnDtype dtype;
  HeadDims head_dims;
  // most_tokens: the limit for a head. most_rows: the limit for batch x heads x tokens, tokens rounded up to
  // row_padding.
  int64_t most_tokens, most_rows;
  int row_padding;
  bool by_name_only;      // attn_forward() and attn_backward() never choose it by themselves
  int most_with_dropout;  // the largest head dim for which it serves dropout; 0: none
  int most_with_alibi;    // the same for ALiBi
  Alibis alibis;
  Caps with_cap;
  Masks masks;
  TileRows (*tile_rows)(const AttnProblem& problem, int arch);
  size_t (*forward_workspace)(const AttnProblem& problem);   // bytes; null: none
  size_t (*backward_workspace)(const AttnProblem& problem);  // bytes; the most that either mode needs
  // Null in a build without these kernels. Arguments have been checked.
  AttnStatus (*forward)(const AttnForward& args, int arch, CUstream_st* stream);
  AttnStatus (*backward)(const AttnBackward& args, int arch, CUstream_st* stream);
  // Whether its forward takes the sinks of a problem into account by itself; null: never
  bool (*adds_sinks)(const AttnProblem& problem) = nullptr;
  // Where a backward that has run left the statistics of its rows. Null, or a null `data`: nowhere
  TiledRowStatistics (*row_statistics)(const AttnBackward& args) = nullptr;
  // The largest head dim for which it serves sparse blocks, without dropout, a bias or a cap; 0: none
  int most_with_blocks = 0;
  bool in_fp8 = false;   // it serves the problems with `fp8`, and no others
  bool chooses = false;  // it serves the problems whose queries choose blocks, and no others

  bool built() const { return forward != nullptr; }
};

namespace row {
extern const KernelFamily kFamily;
}
namespace f32 {
extern const KernelFamily kFamily;
}
namespace sm80 {
extern const KernelFamily kFamily;
}
namespace sm90 {
extern const KernelFamily kFamily, kFp8Family;
}
namespace mixture {
extern const KernelFamily kFamily, kF32Family;
}

// The arguments of attn_decode(), in bf16 over a small cache: `call.k` and `call.v` are rings of
// kNewestTokens rows, and `groups` are the codes of older tokens, [batch, kv_heads, groups_of(capacity),
// group_words()].
struct SmallDecode {
  AttnDecode call{};
  const void* groups = nullptr;  // 16-byte aligned
  CacheDtype dtype = CacheDtype::kInt8;
};

// The kernels of attn_decode(), as they register themselves
struct DecodeFamily {
  int lowest_arch;
  HeadDims head_dims;                                     // in both dtypes
  size_t (*workspace)(const AttnDecodeProblem& problem);  // bytes
  int64_t (*units)(const AttnDecodeProblem& problem);     // how many units CTAs share out: below kMostUnits
  // Null in a build without these kernels. Arguments have been checked.
  AttnStatus (*run)(const AttnDecode& args, CUstream_st* stream);
  // The same for small caches, for problems that attn_decode_supports() accepts; the workspace is in bytes
  size_t (*small_workspace)(const AttnDecodeProblem& problem, CacheDtype cache);
  AttnStatus (*run_small)(const SmallDecode& args, CUstream_st* stream);

  bool built() const { return run != nullptr; }
};
namespace decode {
extern const DecodeFamily kFamily;
}
inline constexpr int64_t kMostUnits = int64_t{1} << 30;

// A grid's x counts CTAs, up to 2^31 - 1, and each has at least 8 rows of a tensor; the rows of a head are
// counted in int.
inline constexpr int64_t kMostTokens = int64_t{1} << 30, kMostRows = int64_t{1} << 33;

// attn_forward() and attn_backward() take the first family that serves a problem and was built.
std::span<const KernelFamily* const> families();

// Bytes that a forward and a backward need
size_t forward_workspace(const KernelFamily& family, const AttnProblem& problem);
size_t backward_workspace(const KernelFamily& family, const AttnProblem& problem);
// The same without the bytes for the sinks' gradients, which come last
size_t own_backward_workspace(const KernelFamily& family, const AttnProblem& problem);

// ATTN_OK, or why this family does not serve a problem. Needs no
// device, and does not ask whether it was built.
AttnStatus supports(const KernelFamily& family, const AttnProblem& problem, int arch);

// What attn_forward() serves: "head dims that are multiples of 8 up to 256 in bf16, ..., on compute
// capability 8.0 or higher"
std::string what_is_served();

// One family's kernels, after the checks that attention.h promises
AttnStatus run_forward(const KernelFamily& family, const AttnForward& args, int arch, CUstream_st* stream);
AttnStatus run_backward(const KernelFamily& family, const AttnBackward& args, int arch, CUstream_st* stream);

}  // namespace tessera::attention
