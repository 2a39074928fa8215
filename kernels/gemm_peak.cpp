#include "kernels/gemm_peak.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

namespace tessera {
namespace {

// Zeros would flatter the result: multiplying them takes less power, so the clock stays higher.
void fill_random(const Stream& stream, const Tensor& matrix) {
  constexpr int64_t kRows = 64;  // random; the others repeat them
  std::vector<float> values(kRows * matrix.shape[1]);
  std::minstd_rand generator(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (float& value : values) value = uniform(generator);
  const Tensor block{values.data(), DType::kF32, {kRows, matrix.shape[1]}, Device::kCpu};
  for (int64_t row = 0; row < matrix.shape[0]; row += kRows) stream.run(Copy{block, matrix.rows(row, kRows)});
}

}  // namespace

double measure_gemm_flops(const Stream& stream, Arena& arena) {
  const bool cuda = stream.device() == Device::kCuda;
  const int64_t size = cuda ? 8192 : 1024;
  const DType dtype = cuda ? DType::kBF16 : DType::kF32;
  const int products = cuda ? 10 : 1;  // in one timing: enough that starting and waiting do not count

  const Arena::Scope scope(arena);
  const Tensor x = arena.alloc(MemoryTag::kWorkspace, "GEMM peak x", dtype, {size, size});
  const Tensor weight = arena.alloc(MemoryTag::kWorkspace, "GEMM peak weight", dtype, {size, size});
  const Tensor y = arena.alloc(MemoryTag::kWorkspace, "GEMM peak y", dtype, {size, size});
  fill_random(stream, x);
  fill_random(stream, weight);

  const auto seconds = [&] {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < products; ++i) stream.run(LinearForward{.x = x, .weight = weight, .y = y});
    stream.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count() / products;
  };
  seconds();  // the first use loads the library's kernels
  // The best of a few, since other programs may use the machine
  double best = seconds();
  for (int i = 1; i < 5; ++i) best = std::min(best, seconds());
  return 2.0 * static_cast<double>(size * size * size) / best;
}

}  // namespace tessera
