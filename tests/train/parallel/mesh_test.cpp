// Where a rank is on each axis of a mesh, and with whom each axis connects it.
#include "train/parallel/mesh.h"

#include <cmath>

#include "tests/rank_processes.h"
#include "tests/support.h"

namespace tessera::testing {
namespace {

TEST(MeshShape, TellsWhereARankIs) {
  const MeshShape mesh{.data = 2, .context = 4};
  EXPECT_EQ(mesh.ranks(), 8);
  for (int64_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(mesh.place(Axis::kData, rank), (AxisPlace{rank / 4, 2})) << rank;
    EXPECT_EQ(mesh.place(Axis::kContext, rank), (AxisPlace{rank % 4, 4})) << rank;
    EXPECT_EQ(mesh.place(Axis::kAll, rank), (AxisPlace{rank, 8})) << rank;
  }
  EXPECT_THROW(mesh.place(Axis::kData, 8), Error);
  EXPECT_THROW(mesh.place(Axis::kAll, -1), Error);
}

TEST(MeshShape, ARankAloneIsTheFirstOfEveryAxis) {
  for (const Axis axis : values_with_words<Axis>()) {
    EXPECT_EQ(MeshShape().place(axis, 0), (AxisPlace{0, 1})) << name_of(axis);
    EXPECT_EQ(MeshShape().members(axis, 0), std::vector<int64_t>{0}) << name_of(axis);
  }
}

TEST(MeshShape, TellsWhoIsOnAnAxis) {
  const MeshShape mesh{.data = 2, .context = 4};
  EXPECT_EQ(mesh.members(Axis::kContext, 5), (std::vector<int64_t>{4, 5, 6, 7}));  // neighbours
  EXPECT_EQ(mesh.members(Axis::kContext, 2), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(mesh.members(Axis::kData, 5), (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(mesh.members(Axis::kAll, 5), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  // Every line of an axis has each of its ranks at its place, and all lines together have all ranks once.
  for (const MeshShape& shape : {mesh, MeshShape{.data = 3, .context = 2}, MeshShape{.data = 5},
                                 MeshShape{.context = 4}, MeshShape{.data = 6, .context = 2, .replicas = 3}})
    for (const Axis axis : values_with_words<Axis>())
      for (int64_t rank = 0; rank < shape.ranks(); ++rank) {
        const std::vector<int64_t> members = shape.members(axis, rank);
        const AxisPlace place = shape.place(axis, rank);
        ASSERT_EQ(std::ssize(members), place.size);
        EXPECT_EQ(members[static_cast<size_t>(place.rank)], rank);
        for (const int64_t other : members) EXPECT_EQ(shape.members(axis, other), members);
      }
}

TEST(MeshShape, ReplicasAreNeighboursThatSplitTheParameters) {
  const MeshShape mesh{.data = 4, .context = 2, .replicas = 2};
  EXPECT_EQ(mesh.ranks_of_shard(), 4);
  EXPECT_EQ(mesh.members(Axis::kShard, 5), (std::vector<int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(mesh.members(Axis::kReplica, 5), (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(mesh.place(Axis::kReplica, 5), (AxisPlace{1, 2}));
  EXPECT_EQ(mesh.members(Axis::kData, 5), (std::vector<int64_t>{1, 3, 5, 7}));
}

struct MeshOfRanks : ::testing::Test {
  void SetUp() override {
    std::string why_not;
    if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  }
};

// The sum of 10 to the power of each rank of an axis names them.
TEST_F(MeshOfRanks, EachAxisSumsOverItsOwn) {
  on_ranks(4, [](const Ranks& ranks) {
    const std::unique_ptr<Backend> be = make_cpu_backend();
    const Mesh mesh(*be, {.data = 2, .context = 2}, ranks);
    const auto sum = [&](Axis axis) {
      HostTensors make;
      const Tensor tensor = make.scalar(static_cast<float>(std::pow(10, ranks.rank)));
      mesh.axis(axis).all_reduce_sum({.tensor = tensor});
      return tensor.as<float>()[0];
    };
    EXPECT_EQ(sum(Axis::kAll), 1111);
    EXPECT_EQ(sum(Axis::kContext), ranks.rank < 2 ? 11 : 1100);
    EXPECT_EQ(sum(Axis::kData), ranks.rank % 2 == 0 ? 101 : 1010);
    EXPECT_EQ(mesh.axis(Axis::kContext).rank(), ranks.rank % 2);
    EXPECT_EQ(mesh.axis(Axis::kData).rank(), ranks.rank / 2);
    EXPECT_EQ(mesh.failure(), "");
  });
}

TEST_F(MeshOfRanks, ReplicasSumOverTheirOwn) {
  on_ranks(4, [](const Ranks& ranks) {
    const std::unique_ptr<Backend> be = make_cpu_backend();
    const Mesh mesh(*be, {.data = 4, .replicas = 2}, ranks);
    const auto sum = [&](Axis axis) {
      HostTensors make;
      const Tensor tensor = make.scalar(static_cast<float>(std::pow(10, ranks.rank)));
      mesh.axis(axis).all_reduce_sum({.tensor = tensor});
      return tensor.as<float>()[0];
    };
    EXPECT_EQ(sum(Axis::kShard), ranks.rank < 2 ? 11 : 1100);
    EXPECT_EQ(sum(Axis::kReplica), ranks.rank % 2 == 0 ? 101 : 1010);
    EXPECT_EQ(sum(Axis::kAll), 1111);
    EXPECT_EQ(mesh.step_axes().distinct().size(), 4u) << "with the context of one rank";
    EXPECT_THROW(Mesh(*be, {.data = 4, .replicas = 3}, ranks), Error);
    ranks.exchange("");
  });
}

TEST_F(MeshOfRanks, AxesOfTheSameRanksAreOneCommunicator) {
  on_ranks(2, [](const Ranks& ranks) {
    const std::unique_ptr<Backend> be = make_cpu_backend();
    const Mesh mesh(*be, {.data = 2}, ranks);
    EXPECT_EQ(&mesh.axis(Axis::kData), &mesh.axis(Axis::kAll));
    EXPECT_EQ(mesh.axis(Axis::kContext).size(), 1);
    EXPECT_THROW(Mesh(*be, {.data = 3}, ranks), Error);
    ranks.exchange("");  // a rank that ended now would be a failure of one that still connects
  });
}

TEST(Mesh, OfOneRankNeedsNoOther) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  const Mesh mesh(*be, {}, {});
  for (const Axis axis : values_with_words<Axis>()) EXPECT_EQ(mesh.axis(axis).size(), 1);
}

}  // namespace
}  // namespace tessera::testing
