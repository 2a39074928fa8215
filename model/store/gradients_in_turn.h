// Gradients that take turns in buffers: see gradient_home.h.
#pragma once

#include "model/store/gradient_home.h"

namespace tessera {

// `of_sums`: the dtype of what is summed over ranks
std::unique_ptr<GradientHome> make_gradients_in_turn(const StoreSetting& setting,
                                                     const GradientHome::Place& place, DType of_sums);

}  // namespace tessera
