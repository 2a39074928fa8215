// The memory of the tensors that a forward keeps for its backward.
#pragma once

#include "kernels/base/arena.h"
#include "model/model.h"
#include "model/saved_tensors.h"

namespace tessera {

// What `keep` does not keep is allocated once for all blocks.
Saved allocate_saved(Arena& arena, const Model& model, Keep keep);

}  // namespace tessera
