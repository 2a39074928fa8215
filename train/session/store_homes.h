// Where the weights of a training's models are, and in which form: of the model itself, of the reference of
// its loss, and of its teacher.
#pragma once

#include <optional>

#include "kernels/communicator.h"
#include "model/store/param_store.h"
#include "train/session/run_shape.h"

namespace tessera {

// `offloaded` has the host's memory for what shape.offload names. Error: an axis has another number of ranks
// than shape.mesh says.
ParamStore::Homes training_homes(const RunShape& shape, const StepAxes& axes,
                                 std::optional<Arena>& offloaded);

// A reference has the starting weights, without adapters. It is whole on each rank, in the form that the
// weights of the training are multiplied in.
SessionShape reference_shape(SessionShape shape);
ParamStore::Homes reference_homes(const RunShape& shape);

// A teacher is whole on each rank too, in the form of train.teacher_base, and is widened a block at a time.
// Error: it has another vocabulary.
SessionShape teacher_shape(SessionShape shape, const ModelConfig& teacher);
ParamStore::Homes teacher_homes(const RunShape& shape, const ModelConfig& teacher);

}  // namespace tessera
