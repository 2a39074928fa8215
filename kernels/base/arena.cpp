#include "kernels/base/arena.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>

#ifdef TESSERA_HAS_CUDA
#include <cuda_runtime.h>
#endif

#include "kernels/base/host_limits.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Whether the host has so many bytes. The answer takes a dozen files of the system, so many small requests
// share one.
bool host_has(int64_t bytes) {
  constexpr int64_t kOften = int64_t{256} << 20;
  static std::atomic<int64_t> since = 0;  // bytes of requests since then
  if (bytes <= kOften && since.fetch_add(bytes) + bytes <= kOften) return true;
  since = 0;
  return bytes <= device_memory(Device::kCpu).free;
}

// The system commits memory page by page when it is first touched: it would grant any amount and kill the
// program later. So a request for more than is available now is refused.
char* obtain(Device device, [[maybe_unused]] bool pinned, int64_t bytes) {
#ifdef TESSERA_HAS_CUDA
  if (pinned) {
    if (!host_has(bytes)) return nullptr;
    void* base = nullptr;
    if (cudaHostAlloc(&base, bytes, cudaHostAllocDefault) == cudaSuccess) return static_cast<char*>(base);
    cudaGetLastError();  // as below
    return nullptr;
  }
#endif
  if (device == Device::kCpu) {
    if (!host_has(bytes)) return nullptr;
    void* base =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return nullptr;
    madvise(base, bytes, MADV_HUGEPAGE);
    return static_cast<char*>(base);
  }
#ifdef TESSERA_HAS_CUDA
  void* base = nullptr;
  if (cudaMalloc(&base, bytes) == cudaSuccess) return static_cast<char*>(base);
  cudaGetLastError();  // the failed allocation is reported by the caller; it must not surface at the next
                       // launch
#endif
  return nullptr;
}

void give_back(Device device, [[maybe_unused]] bool pinned, char* base, int64_t bytes) {
#ifdef TESSERA_HAS_CUDA
  if (pinned) {
    cudaFreeHost(base);
    return;
  }
#endif
  if (device == Device::kCpu) munmap(base, bytes);
#ifdef TESSERA_HAS_CUDA
  if (device == Device::kCuda) cudaFree(base);
#endif
}

}  // namespace

Arena::Arena(Device device, bool plan, bool pinned) : device_(device), plan_(plan), pinned_(pinned) {}
Arena Arena::host() { return Arena(Device::kCpu, false); }
Arena Arena::pinned(Device device) { return Arena(Device::kCpu, false, device == Device::kCuda); }
Arena Arena::mapped(Device device) { return Arena(device, false, device == Device::kCuda); }
Arena Arena::plan(Device device) { return Arena(device, true); }
Arena Arena::cuda() {
#ifdef TESSERA_HAS_CUDA
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  check(status == cudaSuccess && count > 0, "no CUDA device can be used here: {}",
        cudaGetErrorString(status));
  return Arena(Device::kCuda, false);
#else
  fail("this build has no CUDA support. Configure with -DTESSERA_CUDA=ON on a machine with the CUDA Toolkit");
#endif
}

Arena::Arena(Arena&& other) noexcept
    : device_(other.device_),
      plan_(other.plan_),
      pinned_(other.pinned_),
      pieces_(std::move(other.pieces_)),
      piece_(other.piece_),
      used_(other.used_),
      ledger_(std::move(other.ledger_)) {
  other.pieces_.clear();
}

Arena::~Arena() {
  for (const Piece& piece : pieces_) give_back(device_, pinned_, piece.base, piece.capacity);
}

Tensor Arena::alloc(MemoryTag tag, std::string_view name, DType dtype, Shape shape) {
  Tensor tensor{nullptr, dtype, shape, device_};
  const int64_t bytes = round_up(static_cast<int64_t>(tensor.bytes()), kAlignment);
  if (!plan_) {
    while (piece_ < pieces_.size() && used_ + bytes > pieces_[piece_].capacity) ++piece_, used_ = 0;
    if (piece_ == pieces_.size()) add_piece(pinned_ ? bytes : std::max(bytes, kMinPiece), name);
    tensor.data = pieces_[piece_].base + used_;
    used_ += bytes;
  }
  ledger_.enter(tag, name, bytes, tensor.data);
  return tensor;
}

void Arena::reserve(int64_t bytes) {
  check(ledger_.live().empty() && pieces_.empty(), "reserve() must come before the first allocation");
  if (!plan_ && bytes > 0) add_piece(round_up(bytes, kAlignment), "the whole plan");
}

void Arena::add_piece(int64_t bytes, std::string_view name) {
  char* base = obtain(device_, pinned_, bytes);
  if (!base) {
    const bool on_gpu = device_ == Device::kCuda && !pinned_;
    const DeviceMemory memory = device_memory(on_gpu ? device_ : Device::kCpu);
    throw OutOfMemory(fmt::format(
        "out of {} memory: needed {} for {}, {} of {} are free; this program holds {}: {}{}",
        on_gpu ? "GPU" : "system", format_bytes(bytes), name, format_bytes(memory.free),
        format_bytes(memory.total), format_bytes(ledger_.current_bytes()), format_by_tag(ledger_.current()),
        on_gpu ? "" : limits_text(pinned_)));
  }
  pieces_.push_back({base, bytes});
}

int64_t Arena::reserved_bytes() const {
  int64_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += piece.capacity;
  return bytes;
}

Arena::Scope::Scope(Arena& arena)
    : arena_(arena), live_(arena.ledger_.live().size()), piece_(arena.piece_), used_(arena.used_) {}

Arena::Scope::~Scope() {
  while (arena_.ledger_.live().size() > live_) arena_.ledger_.release_last();
  arena_.piece_ = piece_;
  arena_.used_ = used_;
}

std::string cuda_bus_id() {
#ifdef TESSERA_HAS_CUDA
  int device = 0;
  char id[32];
  if (cudaGetDevice(&device) == cudaSuccess && cudaDeviceGetPCIBusId(id, sizeof id, device) == cudaSuccess)
    return id;
#endif
  return "";
}

DeviceMemory device_memory(Device device) {
  DeviceMemory memory;
#ifdef TESSERA_HAS_CUDA
  if (device == Device::kCuda) {
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return memory;
    return {static_cast<int64_t>(free), static_cast<int64_t>(total), static_cast<int64_t>(total - free)};
  }
#endif
  if (device == Device::kCpu) {
    const HostMemory host = host_memory();
    memory.free = host.free, memory.total = host.total;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    memory.used_by_process = static_cast<int64_t>(usage.ru_maxrss) << 10;
  }
  return memory;
}

}  // namespace tessera
