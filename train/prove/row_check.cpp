#include "train/prove/row_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/random.h"
#include "train/prove/allowed.h"

namespace tessera {
namespace {

constexpr uint64_t kSampleSeed = 20;

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t d = 0; d < n; ++d) sum += static_cast<double>(a[d]) * static_cast<double>(b[d]);
  return sum;
}
Tensor beginning(const Tensor& t, int64_t sequences) {  // [B, ...]
  const int64_t B = t.shape[0];
  return t.view({B, t.numel() / B}).rows(0, sequences);
}
double square(double x) { return x * x; }
double widened(float x) { return x; }

}  // namespace

std::shared_ptr<const float[]> HostMemory::read(const Tensor& tensor, Backend& be, const Launch& on) {
  for (const auto& [known, values] : read_)
    if (known.data == tensor.data && known.dtype == tensor.dtype && known.numel() == tensor.numel())
      return values;
  const std::shared_ptr<float[]> memory = take(tensor.numel());
  be.run(Copy{tensor, {memory.get(), DType::kF32, tensor.shape, Device::kCpu}}, on);
  be.synchronize(on.stream);
  read_.emplace_back(tensor, memory);
  return memory;
}

// The smallest that is free and not more than twice as large
std::shared_ptr<float[]> HostMemory::take(int64_t count) {
  const Piece* best = nullptr;
  for (const Piece& each : pieces_)
    if (each.memory.use_count() == 1 && each.count >= count && each.count / 2 <= count)
      if (!best || each.count < best->count) best = &each;
  if (best) return best->memory;
  pieces_.push_back({std::make_shared_for_overwrite<float[]>(static_cast<size_t>(count)), count});
  return pieces_.back().memory;
}

HostHeads RowCheck::on_host(const Heads& heads, int64_t sequences, Backend& be, const Launch& on) {
  const Tensor& t = heads.tensor;
  return {.values = memory_.read(beginning(t, sequences), be, on),
          .tokens = t.shape[1],
          .row = t.shape[2] * t.shape[3],
          .head_dim = t.shape[3],
          .first = heads.first};
}

// What an operation of attention reads, and y of a forward
template <class Op>
RowCheck::Inputs RowCheck::inputs_of(const Op& op, int64_t sequences, Backend& be, const Launch& on) {
  Inputs inputs{.q = on_host(op.q, sequences, be, on),
                .k = on_host(op.k, sequences, be, on),
                .v = on_host(op.v, sequences, be, on),
                .y = on_host(op.y, sequences, be, on),
                .dy = {},
                .lse = {},
                .sinks = {}};
  if constexpr (requires { op.dy; }) inputs.dy = on_host(op.dy, sequences, be, on);
  if (op.sinks) inputs.sinks = memory_.read(op.sinks, be, on);
  if (op.plan.kind != AttentionKind::kNaive)
    inputs.lse = memory_.read(beginning(op.saved, sequences), be, on);
  memory_.forget();  // what the next operation finds there is not this
  return inputs;
}

// The problem of an operation, on the host
struct RowCheck::Of {
  // Expected relative errors: of a probability, of a score in fp32 whose terms add up to `size`, and
  // of what is stored
  struct Errors {
    DType dtype;
    double stored() const { return allowed::rounding(dtype); }
    double sum(double terms) const { return square(0x1p-24) * terms; }  // squared: a random walk of roundings
    double probability(double size) const {
      const double rounded = dtype == DType::kBF16 ? stored() : 0;
      return std::sqrt(square(rounded) + square(0x1p-24 * (4 + size)));
    }
  };

  const Inputs& in;
  const AttentionPlan& plan;
  int64_t head_dim, group;
  Errors errors;

  Of(const Inputs& inputs, const AttentionPlan& of)
      : in(inputs), plan(of), head_dim(of.shape.head_dim), group(of.shape.group()), errors{of.dtype} {}
  double score(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const double s = widened(plan.scale) * dot(in.q.at(b, i, h), in.k.at(b, j, h / group), head_dim);
    return capped(s) - slope(h) * static_cast<double>(i - j);  // the mask is causal
  }
  double capped(double s) const {
    const double cap = plan.shape.scores.cap;
    return cap > 0 ? cap * std::tanh(s / cap) : s;
  }
  // Of a score with its cap
  double cap_derivative(double score) const {
    const double cap = plan.shape.scores.cap;
    return cap > 0 ? 1 - square(score / cap) : 1;
  }
  // ALiBi's, as the paper has it: of head h of the first p, a power of two, and of the others
  double slope(int64_t h) const {
    const int64_t heads = plan.shape.scores.alibi_heads, at = plan.first_head + h;
    if (heads == 0) return 0;
    const auto p = static_cast<double>(std::bit_floor(static_cast<uint64_t>(heads)));
    const auto n = static_cast<double>(at);
    return n < p ? std::exp2(-8 * (n + 1) / p) : std::exp2(-4 * (2 * (n - p) + 1) / p);
  }
};

RowCheck::RowCheck(const SequencesView& data, const Shape& shape)
    : documents_(data.documents.begin(), data.documents.end()),
      T_(shape.sequence_length),
      shape_(shape),
      blocks_(static_cast<size_t>(shape.blocks)) {}

// Each row by a thread; sums of a head in the order of its rows
void RowCheck::check_rows(int64_t block, const std::vector<Row>& rows,
                          const std::function<void(const Row&, OfHead&)>& check) {
  std::vector<OfHead> found(rows.size());
#pragma omp parallel for schedule(dynamic)
  for (size_t n = 0; n < rows.size(); ++n) check(rows[n], found[n]);
  std::vector<OfHead>& heads = blocks_[static_cast<size_t>(block)];
  for (size_t n = 0; n < rows.size(); ++n) {
    const auto h = static_cast<size_t>(rows[n].h);
    if (heads.size() <= h) heads.resize(h + 1);
    heads[h].add(found[n]);
  }
  rows_ += std::ssize(rows);
}

// The keys of a query: causal, within its document, within the window
RowCheck::Keys RowCheck::seen_by(int64_t sequence, int64_t query, const AttentionPlan& plan) const {
  const auto at = static_cast<size_t>(2 * (sequence * T_ + query));
  int64_t begin = documents_.empty() ? 0 : documents_[at];
  if (const int64_t window = plan.shape.mask.window) begin = std::max(begin, query - window + 1);
  return {begin, query + 1};
}

void RowCheck::list_blocks(int64_t block) {
  const SparsePattern pattern = shape_.sparse.at(static_cast<size_t>(block));
  if (pattern == pattern_) return;
  pattern_ = pattern, listed_.clear();
  for (int64_t row = 0; pattern.window > 0 && row * pattern.block < T_; ++row)
    listed_.push_back(pattern.keys_of(row));
}

bool RowCheck::shows(int64_t query, int64_t key) const {
  return pattern_.window == 0 ||
         std::ranges::binary_search(listed_[static_cast<size_t>(query / pattern_.block)],
                                    key / pattern_.block);
}

RowCheck::Shown RowCheck::shown_to(const Of& of, const Row& row, const Keys& keys) const {
  const auto& [size, count] = of.plan.shape.mask.choice;
  Shown shown{.first = keys.begin, .size = size, .blocks = {}, .close = false};
  if (size == 0) return shown;
  const int64_t own = (keys.end - keys.begin - 1) / size, others = std::min(count - 1, own);
  shown.blocks.resize(static_cast<size_t>(own + 1));
  shown.blocks.back() = true;
  std::vector<std::pair<double, int64_t>> blocks;  // the score times -1, and which block
  double largest = 0;
  for (int64_t block = 0; block < own; ++block) {
    double sum = 0, sizes = 0;  // the mean of products is the product with the mean
    for (int64_t j = keys.begin + block * size; j < keys.begin + (block + 1) * size; ++j) {
      const double product =
          dot(of.in.q.at(row.b, row.i, row.h), of.in.k.at(row.b, j, row.h / of.group), of.head_dim);
      sum += product, sizes += std::abs(product);
    }
    blocks.emplace_back(-sum / static_cast<double>(size), block);
    largest = std::max(largest, sizes / static_cast<double>(size));
  }
  std::ranges::sort(blocks);
  for (int64_t i = 0; i < others; ++i)
    shown.blocks[static_cast<size_t>(blocks[static_cast<size_t>(i)].second)] = true;
  if (others == 0 || others == own) return shown;
  const auto last = static_cast<size_t>(others);
  // The error of a score in fp32: a random walk of as many roundings as the mean and the product have
  const double rounding = 0x1p-23 * std::sqrt(static_cast<double>(size + of.head_dim)) * largest;
  shown.close = blocks[last].first - blocks[last - 1].first < rounding;
  return shown;
}

// Every head at least once. Every third row is the first of its document, which sees itself alone, and every
// third the last, which the next document must not see.
std::vector<RowCheck::Row> RowCheck::samples(int64_t block, int64_t first, const AttentionShape& s,
                                             int64_t heads) const {
  const double all =
      shape_.budget / static_cast<double>(shape_.blocks * shape_.sequences) * static_cast<double>(s.batch);
  const auto affordable = static_cast<int64_t>(all / static_cast<double>(8 * s.tokens * s.head_dim));
  const int64_t count = std::clamp(affordable, heads, s.batch * heads * std::min<int64_t>(s.tokens, 64));
  const Philox random(kSampleSeed, static_cast<uint64_t>(block * shape_.sequences + first));
  std::vector<Row> rows;
  for (int64_t n = 0; n < count; ++n) {
    Row row{.b = n / heads % s.batch,
            .h = n % heads,
            .i = static_cast<int64_t>(random.bits(static_cast<uint64_t>(n))[0]) % s.tokens};
    const auto at = static_cast<size_t>(2 * ((first + row.b) * T_ + row.i));
    const int64_t turn = n / heads % 3;
    if (turn == 1) row.i = documents_.empty() ? 0 : documents_[at];
    if (turn == 2) row.i = documents_.empty() ? s.tokens - 1 : documents_[at + 1] - 1;
    rows.push_back(row);
  }
  return rows;
}

int64_t RowCheck::sampled(int64_t block, int64_t first, const AttentionShape& s) const {
  int64_t last = 0;
  for (const int64_t heads : {s.heads, s.kv_heads})
    for (const Row& row : samples(block, first, s, heads)) last = std::max(last, row.b);
  return last + 1;
}

void RowCheck::forward(int64_t block, int64_t first, const AttentionForward& op, Backend& be,
                       const Launch& on) {
  inputs_ = inputs_of(op, sampled(block, first, op.plan.shape), be, on);
  list_blocks(block);
  const Of of(inputs_, op.plan);
  const int64_t D = of.head_dim, H = op.plan.shape.heads;
  check_rows(block, samples(block, first, op.plan.shape, H), [&](const Row& row, OfHead& found) {
    const auto [b, h, i] = row;
    std::vector<double> p, y(static_cast<size_t>(D)), squares(y.size());
    const Keys keys = seen_by(first + b, i, op.plan);
    const auto count = static_cast<double>(keys.end - keys.begin);
    const Shown chosen = shown_to(of, row, keys);
    if (chosen.close) return;
    double most = -INFINITY, sum = 0, size = 0;
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      p.push_back(shows(i, j) && chosen.has(j) ? of.score(b, h, i, j) : -INFINITY);
      if (std::isinf(p.back())) continue;
      most = std::max(most, p.back()), size = std::max(size, std::abs(p.back()));
    }
    if (inputs_.sinks) {  // a score that has no value
      const double sink = widened(inputs_.sinks[h]);
      most = std::max(most, sink), size = std::max(size, std::abs(sink));
      sum = std::exp(sink - most);
    }
    for (double& each : p) sum += each = std::exp(each - most);
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const double probability = p[static_cast<size_t>(j - keys.begin)] / sum;
      const float* v = inputs_.v.at(b, j, h / of.group);
      for (int64_t d = 0; d < D; ++d) {
        const double term = probability * widened(v[d]);
        y[static_cast<size_t>(d)] += term, squares[static_cast<size_t>(d)] += square(term);
      }
    }
    for (int64_t d = 0; d < D; ++d) {
      const double exact = y[static_cast<size_t>(d)], terms = squares[static_cast<size_t>(d)];
      found.y.difference.add(widened(inputs_.y.at(b, i, h)[d]), exact);
      found.y.expected += square(of.errors.probability(size)) * terms + square(of.errors.stored() * exact) +
                          of.errors.sum(count) * (terms + square(exact));
    }
    if (inputs_.lse) {
      const double lse = most + std::log(sum);
      found.lse.difference.add(widened(inputs_.lse[(b * H + h) * T_ + i]), lse);
      found.lse.expected += square(0x1p-24) * (square(8 + 4 * size + std::abs(lse)) + count);
    }
  });
  inputs_ = {};
}

void RowCheck::before_backward(int64_t block, int64_t first, const AttentionBackward& op, Backend& be,
                               const Launch& on) {
  inputs_ = inputs_of(op, sampled(block, first, op.plan.shape), be, on);
}

void RowCheck::after_backward(int64_t block, int64_t first, const AttentionBackward& op, Backend& be,
                              const Launch& on) {
  if (!inputs_.lse) return;
  const int64_t read = sampled(block, first, op.plan.shape);
  const HostHeads dq = on_host(op.dq, read, be, on), dk = on_host(op.dk, read, be, on),
                  dv = on_host(op.dv, read, be, on);
  memory_.forget();
  list_blocks(block);
  const Of of(inputs_, op.plan);
  const AttentionShape& s = op.plan.shape;
  const int64_t D = of.head_dim, H = s.heads;
  const double scale = widened(op.plan.scale);
  // P, dS and the error of dS, without what P and dS are rounded to, of a query and a key
  struct Pair {
    double p, ds, error;
  };
  const auto pair = [&](int64_t b, int64_t h, int64_t i, int64_t j) -> Pair {
    const float *dy = inputs_.dy.at(b, i, h), *y = inputs_.y.at(b, i, h),
                *v = inputs_.v.at(b, j, h / of.group);
    const double score = of.score(b, h, i, j),
                 p = std::exp(score - widened(inputs_.lse[(b * H + h) * T_ + i]));
    double products = 0;
    for (int64_t d = 0; d < D; ++d)
      products += square(widened(dy[d]) * widened(y[d])) + square(widened(dy[d]) * widened(v[d]));
    const double of_cap = of.cap_derivative(score), ds = of_cap * p * (dot(dy, v, D) - dot(dy, y, D));
    return {p, ds,
            std::abs(ds) * of.errors.probability(std::abs(score)) +
                of_cap * p * std::sqrt(products) * (of.errors.stored() + 4 * 0x1p-24)};
  };
  // Element d of a gradient: its sum, the squares of its terms, their errors
  using Sums = std::vector<double>;
  const auto settle = [&](Found& to, const Sums& sums, const float* values, int64_t at, double count) {
    for (int64_t d = 0; d < D; ++d) {
      const double exact = sums[static_cast<size_t>(at + d)], error = sums[static_cast<size_t>(at + D + d)];
      to.difference.add(widened(values[d]), exact);
      to.expected += error + square(of.errors.stored() * exact) + of.errors.sum(count) * square(exact);
    }
  };
  check_rows(block, samples(block, first, s, H), [&](const Row& row, OfHead& found) {
    const auto [b, h, i] = row;
    Sums sums(static_cast<size_t>(2 * D));
    const Keys keys = seen_by(first + b, i, op.plan);
    const auto count = static_cast<double>(keys.end - keys.begin);
    const Shown chosen = shown_to(of, row, keys);
    if (chosen.close) return;
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      if (!shows(i, j) || !chosen.has(j)) continue;
      const Pair of_pair = pair(b, h, i, j);
      const float* k = inputs_.k.at(b, j, h / of.group);
      for (int64_t d = 0; d < D; ++d) {
        sums[static_cast<size_t>(d)] += scale * of_pair.ds * widened(k[d]);
        // The error of the query's own dy y is the same for all keys: errors add up, at worst.
        sums[static_cast<size_t>(D + d)] +=
            std::abs(scale * of_pair.error * widened(k[d])) / std::sqrt(count);
      }
    }
    for (int64_t d = 0; d < D; ++d)
      sums[static_cast<size_t>(D + d)] = square(sums[static_cast<size_t>(D + d)]) * count;
    settle(found.dq, sums, dq.at(b, i, h), 0, count);
  });
  // dK and dV need to know which queries chose the block of a key, and so the choice of all: too slow.
  if (s.mask.choice) {
    inputs_ = {};
    return;
  }
  check_rows(block, samples(block, first, s, s.kv_heads), [&](const Row& row, OfHead& found) {
    const auto [b, h, j] = row;
    Sums sums(static_cast<size_t>(4 * D));
    double count = 0;
    for (int64_t i = j; i < s.tokens; ++i) {
      if (const Keys keys = seen_by(first + b, i, op.plan); j < keys.begin)
        break;  // and so for all later ones
      if (!shows(i, j)) continue;
      for (int64_t g = h * of.group; g < (h + 1) * of.group; ++g, ++count) {
        const Pair of_pair = pair(b, g, i, j);
        const float *q = inputs_.q.at(b, i, g), *dy = inputs_.dy.at(b, i, g);
        for (int64_t d = 0; d < D; ++d) {
          sums[static_cast<size_t>(d)] += scale * of_pair.ds * widened(q[d]);
          sums[static_cast<size_t>(D + d)] += square(scale * of_pair.error * widened(q[d]));
          const double term = of_pair.p * widened(dy[d]);
          sums[static_cast<size_t>(2 * D + d)] += term;
          sums[static_cast<size_t>(3 * D + d)] +=
              square(of.errors.probability(std::abs(of.score(b, g, i, j))) * term);
        }
      }
    }
    settle(found.dk, sums, dk.at(b, j, h), 0, count);
    settle(found.dv, sums, dv.at(b, j, h), 2 * D, count);
  });
  inputs_ = {};
}

std::vector<Measure> RowCheck::measures() const {
  std::vector<Measure> all;
  const auto measure = [&](const char* what, size_t block, size_t head, const Found& found) {
    if (found.difference.count() == 0) return;
    // Where a gradient is exactly zero, its expected error is the yardstick.
    const double expected = std::sqrt(found.expected), norm = std::max(found.difference.norm(), expected);
    all.push_back({.what = what,
                   .where = fmt::format("block {}, head {}", block, head),
                   .difference = found.difference.relative(norm),
                   .largest = found.difference.largest(),
                   .allowed = norm > 0 ? allowed::kOfExpectedRowError * expected / norm : 0});
  };
  for (size_t block = 0; block < blocks_.size(); ++block)
    for (size_t head = 0; head < blocks_[block].size(); ++head) {
      const OfHead& of = blocks_[block][head];
      measure("attention output", block, head, of.y);
      measure("log-sum-exp", block, head, of.lse);
      measure("dQ", block, head, of.dq);
      measure("dK", block, head, of.dk);
      measure("dV", block, head, of.dv);
    }
  return all;
}

}  // namespace tessera
