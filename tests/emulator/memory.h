// Memory of the emulated GPU. Kernels are given none of the host's unless it is pinned, and the host cannot
// touch the GPU's (TESSERA_EMULATOR_GUARD=on).
#pragma once

#include <cstddef>

namespace emulator {

inline constexpr size_t kMemory = size_t{8} << 30;

// Of NaNs; null if it does not fit. Memory behind its end is nobody's.
void* allocate(size_t bytes);
bool deallocate(void* memory);  // false if it is none of ours
size_t allocated();             // bytes

void* allocate_pinned(size_t bytes);
void deallocate_pinned(void* memory);

// While one exists, what runs is the GPU's and may touch its memory. At other times, if it is guarded, an
// access ends the program with a message.
class Access {
 public:
  Access();
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

// Ends the program with a message if a kernel's parameter is an address of the host's memory or, if guarded,
// seems to hold one: a number or unused bytes may look like that.
void check_parameter(const void* kernel_parameter, size_t bytes, bool is_address);

}  // namespace emulator
