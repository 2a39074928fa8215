/* Fused attention (FlashAttention) on raw device pointers: a C ABI, usable from any language.
 *
 *   out = softmax(scale q k^T + mask) v            for every batch b and head h, N = tokens, D = head_dim
 *
 * N queries, and as many keys or another number of them (kv_tokens). No N x N matrix is ever stored, and tiles
 * of it that the mask hides are skipped. The forward saves one log-sum-exp per row, from which the backward
 * recomputes the scores. Method: Dao, "FlashAttention-2", arXiv:2307.08691; online softmax: Milakov and
 * Gimelshein, arXiv:1805.02867.
 *
 * Scores are held in fp32. A score of -inf (q k^T may overflow) has probability 0. A row that sees no other
 * score has out = 0 and LSE = -inf (with a sink: the sink), and adds 0 to the gradients. NaN stays NaN.
 *
 * attn_decode() attends with one new query of each sequence over a cache of its keys and values.
 *
 * Every call enqueues on the given stream and returns at once: it never throws, never allocates, never
 * synchronises. Tensors are [batch, tokens, heads, head_dim] with any strides, so packed projections
 * [B, T, 3, H, D] are read and written in place. head_dim is contiguous; data and strides are multiples of
 * 16 bytes.
 */
#ifndef TESSERA_ATTENTION_H_
#define TESSERA_ATTENTION_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Fields that most callers leave out: in C++ they are 0 then. */
#ifdef __cplusplus
#define ATTN_OR_0 = {}
#else
#define ATTN_OR_0
#endif

struct CUstream_st;

typedef enum {
  ATTN_OK = 0,
  ATTN_BAD_HEAD_DIM,  /* no kernel serves this head_dim with this dtype */
  ATTN_BAD_SHAPE,     /* a size is not positive or too large for the grid, kv_heads does not divide heads, or
                          scale is negative or not finite */
  ATTN_BAD_ALIGNMENT, /* a pointer is null, or it or a stride is no multiple of 16 bytes (workspace: 256) */
  ATTN_BAD_ARCH,      /* no kernel serves this compute capability */
  ATTN_NO_WORKSPACE,  /* workspace missing or smaller than attn_forward_workspace(),
                          attn_backward_workspace() or attn_decode_workspace() says */
  ATTN_LAUNCH_FAILED, /* the CUDA runtime refused the launch; cudaGetLastError() says why */
  ATTN_BAD_DROPOUT,   /* the threshold is not 0 to 255, place and heads cross a multiple of 65536, or no
                          kernel serves dropout here */
  ATTN_BAD_MASK,      /* a window or an offset without causal, a negative window, documents with an offset or
                          with kv_tokens other than tokens, seen_by without documents or with causal,
                          query_tokens without seen_by; or no kernel serves this mask here */
  ATTN_BAD_ALIBI,     /* alibi_heads is negative or less than first_head and heads together, or first_head is
                          negative; scale is 0; seen_by without query_tokens; or no kernel serves ALiBi here */
  ATTN_BAD_CAP,       /* score_cap is negative or not finite; with ALiBi or a scale of 0; or no kernel serves a
                          cap here */
  ATTN_BAD_SINKS,     /* the call has sinks and the problem has none, or the reverse */
  ATTN_BAD_BLOCKS,    /* the size of sparse blocks is no power of two from 128 on, their lists do not divide
                          kv_heads or have fewer blocks than the call; an offset within a block; decoding
                          with several lists; or no kernel serves sparse blocks here */
  ATTN_BAD_FP8,       /* no kernel serves fp8 with this problem: it needs bf16 on compute capability 9.0, without
                          dropout, ALiBi, a cap, sparse blocks or blocks that queries choose */
  ATTN_BAD_CHOICE,    /* AttnChoice has a size that is no power of two up to 65536, or a count that is not 1
                          to 32; or the mask has neither causal nor seen_by, or has a window, a negative
                          offset or sparse blocks; or dropout or ALiBi; or no kernel serves it here */
  ATTN_BAD_STRUCT     /* struct_size is not sizeof(AttnProblem), or sizeof(AttnDecodeProblem): the caller has
                          another attention.h */
} AttnStatus;

typedef enum { ATTN_BF16 = 0, ATTN_F32 = 1 } AttnDtype;

typedef struct {
  void* data;
  int64_t batch, row, head; /* strides in elements: from one batch, token, head to the next */
} AttnTensor;

/* Sparse blocks: each block of queries has a list of the blocks of keys that it sees. The rest of the mask
 * may hide more; tiles of other blocks are not read. All lists are in device memory. The list of a query
 * block rises, and so does that of a key block. Blocks are counted from the first key on, so query i is in
 * block (i + offset) / size. Lists may have more blocks than a call has tokens.
 *
 * With seen_by, query blocks are those of the call's queries: query i is in block i / size, wherever it
 * stands in the sequence. The queries of a block are tokens that follow one another; behind them, at the end
 * of the block, there may be queries that see nothing. */
typedef struct {
  int size;         /* tokens of a block: 128, 256, 512 and so on; 0: every block is seen */
  int lists;        /* query head h has list h / (heads / lists); divides kv_heads */
  int query_blocks; /* of a list: at least the query blocks of the call; key_blocks likewise */
  int key_blocks;
  const int32_t* begins; /* [lists, query_blocks + 1]: where in `keys` the list of each query block begins;
                            after the last one, where it ends */
  const int32_t* keys;   /* the key blocks that each query block sees */
  const int32_t* seen_begins; /* [lists, key_blocks + 1]: the same pairs by key block, for the backward: where
                                 in `queries` the list of each key block begins */
  const int32_t* queries;     /* the query blocks that see each key block */
  const int32_t* places;      /* for each of these: the place of the key block in the query block's list, from
                                 0 */
} AttnBlocks;

/* Mixture of blocks (Lu et al., "MoBA", arXiv:2502.13189): each query of each head chooses the blocks of keys
 * that it sees. The rest of the mask shows the query an interval of keys. This is cut into blocks, from its
 * first key on, so blocks begin anew with each document. The query sees its own block, the last one, as far
 * as the interval goes. Of the blocks before, it sees those `count` - 1 whose mean keys have the largest
 * product with the query, computed in fp32; if products are equal, the earlier block counts as the larger.
 * The backward chooses the same blocks, and no gradient goes through the choice. */
typedef struct {
  int size;  /* tokens of a block: a power of two up to 65536; 0: every block is seen */
  int count; /* blocks that a query sees, its own among them: 1 to 32 */
} AttnChoice;

/* The keys that a query sees are an interval, and neither end of it falls from one query to the next. With
 * `blocks` a query sees only the keys in listed blocks, with `choice` only those in the blocks that it
 * chooses. The conditions add up. All zeros: a query sees every key. */
typedef struct {
  int causal;     /* 1: query i sees the keys 0 to i + offset */
  int64_t offset; /* where the first query stands among the keys; may be negative. 0 as a rule */
  int64_t window; /* with causal: only the last `window` of those keys; 0: all of them */
  /* Device memory, [batch, tokens, 2], or null: where the document of each token begins, and where it ends
   * (the token after its last), counted from the beginning of the sequence. A query sees only its own
   * document. attn_documents() writes this table. The tokens of a document follow one another. */
  const int32_t* documents;
  /* Device memory, [batch, kv_tokens, 2], or null. With it, the queries are some tokens of a longer sequence,
   * in its order: for example those of one of several devices. `documents` then says which keys each query
   * sees, from the first up to the one after the last, and this table says the same of the queries that see
   * each key. Both must agree, and in both neither end falls from one row to the next. causal is 0: it is in
   * the tables. */
  const int32_t* seen_by;
  /* Device memory, [batch, tokens], or null. With seen_by: the token of the sequence that each query is, from
   * 0 on. Dropout then drops the same elements as in the whole sequence, and ALiBi knows the distances. Null:
   * query i is token i. Nothing else reads it. */
  const int32_t* query_tokens;
  AttnBlocks blocks ATTN_OR_0; /* sparse blocks; with an offset that is a multiple of their size */
  AttnChoice choice ATTN_OR_0; /* needs causal or seen_by */
} AttnMask;

/* Dropout of the probabilities, after the softmax: some are set to 0 at random, and the others multiplied by
 * 256 / (256 - threshold). The fields below, batch, head, query (the token that it is) and key determine
 * which ones (kernels/base/dropout.h). Nothing is stored, so the backward needs the same fields as the forward. */
typedef struct {
  int threshold;           /* 0: no dropout. threshold / 256 of the probabilities are dropped; below 256 */
  uint32_t place;          /* for example another multiple of 65536 for each layer, plus the number of the
                              head that is head 0: then some heads at a time drop the same as all at once. The
                              number of the last head must be less than 65536 */
  uint32_t first_sequence; /* the number of the sequence that is batch 0 */
  uint64_t key;            /* another one for each step */
} AttnDropout;

typedef struct AttnProblem {
  size_t struct_size; /* sizeof(AttnProblem), by which a later library knows which fields the caller has */
  AttnDtype dtype;    /* of q, k, v, out and their gradients */
  int64_t batch;
  int64_t tokens;    /* of q, out and their gradients, in each batch */
  int64_t kv_tokens; /* of k, v and their gradients */
  int64_t heads;     /* of q, out and their gradients */
  int64_t kv_heads;  /* of k, v and their gradients; divides heads: query head h attends to head
                        h / (heads / kv_heads) */
  int head_dim;      /* a multiple of 8, up to 256 */
  AttnMask mask;
  float scale; /* multiplies q k^T; 1 / sqrt(head_dim) as a rule */
  AttnDropout dropout;
  /* 1: the softmax of every row has one more score, which belongs to no key. It is a number for each head,
   * which the calls give. So the probabilities of a row add up to less than 1. */
  int sinks ATTN_OR_0;
  /* ALiBi, Press et al., arXiv:2108.12409: to the score of query i and key j is added -m |i + offset - j|, where
   * m is 2^(-8 (h + 1) / p) for head h of the first p, and 2^(-4 (2 (h - p) + 1) / p) for the others; p is the
   * largest power of two that is at most alibi_heads. */
  int alibi_heads ATTN_OR_0; /* the number of heads from which the slopes are computed; 0: no bias */
  int first_head ATTN_OR_0;  /* h of head 0: a call with some heads gives them the slopes that they have among
                                all */
  float score_cap ATTN_OR_0; /* c: a score s = scale q k^T becomes c tanh(s / c), before the mask; 0: it stays */
  /* 1: the forward multiplies in FP8, with a scale for 128 rows of a head. out and LSE then have errors of
   * some percent of how much scores and values vary. The backward multiplies in bf16. */
  int fp8 ATTN_OR_0;
} AttnProblem;

/* In both calls the problem comes last, so that it can get more fields. */
typedef struct AttnForward {
  AttnTensor q, k, v; /* in */
  AttnTensor out;     /* out */
  float* lse;         /* out, [batch, heads, tokens], contiguous: natural log of the sum of exp(scale q k^T)
                         over a row, its sink among them */
  void* workspace; /* attn_forward_workspace() bytes, 256-byte aligned; contents undefined before and after.
                         May be null where that is 0 */
  size_t workspace_bytes;
  const void* sinks ATTN_OR_0; /* in, [heads] in `dtype`, not scaled; null without problem.sinks */
  AttnProblem problem;
} AttnForward;

typedef struct AttnBackward {
  AttnTensor q, k, v, out, dout; /* in; out and lse as the forward wrote them */
  const float* lse;              /* in */
  AttnTensor dq, dk, dv;         /* out, overwritten */
  void* workspace;               /* attn_backward_workspace() bytes, 256-byte aligned; contents undefined
                                    before and after */
  size_t workspace_bytes;
  int deterministic;           /* Read only where cuDNN computes: 1, the same bits every time. Tessera's
                                    kernels always give the same bits. */
  const void* sinks ATTN_OR_0; /* in, as the forward's */
  void* dsinks ATTN_OR_0;      /* out, [heads] in `dtype`; null: not wanted */
  int add_dsinks ATTN_OR_0;    /* 1: dsinks is added to */
  AttnProblem problem;
} AttnBackward;

/* `arch` is the compute capability of the stream's device times ten: 80, 86, 89, 90, 120. */
AttnStatus attn_forward(const AttnForward* args, int arch, struct CUstream_st* stream);
AttnStatus attn_backward(const AttnBackward* args, int arch, struct CUstream_st* stream);
/* Needs no device; 0 for a problem that no kernel serves. Enough for `deterministic` 0 and 1. */
size_t attn_backward_workspace(const AttnProblem* problem, int arch);
/* The same for the forward; 0 for most problems. */
size_t attn_forward_workspace(const AttnProblem* problem, int arch);
/* ATTN_OK where kernels exist for this problem, else the reason. Needs no device. */
AttnStatus attn_supports(const AttnProblem* problem, int arch);
const char* attn_status_text(AttnStatus status);

/* Makes AttnMask::documents from cumulative lengths. The batch x tokens of all sequences follow one another,
 * and document d of `count` has the tokens cumulative[d] to cumulative[d + 1] - 1: cumulative has count + 1
 * entries, from 0 to batch x tokens. Where a sequence ends, a document ends as well. Both arrays are in
 * device memory. */
AttnStatus attn_documents(const int32_t* cumulative, int64_t count, int64_t batch, int64_t tokens,
                          int32_t* documents, struct CUstream_st* stream);

/* Attention of one new query of each sequence over a cache of keys and values, which has its own as well:
 * this is how a token is generated. Method: Dao et al., "Flash-Decoding for long-context inference", 2023.
 * Thread blocks share the keys of all sequences equally, and their results are merged in a fixed order: the
 * same bits every time. */
typedef struct AttnDecodeProblem {
  size_t struct_size;  /* sizeof(AttnDecodeProblem) */
  AttnDtype dtype;     /* of q, k, v and out */
  int64_t batch;       /* sequences */
  int64_t capacity;    /* keys and values that k and v have room for, in each sequence */
  int64_t heads;       /* of q and out */
  int64_t kv_heads;    /* of k and v; divides heads, as in AttnProblem */
  int head_dim;        /* a multiple of 8, up to 256 */
  float scale;         /* multiplies q k^T; 1 / sqrt(head_dim) as a rule */
  int sinks ATTN_OR_0; /* as in AttnProblem, and the next three */
  int alibi_heads ATTN_OR_0;
  int first_head ATTN_OR_0;
  float score_cap ATTN_OR_0;
  AttnBlocks blocks ATTN_OR_0; /* sparse blocks, with one list: a query at place s of its sequence is in block
                                  s / size. Only `begins` and `keys` are read */
} AttnDecodeProblem;

typedef struct AttnDecode {
  AttnTensor q;    /* in, [batch, 1, heads, head_dim] */
  AttnTensor k, v; /* in, [batch, capacity, kv_heads, head_dim] */
  AttnTensor out;  /* out, [batch, 1, heads, head_dim] */
  /* In, device memory, [batch]: the query of sequence b sees its keys 0 to starts[b], below the capacity.
   * Later rows of k and v are not read. Negative: an idle sequence, out = 0. Read when the call runs, not when
   * it is enqueued: a CUDA graph may be replayed while sequences grow. */
  const int32_t* starts;
  void* workspace; /* attn_decode_workspace() bytes, 256-byte aligned; contents undefined before and
                            after */
  size_t workspace_bytes;
  const void* sinks ATTN_OR_0; /* in, [heads] in `dtype`; null without problem.sinks */
  AttnDecodeProblem problem;
} AttnDecode;

AttnStatus attn_decode(const AttnDecode* args, int arch, struct CUstream_st* stream);
/* Needs no device; 0 for a problem that no kernel serves. */
size_t attn_decode_workspace(const AttnDecodeProblem* problem, int arch);
/* ATTN_OK where kernels exist for this problem, else the reason. Needs no device. */
AttnStatus attn_decode_supports(const AttnDecodeProblem* problem, int arch);

#undef ATTN_OR_0

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_ATTENTION_H_ */
