// The ranks of a planned run: communicators that check their arguments and do nothing.
#pragma once

#include <memory>

#include "kernels/communicator.h"
#include "train/session/run_shape.h"

namespace tessera {

struct PlanRanks {
  std::unique_ptr<Communicator> all, context;
  PlanRanks(const RunShape& shape, Device device, QueueObserver of_all = {}, QueueObserver of_context = {})
      : all(make_plan_communicator(device, 0, static_cast<int>(shape.ranks()), std::move(of_all))),
        context(
            make_plan_communicator(device, 0, static_cast<int>(shape.mesh.context), std::move(of_context))) {}
};

}  // namespace tessera
