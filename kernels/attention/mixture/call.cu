// Attention with a mixture of blocks. A query gets a row for each block that it sees, and rows are gathered
// in the order of blocks. The kernels for dealt queries then compute attention of the rows, where a tile has
// one block that queries may choose. The forward merges the rows of each query by their LSE. The backward
// gathers q, out, dout and the LSE of the whole query, so the gradients of a row are its share of the
// query's: dq of a query is the sum of dq over its rows. Calls take one sequence and some of its key/value
// heads at a time.
#include "kernels/attention/mixture.h"
#include "kernels/attention/mixture/kernels.h"
#include "kernels/attention/mixture/rows.h"

namespace tessera::attention::mixture {
namespace {

AttnTensor rows_tensor(void* data, const AttnProblem& p, const RowTables& tables) {
  return {
      .data = data, .batch = tables.rows * p.head_dim, .row = p.head_dim, .head = tables.rows * p.head_dim};
}
// Key/value heads as sequences of one head
AttnTensor heads_as_batch(AttnTensor t) {
  t.batch = t.head;
  return t;
}

// Some key/value heads of a sequence
struct Part {
  AttnProblem problem;
  RowTables tables;
  int64_t kv_head, head;  // the first ones
};
// Calls visit(part) for w.kv_heads key/value heads at a time, until a call fails.
template <class Visit>
AttnStatus each_part(const AttnProblem& sequence, const MixtureWorkspace& w, const Visit& visit) {
  const int64_t group = sequence.heads / sequence.kv_heads;
  for (int64_t kv_head = 0; kv_head < sequence.kv_heads; kv_head += w.kv_heads) {
    const AttnProblem part = part_of(sequence, std::min(w.kv_heads, sequence.kv_heads - kv_head));
    const AttnStatus status =
        visit(Part{part, w.tables.from_head(kv_head, sequence), kv_head, kv_head * group});
    if (status != ATTN_OK) return status;
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

// Chooses and places the rows of each sequence of a call, an AttnForward or AttnBackward, and calls
// attend_rows(part, b) for its parts, until one of these fails.
template <class Call, class Attend>
AttnStatus each_sequence(const Call& f, const MixtureWorkspace& w, CUstream_st* stream,
                         const Attend& attend_rows) {
  AttnStatus status = ATTN_OK;
  for (int64_t b = 0; b < f.problem.batch && status == ATTN_OK; ++b) {
    const AttnProblem p = sequence_of(f.problem, b);
    status = in_turn(
        [&] {
          return choose_blocks(p, heads_from(f.q, p, b, 0), heads_from(f.k, p, b, 0), w.choice, stream);
        },
        [&] { return place_rows(p, w.choice.first_keys, w.tables, stream); },
        [&] { return each_part(p, w, [&](const Part& one) { return attend_rows(one, b); }); });
  }
  return status;
}

}  // namespace

AttnStatus forward(const AttnForward& f, int arch, CUstream_st* stream) {
  const AttnProblem& whole = f.problem;
  const MixtureWorkspace w(f.workspace, whole, false, kv_heads_at_once(whole, false));
  const auto attend_rows = [&](const Part& one, int64_t b) {
    const AttnProblem& p = one.problem;
    const AttnForward rows{.q = rows_tensor(w.q, p, one.tables),
                           .k = heads_as_batch(heads_from(f.k, p, b, one.kv_head)),
                           .v = heads_as_batch(heads_from(f.v, p, b, one.kv_head)),
                           .out = rows_tensor(w.out, p, one.tables),
                           .lse = w.lse,
                           .workspace = w.own,
                           .workspace_bytes = w.own_bytes,
                           .problem = problem_of_rows(p, one.tables)};
    float* lse = f.lse + (b * whole.heads + one.head) * whole.tokens;
    return in_turn(
        [&] {
          return gather_rows(p, one.tables, {heads_from(f.q, p, b, one.head), w.q}, stream);
        },
        [&] { return attn_forward(&rows, arch, stream); },
        [&] { return merge_rows(p, one.tables, w, heads_from(f.out, p, b, one.head), lse, stream); });
  };
  return each_sequence(f, w, stream, attend_rows);
}

AttnStatus backward(const AttnBackward& f, int arch, CUstream_st* stream) {
  const AttnProblem& whole = f.problem;
  const MixtureWorkspace w(f.workspace, whole, true, kv_heads_at_once(whole, true));
  const auto attend_rows = [&](const Part& one, int64_t b) {
    const AttnProblem& p = one.problem;
    const auto of_keys = [&](const AttnTensor& t) {
      return heads_as_batch(heads_from(t, p, b, one.kv_head));
    };
    const auto rows_of = [&](void* data) { return rows_tensor(data, p, one.tables); };
    const AttnBackward rows{.q = rows_of(w.q),
                            .k = of_keys(f.k),
                            .v = of_keys(f.v),
                            .out = rows_of(w.out),
                            .dout = rows_of(w.dout),
                            .lse = w.lse,
                            .dq = rows_of(w.dq),
                            .dk = of_keys(f.dk),
                            .dv = of_keys(f.dv),
                            .workspace = w.own,
                            .workspace_bytes = w.own_bytes,
                            .deterministic = f.deterministic,
                            .problem = problem_of_rows(p, one.tables)};
    const float* lse = f.lse + (b * whole.heads + one.head) * whole.tokens;
    const auto gather = [&](const AttnTensor& from, void* to) {
      return gather_rows(p, one.tables, {heads_from(from, p, b, one.head), to}, stream);
    };
    return in_turn([&] { return gather(f.q, w.q); }, [&] { return gather(f.out, w.out); },
                   [&] { return gather(f.dout, w.dout); },
                   [&] { return gather_lse(p, one.tables, lse, w.lse, stream); },
                   [&] { return attn_backward(&rows, arch, stream); },
                   [&] { return sum_rows(p, one.tables, w, heads_from(f.dq, p, b, one.head), stream); });
  };
  return each_sequence(f, w, stream, attend_rows);
}

}  // namespace tessera::attention::mixture
