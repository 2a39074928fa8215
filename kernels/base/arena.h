// Arena: the only way to get memory.
//
// A stack allocator: memory is released in the reverse order of its allocation, when a Scope ends. Every
// allocation has a tag and a name and is entered into the ledger, rounded up to kAlignment.
//
// Five kinds, one code path:
//   Arena::host()        system memory
//   Arena::pinned(d)     system memory that is never swapped out, so that copies to and from device d need
//                        no help of the host; only for small buffers
//   Arena::mapped(d)     the same, but kernels of device d read and write it where it is, over the bus: its
//                        tensors count as the device's
//   Arena::cuda()        the current CUDA device
//   Arena::plan(device)  no memory
// The tensors of a plan arena have a shape and no data. Running a step's code over one gives the exact peak,
// so that reserve(peak) allocates everything in one piece and no later allocation reaches the driver.
//
// An arena without reserve() grows by pieces of at least kMinPiece: only tests and tools do so.
// Errors: OutOfMemory, which names the tags that hold the memory. Not thread-safe.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/ledger.h"
#include "kernels/base/tensor.h"

namespace tessera {

class OutOfMemory : public Error {
 public:
  using Error::Error;
};

class Arena {
 public:
  static constexpr int64_t kAlignment = 256;  // bytes; suits TMA, 128-bit loads, cuBLAS and AVX-512
  static constexpr int64_t kMinPiece = int64_t{16} << 20;

  static Arena host();
  static Arena pinned(Device device);
  static Arena mapped(Device device);
  static Arena cuda();  // fails where the build or the machine has no CUDA device
  static Arena plan(Device device);

  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) = delete;
  ~Arena();

  Tensor alloc(MemoryTag tag, std::string_view name, DType dtype, Shape shape);
  bool is_plan() const { return plan_; }
  // The place of the next allocation. If the place is the same at two moments, the same allocations that
  // follow get the same addresses.
  struct Place {
    size_t piece;
    int64_t used;  // bytes
    bool operator==(const Place&) const = default;
  };
  Place place() const { return {piece_, used_}; }
  void reserve(int64_t bytes);  // allocates one piece of at least this size; call it before the first alloc

  // Leaving a Scope frees what was allocated since it began. Scopes nest.
  class Scope {
   public:
    explicit Scope(Arena& arena);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t live_, piece_;
    int64_t used_;
  };

  // The current phase of the work, for the ledger (see MemoryLedger::Phase).
  class Phase : public MemoryLedger::Phase {
   public:
    explicit Phase(Arena& arena, const char* name, int64_t number = MemoryRecording::kNone,
                   Kind kind = kRecordAll)
        : MemoryLedger::Phase(arena.ledger_, name, number, kind) {}
  };
  void record() { ledger_.record(); }  // allocations, releases and phases; call before the first alloc

  Device device() const { return device_; }
  int64_t reserved_bytes() const;  // obtained from the driver so far
  const MemoryLedger& ledger() const { return ledger_; }

 private:
  struct Piece {
    char* base;
    int64_t capacity;
  };
  Arena(Device device, bool plan, bool pinned = false);
  void add_piece(int64_t bytes, std::string_view name);

  Device device_;
  bool plan_, pinned_;
  std::vector<Piece> pieces_;
  size_t piece_ = 0;  // the piece that the next allocation is tried in
  int64_t used_ = 0;  // bytes of that piece in use
  MemoryLedger ledger_;
};

struct DeviceMemory {
  int64_t free = 0;             // bytes that can be obtained now
  int64_t total = 0;            // bytes of the device (host: of the machine, or what limits this container)
  int64_t used_by_process = 0;  // host: peak resident set; cuda: total - free, other processes included
};
DeviceMemory device_memory(Device device);
std::string cuda_bus_id();  // "0000:1b:00.0", the place of the present GPU on the PCI bus; "": there is none

}  // namespace tessera
