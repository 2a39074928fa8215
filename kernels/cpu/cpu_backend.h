// The CPU backend: fp32, OpenMP across rows, heads or channels, BLAS for products. It is the oracle for the
// CUDA kernels.
//
// Every sum has an order that does not depend on timing, so a given thread count gives the same bits every
// time.
#pragma once

#include "kernels/backend.h"

namespace tessera::cpu {

void embedding_forward(const EmbeddingForward& a);
void embedding_backward(const EmbeddingBackward& a);
void layernorm_forward(const LayerNormForward& a);
void layernorm_backward(const LayerNormBackward& a);
void linear_forward(const LinearForward& a);
void linear_backward(const LinearBackward& a);
void cross_entropy(const CrossEntropy& a);
void global_norm(const GlobalNorm& a);
void adamw(const AdamW& a);
void naive_attention_forward(const AttentionForwardOp& a);
void naive_attention_backward(const AttentionBackwardOp& a);

// The result does not depend on the tile beyond rounding.
struct FlashTile {
  int64_t queries = 64, keys = 64;
};
void flash_attention_forward(const AttentionForwardOp& a, FlashTile tile = {});
void flash_attention_backward(const AttentionBackwardOp& a, FlashTile tile = {});

}  // namespace tessera::cpu
