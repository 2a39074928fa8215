// Attention with a mixture of blocks: rows of queries, one for each block that a query sees, are gathered in the
// order of blocks, and attended to their keys by the kernels for dealt queries, which then meet one block a tile.
// The forward merges the rows of each query by their LSE. The backward gathers out, dout and the query's LSE
// with q, so that every row's gradients are its share of the whole query's; dq of a query is the sum of its
// rows'. A sequence and some key/value heads at a time.
#include "kernels/attention/mixture/choose.h"
#include "kernels/attention/mixture/kernels.h"
#include "kernels/attention/mixture/rows.h"

namespace tessera::attention::mixture {
namespace {

AttnTensor part(AttnTensor t, const AttnProblem& p, int64_t b, int64_t head) {
  const int64_t element = p.dtype == ATTN_BF16 ? 2 : 4;
  t.data = static_cast<char*>(t.data) + (b * t.batch + head * t.head) * element;
  return t;
}

AttnTensor rows_tensor(void* data, const AttnProblem& p, const RowTables& tables) {
  return {.data = data, .batch = tables.rows * p.head_dim, .row = p.head_dim, .head = tables.rows * p.head_dim};
}
// Key/value heads as sequences of one head
AttnTensor heads_as_batch(AttnTensor t) {
  t.batch = t.head;
  return t;
}

struct Part {
  AttnProblem problem;
  int64_t b, kv_head, head;
  float* lse(float* all, const AttnProblem& whole) const { return all + (b * whole.heads + head) * whole.tokens; }
};
// visit(part) until one fails
template <class Visit>
AttnStatus each_part(const AttnProblem& p, bool backward, const Visit& visit) {
  const int64_t at_once = kv_heads_at_once(p, backward), group = p.heads / p.kv_heads;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t kv_head = 0; kv_head < p.kv_heads; kv_head += at_once) {
      Part part{part_of(p, std::min(at_once, p.kv_heads - kv_head)), b, kv_head, kv_head * group};
      AttnMask& mask = part.problem.mask;
      if (mask.documents != nullptr) mask.documents += b * p.tokens * 2;
      if (mask.seen_by != nullptr) mask.seen_by += b * p.kv_tokens * 2;
      mask.query_tokens = nullptr;  // dropout and ALiBi need them
      if (const AttnStatus status = visit(part); status != ATTN_OK) return status;
    }
  return ATTN_OK;
}

// Runs calls one after another until one fails.
template <class... Calls>
AttnStatus in_turn(const Calls&... calls) {
  AttnStatus status = ATTN_OK;
  (void)((status = calls(), status == ATTN_OK) && ...);
  return status;
}

}  // namespace

AttnStatus forward(const AttnForward& f, int arch, CUstream_st* stream) {
  return each_part(f.problem, false, [&](const Part& one) {
    const AttnProblem& p = one.problem;
    const MixtureWorkspace w(f.workspace, p, false);
    const AttnTensor q = part(f.q, p, one.b, one.head), k = part(f.k, p, one.b, one.kv_head);
    AttnForward rows{.q = rows_tensor(w.q, p, w.tables),
                     .k = heads_as_batch(k),
                     .v = heads_as_batch(part(f.v, p, one.b, one.kv_head)),
                     .out = rows_tensor(w.out, p, w.tables),
                     .lse = w.lse,
                     .workspace = w.own,
                     .workspace_bytes = w.own_bytes,
                     .problem = problem_of_rows(p, w.tables)};
    return in_turn([&] { return choose_blocks(p, q, k, w.choice, stream); },
                   [&] { return place_rows(p, w, stream); },
                   [&] { return gather_rows(p, w.tables, {q, w.q}, stream); },
                   [&] { return attn_forward(&rows, arch, stream); },
                   [&] {
                     return merge_rows(p, w, part(f.out, p, one.b, one.head), one.lse(f.lse, f.problem), stream);
                   });
  });
}

AttnStatus backward(const AttnBackward& f, int arch, CUstream_st* stream) {
  return each_part(f.problem, true, [&](const Part& one) {
    const AttnProblem& p = one.problem;
    const MixtureWorkspace w(f.workspace, p, true);
    const auto of_queries = [&](const AttnTensor& t) { return part(t, p, one.b, one.head); };
    const auto of_keys = [&](const AttnTensor& t) { return part(t, p, one.b, one.kv_head); };
    const auto rows_of = [&](void* data) { return rows_tensor(data, p, w.tables); };
    AttnBackward rows{.q = rows_of(w.q),
                      .k = heads_as_batch(of_keys(f.k)),
                      .v = heads_as_batch(of_keys(f.v)),
                      .out = rows_of(w.out),
                      .dout = rows_of(w.dout),
                      .lse = w.lse,
                      .dq = rows_of(w.dq),
                      .dk = heads_as_batch(of_keys(f.dk)),
                      .dv = heads_as_batch(of_keys(f.dv)),
                      .workspace = w.own,
                      .workspace_bytes = w.own_bytes,
                      .deterministic = f.deterministic,
                      .problem = problem_of_rows(p, w.tables)};
    const float* lse = f.lse + (one.b * f.problem.heads + one.head) * f.problem.tokens;
    const auto gather = [&](const AttnTensor& from, void* to) {
      return gather_rows(p, w.tables, {of_queries(from), to}, stream);
    };
    return in_turn([&] { return choose_blocks(p, of_queries(f.q), of_keys(f.k), w.choice, stream); },
                   [&] { return place_rows(p, w, stream); }, [&] { return gather(f.q, w.q); },
                   [&] { return gather(f.out, w.out); }, [&] { return gather(f.dout, w.dout); },
                   [&] { return gather_lse(p, w.tables, lse, w.lse, stream); },
                   [&] { return attn_backward(&rows, arch, stream); },
                   [&] { return sum_rows(p, w, of_queries(f.dq), stream); });
  });
}

}  // namespace tessera::attention::mixture
