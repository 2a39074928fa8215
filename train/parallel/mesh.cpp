#include "train/parallel/mesh.h"

#include <map>
#include <vector>

#include "kernels/base/check.h"
#include "train/parallel/make_communicator.h"

namespace tessera {
namespace {

// `world` as the ranks of one axis see it. Ranks of other lines of the axis exchange at the same time: each
// takes what its own line gave.
Ranks on_axis(const MeshShape& shape, Axis axis, const Ranks& world) {
  const AxisPlace place = shape.place(axis, world.rank);
  return {.rank = static_cast<int>(place.rank),
          .size = static_cast<int>(place.size),
          .exchange =
              [&exchange = world.exchange, members = shape.members(axis, world.rank)](std::string_view mine) {
                const std::vector<std::string> all = exchange(mine);
                std::vector<std::string> own;
                for (const int64_t rank : members) own.push_back(all[static_cast<size_t>(rank)]);
                return own;
              },
          .time_limit_seconds = world.time_limit_seconds};
}

}  // namespace

Mesh::Mesh(Backend& backend, const MeshShape& shape, const Ranks& world) : shape_(shape) {
  check(world.size == shape.ranks(), "a mesh of {} x {} ranks (data x context) was given {} ranks",
        shape.data, shape.context, world.size);
  check(shape.replicas >= 1 && shape.data % shape.replicas == 0,
        "a mesh of {} x {} ranks (data x context) cannot have {} replicas", shape.data, shape.context,
        shape.replicas);
  const std::shared_ptr<Communicator> alone = make_communicator(backend, {});
  std::map<std::vector<int64_t>, std::shared_ptr<Communicator>> made;  // by the ranks of this rank's axes
  for (const Axis axis : {Axis::kAll, Axis::kData, Axis::kContext, Axis::kShard, Axis::kReplica}) {
    const std::vector<int64_t> members = shape.members(axis, world.rank);
    std::shared_ptr<Communicator>& own = made[members];
    if (!own) own = members.size() == 1 ? alone : make_communicator(backend, on_axis(shape, axis, world));
    axes_[static_cast<size_t>(axis)] = own;
  }
}

double Mesh::take_past_waits() const {
  double seconds = 0;  // of an axis that has another's communicator, nothing is left to take
  for (const std::shared_ptr<Communicator>& axis : axes_) seconds += axis->take_past_waits();
  return seconds;
}

std::string Mesh::failure() const {
  for (const std::shared_ptr<Communicator>& axis : axes_)
    if (std::string why = axis->failure(); !why.empty()) return why;
  return "";
}

}  // namespace tessera
