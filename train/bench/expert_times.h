// How long the products of a layer of experts take, for `./bench gemm`.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "train/session/run_shape.h"

namespace tessera {

struct ExpertTime {
  std::string products;
  int64_t flops = 0;
  double ms = 0;  // median
};

// The products of a layer of the shape's experts for a micro-batch: forward, gradients of the inputs, and
// these with those of the weights; then the sums of a layer. Rows and weights are random, and a random router
// chooses for each token. None: the model has no experts. Fails where the device lacks memory for one layer.
std::vector<ExpertTime> time_experts(Backend& be, const RunShape& shape);

std::string table_of(const std::vector<ExpertTime>& times, double peak_flops);
nlohmann::ordered_json to_json(const std::vector<ExpertTime>& times);

}  // namespace tessera
