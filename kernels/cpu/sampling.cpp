// The next token of each sequence: token_draw.h has the method. The cuts of top_k and top_p are found as
// in a radix sort, a digit of the order at a time from the highest: no list of tokens is kept or sorted.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/token_draw.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kBlock = 1024;  // tokens at a time; a multiple of the bits of a word

// The logits of one sequence, after the repetition penalty
struct Row {
  const float* logits;
  const int32_t* seen;
  int64_t vocab_size;
  SamplingRule rule;

  // Calls visit(first token, their x, how many)
  template <class Visit>
  void each_block(const Visit& visit) const {
    float x[kBlock];
    for (int64_t first = 0; first < vocab_size; first += kBlock) {
      const int64_t count = std::min(kBlock, vocab_size - first);
      const float* block = logits + first;
      if (rule.repetition_penalty != 1) {
        penalise(first, count, x);
        block = x;
      }
      if (!visit(first, block, count)) return;
    }
  }

 private:
  void penalise(int64_t first, int64_t count, float* x) const {
    std::memcpy(x, logits + first, static_cast<size_t>(count) * sizeof(float));
    for (int64_t word = 0; word < (count + 31) / 32; ++word)
      for (uint32_t bits = static_cast<uint32_t>(seen[first / 32 + word]); bits != 0; bits &= bits - 1) {
        const int64_t i = word * 32 + std::countr_zero(bits);
        if (i < count) x[i] = penalised(x[i], rule.repetition_penalty);
      }
  }
};

// The largest x; NaN if any logit is
float largest_of(const Row& row) {
  float largest = -std::numeric_limits<float>::infinity();
  bool any_nan = false;
  row.each_block([&](int64_t, const float* x, int64_t count) {
    int32_t nans = 0;
#pragma omp simd reduction(+ : nans)
    for (int64_t i = 0; i < count; ++i) nans += x[i] != x[i];
    largest = std::max(largest, cpu::largest_of(x, count));
    any_nan = any_nan || nans > 0;
    return true;
  });
  return any_nan ? std::numeric_limits<float>::quiet_NaN() : largest;
}

int64_t first_with(const Row& row, float sought) {
  int64_t found = -1;
  row.each_block([&](int64_t first, const float* x, int64_t count) {
    const float* at = std::find(x, x + count, sought);
    if (at != x + count) found = first + (at - x);
    return found < 0;
  });
  return found;
}

// The cut where the sum of amount(x), over the tokens that `within` keeps and in their order, first reaches
// `sought`. Sought is at most the sum of all.
template <class Amount>
TokenCut cut_at(const Row& row, const TokenCut& within, uint64_t sought, const Amount& amount) {
  constexpr int kDigits[] = {11, 11, 10};
  uint32_t order = 0;
  int below = 32;  // bits of the order that are not yet known
  for (const int digit : kDigits) {
    std::array<uint64_t, 1 << 11> sums{};
    const int known = below;
    below -= digit;
    row.each_block([&](int64_t first, const float* x, int64_t count) {
      uint64_t amounts[kBlock];  // of all, in vector code, while all are asked for
      for (int64_t i = 0; i < (known == 32 ? count : 0); ++i) amounts[i] = amount(x[i]);
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t token_order = order_of(x[i]);
        if ((known < 32 && (token_order ^ order) >> known != 0) || !within.keeps(token_order, first + i))
          continue;
        sums[token_order >> below & ((1u << digit) - 1)] += known == 32 ? amounts[i] : amount(x[i]);
      }
      return true;
    });
    uint32_t at = (1u << digit) - 1;
    for (; sought > sums[at]; --at) sought -= sums[at];
    order |= at << below;
  }
  TokenCut cut{.order = order};
  row.each_block([&](int64_t first, const float* x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (order_of(x[i]) != order || !within.keeps(order, first + i)) continue;
      const uint64_t its = amount(x[i]);
      if (sought <= its) {
        cut.last_id = first + i;
        return false;
      }
      sought -= its;
    }
    return true;
  });
  return cut;
}

// The weights of the tokens that are kept, a block at a time: visit(first token, weights, how many)
template <class Visit>
void each_weight(const Row& row, float largest, const TokenCut& cut, uint64_t least, const Visit& visit) {
  uint64_t weights[kBlock];
  row.each_block([&](int64_t first, const float* x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) weights[i] = weight_of(x[i], largest, row.rule.temperature);
    if (cut.order > 0 || least > 0)
      for (int64_t i = 0; i < count; ++i)
        if (weights[i] < least || !cut.keeps(order_of(x[i]), first + i)) weights[i] = 0;
    return visit(first, weights, count);
  });
}

uint64_t total_weight(const Row& row, float largest, const TokenCut& cut, uint64_t least) {
  uint64_t total = 0;
  each_weight(row, largest, cut, least, [&](int64_t, const uint64_t* weights, int64_t count) {
    for (int64_t i = 0; i < count; ++i) total += weights[i];
    return true;
  });
  return total;
}

int64_t drawn_token(const Row& row, float largest, uint64_t seed, int32_t sequence, int32_t draw) {
  const SamplingRule& rule = row.rule;
  TokenCut cut;
  if (rule.top_k > 0 && rule.top_k < row.vocab_size)
    cut = cut_at(row, cut, static_cast<uint64_t>(rule.top_k), [](float) { return uint64_t{1}; });
  if (rule.top_p < 1)
    cut = cut_at(row, cut, top_p_weight(rule.top_p, total_weight(row, largest, cut, 0)),
                 [&](float x) { return weight_of(x, largest, rule.temperature); });
  const uint64_t least = min_p_weight(rule.min_p);
  uint64_t left = drawn_weight(seed, sequence, draw, total_weight(row, largest, cut, least));
  int64_t token = -1;
  each_weight(row, largest, cut, least, [&](int64_t first, const uint64_t* weights, int64_t count) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += weights[i];
    if (left >= sum) {
      left -= sum;
      return true;
    }
    int64_t i = 0;
    for (; left >= weights[i]; ++i) left -= weights[i];
    token = first + i;
    return false;
  });
  return token;
}

}  // namespace

void run(const SampleTokens& a, const Launch& /*on*/) {
  const int64_t B = a.logits.shape[0], padded = a.logits.shape[1], words = a.seen.shape[1];
#pragma omp parallel for
  for (int64_t b = 0; b < B; ++b) {
    int32_t &start = a.starts.as<int32_t>()[b], *draws = a.draws.as<int32_t>() + 2 * b;
    int32_t *seen = a.seen.as<int32_t>() + b * words, &out = a.tokens.as<int32_t>()[b];
    out = kIdleToken;
    if (start < 0) continue;
    const Row row{a.logits.as<float>() + b * padded, seen, a.vocab_size, a.rule};
    const float largest = largest_of(row);
    if (!std::isfinite(largest)) {
      out = kBadLogits;
      start = -1;
      continue;
    }
    const int64_t token = a.rule.temperature == 0 ? first_with(row, largest)
                                                  : drawn_token(row, largest, a.seed, draws[0], draws[1]);
    out = static_cast<int32_t>(token);
    seen[token / 32] |= static_cast<int32_t>(uint32_t{1} << static_cast<uint64_t>(token) % 32);
    ++draws[1];
    ++start;
  }
}

}  // namespace tessera::cpu
