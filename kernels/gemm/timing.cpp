#include "kernels/gemm/timing.h"

#include <algorithm>
#include <memory>
#include <random>

#include "kernels/base/fp8.h"
#include "kernels/timer.h"

namespace tessera {
namespace {

constexpr int kMostAlgorithms = 24;    // that a library is asked for; cuBLASLt has about 8
constexpr int kRounds = 2, kMore = 5;  // timed of each algorithm; of those that may be the fastest
constexpr double kMayBeFastest = 1.1;  // times the fastest so far
constexpr int64_t kFlushBytes = int64_t{256} << 20;  // several times the L2 cache of any device

// Zeros would flatter the result: multiplying them takes less power, so the clock stays higher.
void fill_operand(const Stream& stream, const Tensor& tensor) {
  const int64_t count = std::min<int64_t>(tensor.numel(), int64_t{1} << 16);
  std::vector<float> values(static_cast<size_t>(count));
  std::minstd_rand generator(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (float& value : values) value = uniform(generator);
  const Tensor begin = tensor.rows(0, count);
  std::vector<uint8_t> fp8;
  if (is_fp8(tensor.dtype)) {
    for (const float value : values) fp8.push_back(fp8_from_float(value, tensor.dtype));
    stream.run(Copy{{fp8.data(), tensor.dtype, {count}, Device::kCpu}, begin});
  } else {
    stream.run(Copy{{values.data(), DType::kF32, {count}, Device::kCpu}, begin});
  }
  for (int64_t filled = count; filled < tensor.numel();) {  // the rest repeats it
    const int64_t more = std::min(filled, tensor.numel() - filled);
    stream.run(Copy{tensor.rows(0, more), tensor.rows(filled, more)});
    filled += more;
  }
}

// A GEMM with operands of its own
class Operands {
 public:
  Operands(const Stream& stream, Arena& arena, const GemmKey& key) : gemm(gemm_of(key)) {
    const auto take = [&](const char* name, DType dtype, int64_t elements) {
      const Tensor tensor = arena.alloc(MemoryTag::kWorkspace, name, dtype, {elements});
      fill_operand(stream, tensor);
      return tensor.data;
    };
    const auto matrix = [&](const char* name, const GemmKey::Matrix& of, int64_t rows) {
      const int64_t one = of.ld * rows;  // of several, the last begins at the stride times those before
      return take(name, of.dtype, (key.batch - 1) * of.batch_stride + one);
    };
    gemm.a.data = matrix("timed GEMM, a", key.a, key.a.transposed ? key.k : key.m);
    gemm.b.data = matrix("timed GEMM, b", key.b, key.b.transposed ? key.n : key.k);
    gemm.d.data = matrix("timed GEMM, d", key.d, key.m);
    gemm.bias = take("timed GEMM, bias", key.d.dtype, key.n);
    if (key.summed > 0) gemm.sums = take("timed GEMM, sums", key.d.dtype, key.summed);
    if (has_aux(key.epilogue)) gemm.aux = take("timed GEMM, aux", key.d.dtype, key.m * key.n);
  }
  Gemm gemm;
};

class Candidate {
 public:
  Candidate(GemmLibrary& library, const Stream& stream, const Gemm& gemm, const GemmAlgorithm& of)
      : algorithm(of), enqueue_(library.prepare(gemm, of, stream.launch())) {}

  void run(const Stream& stream, const Tensor& flush) {
    if (flush) stream.run(FillZero{flush});
    timers_.push_back(make_timer(stream));
    timers_.back()->start();
    enqueue_();
    timers_.back()->stop();
  }
  void warm_up() { enqueue_(); }  // the first use loads the library's kernel
  void read() {
    for (const auto& timer : timers_) times_.push_back(timer->milliseconds());
    timers_.clear();
    std::ranges::sort(times_);
  }
  double median() const { return times_[times_.size() / 2]; }
  double least() const { return times_.front(); }

  GemmAlgorithm algorithm;

 private:
  std::function<void()> enqueue_;
  std::vector<std::unique_ptr<Timer>> timers_;
  std::vector<double> times_;  // milliseconds, in ascending order
};

// In turn, so that a clock that changes meets all of them
void run_rounds(const Stream& stream, const Tensor& flush, int rounds, std::vector<Candidate*> candidates) {
  for (int round = 0; round < rounds; ++round)
    for (Candidate* candidate : candidates) candidate->run(stream, flush);
  stream.synchronize();
  for (Candidate* candidate : candidates) candidate->read();
}

}  // namespace

std::vector<GemmTime> time_algorithms(GemmLibrary& library, const Stream& stream, Arena& arena,
                                      const GemmKey& key) {
  const std::vector<GemmAlgorithm> algorithms = library.algorithms(key, kMostAlgorithms);
  if (algorithms.empty()) return {};
  const Arena::Scope scope(arena);
  Tensor flush;
  if (stream.device() == Device::kCuda)
    flush = arena.alloc(MemoryTag::kWorkspace, "L2 flush", DType::kF32, {kFlushBytes / 4});
  const Operands operands(stream, arena, key);

  std::vector<Candidate> candidates;
  for (const GemmAlgorithm& algorithm : algorithms)
    candidates.emplace_back(library, stream, operands.gemm, algorithm).warm_up();
  std::vector<Candidate*> all, may_be_fastest;
  for (Candidate& candidate : candidates) all.push_back(&candidate);
  run_rounds(stream, flush, kRounds, all);
  const double least = std::ranges::min(all, {}, &Candidate::least)->least();
  for (Candidate* candidate : all)
    if (candidate == all.front() || candidate->least() < kMayBeFastest * least)
      may_be_fastest.push_back(candidate);
  run_rounds(stream, flush, kMore, may_be_fastest);

  std::vector<GemmTime> times;
  for (const Candidate& candidate : candidates) times.push_back({candidate.algorithm, candidate.median()});
  return times;
}

GemmChoice choose(const std::vector<GemmTime>& times) {
  const double fastest = std::ranges::min(times, {}, &GemmTime::ms).ms;
  const auto chosen = std::ranges::find_if(
      times, [&](const GemmTime& time) { return time.ms <= (1 + kGemmNoise) * fastest; });
  return {.algorithm = chosen->algorithm, .ms = chosen->ms, .first_ms = times.front().ms};
}

}  // namespace tessera
