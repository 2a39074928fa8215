#include "kernels/base/threads.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>

namespace tessera {

int cpu_threads(int64_t ranks) {
  const int threads = omp_get_max_threads();
  return std::getenv("OMP_NUM_THREADS") ? threads : std::max(1, static_cast<int>(threads / ranks));
}

}  // namespace tessera
