// How the ranks of a run are arranged: on axes with names.
//
// Ranks are numbered from 0, along the context axis first: with 2 x 4 ranks (data x context), rank 5 is the
// second of its context and belongs to the second part of the data. So the ranks of a context are neighbours,
// usually on one machine. The same is true for the ranks of a shard, of which there are `replicas`: with 16
// ranks and two replicas, ranks 0 to 7 split the parameters, and ranks 8 to 15 split them in the same way.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/words.h"

namespace tessera {

class Communicator;

enum class Axis : uint8_t {
  kData,     // its ranks have different sequences: a step's samples are divided over it
  kContext,  // its ranks share the tokens of each sequence
  kAll,      // data x context: losses are summed over it
  kShard,    // its ranks split the parameters: all ranks, or those of one replica
  kReplica,  // its ranks have the same slice of the parameters
};
constexpr auto words_of(Axis) {
  return std::array{Word{"data", Axis::kData}, Word{"context", Axis::kContext},
                    Word{"data x context", Axis::kAll}, Word{"shard", Axis::kShard},
                    Word{"replica", Axis::kReplica}};
}

// The place of a rank on an axis
struct AxisPlace {
  int64_t rank = 0, size = 1;
  bool operator==(const AxisPlace&) const = default;
};

struct MeshShape {
  int64_t data = 1, context = 1;  // how many ranks each axis has
  int64_t replicas = 1;           // of the parameters; divides `data`

  int64_t ranks() const { return data * context; }
  int64_t ranks_of_shard() const { return ranks() / replicas; }
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
      case Axis::kShard:
        return {rank % ranks_of_shard(), ranks_of_shard()};
      case Axis::kReplica:
        return {rank / ranks_of_shard(), replicas};
    }
    fail("a mesh has no axis {}", static_cast<int>(axis));
  }
  // The ranks that share with `rank` the axis, in their order on it
  std::vector<int64_t> members(Axis axis, int64_t rank) const {
    const AxisPlace place = this->place(axis, rank);
    const int64_t apart = axis == Axis::kData      ? context
                          : axis == Axis::kReplica ? ranks_of_shard()
                                                   : 1,
                  first = rank - place.rank * apart;
    std::vector<int64_t> found;
    for (int64_t i = 0; i < place.size; ++i) found.push_back(first + i * apart);
    return found;
  }

  bool operator==(const MeshShape&) const = default;
};

// The communicators that a training step uses; null: only this rank. Without `shard` the parameters are split
// over `all`.
struct StepAxes {
  Communicator *all = nullptr, *context = nullptr, *shard = nullptr, *replica = nullptr;

  // Each communicator once, since axes with the same ranks share one
  std::vector<Communicator*> distinct() const {
    std::vector<Communicator*> found;
    for (Communicator* axis : {all, context, shard, replica})
      if (axis && std::ranges::find(found, axis) == found.end()) found.push_back(axis);
    return found;
  }
};

}  // namespace tessera
