#include "tests/emulator/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/emulator/gpu.h"

namespace emulator {
namespace {

constexpr size_t kAlignment = 256, kPage = 4096;

// It makes many small launches ten times slower.
const bool kGuarded = is_set("TESSERA_EMULATOR_GUARD", "on");

struct Allocation {
  size_t bytes;
  char* pages;
  size_t bytes_of_pages;
};

std::mutex mutex;
std::map<const char*, Allocation> allocations;  // by their first byte
std::map<const char*, size_t> pinned;
size_t allocated_bytes = 0;
int accesses = 0;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

template <class Map>
typename Map::const_iterator holder_of(const Map& map, const char* at) {
  const auto next = map.upper_bound(at);
  return next == map.begin() ? map.end() : std::prev(next);
}

void protect(int protection) {
  if (!kGuarded) return;
  for (const auto& [_, a] : allocations) mprotect(a.pages, a.bytes_of_pages, protection);
}

void refuse(int, siginfo_t* info, void*) {
  const auto* at = static_cast<const char*>(info->si_addr);
  if (const auto holder = holder_of(allocations, at);
      holder != allocations.end() && at < holder->first + holder->second.bytes && accesses == 0)
    std::fprintf(stderr, "emulator: the host accesses memory of the GPU, byte %td of an allocation of %zu\n",
                 at - holder->first, holder->second.bytes);
  std::signal(SIGSEGV, SIG_DFL);  // and again
}

void watch_accesses() {
  struct sigaction action{};
  action.sa_sigaction = refuse;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace

void* allocate(size_t bytes) {
  const std::lock_guard lock(mutex);
  if (kGuarded && allocations.empty()) watch_accesses();
  if (bytes > kMemory - allocated_bytes) return nullptr;
  const size_t in_pages = round_up(std::max(bytes, size_t{1}), kPage);
  void* pages =
      mmap(nullptr, in_pages + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  auto* const first = static_cast<char*>(pages);
  char* const memory = first + in_pages - round_up(std::max(bytes, size_t{1}), kAlignment);
  mprotect(first, in_pages, PROT_READ | PROT_WRITE);
  std::memset(memory, 0xff, bytes);
  if (kGuarded && accesses == 0) mprotect(first, in_pages, PROT_NONE);
  allocations[memory] = {bytes, first, in_pages};
  allocated_bytes += bytes;
  return memory;
}

bool deallocate(void* memory) {
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(static_cast<const char*>(memory));
  if (found == allocations.end()) return false;
  allocated_bytes -= found->second.bytes;
  munmap(found->second.pages, found->second.bytes_of_pages + kPage);
  allocations.erase(found);
  return true;
}

size_t allocated() {
  const std::lock_guard lock(mutex);
  return allocated_bytes;
}

void* allocate_pinned(size_t bytes) {
  void* memory = std::aligned_alloc(kPage, round_up(bytes, kPage));
  const std::lock_guard lock(mutex);
  if (memory) pinned[static_cast<const char*>(memory)] = bytes;
  return memory;
}

void deallocate_pinned(void* memory) {
  const std::lock_guard lock(mutex);
  pinned.erase(static_cast<const char*>(memory));
  std::free(memory);
}

Access::Access() {
  const std::lock_guard lock(mutex);
  if (accesses++ == 0) protect(PROT_READ | PROT_WRITE);
}
Access::~Access() {
  const std::lock_guard lock(mutex);
  if (--accesses == 0) protect(PROT_NONE);
}

void check_parameter(const void* parameter, size_t bytes, bool is_address) {
  if (!is_address && !kGuarded) return;
  for (size_t i = 0; i + sizeof(char*) <= bytes; i += sizeof(char*)) {
    const char* at;
    std::memcpy(&at, static_cast<const char*>(parameter) + i, sizeof at);
    const auto number = reinterpret_cast<uintptr_t>(at);
    if (number >> 40 < 0x55 || number >> 40 > 0x7f) continue;  // no address of programs on Linux
    const std::lock_guard lock(mutex);
    const auto ours = holder_of(allocations, at);
    if (ours != allocations.end() && at <= ours->first + ours->second.bytes) continue;
    const auto host = holder_of(pinned, at);
    if (host != pinned.end() && at <= host->first + host->second) continue;
    unsigned char is_there;
    if (mincore(reinterpret_cast<void*>(number / kPage * kPage), 1, &is_there) != 0) continue;
    std::fprintf(stderr,
                 "emulator: a kernel is given %p, which is memory of the host, %zu bytes into a parameter\n",
                 static_cast<const void*>(at), i);
    std::abort();
  }
}

}  // namespace emulator
