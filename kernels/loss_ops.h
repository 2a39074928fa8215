// Losses and their gradients. The rules for all operations are in ops.h.
#pragma once

#include "kernels/base/no_target.h"
#include "kernels/base/tensor.h"
#include "kernels/fp8_matrix.h"
#include "kernels/preference.h"

namespace tessera {

// losses[n] = -log softmax(logits[n])[targets[n]], over the first `vocab_size` columns; the other columns are
// padding. A row whose target is kNoTarget has loss 0 and gradient 0. With want_gradient, the same pass
// replaces logits by gradient_scale (softmax - onehot), and the padding by 0. The scale is in memory because
// it changes from step to step: a CUDA graph reads it when it runs. With weights w, the loss and the gradient
// of row n are multiplied by w[n]. With a cap c, the loss is that of capped = c tanh(logits / c), and the
// gradient of the logits is the gradient of capped times 1 - (capped / c)^2. With z_loss z, z lse^2 is added
// to a row's loss, where lse is the log of the sum of exp(logits): this keeps the sum near 1. With
// label_smoothing s, the loss is (1 - s) times that of the target plus s times the mean over all columns.
struct CrossEntropy {
  static constexpr const char* kName = "cross entropy";
  Tensor logits;   // [N, padded V], read; overwritten by the gradient with want_gradient
  Tensor targets;  // [N] int32, each < vocab_size, or kNoTarget
  Tensor losses;   // [N] fp32
  int64_t vocab_size;
  bool want_gradient;
  float cap = 0;               // 0: none
  Tensor gradient_scale = {};  // [1] fp32; none: 1
  Tensor weights = {};         // [N] fp32; none: 1
  Fp8Output fp8_dlogits = {};  // only with want_gradient
  float z_loss = 0;
  float label_smoothing = 0;  // 0 to 1, not 1

  void check_on(Device device) const;
};

// The loss of a row with a target is w (c CE + (1 - c) t^2 ((1 - r) F + r R)); a row without one has loss 0.
// CE is that of CrossEntropy. With p = softmax(teacher / t) and q = softmax(logits / t), F is the forward
// divergence, the sum of p log(p / q), and R the reverse one, the sum of q log(q / p). c is `cross_entropy`,
// t the temperature and r `reverse`. With want_gradient logits become w gradient_scale times c
// (softmax(logits) - onehot) + (1 - c) t ((1 - r) (q - p) + r q (log(q / p) - R)), and 0 in the padding.
// Hinton et al., arXiv 1503.02531; Gu et al., arXiv 2306.08543. If only the K largest logits of the teacher
// are known, p and q are probabilities of K + 1 events: these K tokens, and "any other token". Both
// divergences are then at most those over all tokens. The gradient of a token that is not known is q / q'
// times the gradient of that event, where q' is the event's probability by the student.
struct Distillation {
  static constexpr const char* kName = "distillation";
  Tensor logits;        // [N, padded V], read; overwritten by the gradient with want_gradient
  Tensor teacher = {};  // [N, any padded V] of the same dtype: the teacher's logits; none: see largest_ids
  Tensor targets;       // [N] int32, each < vocab_size, or kNoTarget
  Tensor losses;        // [N] fp32
  int64_t vocab_size;
  bool want_gradient;
  float temperature = 1, cross_entropy = 0, reverse = 0;
  Tensor gradient_scale = {};  // [1] fp32; none: 1
  Tensor weights = {};         // w, [N] fp32; none: 1
  // In place of `teacher`, for rows with a target: ids and values of LargestLogits, computed at the same
  // temperature. No id stands twice in a row.
  Tensor largest_ids = {}, largest = {};

  void check_on(Device device) const;
};

// The K largest of the first `vocab_size` logits of each row, in the order of their ids; of equal logits
// those with the lower ids. `values` has these logits as they are, and after them the logarithm of the sum of
// exp(logit / t) over all other columns, which is -infinity if there are none.
struct LargestLogits {
  static constexpr const char* kName = "largest logits";
  Tensor logits;  // [N, padded V], read
  Tensor ids;     // [N, K] int32, written
  Tensor values;  // [N, K + 1] fp32, written
  int64_t vocab_size;
  float temperature = 1;  // t

  void check_on(Device device) const;
};

// The losses of pairs of documents, by kernels/preference.h. A pair is a first document and the second one
// that begins where it ends, in the same sequence. For each row of a pair, `weights` gets the factor by which
// the gradient of the row's cross entropy becomes the gradient of the pair's loss; other rows get 0. At the
// first row of a pair, `figures` gets what PreferenceFigures::at() names; other rows get 0.
struct PreferenceLoss {
  static constexpr const char* kName = "preference loss";
  Tensor documents;       // [B, T, 2] int32: where each token's document begins and ends
  Tensor kinds;           // [B, T] int32: the DocumentKind of each token's document
  Tensor targets;         // [N] int32, or kNoTarget
  Tensor losses;          // [N] fp32: the cross entropy of each row; rows without a target are not read
  Tensor reference = {};  // [N] fp32: the same by the reference, if the rule needs one and `stored` is none
  // [N, 2] fp32: at the first row of each document, the sum of the reference's log-probabilities of its
  // tokens that count, as a float and the rest that the float leaves
  Tensor stored = {};
  PreferenceRule rule = {};
  // For kto, both [1] fp32: the sum of m - m' over all mismatched documents of the step, and one over their
  // number. If there are weights, each document counts with its weight. None: z is 0. That is enough to find
  // the sum, which is then in row PreferenceFigures::kDivergence of the figures
  Tensor divergence = {}, gradient_scale = {};
  // [N] fp32: at the first row of a pair, the factor of its loss and of the divergence of its figures; none:
  // 1
  Tensor pair_weights = {};
  Tensor weights;  // [N] fp32, written
  Tensor figures;  // [PreferenceFigures::kCount, N] fp32, written

  void check_on(Device device) const;
};

// logits = cap tanh(logits / cap)
struct CapLogits {
  static constexpr const char* kName = "logit cap";
  Tensor logits;  // [N, padded V]
  float cap;      // above 0

  void check_on(Device device) const;
};

// The logits and the loss in one, for training: neither the logits nor their gradient are stored. With
// l = x weight^T, r the logit l of the row's target, and S the sum of a row of e:
//   e = exp(min(l - r, 60)), 0 for the target and for columns from vocab_size on
//   losses = w log(1 + S),  a = w gradient_scale / (1 + S),  b = -a S,  scaled_x = a x
// So w gradient_scale (softmax - onehot) is a e, and b for the target. The gradients follow from
// LinearBackward with dy = e and x = scaled_x, and then HeadGradient. A row whose target is kNoTarget has
// loss 0 and a = b = 0.
struct HeadLoss {
  static constexpr const char* kName = "head and loss";
  static constexpr int64_t kSumColumns = 192;  // columns of a row that are added up in a first step
  Tensor x, weight;                            // [N, C] [padded V, C]
  Tensor targets;                              // [N] int32, each < vocab_size, or kNoTarget
  Tensor gradient_scale = {};                  // [1] fp32; none: 1
  Tensor weights = {};                         // w, [N] fp32; none: 1
  float z_loss = 0;                            // as CrossEntropy's: changes losses, a and b
  int64_t vocab_size;
  Tensor e;         // [N, padded V], written, and so are all tensors below
  Tensor losses;    // [N] fp32
  Tensor scaled_x;  // [N, C]
  Tensor factors;   // [2, N] fp32: a, b
  Tensor sums;      // [padded V / kSumColumns, rounded up, N] fp32: scratch

  void check_on(Device device) const;
};
// For every row dx = a product + b weight[target], where product = e weight; and dweight[target] += b x
struct HeadGradient {
  static constexpr const char* kName = "head gradient";
  Tensor x;                // [N, C], overwritten by its gradient dx
  Tensor product;          // [N, C]
  Tensor targets;          // [N] int32
  Tensor factors;          // [2, N] fp32: a, b
  Tensor weight, dweight;  // [padded V, C]

  void check_on(Device device) const;
};

// sum[0] = the sum of losses, added in double in a fixed order and rounded once
struct SumLosses {
  static constexpr const char* kName = "sum of losses";
  Tensor losses;  // fp32, of any shape
  Tensor sum;     // [1] fp32

  void check_on(Device device) const;
};

}  // namespace tessera
