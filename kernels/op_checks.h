// What every operation asks of its arguments, the same on every device. A violation is an Error naming the
// field.
#pragma once

#include "kernels/backend.h"

namespace tessera {

void check_op(const EmbeddingForward& a, Device device);
void check_op(const EmbeddingBackward& a, Device device);
void check_op(const LayerNormForward& a, Device device);
void check_op(const LayerNormBackward& a, Device device);
void check_op(const LinearForward& a, Device device);
void check_op(const LinearBackward& a, Device device);
void check_op(const AttentionForwardOp& a, Device device);
void check_op(const AttentionBackwardOp& a, Device device);
void check_op(const CrossEntropy& a, Device device);
void check_op(const GlobalNorm& a, Device device);
void check_op(const AdamW& a, Device device);

}  // namespace tessera
