#include "kernels/attention/traffic.h"

#include <algorithm>

#include "kernels/attention/blocks.h"
#include "kernels/attention/choice.h"

namespace tessera::attention {
namespace {

// Bytes of the tensors of a problem.
struct Sizes {
  double row;     // D elements: a row of any tensor
  double q;       // Q, and as large O, dO, dQ
  double k;       // K, and as large V, dK, dV
  double group;   // query heads that read a head of K and V
  double scalar;  // an fp32 number a query row: LSE, delta
  double sums;    // dQ in fp32
  double k_sums;  // dK in fp32, and as large dV
  double matrix;  // the N x N matrices of all heads
  double seen;    // the share of a matrix that a mask lets through

  explicit Sizes(const AttnProblem& p) {
    const auto n = static_cast<double>(p.tokens), query_rows = static_cast<double>(p.batch * p.heads) * n;
    const double element = p.dtype == ATTN_BF16 ? 2 : 4;
    row = p.head_dim * element;
    q = query_rows * row;
    k = static_cast<double>(p.batch * p.kv_heads) * n * row;
    group = static_cast<double>(p.heads) / static_cast<double>(p.kv_heads);
    scalar = 4 * query_rows;
    sums = 4 * query_rows * p.head_dim;
    k_sums = sums / group;
    matrix = query_rows * n * element;
    seen = visible_pairs(p) / (static_cast<double>(p.batch) * n * n);
  }
};

// The keys of a span that lists show to a query at Mask::listed_place_of(), in the mean of the lists
double listed(const Blocks& blocks, int listed_place, Span span) {
  if (!blocks || span.empty()) return span.size();
  double keys = 0;
  for (int list = 0; list < blocks.lists; ++list) {
    const BlockList seen = blocks.keys_of(list, listed_place / blocks.size);
    const Span places = seen.places_within(span.tiles(blocks.size));
    for (int place = places.begin; place < places.end; ++place) {
      const int first = seen[place] * blocks.size;
      keys += std::min(first + blocks.size, span.end) - std::max(first, span.begin);
    }
  }
  return keys / blocks.lists;
}

// Sum over tiles of `rows` queries of the keys that the tile walks, over all heads: from the first that one
// of them sees to the last. By symmetry, and but for tiles at ends, also the sum over tiles of keys of the
// queries that see them.
double rows_walked(const AttnProblem& p, int rows) {
  double walked = 0;
  const Blocks blocks = blocks_of(p);
  for (int64_t b = 0; b < p.batch; ++b) {
    const Mask mask = mask_of(p).of_sequence(b);
    for (int first = 0; first < mask.queries; first += rows)
      walked += listed(blocks, mask.listed_place_of(first),
                       mask.keys_of(Span{first, std::min(first + rows, mask.queries)}));
  }
  return static_cast<double>(p.heads) * walked;
}

}  // namespace

double visible_pairs(const AttnProblem& p) {
  const Blocks blocks = blocks_of(p);
  const Choice choice = choice_of(p);
  if (!blocks && !choice && mask_of(p).plain()) {
    const auto n = static_cast<double>(p.tokens);
    return static_cast<double>(p.batch) * (p.mask.causal ? n * (n + 1) / 2 : n * n);
  }
  double pairs = 0;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Mask mask = mask_of(p).of_sequence(b);
    for (int query = 0; query < mask.queries; ++query)
      pairs += choice ? static_cast<double>(choice.visible(mask, query))
                      : listed(blocks, mask.listed_place_of(query), mask.keys_of(query));
  }
  return pairs;
}

// A GEMM of naive attention is a launch for each query head of a group: K and V are read as often.
Traffic naive_forward_traffic(const AttnProblem& p) {
  const Sizes s(p);
  const double k = s.group * s.k;
  // S = Q K^T;  softmax, in place: a row is read for its maximum, its sum, its result;  Y = P V
  return {.read = s.q + k + s.seen * s.matrix + s.matrix + k,
          .written = s.matrix + s.matrix + s.q,
          .loaded = s.q + k + 3 * s.seen * s.matrix + s.matrix + k,
          .stored = s.matrix + s.matrix + s.q};
}

Traffic naive_backward_traffic(const AttnProblem& p) {
  const Sizes s(p);
  const double k = s.group * s.k, added = k - s.k;  // all launches but the first add to what is there
  // dV = P^T dY;  dP = dY V^T;  dS, over dP: P and dP are read for the sum and for the result;  dQ = dS K;
  // dK = dS^T Q
  const double gemms = (s.matrix + s.q + added) + (s.q + k) + (s.matrix + k) + (s.matrix + s.q + added);
  const double written = k + s.matrix + s.matrix + s.q + k;
  return {.read = gemms + 2 * s.seen * s.matrix,
          .written = written,
          .loaded = gemms + 4 * s.seen * s.matrix,
          .stored = written};
}

Traffic fused_forward_traffic(const AttnProblem& p, int query_rows) {
  const Sizes s(p);
  return {.read = s.q + 2 * s.k,
          .written = s.q + s.scalar,
          .loaded = s.q + rows_walked(p, query_rows) * 2 * s.row,
          .stored = s.q + s.scalar};
}

// K and V are read once for up to eight query heads of a group, from L2 for the others. The parts of heads
// that thread blocks share stay in L2 and are left out.
Traffic decode_traffic(const AttnDecodeProblem& p, int64_t keys) {
  constexpr int64_t kHeadsAtOnce = 8;
  const double row = p.head_dim * (p.dtype == ATTN_BF16 ? 2.0 : 4.0);
  const double q = static_cast<double>(p.batch * p.heads) * row, starts = 4.0 * static_cast<double>(p.batch);
  const double kv = 2 * static_cast<double>(p.batch * p.kv_heads * keys) * row;
  const auto turns = static_cast<double>((p.heads / p.kv_heads + kHeadsAtOnce - 1) / kHeadsAtOnce);
  return {.read = q + kv + starts, .written = q, .loaded = q + turns * kv + starts, .stored = q};
}

Traffic row_backward_traffic(const AttnProblem& p) {
  const Sizes s(p);
  const double queries_written = s.q + s.scalar, keys_written = 2 * s.k;
  return {.read = (3 * s.q + 2 * s.k + s.scalar) + (2 * s.q + 2 * s.k + 2 * s.scalar),
          .written = queries_written + keys_written,
          .loaded = (3 * s.q + s.scalar + rows_walked(p, 1) * 2 * s.row) +
                    (2 * s.k + rows_walked(p, 1) * (2 * s.row + 8)),
          .stored = queries_written + keys_written};
}

Traffic tiled_backward_traffic(const AttnProblem& p, int rows) {
  const Sizes s(p);
  constexpr double kWarps = 8;  // each of them loads LSE and delta of every query that the keys kernel walks
  const double written = s.scalar + 2 * s.k + s.q, delta_read = 2 * s.q;
  return {.read = delta_read + (2 * s.q + 2 * s.k + 2 * s.scalar) * 2,
          .written = written,
          .loaded = delta_read + (2 * s.k + rows_walked(p, rows) * (2 * s.row + 8 * kWarps)) +
                    (2 * s.q + 2 * s.scalar + rows_walked(p, rows) * 2 * s.row),
          .stored = written};
}

Traffic tensor_core_backward_traffic(const AttnProblem& p, int key_rows, int64_t heads) {
  const Sizes s(p);
  const double ctas = s.group / static_cast<double>(heads);  // that have the same keys
  const double walked = rows_walked(p, key_rows);            // query rows, each of which adds once to its dQ
  const double sums_added = walked * 4 * p.head_dim;
  // The kernel for row statistics reads O, dO, LSE and writes L, delta.
  Traffic t{.read = (2 * s.q + s.scalar) + (2 * s.q + 2 * s.k + 2 * s.scalar),
            .written = 2 * s.scalar + 2 * s.k + s.q,
            .loaded = (2 * s.q + s.scalar) + (ctas * 2 * s.k + walked * (2 * s.row + 8)),
            .stored = 2 * s.scalar + 2 * s.k + s.q};
  // Each of these CTAs but the last stores its sums, each but the first loads those before.
  const double key_sums = (ctas - 1) * 2 * s.k_sums;
  t.loaded += key_sums;
  t.stored += key_sums;
  t.written += std::min(key_sums, 2 * s.k_sums);  // what L2 evicts in the end
  // The first turn writes its sum, later ones read it and write it again, the last writes dQ itself.
  const double passed_on = sums_added - s.sums;
  t.loaded += passed_on;
  t.stored += passed_on;
  t.written += std::min(passed_on, s.sums);
  return t;
}

}  // namespace tessera::attention
