#include "train/run/write_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <vector>

namespace tessera {
namespace {

constexpr double kLong = 60;  // seconds; a wait that ends by itself

TEST(WriteQueue, DoesAllInOrder) {
  std::vector<int> done;
  WriteQueue queue(1000);
  for (int i = 0; i < 100; ++i) queue.push(50, [&done, i] { done.push_back(i); });
  queue.finish();
  ASSERT_EQ(done.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i);
  queue.push(1, [&done] { done.push_back(100); });  // it goes on
  queue.finish();
  EXPECT_EQ(done.back(), 100);
}

// What waits keeps at most so many bytes, but for one that is larger than all.
TEST(WriteQueue, WaitsForRoom) {
  std::promise<void> go;
  const std::shared_future<void> gate = go.get_future();
  std::atomic<int64_t> kept = 0, most = 0;
  WriteQueue queue(100);
  std::atomic<int> pushed = 0;
  std::thread other([&] {
    for (const int64_t bytes : {40, 60, 30, 500, 70, 40}) {
      queue.push(bytes, [&, bytes] {
        gate.wait();
        kept -= bytes;
      });
      kept += bytes;
      if (bytes <= 100) most = std::max<int64_t>(most, kept);
      ++pushed;
    }
  });
  while (pushed < 2) std::this_thread::yield();
  EXPECT_FALSE(queue.done_within(0.05));
  EXPECT_EQ(pushed, 2) << "40 and 60 bytes are all the room";
  go.set_value();
  other.join();
  EXPECT_TRUE(queue.done_within(kLong));
  EXPECT_EQ(kept, 0);
}

TEST(WriteQueue, TheFirstErrorEndsIt) {
  int done = 0;
  WriteQueue queue(10);
  queue.push(1, [&] { ++done; });
  queue.push(1, [] { throw std::runtime_error("the disk is full"); });
  EXPECT_TRUE(queue.done_within(kLong));
  for (int i = 0; i < 2; ++i) {
    try {
      i == 0 ? queue.push(1, [&] { ++done; }) : queue.finish();
      ADD_FAILURE() << "the error was lost";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "the disk is full");
    }
  }
  EXPECT_EQ(done, 1);
}

// A task that waits for room is told of the error, too.
TEST(WriteQueue, AnErrorWakesWhoWaits) {
  std::promise<void> go;
  WriteQueue queue(10);
  queue.push(10, [gate = go.get_future().share()] {
    gate.wait();
    throw std::runtime_error("gone");
  });
  std::future<void> waits = std::async(std::launch::async, [&] { queue.push(10, [] {}); });
  go.set_value();
  // Either it was told, or it got its room after the failed task and was skipped.
  try {
    waits.get();
  } catch (const std::runtime_error&) {
  }
  EXPECT_THROW(queue.finish(), std::runtime_error);
}

TEST(WriteQueue, TheEndDoesTheRest) {
  std::atomic<int> done = 0;
  {
    WriteQueue queue(1 << 20);
    for (int i = 0; i < 1000; ++i) queue.push(1, [&] { ++done; });
  }
  EXPECT_EQ(done, 1000);
}

}  // namespace
}  // namespace tessera
