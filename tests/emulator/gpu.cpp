#include "tests/emulator/gpu.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/emulator/include/device_index.h"
#include "tests/emulator/races.h"

#ifdef TESSERA_EMULATED_RACES
// What is no race: a load through volatile is atomic on a GPU.
extern "C" const char* __tsan_default_suppressions() { return "race:tessera::note_largest\n"; }
#endif

namespace emulator {
namespace {

using Copies = std::vector<std::function<void()>>;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kFirstShared = 1024;               // address of the dynamic shared memory: 0 is nobody's
constexpr size_t kStackBytes = 512 * 1024;            // those of the thread sanitizer's reports included
constexpr auto kPatience = std::chrono::seconds(10);  // with blocks none of which gets any further

const bool kCopiesEarly = is_set("TESSERA_EMULATOR_COPIES", "early");
const bool kLastFirst = is_set("TESSERA_EMULATOR_ORDER", "down");

// Of all blocks: whether anything still happens
std::atomic<uint64_t> steps = 0;
std::atomic<int> running_blocks = 0, idle_blocks = 0;

void do_all(Copies& copies) {
  for (const auto& copy : copies) copy();
  const Unseen unseen;
  copies.clear();
}

// Copies of one thread, in groups that end in their order
struct Groups {
  Copies open;
  std::vector<Copies> closed;

  void add(std::function<void()> copy) {
    if (kCopiesEarly) return copy();
    const Unseen unseen;
    open.push_back(std::move(copy));
  }
  void close() {
    const Unseen unseen;
    closed.push_back(std::move(open));
    open.clear();
  }
  void wait(int left) {
    if (closed.size() <= static_cast<size_t>(left)) return;
    const auto end = closed.end() - left;
    for (auto group = closed.begin(); group != end; ++group) do_all(*group);
    const Unseen unseen;
    closed.erase(closed.begin(), end);
  }
  void end() {
    wait(0);
    do_all(open);
  }
};

struct Thread {
  boost::context::fiber here, scheduler;
  Runner runner;
  uint3 index;
  int number;
  bool done;
  const char* waits_for;
  Groups copies, transfers;
};

struct Exchange {
  struct Slot {
    const char* operation = nullptr;
    uint32_t came = 0, left = 0;
    uint32_t words[kWarp][kWords];
  };
  uint32_t mask;
  Slot slots[2];  // a lane may come to the next one before others have read this one
  uint32_t turns[kWarp] = {};
};

struct Barrier {
  int came = 0;
  uint64_t turn = 0;
  uint64_t orders[2] = {};  // of this turn and the next
};

// One launch: its threads see what came before it.
struct Launch {
  const Grid& grid;
  const std::function<void()>& body;
  uint64_t start = 0, end = 0;
};

// Blocks that have the same shared memory one after another: each sees what was before it.
struct Succession {
  uint64_t orders[2] = {};
  int block = 0;

  void begin() const { acquire(&orders[block % 2]); }
  void end() const { release(&orders[(block + 1) % 2]); }
};

struct Cluster {
  std::atomic<int> came = 0;
  std::atomic<uint64_t> turn = 0;
  int threads;
  uint8_t* shared[8] = {};
};

struct Block {
  const Launch* launch = nullptr;
  std::span<const std::unique_ptr<Thread>> threads;
  std::vector<std::vector<std::unique_ptr<Exchange>>> warps;
  Barrier barriers[16], warpgroups[8];
  int running = 0;
  bool progress = false;
  std::deque<std::function<void()>> transfers;
  Cluster* cluster = nullptr;
  int rank = 0;
};

thread_local Block* block = nullptr;
thread_local Thread* thread = nullptr;
thread_local Succession succession;
alignas(1024) thread_local uint8_t shared[kSharedBytes];

// Gives up this thread's turn.
void yield() {
  Thread& me = *thread;
  me.scheduler = std::move(me.scheduler).resume();
}

template <class Ready>
void wait(const char* what, Ready ready) {
  thread->waits_for = what;
  while (!ready()) yield();
  thread->waits_for = nullptr;
  block->progress = true;
}

[[noreturn]] void nothing_happens() {
  std::fprintf(stderr, "emulator: nothing happens any more. Threads of block %u %u %u:\n", blockIdx.x,
               blockIdx.y, blockIdx.z);
  const char* last = nullptr;
  for (const auto& t : block->threads) {
    if (t->done || t->waits_for == last) continue;
    last = t->waits_for;
    std::fprintf(stderr, "  from %u %u %u on: %s\n", t->index.x, t->index.y, t->index.z,
                 last ? last : "polls memory");
  }
  std::abort();
}

void open(Barrier& at) {
  at.came = 0;
  ++at.turn;
}

// Waits for the others if it has a name for that. Who `shows` lets them see what it did before.
void come(Barrier& at, int threads, const char* waits_for, bool shows = true) {
  const uint64_t turn = at.turn;
  if (shows) release(&at.orders[turn % 2]);
  if (++at.came >= threads) open(at);
  if (!waits_for) return;
  wait(waits_for, [&] { return at.turn != turn; });
  acquire(&at.orders[turn % 2]);
}

// A thread of each block that this multiprocessor runs, one block after another
boost::context::fiber live(Thread& me, boost::context::fiber&& scheduler) {
  for (me.scheduler = std::move(scheduler);; yield()) {
    me.waits_for = nullptr;
    acquire(&block->launch->start);
    succession.begin();
    block->launch->body();
    me.copies.end();
    me.transfers.end();
    succession.end();
    release(&block->launch->end);
    me.done = true;
    release(&block->barriers[0].orders[block->barriers[0].turn % 2]);  // as if it came to all barriers
    --block->running;
    block->progress = true;
    if (Barrier& all = block->barriers[0]; all.came > 0 && all.came >= block->running) open(all);
  }
}

// A turn for every thread
void take_turns(Block& mine) {
  mine.progress = false;
  const size_t count = mine.threads.size();
  for (size_t i = 0; i < count; ++i) {
    Thread& t = *mine.threads[kLastFirst ? count - 1 - i : i];
    if (t.done) continue;
    thread = &t;
    threadIdx = t.index;
    const Turn turn(t.runner);
    t.here = std::move(t.here).resume();
  }
}

// The oldest that is left
bool make_transfer(Block& mine) {
  thread_local const Runner copy_engine;
  if (mine.transfers.empty()) return false;
  const auto transfer = std::move(mine.transfers.front());
  mine.transfers.pop_front();
  const Turn turn(copy_engine);
  transfer();
  succession.end();
  release(&mine.launch->end);
  return true;
}

void run_block(const Launch& launch, Cluster* cluster, int rank) {
  ++running_blocks;
  const Grid& grid = launch.grid;
  thread_local boost::context::pooled_fixedsize_stack stacks(kStackBytes);
  thread_local std::vector<std::unique_ptr<Thread>> threads;
  const auto count = static_cast<size_t>(grid.threads.count());
  while (threads.size() < count) {
    Thread& t = *threads.emplace_back(std::make_unique<Thread>());
    t.here = boost::context::fiber(std::allocator_arg, stacks, [&t](boost::context::fiber&& scheduler) {
      return live(t, std::move(scheduler));
    });
  }
  Block mine;
  mine.launch = &launch;
  mine.threads = std::span(threads).first(count);
  mine.cluster = cluster;
  mine.rank = rank;
  block = &mine;
  mine.warps.resize((count + kWarp - 1) / kWarp);
  mine.running = static_cast<int>(count);
  std::memset(shared, 0xff, grid.shared_bytes);  // what nobody wrote is NaN
  for (size_t i = 0; i < count; ++i) {
    Thread& t = *threads[i];
    const auto number = static_cast<unsigned>(i);
    t.number = static_cast<int>(i);
    t.index = {number % grid.threads.x, number / grid.threads.x % grid.threads.y,
               number / grid.threads.x / grid.threads.y};
    t.done = false;
    t.waits_for = "its first turn";
  }
  bool idle = false;
  uint64_t seen = 0;
  for (auto since = Clock::now(); mine.running > 0;) {
    take_turns(mine);
    const bool progress = mine.progress || make_transfer(mine);
    steps += progress;
    if (idle == progress) idle_blocks += progress ? -1 : 1;
    idle = !progress;
    if (progress) continue;
    sched_yield();
    if (steps != seen || idle_blocks < running_blocks) {
      seen = steps;
      since = Clock::now();
    } else if (Clock::now() - since > kPatience) {
      nothing_happens();
    }
  }
  while (make_transfer(mine)) {
  }
  ++succession.block;
  idle_blocks -= idle;
  --running_blocks;
  block = nullptr;
}

// The multiprocessors, and the one launch that runs on them
class Multiprocessors {
 public:
  static Multiprocessors& all() {
    static auto* const multiprocessors = new Multiprocessors;  // its threads have no end
    return *multiprocessors;
  }

  void run(const Launch& launch) {
    const Grid& grid = launch.grid;
    const std::lock_guard one_launch(one_launch_);
    std::unique_lock lock(mutex_);
    launch_ = &launch;
    busy_ = kMultiprocessors;
    clusters_.clear();
    for (int i = 0; i < kMultiprocessors / grid.cluster; ++i) {
      clusters_.push_back(std::make_unique<Cluster>());
      clusters_.back()->threads = grid.cluster * static_cast<int>(grid.threads.count());
    }
    ++launches_;
    changed_.notify_all();
    ended_.wait(lock, [&] { return busy_ == 0; });
  }

 private:
  Multiprocessors() {
    for (int i = 0; i < kMultiprocessors; ++i) std::thread([this, i] { work(i); }).detach();
  }

  void work(int me) {
    const Unseen unseen;
    uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return launches_ != seen; });
        seen = launches_;
      }
      const Grid& grid = launch_->grid;
      gridDim = {grid.blocks.x, grid.blocks.y, grid.blocks.z};
      blockDim = {grid.threads.x, grid.threads.y, grid.threads.z};
      grid.cluster > 1 ? run_clusters(me) : run_blocks(me);
      const std::lock_guard lock(mutex_);
      if (--busy_ == 0) ended_.notify_all();
    }
  }

  void run_blocks(int me) {
    for (int64_t i = me; i < launch_->grid.blocks.count(); i += kMultiprocessors) run_one(i, nullptr, 0);
  }
  void run_clusters(int me) {
    const int size = launch_->grid.cluster, mine = me / size, rank = me % size;
    const auto groups = static_cast<int>(clusters_.size());
    if (mine >= groups) return;
    clusters_[static_cast<size_t>(mine)]->shared[rank] = shared;
    for (int64_t i = int64_t{mine} * size + rank; i < launch_->grid.blocks.count(); i += groups * size)
      run_one(i, clusters_[static_cast<size_t>(mine)].get(), rank);
  }
  void run_one(int64_t i, Cluster* cluster, int rank) {
    const Size& of = launch_->grid.blocks;
    blockIdx = {static_cast<unsigned>(i % of.x), static_cast<unsigned>(i / of.x % of.y),
                static_cast<unsigned>(i / of.x / of.y)};
    run_block(*launch_, cluster, rank);
  }

  std::mutex one_launch_, mutex_;
  std::condition_variable changed_, ended_;
  const Launch* launch_ = nullptr;
  uint64_t launches_ = 0;
  int busy_ = 0;
  std::vector<std::unique_ptr<Cluster>> clusters_;
};

}  // namespace

bool is_set(const char* variable, const char* value) {
  const char* found = std::getenv(variable);
  return found && std::string_view(found) == value;
}

void run(const Grid& grid, const std::function<void()>& body) {
  const auto launch = std::make_unique<Launch>(grid, body);  // freed: its addresses order nothing else
  release(&launch->start);
  {
    thread_local const Runner driver;  // what it waits for orders no kernels
    const Turn turn(driver);
    Multiprocessors::all().run(*launch);
  }
  acquire(&launch->end);
}

void wait_until(const char* what, const std::function<bool()>& ready) { wait(what, ready); }
void let_others_run() { yield(); }

void trap(const char* why) {
  std::fprintf(stderr, "emulator: block %u %u %u, thread %u %u %u: %s\n", blockIdx.x, blockIdx.y, blockIdx.z,
               threadIdx.x, threadIdx.y, threadIdx.z, why);
  std::abort();
}

int lane() { return thread->number % kWarp; }
int cluster_rank() { return block->rank; }

void cluster_barrier() {
  Cluster& cluster = *block->cluster;
  const uint64_t turn = cluster.turn;
  release(&cluster);
  if (++cluster.came == cluster.threads) {
    cluster.came = 0;
    ++cluster.turn;
  }
  wait("the barrier of its cluster", [&] { return cluster.turn != turn; });
  acquire(&cluster);
}

void barrier(int id, int threads, bool waits) {
  static constexpr const char* kNames[] = {"barrier 0",  "barrier 1",  "barrier 2",  "barrier 3",
                                           "barrier 4",  "barrier 5",  "barrier 6",  "barrier 7",
                                           "barrier 8",  "barrier 9",  "barrier 10", "barrier 11",
                                           "barrier 12", "barrier 13", "barrier 14", "barrier 15"};
  come(block->barriers[id], threads == 0 ? block->running : threads, waits ? kNames[id] : nullptr);
}

void warpgroup_barrier() {
  constexpr int kThreads = 128;
  come(block->warpgroups[thread->number / kThreads], kThreads, "the others of its warpgroup",
       thread->number % kThreads == 0);
}

std::span<const uint32_t[kWords]> exchange(const char* operation, uint32_t mask,
                                           std::span<const uint32_t> words, bool orders) {
  const Unseen unseen;
  auto& exchanges = block->warps[static_cast<size_t>(thread->number / kWarp)];
  auto found =
      std::find_if(exchanges.begin(), exchanges.end(), [&](const auto& e) { return e->mask == mask; });
  if (found == exchanges.end()) {
    found = exchanges.insert(found, std::make_unique<Exchange>());
    (*found)->mask = mask;
  }
  Exchange& e = **found;
  const auto me = static_cast<size_t>(lane());
  const uint32_t bit = 1u << me;
  if ((mask & bit) == 0) trap("a lane that its own mask leaves out");
  Exchange::Slot& slot = e.slots[e.turns[me]++ % 2];
  if (slot.left != 0) {  // of the turn before the last: all have read it by now
    slot.came = slot.left = 0;
  }
  if (slot.came == 0) slot.operation = operation;
  if (slot.operation != operation) trap("lanes of a warp came to different operations");
  std::copy(words.begin(), words.end(), slot.words[me]);
  slot.came |= bit;
  if (orders) release(&slot);
  wait(operation, [&] { return (slot.came & mask) == mask; });
  if (orders) acquire(&slot);
  slot.left |= bit;
  return {slot.words, kWarp};
}

void* dynamic_shared() { return shared; }
uint32_t shared_address(const void* at) {
  return kFirstShared + static_cast<uint32_t>(static_cast<const uint8_t*>(at) - shared);
}
void* at_shared(uint32_t address) { return shared + static_cast<int32_t>(address - kFirstShared); }
void* at_shared_of(uint32_t address, int rank) {
  return block->cluster->shared[rank] + static_cast<int32_t>(address - kFirstShared);
}

void copy_later(std::function<void()> copy) { thread->copies.add(std::move(copy)); }
void close_copies() { thread->copies.close(); }
void wait_for_copies(int groups_left) { thread->copies.wait(groups_left); }
void after_copies(std::function<void()> then) {
  Copies copies;
  {
    const Unseen unseen;
    for (Copies& group : thread->copies.closed) std::ranges::move(group, std::back_inserter(copies));
    std::ranges::move(thread->copies.open, std::back_inserter(copies));
    thread->copies.closed.clear();
    thread->copies.open.clear();
  }
  transfer([copies = std::move(copies), then = std::move(then)] {
    for (const auto& copy : copies) copy();
    then();
  });
}
void transfer(std::function<void()> copy) {
  if (kCopiesEarly) return copy();
  release(&block->transfers);
  const Unseen unseen;
  block->transfers.push_back([copy = std::move(copy), order = &block->transfers] {
    acquire(order);
    copy();
  });
}
void transfer_in_group(std::function<void()> copy) { thread->transfers.add(std::move(copy)); }
void close_transfers() { thread->transfers.close(); }
void wait_for_transfers(int groups_left) { thread->transfers.wait(groups_left); }

}  // namespace emulator
