// The instructions of a decode step, as the persistent kernel reads them
// (kernels/cuda/decode_step/kernel.cu). Plain C++. Operation i of a step is instruction i: lower.h.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace tessera::decode_step {

enum class InstructionKind : uint8_t { kEmbed, kLinear, kAttend };
enum class InstructionNorm : uint8_t { kNone, kLayerNorm, kRmsNorm };

inline constexpr uint32_t kNowhere = ~0u;

// Instructions pass on flagged values of 32 bits: a bf16 element, and the flag of the instruction that
// wrote it.
struct Instruction {
  const void *weight, *bias;  // linear: [O, C], [O]. embed: tables. attend: caches of keys and values
  const void *norm_weight, *norm_bias;  // linear: [C]. attend: weights of the norms of q and k, [D]
  void* plain;                          // of the last instruction: y as a tensor
  uint32_t x, add, y;                   // their first flagged values; kNowhere: none
  uint16_t x_from, add_from;            // the instructions that write x and add
  int32_t C, O;                         // elements of x and of y. attend: C rows of its caches
  int32_t tiles, first, rounds;         // what blocks share out; the block with tile 0; most tiles of one
  float epsilon, scale;                 // of the norm; of attention's scores
  InstructionKind kind;
  InstructionNorm norm;
  FusedLinear::Epilogue epilogue;
  uint8_t tile_outputs;  // of a tile
  uint8_t cache;         // attend: how many such instructions there are before
  bool is_ring;          // attend: the token of place t is in row t % C of the caches, not in row t
  uint8_t angles;        // attend: which of Args::angles
};

inline constexpr int kWarps = 8;               // that compute
inline constexpr int kTileRows = 8;            // of W, at most
inline constexpr int kChunk = 1024;            // elements of a row of W that are loaded at a time
inline constexpr int kMostNormed = 4096;       // elements of an x with a norm
inline constexpr int kMostInputs = 16384;      // elements of any x
inline constexpr int kInputUnit = 8;           // of which elements of x and head dims are multiples
inline constexpr int kMostBlocks = 192;        // of the grid
inline constexpr int kMostGroup = 8;           // query heads of a head of keys and values
inline constexpr int kUnitKeys = 16 * kWarps;  // keys that the warps take together
inline constexpr int kMostHeadDim = 128;
inline constexpr int kMostInstructions = 256;
inline constexpr int kMostAttends = 50;
inline constexpr int kStateSize = 4;

struct Args {
  const int32_t *tokens, *starts;  // [1] each
  const float* angles[2];          // [capacity, D / 2, 2] each, null: none
  uint32_t* state;                 // [kStateSize]: runs before this one; blocks of it that have ended
  uint32_t* values;                // flagged
  uint32_t *parts, *part_lse;      // [blocks, group, D, 2] and [blocks, group, 2]
  int32_t capacity;                // places of a text
  int32_t kv_heads, group, head_dim;
  int32_t count;  // of instructions
  Instruction instructions[kMostInstructions];
};
static_assert(sizeof(Instruction) <= 96);

}  // namespace tessera::decode_step
