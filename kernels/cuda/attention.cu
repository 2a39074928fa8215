// Attention as the plan says: our fused kernels, cuDNN's, or three matrix operations around stored
// probabilities.
//
// naive, for each sequence b and its heads h, with P[b, h] [T, N] saved for the backward, N = kv_tokens:
//   S = scale Q K^T,  P = softmax(S + mask),  Y = P V
//   dV = P^T dY,  dP = dY V^T,  dS = scale P (dP - rowsum(P dP)),  dQ = dS K,  dK = dS^T Q
// S is written where P will be, so it is rounded to the tensors' dtype before the softmax; so are dP and dS.
// With dropout, P of P V and of P^T dY is without what is dropped, and so is dP; both times scale(). What is
// kept of P lies in the workspace, for one sequence, and in the backward where dP will be.
// Where G query heads share a head of keys and values, a GEMM is G launches: launch g takes the g-th query
// head of every group, as one batch of K GEMMs. dK and dV are added to by one launch after the other, in
// fixed order, and rounded by each.
// With a sink s (kernels/attention/sinks.h) a row of P adds up to less than 1; the rest is the sink's:
//   ds = -(sum over rows of (1 - sum(P)) rowsum(P dP))
#include "kernels/attention/attention.h"
#include "kernels/attention/blocks.h"
#include "kernels/attention/cudnn.h"
#include "kernels/attention/mask.h"
#include "kernels/attention/mixture.h"
#include "kernels/base/view.h"
#include "kernels/cuda/attention_status.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/naive_attention.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

using namespace cuda::naive_attention;

struct Drop {
  const void* from;
  void* to;
  const AttentionPlan& plan;
  attention::Mask mask;  // of the first sequence
  const Dropout& dropout;
  int64_t b;
};
void drop(const Drop& d, cudaStream_t stream) {
  const int64_t rows = d.plan.shape.heads * d.plan.shape.tokens;
  constexpr int kRows = kThreads / kWarp;
  with_real_type(d.plan.dtype, [&]<class T>() {
    drop_kernel<T><<<(rows + kRows - 1) / kRows, kThreads, 0, stream>>>(
        static_cast<const T*>(d.from), static_cast<T*>(d.to), rows, d.mask.of_sequence(d.b),
        DropoutMask(d.dropout), static_cast<uint32_t>(d.b));
  });
  TESSERA_CUDA_LAUNCHED();
}

// f with the type and the step that rows of so many elements allow.
template <class F>
void with_row_step(DType dtype, int64_t elements, F&& f) {
  with_real_type(dtype, [&]<class T>() {
    elements % kPackWidth<T> == 0 ? f.template operator()<T, kPackWidth<T>>() : f.template operator()<T, 1>();
  });
}

// Matrices [T, D] of sequence b: heads first, first + step, ..
GemmMatrix matrices_of(const Heads& from, int64_t b, int64_t first = 0, int64_t step = 1) {
  const View<void> heads = heads_of<void>(from);
  const auto element = static_cast<int64_t>(size_of(from.tensor.dtype));
  return {.data = static_cast<char*>(heads.data) + (b * heads.batch + first * heads.head) * element,
          .ld = heads.row,
          .batch_stride = step * heads.head};
}

// The g-th query heads of all groups of sequence b
GemmMatrix queries_of(const Heads& q, int64_t b, int64_t g, const AttentionShape& s) {
  return matrices_of(q, b, g, s.group());
}

// Their [T, N] matrices: of saved [B, H, T, N] at b, or of the workspace
GemmMatrix scores_of(void* base, DType dtype, const AttentionShape& s, int64_t b, int64_t g) {
  const int64_t head = s.tokens * s.kv_tokens, first = (b * s.heads + g) * head;
  return {.data = static_cast<char*>(base) + first * static_cast<int64_t>(size_of(dtype)),
          .ld = s.kv_tokens,
          .batch_stride = s.group() * head};
}

GemmMatrix transpose(GemmMatrix matrix) {
  matrix.transposed = !matrix.transposed;
  return matrix;
}

void check_attention(AttnStatus status, const char* op, const AttentionPlan& plan) {
  if (status == ATTN_OK) return;
  const AttentionShape& s = plan.shape;
  fail("{}: {} (batch {}, queries {}, keys {}, heads {}, key/value heads {}, head dim {}, {}, mask: {})", op,
       cuda::failure_text(status), s.batch, s.tokens, s.kv_tokens, s.heads, s.kv_heads, s.head_dim,
       name_of(plan.dtype), to_string(s.mask));
}

}  // namespace

void CudaBackend::run_op(const AttentionForward& a, const Launch& on) {
  if (a.plan.kind == AttentionKind::kNaive) return naive_attention_forward(a, on);
  const AttnForward args{.q = attn_tensor(a.q),
                         .k = attn_tensor(a.k),
                         .v = attn_tensor(a.v),
                         .out = attn_tensor(a.y),
                         .lse = a.saved.as<float>(),
                         .workspace = a.workspace.data,
                         .workspace_bytes = a.workspace.bytes(),
                         .sinks = a.sinks.data,
                         .problem = attn_problem(a.plan, a.dropout, a.tables)};
  if (a.plan.kind == AttentionKind::kCudnn)
    return cudnn().forward(args, a.workspace.data, a.workspace.bytes(), on.stream);
  check_attention(attn_forward(&args, a.plan.arch, on.stream), a.kName, a.plan);
}

void CudaBackend::run_op(const AttentionBackward& a, const Launch& on) {
  if (a.plan.kind == AttentionKind::kNaive) return naive_attention_backward(a, on);
  const AttnBackward args{.q = attn_tensor(a.q),
                          .k = attn_tensor(a.k),
                          .v = attn_tensor(a.v),
                          .out = attn_tensor(a.y),
                          .dout = attn_tensor(a.dy),
                          .lse = a.saved.as<float>(),
                          .dq = attn_tensor(a.dq),
                          .dk = attn_tensor(a.dk),
                          .dv = attn_tensor(a.dv),
                          .workspace = a.workspace.data,
                          .workspace_bytes = a.workspace.bytes(),
                          .deterministic = a.plan.deterministic,
                          .sinks = a.sinks.data,
                          .dsinks = a.dsinks.data,
                          .add_dsinks = a.accumulate,
                          .problem = attn_problem(a.plan, a.dropout, a.tables)};
  if (a.plan.kind == AttentionKind::kCudnn) return cudnn().backward(args, on.stream);
  check_attention(attn_backward(&args, a.plan.arch, on.stream), a.kName, a.plan);
}

// Computes the choice of the queries of naive attention, one sequence after the other.
attention::Chosen choose_keys(const AttentionPlan& plan, const Heads& q, const Heads& k,
                              const MaskTables& tables, const Tensor& workspace, cudaStream_t stream) {
  if (!plan.shape.mask.choice) return {};
  const AttnProblem all = attn_problem(plan, {}, tables);
  attention::ChoiceWorkspace own = choice_of(plan, workspace);
  const attention::Chosen chosen{attention::choice_of(all), own.first_keys};
  const AttnTensor queries = attn_tensor(q), keys = attn_tensor(k);
  for (int64_t b = 0; b < all.batch; ++b) {
    const AttnProblem one = attention::sequence_of(all, b);
    check_attention(attention::choose_blocks(one, attention::heads_from(queries, one, b, 0),
                                             attention::heads_from(keys, one, b, 0), own, stream),
                    AttentionForward::kName, plan);
    own.first_keys += all.heads * all.tokens * chosen.choice.others;
  }
  return chosen;
}

void CudaBackend::naive_attention_forward(const AttentionForward& a, const Launch& on) {
  const AttentionShape& s = a.plan.shape;
  const int64_t T = s.tokens, N = s.kv_tokens, D = s.head_dim;
  const DType dtype = a.plan.dtype;
  const auto kv_heads = static_cast<int>(s.kv_heads);
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t g = 0; g < s.group(); ++g)
      gemm({.dtype = dtype,
            .m = T,
            .n = N,
            .k = D,
            .a = queries_of(a.q, b, g, s),
            .b = transpose(matrices_of(a.k, b)),
            .d = scores_of(a.saved.data, dtype, s, b, g),
            .alpha = a.plan.scale,
            .batch = kv_heads},
           on);
  const int64_t rows = s.batch * s.heads * T;
  check(rows < INT32_MAX, "{}: supports fewer than 2^31 rows, found {}", a.kName, a.saved.to_string());
  const attention::Mask mask = mask_of(a.plan, a.tables);
  const attention::Chosen chosen = choose_keys(a.plan, a.q, a.k, a.tables, a.workspace, on.stream);
  with_row_step(dtype, N, [&]<class E, int kStep>() {
    const OwnScores<E> own{
        .sinks = a.sinks.as<E>(), .alibi = attention::alibi_of(attn_problem(a.plan)), .cap = s.scores.cap};
    if (const attention::Blocks blocks = blocks_of(a.plan, a.tables)) {
      const auto kernel = masked_softmax_kernel<E, kStep, true, ListedBlocks>;
      kernel<<<rows, kThreads, 0, on.stream>>>(a.saved.as<E>(), s.heads, mask, own, ListedBlocks{blocks});
      return;
    }
    if (chosen) {
      const auto kernel = masked_softmax_kernel<E, kStep, true, ChosenKeys>;
      kernel<<<rows, kThreads, 0, on.stream>>>(a.saved.as<E>(), s.heads, mask, own,
                                               ChosenKeys{chosen, mask, s.heads});
      return;
    }
    const auto kernel = own ? masked_softmax_kernel<E, kStep, true, NoBlocks>
                            : masked_softmax_kernel<E, kStep, false, NoBlocks>;
    kernel<<<rows, kThreads, 0, on.stream>>>(a.saved.as<E>(), s.heads, mask, own, NoBlocks{});
  });
  TESSERA_CUDA_LAUNCHED();
  for (int64_t b = 0; b < s.batch; ++b) {
    if (a.dropout)
      drop({scores_of(a.saved.data, dtype, s, b, 0).data, a.workspace.data, a.plan, mask, a.dropout, b},
           on.stream);
    for (int64_t g = 0; g < s.group(); ++g)
      gemm({.dtype = dtype,
            .m = T,
            .n = D,
            .k = N,
            .a = a.dropout ? scores_of(a.workspace.data, dtype, s, 0, g)
                           : scores_of(a.saved.data, dtype, s, b, g),
            .b = matrices_of(a.v, b),
            .d = queries_of(a.y, b, g, s),
            .alpha = a.dropout.scale(),
            .batch = kv_heads},
           on);
  }
}

void CudaBackend::naive_attention_backward(const AttentionBackward& a, const Launch& on) {
  const AttentionShape& s = a.plan.shape;
  const int64_t T = s.tokens, N = s.kv_tokens, D = s.head_dim;
  const DType dtype = a.plan.dtype;
  const auto batch = static_cast<int>(s.kv_heads);
  const attention::Mask mask = mask_of(a.plan, a.tables);
  char* const matrices = a.workspace.as<char>() + a.plan.choice_bytes;
  auto* of_sinks = reinterpret_cast<float*>(matrices + naive_backward_bytes(a.plan));
  char* const capped = matrices + naive_matrix_bytes(a.plan);  // with a cap: scores without it
  for (int64_t b = 0; b < s.batch; ++b) {
    const GemmMatrix k = matrices_of(a.k, b), v = matrices_of(a.v, b);
    const GemmMatrix dk = matrices_of(a.dk, b), dv = matrices_of(a.dv, b);
    const auto scores = [&](int64_t g) {
      return scores_of(matrices, dtype, s, 0, g);
    };  // with dropout what is kept of P; dP, then dS
    if (a.dropout)
      drop({scores_of(a.saved.data, dtype, s, b, 0).data, a.workspace.data, a.plan, mask, a.dropout, b},
           on.stream);
    for (int64_t g = 0; g < s.group(); ++g) {
      const GemmMatrix P = a.dropout ? scores(g) : scores_of(a.saved.data, dtype, s, b, g),
                       dy = queries_of(a.dy, b, g, s);
      const float beta = g == 0 ? 0 : 1;
      gemm({.dtype = dtype,
            .m = N,
            .n = D,
            .k = T,
            .a = transpose(P),
            .b = dy,
            .d = dv,
            .alpha = a.dropout.scale(),
            .beta = beta,
            .batch = batch},
           on);
      gemm({.dtype = dtype,
            .m = T,
            .n = N,
            .k = D,
            .a = dy,
            .b = transpose(v),
            .d = scores(g),
            .alpha = a.dropout.scale(),
            .batch = batch},
           on);
    }
    if (a.dropout) drop({a.workspace.data, a.workspace.data, a.plan, mask, a.dropout, b}, on.stream);
    with_row_step(dtype, N, [&]<class E, int kStep>() {
      const auto kernel =
          a.dsinks ? softmax_backward_kernel<E, kStep, true> : softmax_backward_kernel<E, kStep, false>;
      kernel<<<s.heads * T, kThreads, 0, on.stream>>>(
          a.saved.as<E>() + b * s.heads * T * N, reinterpret_cast<E*>(matrices), s.heads, mask.of_sequence(b),
          a.plan.scale, of_sinks + b * s.heads * T);
    });
    TESSERA_CUDA_LAUNCHED();
    if (s.scores.cap > 0) {
      for (int64_t g = 0; g < s.group(); ++g)
        gemm({.dtype = dtype,
              .m = T,
              .n = N,
              .k = D,
              .a = queries_of(a.q, b, g, s),
              .b = transpose(k),
              .d = scores_of(capped, dtype, s, 0, g),
              .alpha = a.plan.scale,
              .batch = batch},
             on);
      const int64_t count = s.heads * T * N;
      with_real_type(dtype, [&]<class E>() {
        cap_gradient_kernel<E><<<(count + kThreads - 1) / kThreads, kThreads, 0, on.stream>>>(
            reinterpret_cast<const E*>(capped), reinterpret_cast<E*>(matrices), count, s.scores.cap);
      });
      TESSERA_CUDA_LAUNCHED();
    }
    for (int64_t g = 0; g < s.group(); ++g) {
      const GemmMatrix dS = scores(g), q = queries_of(a.q, b, g, s), dq = queries_of(a.dq, b, g, s);
      const float beta = g == 0 ? 0 : 1;
      gemm({.dtype = dtype, .m = T, .n = D, .k = N, .a = dS, .b = k, .d = dq, .batch = batch}, on);
      gemm({.dtype = dtype,
            .m = N,
            .n = D,
            .k = T,
            .a = transpose(dS),
            .b = q,
            .d = dk,
            .beta = beta,
            .batch = batch},
           on);
    }
  }
  if (!a.dsinks) return;
  with_real_type(dtype, [&]<class E>() {
    sink_gradient_kernel<E>
        <<<s.heads, kThreads, 0, on.stream>>>(of_sinks, s.batch, T, a.dsinks.as<E>(), a.accumulate);
  });
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera
