// Mesh: a communicator for each axis of a run's ranks.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "kernels/communicator.h"
#include "train/parallel/mesh_shape.h"
#include "train/parallel/ranks.h"

namespace tessera {

class Mesh {
 public:
  // Connects this rank, `world.rank` of shape.ranks(), with the others on its axes, for tensors of `backend`,
  // which must outlive the mesh. All ranks call it together. Error: as make_communicator(); the size of the
  // world is not that of the shape.
  Mesh(Backend& backend, const MeshShape& shape, const Ranks& world);

  const MeshShape& shape() const { return shape_; }
  // The communicator of shape().members(axis, this rank). An axis with one rank copies, and waits for nobody.
  // Axes with the same ranks share a communicator.
  Communicator& axis(Axis axis) const { return *axes_[static_cast<size_t>(axis)]; }
  StepAxes step_axes() const {
    return {.all = &axis(Axis::kAll),
            .context = &axis(Axis::kContext),
            .shard = &axis(Axis::kShard),
            .replica = &axis(Axis::kReplica)};
  }
  // As Communicator::take_past_waits(), of all of them together
  double take_past_waits() const;
  // Communicator::failure() of any of the communicators
  std::string failure() const;

 private:
  MeshShape shape_;
  std::array<std::shared_ptr<Communicator>, words_of(Axis()).size()> axes_;
};

}  // namespace tessera
