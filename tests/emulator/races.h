// What the thread sanitizer learns of the emulated GPU, so that it finds races of kernels and streams: who
// runs, and what happens before what. Without the sanitizer (TESSERA_SANITIZE=thread) nothing of it is left.
//
// A "runner" takes its steps in their order: a thread of a block, a multiprocessor's copy engine, a stream.
// What one runner did before release(x) happened before what another does after acquire(x).
#pragma once

#include <cstddef>

#ifdef TESSERA_EMULATED_RACES
#include <sanitizer/tsan_interface.h>
extern "C" void __tsan_read_range(void* at, unsigned long bytes);
extern "C" void __tsan_write_range(void* at, unsigned long bytes);
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#define EMULATED_UNSEEN __attribute__((no_sanitize("thread")))  // accesses of the emulator's own
#else
#define EMULATED_UNSEEN
#endif

namespace emulator {

#ifdef TESSERA_EMULATED_RACES
class Runner {
 public:
  Runner() : fiber_(__tsan_create_fiber(0)) {}
  ~Runner() { __tsan_destroy_fiber(fiber_); }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

 private:
  friend class Turn;
  void* fiber_;
};

// Until its end, what this processor thread does is done by `runner`.
class Turn {
 public:
  explicit Turn(const Runner& runner) : before_(__tsan_get_current_fiber()) {
    __tsan_switch_to_fiber(runner.fiber_, __tsan_switch_to_fiber_no_sync);
  }
  ~Turn() { __tsan_switch_to_fiber(before_, __tsan_switch_to_fiber_no_sync); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  void* before_;
};

// Until its end, what the runner accesses is the emulator's affair.
struct Unseen {
  Unseen() { AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0); }
  ~Unseen() { AnnotateIgnoreWritesEnd("", 0), AnnotateIgnoreReadsEnd("", 0); }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

inline void release(const void* at) { __tsan_release(const_cast<void*>(at)); }
inline void acquire(const void* at) { __tsan_acquire(const_cast<void*>(at)); }
// Accesses by code that is not compiled for the sanitizer
inline void reads(const void* at, size_t bytes) { __tsan_read_range(const_cast<void*>(at), bytes); }
inline void writes(const void* at, size_t bytes) { __tsan_write_range(const_cast<void*>(at), bytes); }
#else
struct Runner {};
struct Turn {
  explicit Turn(const Runner&) {}
  ~Turn() {}
};
struct Unseen {
  ~Unseen() {}
};
inline void release(const void*) {}
inline void acquire(const void*) {}
inline void reads(const void*, size_t) {}
inline void writes(const void*, size_t) {}
#endif

}  // namespace emulator
