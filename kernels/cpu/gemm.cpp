#include "kernels/cpu/gemm.h"

#include <cblas.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace tessera::cpu {
namespace {

// Large tiles copy each operand into BLAS' own layout less often; many tiles keep many threads busy.
constexpr int64_t kLargestSide = 512, kSmallestSide = 128, kEnoughTiles = 16;

struct Tiles {
  int64_t rows, columns, height = kLargestSide, width = kLargestSide;

  Tiles(int64_t of_rows, int64_t of_columns) : rows(of_rows), columns(of_columns) {
    while (down() * across() < kEnoughTiles) {
      int64_t& longer = std::min(height, rows) > std::min(width, columns) ? height : width;
      if (longer <= kSmallestSide) break;
      longer /= 2;
    }
  }
  int64_t down() const { return (rows + height - 1) / height; }
  int64_t across() const { return (columns + width - 1) / width; }
};

CBLAS_TRANSPOSE layout(const Matrix& m) { return m.transposed ? CblasTrans : CblasNoTrans; }

// An OpenBLAS with threads of its own would start them in each of ours.
[[maybe_unused]] const bool one_thread_for_each_call = [] {
  if (openblas_get_parallel() == OPENBLAS_THREAD) openblas_set_num_threads(1);
  return true;
}();

// OpenBLAS keeps a buffer for each thread, which it takes when it is loaded, and one more from its first GEMM
// on. Where the limit of address space (ulimit -v) has no room for one, it tries again for ever. So this is
// called before it is loaded.
constexpr int64_t kBlasBuffer = int64_t{128} << 20, kOfThread = int64_t{32} << 20;  // bytes

// g++ and clang both know this spelling: the sanitizers are not ready yet.
#define TESSERA_BEFORE_SANITIZERS __attribute__((no_sanitize("address", "thread", "undefined")))

TESSERA_BEFORE_SANITIZERS int64_t blas_threads(char** environment) {
  constexpr std::string_view kVariable = "OMP_NUM_THREADS=";
  cpu_set_t processors;
  int64_t count = sched_getaffinity(0, sizeof processors, &processors) == 0 ? CPU_COUNT(&processors) : 1;
  for (; *environment; ++environment)  // getenv() knows it later
    if (std::string_view(*environment).starts_with(kVariable))
      count = std::clamp<int64_t>(std::atoi(*environment + kVariable.size()), 1, count);
  return count;
}

TESSERA_BEFORE_SANITIZERS void check_address_space(int, char** argv, char** environment) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const int64_t threads = blas_threads(environment),
                needed = (threads + 1) * kBlasBuffer + threads * kOfThread;
  void* probe = mmap(nullptr, static_cast<size_t>(needed), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (probe != MAP_FAILED) {
    munmap(probe, static_cast<size_t>(needed));
    return;
  }
  char text[400];
  const int length = std::snprintf(text, sizeof text,
                                   "%s: error: the limit of address space (ulimit -v) is %lld MiB: expected "
                                   "%lld MiB more than this program "
                                   "takes, for the matrix library of the CPU with OMP_NUM_THREADS=%lld. "
                                   "Raise it with ulimit -v unlimited%s\n",
                                   basename(argv[0]), static_cast<long long>(limit.rlim_cur >> 20),
                                   static_cast<long long>(needed >> 20), static_cast<long long>(threads),
                                   threads > 1 ? ", or set OMP_NUM_THREADS=1" : "");
  if (length > 0 && write(STDERR_FILENO, text, static_cast<size_t>(length)) < 0) _exit(2);
  _exit(1);
}

// The libraries of a program run their own initialisers after these.
[[gnu::section(".preinit_array"), gnu::used]] void (*const g_before_libraries)(int, char**,
                                                                               char**) = check_address_space;

}  // namespace

void multiply(const Gemm& gemm) {
  const Tiles tiles(gemm.rows, gemm.columns);
#pragma omp parallel for schedule(dynamic)
  for (int64_t tile = 0; tile < tiles.down() * tiles.across(); ++tile) {
    const int64_t i = tile / tiles.across() * tiles.height, j = tile % tiles.across() * tiles.width;
    cblas_sgemm(CblasRowMajor, layout(gemm.a), layout(gemm.b), std::min(tiles.height, gemm.rows - i),
                std::min(tiles.width, gemm.columns - j), gemm.terms, gemm.scale,
                gemm.a.data + i * (gemm.a.transposed ? 1 : gemm.a.row), gemm.a.row,
                gemm.b.data + j * (gemm.b.transposed ? gemm.b.row : 1), gemm.b.row, gemm.keep,
                gemm.result + i * gemm.row + j, gemm.row);
  }
}

}  // namespace tessera::cpu
