// How the ranks of a run are arranged: on axes that have names.
//
// Ranks are numbered from 0, along the context axis first: with 2 x 4 ranks (data x context), rank 5 is the
// second of its context and belongs to the second part of the data. So the ranks of a context are neighbours,
// as a rule on one machine.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/words.h"

namespace tessera {

enum class Axis : uint8_t {
  kData,     // has other sequences at each rank: a step's samples are dealt over it
  kContext,  // shares the tokens of each sequence
  kAll,      // data x context: losses are summed and parameters are split over it
};
constexpr auto words_of(Axis) {
  return std::array{Word{"data", Axis::kData}, Word{"context", Axis::kContext},
                    Word{"data x context", Axis::kAll}};
}

// A rank on an axis
struct AxisPlace {
  int64_t rank = 0, size = 1;
  bool operator==(const AxisPlace&) const = default;
};

struct MeshShape {
  int64_t data = 1, context = 1;  // ranks on the axis

  int64_t ranks() const { return data * context; }
  AxisPlace place(Axis axis, int64_t rank) const {
    check(rank >= 0 && rank < ranks(), "rank {} of a mesh of {} x {} ranks (data x context)", rank, data,
          context);
    switch (axis) {
      case Axis::kData:
        return {rank / context, data};
      case Axis::kContext:
        return {rank % context, context};
      case Axis::kAll:
        return {rank, ranks()};
    }
    fail("a mesh has no axis {}", static_cast<int>(axis));
  }
  // The ranks of the axis on which `rank` is, in their order on it
  std::vector<int64_t> members(Axis axis, int64_t rank) const {
    const AxisPlace place = this->place(axis, rank);
    const int64_t apart = axis == Axis::kData ? context : 1, first = rank - place.rank * apart;
    std::vector<int64_t> found;
    for (int64_t i = 0; i < place.size; ++i) found.push_back(first + i * apart);
    return found;
  }

  bool operator==(const MeshShape&) const = default;
};

}  // namespace tessera
