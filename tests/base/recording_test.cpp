// What a ledger that records keeps: births, deaths, phases, and no more than it may.
#include "tests/support.h"

namespace tessera::testing {
namespace {

std::vector<std::string> paths(const MemoryRecording& recording) {
  std::vector<std::string> found;
  for (size_t i = 0; i < recording.phases().size(); ++i) found.push_back(recording.path(static_cast<int>(i)));
  return found;
}

void touch(Arena& arena, const char* name, int64_t bytes = 256) {
  arena.alloc(MemoryTag::kActivations, name, DType::kF32, {bytes / 4});
}

TEST(Recording, NamesBirthsDeathsAndPhases) {
  Arena arena = Arena::host();
  arena.record();
  {
    Arena::Phase setup(arena, "setup");
    arena.alloc(MemoryTag::kWeights, "w", DType::kF32, {100});
  }
  {
    Arena::Scope scope(arena);
    Arena::Phase step(arena, "step", 7);
    touch(arena, "a", 1024);
    {
      Arena::Phase forward(arena, "forward");
      Arena::Phase block(arena, "block", 3);
      Arena::Scope inner(arena);
      touch(arena, "b", 512);
    }
    step.next("backward");
    touch(arena, "c");
  }
  touch(arena, "d");
  const MemoryRecording& recording = *arena.ledger().recording();
  EXPECT_EQ(paths(recording), (std::vector<std::string>{"setup", "step 7", "step 7/forward",
                                                        "step 7/forward/block 3", "backward"}));
  const auto& all = recording.allocations();
  ASSERT_EQ(all.size(), 5u);
  struct Expected {
    const char *name, *path;
    int64_t bytes, born, died;
  };
  const Expected expected[] = {
      {"w", "setup", 512, 0, -1},
      {"a", "step 7", 1024, 1, 6},  // c came later in their scope, so it dies before a
      {"b", "step 7/forward/block 3", 512, 2, 3},
      {"c", "backward", 256, 4, 5},
      {"d", "", 256, 7, -1}};
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].name, expected[i].name);
    EXPECT_EQ(recording.path(all[i].phase), expected[i].path) << all[i].name;
    EXPECT_EQ(all[i].bytes, expected[i].bytes) << all[i].name;
    EXPECT_EQ(all[i].born.order, expected[i].born) << all[i].name;
    EXPECT_EQ(all[i].died.order, expected[i].died) << all[i].name;
    if (expected[i].died >= 0) {
      EXPECT_LE(all[i].born.nanoseconds, all[i].died.nanoseconds);
    }
  }
  EXPECT_EQ(recording.births_and_deaths(), 8);
  EXPECT_EQ(recording.phases()[1].begin.order, 1);
  EXPECT_EQ(recording.phases()[1].end.order, 4);
  EXPECT_TRUE(recording.complete());
}

TEST(Recording, OfWhatRepeatsTheFirstFewAreKept) {
  Arena arena = Arena::plan(Device::kCpu);
  arena.record();
  for (int step = 5; step < 9; ++step) {
    Arena::Phase phase(arena, "step", step, Arena::Phase::kRecordFirstFew);
    for (int batch = 0; batch < 3; ++batch) {
      Arena::Phase inner(arena, "micro-batch", MemoryRecording::kNone, Arena::Phase::kRecordFirstFew);
      Arena::Scope scope(arena);
      Arena::Phase forward(arena, "forward");
      touch(arena, "a");
    }
  }
  const MemoryRecording& recording = *arena.ledger().recording();
  EXPECT_EQ(paths(recording),
            (std::vector<std::string>{
                "step 5", "step 5/micro-batch 1", "step 5/micro-batch 1/forward", "step 5/micro-batch 2",
                "step 5/micro-batch 2/forward", "step 5/not recorded", "step 6", "step 6/micro-batch 1",
                "step 6/micro-batch 1/forward", "step 6/micro-batch 2", "step 6/micro-batch 2/forward",
                "step 6/not recorded", "not recorded"}));
  EXPECT_EQ(recording.allocations().size(), 4u);
  for (const auto& a : recording.allocations()) EXPECT_EQ(a.died.order, a.born.order + 1);
  EXPECT_EQ(recording.births_and_deaths(), 8);
  for (const MemoryRecording::Phase& p : recording.phases()) {
    EXPECT_EQ(p.skipped, std::string(p.name) == "not recorded");
    EXPECT_GE(p.end.nanoseconds, p.begin.nanoseconds) << p.name;
    EXPECT_TRUE(!p.skipped || p.begin.order == p.end.order);
  }
}

TEST(Recording, EndsAtItsLimitAndSaysSo) {
  Arena arena = Arena::plan(Device::kCpu);
  arena.record();
  const size_t most = MemoryRecording::kMostAllocations;
  for (size_t i = 0; i < most + 10; ++i) {
    Arena::Scope scope(arena);
    touch(arena, "a");
    EXPECT_EQ(arena.ledger().recording()->complete(), i < most);
  }
  Arena::Phase phase(arena, "late");
  EXPECT_EQ(arena.ledger().recording()->allocations().size(), most);
  EXPECT_TRUE(arena.ledger().recording()->phases().empty());
  EXPECT_EQ(arena.ledger().peak_bytes(), 256) << "the ledger itself goes on";
}

TEST(Recording, IsAskedForBeforeTheFirstAllocation) {
  Arena arena = Arena::plan(Device::kCpu);
  Arena::Phase phase(arena, "nothing is kept");
  touch(arena, "a");
  EXPECT_EQ(arena.ledger().recording(), nullptr);
  EXPECT_THROW(arena.record(), Error);
}

}  // namespace
}  // namespace tessera::testing
