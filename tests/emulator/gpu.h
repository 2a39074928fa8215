// A GPU that is not there: CUDA kernels, compiled for the CPU, run here with every thread of a block as a
// fiber.
//
// A block has a processor thread ("multiprocessor") to itself while it runs, so that its shared memory is
// what `thread_local` is to that thread. Its fibers take turns; one gives up its turn where a GPU's thread
// would wait: at a barrier, in a shuffle, for an mbarrier, for another block. As many blocks run at a time as
// there are multiprocessors, so that those of a launch that is no larger may wait for each other.
//
// What is emulated is the arithmetic and the order of events, not the speed. Copies that a GPU makes in the
// background are made as late as they may be, when somebody waits for them, or at once
// (TESSERA_EMULATOR_COPIES=late|early); fibers begin their turns from the first to the last, or the other way
// round (TESSERA_EMULATOR_ORDER=up|down). A kernel that is right gives the same bits each time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace emulator {

#ifdef TESSERA_EMULATED_RACES  // the thread sanitizer's time grows with the threads that there are
inline constexpr int kMultiprocessors = 2;
#else
inline constexpr int kMultiprocessors = 4;
#endif
inline constexpr int kSharedBytes = 227 * 1024;  // that a block may ask for, as on a GPU of 9.0
inline constexpr int kWarp = 32;

// Whether this environment variable has this value
bool is_set(const char* variable, const char* value);

struct Size {
  unsigned x = 1, y = 1, z = 1;
  int64_t count() const { return int64_t{x} * y * z; }
};

struct Grid {
  Size blocks, threads;
  size_t shared_bytes = 0;
  int cluster = 1;  // blocks along x that see each other's shared memory
};

// Runs `thread` once for every thread of the grid and waits for the last. Threads that wait for what can no
// longer come end the program, with a line for each that names what it waits for.
void run(const Grid& grid, const std::function<void()>& thread);

// ---- of the thread that calls them ----

// Until `ready`, other threads have their turns. `what` is for the message when it never is.
void wait_until(const char* what, const std::function<bool()>& ready);
// A turn for the others, by a thread that polls memory
void let_others_run();
[[noreturn]] void trap(const char* why);

int lane();
int cluster_rank();
void cluster_barrier();
// bar.sync and bar.arrive: barrier `id` of the block opens when `threads` of them came; 0: all that still run
void barrier(int id, int threads, bool wait);

// For all 128 threads of this one's warpgroup. It orders what the first one did, which reads for the tensor
// core.
void warpgroup_barrier();

// What each lane of `mask` gave, by lane, once all of them came to the same operation. If it `orders`, they
// see each other's memory as it was then.
inline constexpr int kWords = 8;
std::span<const uint32_t[kWords]> exchange(const char* operation, uint32_t mask,
                                           std::span<const uint32_t> words, bool orders = false);

// ---- shared memory by the 32-bit addresses that PTX has ----

void* dynamic_shared();
uint32_t shared_address(const void* at);
void* at_shared(uint32_t address);
// The same place in another block of the cluster
void* at_shared_of(uint32_t address, int rank);

// ---- copies in the background ----

// cp.async, in groups of the thread
void copy_later(std::function<void()> copy);
void close_copies();
void wait_for_copies(int groups_left);
// Once all that this thread has asked for are made, `then`
void after_copies(std::function<void()> then);
// The copy engine, in groups of the thread as well where nothing else tells that it is done
void transfer(std::function<void()> copy);
void transfer_in_group(std::function<void()> copy);
void close_transfers();
void wait_for_transfers(int groups_left);

}  // namespace emulator
