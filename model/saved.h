// Allocates the tensors that a forward saves for its backward.
#pragma once

#include "kernels/base/arena.h"
#include "model/model.h"
#include "model/saved_tensors.h"
#include "model/stages.h"

namespace tessera {

// A tensor that blocks do not keep is allocated once, for all of these blocks. If the model offloads what
// blocks keep, these tensors alternate between kActivationSlots places: see activation_offload.h.
inline constexpr size_t kActivationSlots = 2;
Saved allocate_saved(Arena& arena, const Model& model, const ByBlock<Keep>& keep);

// Calls visit() for what a block needs for its backward: its input, and what it keeps by model.keep, except
// its output, which is the next block's input.
void visit_kept(Saved& saved, const Model& model, size_t layer, const TakeSaved& visit);

}  // namespace tessera
