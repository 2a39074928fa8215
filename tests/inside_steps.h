// Training steps of which somebody sees what goes on inside, on any device.
#pragma once

#include "tests/data_parallel.h"
#include "train/session/inside.h"

namespace tessera::testing {

using InsideParts = std::vector<InsideFigures::Part>;

struct InsideSteps {
  std::optional<InsideFigures> figures;  // of the last step
  std::string weights;
  std::vector<double> losses;
};
inline InsideSteps observe_inside(const Ranks& ranks, const RunShape& shape, int steps = 2,
                                  const DeviceTraits& device = {}) {
  InsideSteps found;
  found.losses =
      run_shared(ranks, {.device = device, .shape = shape, .steps = steps, .after = [&](TrainState& state) {
                           found.figures = state.inside();
                           found.weights = weight_bytes(state);
                         }});
  return found;
}

inline std::vector<std::string> part_names(const InsideParts& parts) {
  std::vector<std::string> names;
  for (const InsideFigures::Part& part : parts) names.push_back(part.name);
  return names;
}

inline void expect_near_norms(const InsideParts& found, const InsideParts& expected, double tolerance) {
  ASSERT_EQ(part_names(found), part_names(expected));
  for (size_t p = 0; p < found.size(); ++p)
    for (size_t l = 0; l < expected[p].layers.size(); ++l) {
      const InsideFigures::Norms &a = found[p].layers.at(l), &b = expected[p].layers[l];
      SCOPED_TRACE(fmt::format("{} of block {}", found[p].name, l));
      EXPECT_NEAR(a.weight, b.weight, tolerance * b.weight);
      EXPECT_NEAR(a.gradient, b.gradient, tolerance * b.gradient);
      EXPECT_NEAR(a.update, b.update, tolerance * b.update);
    }
}

}  // namespace tessera::testing
