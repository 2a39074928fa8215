#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/base/bf16.h"
#include "kernels/base/random.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/gemm/orthogonal_gemms.h"
#include "kernels/workspace.h"

namespace tessera::cpu {
namespace {

// The root of the sum of squares. In double, so that the norm of one part is that part's to the bit.
float norm_of_parts(const Tensor& norms) {
  double squares = 0;
  for (int64_t part = 0; part < norms.numel(); ++part) {
    const double norm = norms.as<float>()[part];
    squares += norm * norm;
  }
  return static_cast<float>(std::sqrt(squares));
}

float sum_of(const Tensor& losses) {
  const auto* all = losses.as<float>();
  return static_cast<float>(std::accumulate(all, all + losses.numel(), 0.0));
}

uint16_t round_at_random(float value, uint32_t random) {
  return bf16_at_random(std::bit_cast<uint32_t>(value), random);
}

}  // namespace

void run(const GlobalNorm& a, const Launch& on) {
  // Elements summed in one go: fixed, so that the order of the sum is too
  constexpr int64_t kBlock = 1 << 16;
  double total = 0;
  auto* sums = reinterpret_cast<double*>(on.scratch(a.kName, kNormBytes));
  for (const Tensor& tensor : a.tensors) {
    const int64_t count = tensor.numel(), blocks = (count + kBlock - 1) / kBlock;
    const float* x = tensor.as<float>();
    for (int64_t first = 0; first < blocks; first += kNormBlocks) {
      const int64_t end = std::min(blocks, first + kNormBlocks);
#pragma omp parallel for
      for (int64_t block = first; block < end; ++block) {
        double sum = 0;
        const int64_t last = std::min(count, (block + 1) * kBlock);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = block * kBlock; i < last; ++i) sum += static_cast<double>(x[i]) * x[i];
        sums[block - first] = sum;
      }
      for (int64_t i = 0; i < end - first; ++i) total += sums[i];
    }
  }
  a.norm.as<float>()[0] = static_cast<float>(std::sqrt(total));
}

void run(const SumLosses& a, const Launch& /*on*/) { a.sum.as<float>()[0] = sum_of(a.losses); }

void run(const JudgeStep& a, const Launch& /*on*/) {
  const float loss = sum_of(a.losses), norm = norm_of_parts(a.grad_norm), *limits = a.limits.as<float>();
  a.verdict.as<float>()[0] = static_cast<float>(judge_step(loss, norm, limits[0], limits[1]));
}

namespace {

// Of an element of a step
struct AdamWUpdate {
  float denominator_scale, rate, keep, beta1, gain1, beta2, gain2, epsilon, clip;

  AdamWUpdate(const AdamW& a, float scale, double weight_decay) {
    const double step = static_cast<double>(a.step);
    denominator_scale = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(a.beta2, step)));
    rate = static_cast<float>(a.learning_rate / (1.0 - std::pow(a.beta1, step)));
    keep = static_cast<float>(1.0 - a.learning_rate * weight_decay);
    beta1 = static_cast<float>(a.beta1), gain1 = static_cast<float>(1.0 - a.beta1);
    beta2 = static_cast<float>(a.beta2), gain2 = static_cast<float>(1.0 - a.beta2);
    epsilon = static_cast<float>(a.epsilon), clip = scale;
  }
  void operator()(float& p, float unclipped, float& m, float& v) const {
    const float g = unclipped * clip;
    m = beta1 * m + gain1 * g;
    v = beta2 * v + gain2 * g * g;
    p = p * keep - rate * m / (std::sqrt(v) * denominator_scale + epsilon);
  }
};

template <class Step>  // AdamW or an operation of Muon
bool changes_nothing(const Step& a) {
  const Tensor& verdict = a.verdict;
  const bool updates = !verdict || verdict.as<float>()[0] == static_cast<float>(StepVerdict::kUpdate);
  return !updates || !std::isfinite(norm_of_parts(a.grad_norm));
}

float clip_of(double max_norm, const Tensor& grad_norm) {
  if (max_norm <= 0) return 1.0f;
  return std::min(1.0f, static_cast<float>(max_norm) / (norm_of_parts(grad_norm) + 1e-6f));
}

// Calls visit(element, word) for elements of a part that are rounded at random: four share a draw. `begin` is
// a multiple of 4.
template <class Visit>
void for_each_drawn(const Philox& random, int64_t first_element, int64_t begin, int64_t end,
                    const Visit& visit) {
#pragma omp parallel for
  for (int64_t first = begin; first < end; first += 4) {
    const Philox::Words words = random.bits(static_cast<uint64_t>((first_element + first) / 4));
    for (int64_t i = first; i < std::min(end, first + 4); ++i) visit(i, words[static_cast<int>(i - first)]);
  }
}

// The elements from `begin` to `end` of a part, which decay alike. `begin` is a multiple of 8.
void update_elements(const AdamW& a, const AdamW::Part& part, const AdamWUpdate& update, int64_t begin,
                     int64_t end) {
  float* p = part.param.as<float>();
  const float* grad = part.grad.as<float>();
  if (part.m.dtype == DType::kF32) {
    float *m = part.m.as<float>(), *v = part.v.as<float>();
#pragma omp parallel for simd
    for (int64_t i = begin; i < end; ++i) update(p[i], grad[i], m[i], v[i]);
    return;
  }
  const Philox random(part.random_key, static_cast<uint64_t>(a.step));
  uint16_t *m = part.m.as<uint16_t>(), *v = part.v.as<uint16_t>();
  for_each_drawn(random, part.first_element, begin, end, [&](int64_t i, uint32_t word) {
    float m32 = float_from_bf16(m[i]), v32 = float_from_bf16(v[i]);
    update(p[i], grad[i], m32, v32);
    m[i] = round_at_random(m32, word);
    v[i] = round_at_random(v32, word >> 16);
  });
}

}  // namespace

void run(const AdamW& a, const Launch& /*on*/) {
  if (changes_nothing(a)) return;
  const float clip = clip_of(a.max_norm, a.grad_norm);
  const AdamWUpdate decaying(a, clip, a.weight_decay), plain(a, clip, 0);
  for (const AdamW::Part& part : a.parts) {
    update_elements(a, part, decaying, 0, part.decayed);
    update_elements(a, part, plain, part.decayed, part.param.numel());
  }
}

namespace {

// The squares of some elements that decay alike, added to sums[3]
void add_squares(const AdamW::Part& part, const AdamWUpdate& update, int64_t begin, int64_t end,
                 double* sums) {
  const float *p = part.param.as<float>(), *grad = part.grad.as<float>();
  const bool bf16 = part.m.dtype == DType::kBF16;
  double weights = 0, gradients = 0, updates = 0;
  for (int64_t i = begin; i < end; ++i) {
    float m = bf16 ? float_from_bf16(part.m.as<uint16_t>()[i]) : part.m.as<float>()[i],
          v = bf16 ? float_from_bf16(part.v.as<uint16_t>()[i]) : part.v.as<float>()[i], updated = p[i];
    update(updated, grad[i], m, v);
    const double weight = p[i], gradient = grad[i] * update.clip, change = updated - p[i];
    weights += weight * weight, gradients += gradient * gradient, updates += change * change;
  }
  sums[0] += weights, sums[1] += gradients, sums[2] += updates;
}

}  // namespace

void run(const AdamWNorms& a, const Launch& on) {
  constexpr int64_t kBlock = 1 << 14;            // elements summed in one go
  constexpr int64_t kAtATime = kNormBlocks / 3;  // blocks, each with three partial sums
  std::fill_n(a.sums.as<float>(), a.sums.numel(), 0.0f);
  if (changes_nothing(a.step)) return;
  auto* partials = reinterpret_cast<double*>(on.scratch(a.kName, kNormBytes));
  const float clip = clip_of(a.step.max_norm, a.step.grad_norm);
  const AdamWUpdate decaying(a.step, clip, a.step.weight_decay), plain(a.step, clip, 0);
  for (size_t s = 0; s < a.ranges.size(); ++s) {
    const AdamWNorms::Range& range = a.ranges[s];
    const AdamW::Part& part = a.step.parts[range.part];
    const int64_t end = range.first + range.count;
    double totals[3] = {};
    for (int64_t from = range.first; from < end; from += kAtATime * kBlock) {
      const int64_t blocks = std::min(kAtATime, (end - from + kBlock - 1) / kBlock);
#pragma omp parallel for
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t first = from + block * kBlock, last = std::min(end, first + kBlock),
                      border = std::clamp(part.decayed, first, last);
        double* sums = partials + 3 * block;
        std::fill_n(sums, 3, 0.0);
        add_squares(part, decaying, first, border, sums);
        add_squares(part, plain, border, last, sums);
      }
      for (int64_t i = 0; i < 3 * blocks; ++i) totals[i % 3] += partials[i];
    }
    for (int64_t i = 0; i < 3; ++i)
      a.sums.as<float>()[3 * static_cast<int64_t>(s) + i] = static_cast<float>(totals[i]);
  }
}

void run(const MuonMomentum& a, const Launch& /*on*/) {
  if (changes_nothing(a)) return;
  const float clip = clip_of(a.max_norm, a.grad_norm), momentum = static_cast<float>(a.momentum),
              gain = static_cast<float>(1 - a.momentum), *gradient = a.gradient.as<float>();
  float* direction = a.direction.as<float>();
  const auto take = [=](int64_t i, float& mean) {
    const float added = gain * (gradient[i] * clip);
    mean = momentum * mean + added;
    direction[i] = momentum * mean + added;
  };
  const int64_t count = a.direction.numel();
  if (a.mean.dtype == DType::kF32) {
    float* mean = a.mean.as<float>();
#pragma omp parallel for simd
    for (int64_t i = 0; i < count; ++i) take(i, mean[i]);
    return;
  }
  const Philox random(a.random_key, static_cast<uint64_t>(a.step));
  auto* mean = a.mean.as<uint16_t>();
  for_each_drawn(random, a.first_element, 0, count, [&](int64_t i, uint32_t word) {
    float value = float_from_bf16(mean[i]);
    take(i, value);
    mean[i] = round_at_random(value, word);
  });
}

void run(const Orthogonalise& a, const Launch& /*on*/) {
  const auto operand = [](const tessera::GemmMatrix& matrix) {
    return Matrix{
        .data = static_cast<const float*>(matrix.data), .row = matrix.ld, .transposed = matrix.transposed};
  };
  const std::vector<OrthogonalGemms> all = gemms_of(a);
  for (size_t one = 0; one < all.size(); ++one) {
    const float* matrix = a.matrices[one].as<float>();
    float* first = all[one].first.as<float>();
    const int64_t count = all[one].first.numel();
    double squares = 0;
    for (int64_t i = 0; i < count; ++i) squares += static_cast<double>(matrix[i]) * matrix[i];
    const auto factor = squares > 0 ? static_cast<float>(1 / (a.margin * std::sqrt(squares))) : 0.0f;
#pragma omp parallel for simd
    for (int64_t i = 0; i < count; ++i) first[i] = matrix[i] * factor;
    for (const tessera::Gemm& gemm : all[one].gemms) {
      if (gemm.beta != 0)
        std::memcpy(gemm.d.data, gemm.c, static_cast<size_t>(gemm.m * gemm.n) * sizeof(float));
      multiply({.rows = gemm.m,
                .columns = gemm.n,
                .terms = gemm.k,
                .scale = gemm.alpha,
                .a = operand(gemm.a),
                .b = operand(gemm.b),
                .keep = gemm.beta,
                .result = static_cast<float*>(gemm.d.data),
                .row = gemm.d.ld});
    }
  }
}

void run(const NormaliseRows& a, const Launch& /*on*/) {
  if (changes_nothing(a)) return;
  const int64_t rows = a.matrix.shape[0], columns = a.matrix.shape[1];
  float *x = a.matrix.as<float>(), *kept = a.squares.as<float>();
  double squares = 0;  // of the matrix when its rows are divided
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) sum += static_cast<double>(x[i]) * x[i];
    kept[row] = static_cast<float>(a.beta * kept[row] + (1 - a.beta) * sum / static_cast<double>(columns));
    const double length = std::sqrt(kept[row]) + NormaliseRows::kEpsilon;
    squares += sum / (length * length);
  }
  const double scale = squares > 0 ? a.rms * std::sqrt(static_cast<double>(rows * columns) / squares) : 0.0;
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row) {
    const auto factor = static_cast<float>(scale / (std::sqrt(kept[row]) + NormaliseRows::kEpsilon));
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) x[i] *= factor;
  }
}

namespace {

struct MuonStep {
  float rate, decay;
  bool cautious;

  explicit MuonStep(const MuonUpdate& a)
      : rate(static_cast<float>(a.learning_rate)),
        decay(static_cast<float>(a.weight_decay)),
        cautious(a.cautious) {}
  float operator()(float p, float direction) const {
    const float kept = cautious && direction * p <= 0 ? 0.0f : decay;
    return rate * (direction + kept * p);
  }
};

}  // namespace

void run(const MuonUpdate& a, const Launch& /*on*/) {
  if (changes_nothing(a)) return;
  const MuonStep step(a);
  const float* direction = a.direction.as<float>();
  float* p = a.param.as<float>();
  const int64_t count = a.param.numel();
#pragma omp parallel for simd
  for (int64_t i = 0; i < count; ++i) p[i] -= step(p[i], direction[i]);
}

void run(const MuonNorms& a, const Launch& /*on*/) {
  double sums[3] = {};
  if (!changes_nothing(a.step)) {
    const MuonStep step(a.step);
    const float clip = clip_of(a.max_norm, a.step.grad_norm), *p = a.step.param.as<float>(),
                *direction = a.step.direction.as<float>(), *gradient = a.gradient.as<float>();
    for (int64_t i = a.first; i < a.first + a.count; ++i) {
      const double weight = p[i], scaled = gradient[i] * clip, change = step(p[i], direction[i]);
      sums[0] += weight * weight, sums[1] += scaled * scaled, sums[2] += change * change;
    }
  }
  std::copy_n(sums, 3, a.sums.as<float>());
}

void run(const ClipHeads& a, const Launch& /*on*/) {
  if (changes_nothing(a)) return;
  const HeadFactors factors = HeadFactors::of(a);
  const int64_t each = a.head_dim * a.columns, first = a.first_element, end = first + a.param.numel();
  for (int64_t head = 0; head < a.largest.shape[2] + a.kv_heads; ++head) {
    const float factor = factors[static_cast<int>(head)];
    if (factor == 1) continue;
    float* p = a.param.as<float>() - first;
    for (int64_t i = std::max(head * each, first); i < std::min((head + 1) * each, end); ++i) p[i] *= factor;
  }
}

}  // namespace tessera::cpu
