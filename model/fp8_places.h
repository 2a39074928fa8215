// The linear layers of a model that are multiplied in FP8, and which of them are neighbours (stages.h).
#pragma once

#include <vector>

#include "model/fp8.h"
#include "model/store/param_store.h"

namespace tessera {

// The list is empty without FP8.
std::vector<Fp8Place> fp8_places(const ParamStore& store, const Fp8Config& config);

}  // namespace tessera
