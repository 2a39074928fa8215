#include "kernels/gemm/peak.h"

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

// A CPU is as fast with 768 as with larger ones, and slower with powers of two, whose rows share sets of its
// cache.
constexpr int64_t kSizes[] = {768, 1024, 8192};
constexpr double kLongEnough = 1e-3;  // seconds of a GEMM: a device that needs them gets no larger one

// GEMMs of one size
class Gemms {
 public:
  Gemms(const Stream& stream, Arena& arena, int64_t size, bool fp8)
      : stream_(stream), gemm_(make(stream, arena, size, fp8)) {
    seconds(1);  // the first use loads the library's kernels
  }

  // For one of `count`
  double seconds(int count) const {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < count; ++i) stream_.run(gemm_);
    stream_.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count() / count;
  }

 private:
  static LinearForward make(const Stream& stream, Arena& arena, int64_t size, bool fp8) {
    const DType dtype = stream.device() == Device::kCuda ? DType::kBF16 : DType::kF32;
    const auto take = [&](const char* name, DType type, const Shape& shape) {
      return arena.alloc(MemoryTag::kWorkspace, name, type, shape);
    };
    const auto random = [&](const char* name) {
      const Tensor matrix = take(name, dtype, {size, size});
      fill_random(stream, matrix);
      return matrix;
    };
    const auto quantised = [&](const char* name, const Tensor& x) {
      const Fp8Matrix y{.data = take(name, fp8_storage(DType::kE4M3, stream.device()), x.shape),
                        .scale = take("GEMM peak scale", DType::kF32, {1})};
      stream.run(Quantise{.x = x, .format = DType::kE4M3, .y = y, .current = true});
      return y;
    };
    LinearForward gemm{.x = random("GEMM peak x"),
                       .weight = random("GEMM peak weight"),
                       .y = take("GEMM peak y", dtype, {size, size})};
    if (fp8) {
      gemm.fp8_x = quantised("GEMM peak FP8 x", gemm.x);
      gemm.fp8_weight = quantised("GEMM peak FP8 weight", gemm.weight);
    }
    return gemm;
  }

  const Stream& stream_;
  LinearForward gemm_;
};

}  // namespace

double measure_gemm_flops(const Stream& stream, Arena& arena, bool fp8) {
  const int count =
      stream.device() == Device::kCuda ? 10 : 1;  // so that waiting for the device does not count
  double best = 0;  // of a few, since other programs may use the machine
  int64_t measured = 0;
  for (const int64_t size : kSizes) {
    const Arena::Scope scope(arena);
    const Gemms gemms(stream, arena, size, fp8);
    best = gemms.seconds(count), measured = size;
    for (int i = 1; i < 5; ++i) best = std::min(best, gemms.seconds(count));
    if (best > kLongEnough) break;
  }
  return 2.0 * static_cast<double>(measured * measured * measured) / best;
}

}  // namespace tessera
