// The ranks of a planned run: communicators that check their arguments and do nothing else.
#pragma once

#include <functional>
#include <memory>

#include "kernels/communicator.h"
#include "train/session/run_shape.h"

namespace tessera {

class PlanRanks {
 public:
  // `of`: the observer of the collectives of an axis
  PlanRanks(const RunShape& shape, Device device, const std::function<QueueObserver(Axis)>& of = {}) {
    const auto make = [&](Axis axis) {
      const auto size = static_cast<int>(shape.mesh.place(axis, 0).size);
      return make_plan_communicator(device, 0, size, of ? of(axis) : QueueObserver{});
    };
    all_ = make(Axis::kAll), context_ = make(Axis::kContext);
    if (shape.mesh.replicas > 1) shard_ = make(Axis::kShard), replica_ = make(Axis::kReplica);
  }
  StepAxes axes() const {
    return {.all = all_.get(), .context = context_.get(), .shard = shard_.get(), .replica = replica_.get()};
  }

 private:
  std::unique_ptr<Communicator> all_, context_, shard_, replica_;
};

}  // namespace tessera
