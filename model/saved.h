// The memory of the tensors that a forward keeps for its backward.
#pragma once

#include "kernels/base/arena.h"
#include "model/model.h"
#include "model/saved_tensors.h"
#include "model/stages.h"

namespace tessera {

// What a block does not keep is allocated once for all blocks that do not keep it. Where the model offloads
// what blocks keep, those take turns in kActivationSlots of it: see activation_offload.h.
inline constexpr size_t kActivationSlots = 2;
Saved allocate_saved(Arena& arena, const Model& model, const ByBlock<Keep>& keep);

// Calls visit() for what a block has to have for its backward: its input, and what it keeps by model.keep but
// for its output, which is the next block's input.
void visit_kept(Saved& saved, const Model& model, size_t layer, const TakeSaved& visit);

}  // namespace tessera
