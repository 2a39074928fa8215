// Updates of parameters, by AdamW and Muon. The rules for all operations are in ops.h.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/base/tensor.h"
#include "kernels/step_verdict.h"

namespace tessera {

// norm[0] = sqrt of the sum of squares of every element of every tensor
struct GlobalNorm {
  static constexpr const char* kName = "gradient norm";
  std::span<const Tensor> tensors;
  Tensor norm;  // [1] fp32

  void check_on(Device device) const;
};

// Decides whether a step may update the weights, by the sum of its losses and the norm of its gradients.
struct JudgeStep {
  static constexpr const char* kName = "judge step";
  Tensor losses;     // [R] fp32: the sums of R ranks, which are added up
  Tensor grad_norm;  // as in AdamW
  Tensor limits;     // [2] fp32: the largest sum of losses, and the largest norm
  Tensor verdict;    // [1] fp32, written: a StepVerdict

  void check_on(Device device) const;
};

// One AdamW step of some parameters (Loshchilov and Hutter, arXiv:1711.05101). The gradient is multiplied by
// min(1, max_norm / (norm + 1e-6)). If the norm is not finite, nothing changes, so a diverged step can be
// refused without harm.
//
// Moments in bf16 are widened to fp32, the step is computed as with fp32 moments, and then they are rounded
// at random (kernels/base/bf16.h). Rounded to nearest, a decay of less than half a unit in the last place
// would never move them. With i = first_element + the element's index, word i % 4 of Philox(random_key,
// step).bits(i / 4) rounds both moments: its lower half m, its upper half v. So a tensor may be cut into
// slices, each with its own first_element, and gets the bits that the whole tensor would get.
struct AdamW {
  static constexpr const char* kName = "adamw";
  // Parameters that lie side by side. All parts have the same dtypes.
  struct Part {
    Tensor param;               // bf16 or fp32; on the CPU always fp32
    Tensor low;                 // uint16: with param it is the master that the step updates (SplitMasters);
                                // none if param is fp32
    Tensor grad;                // like param, or fp32
    Tensor m, v;                // both fp32 or both bf16, on either device
    int64_t decayed = 0;        // the elements before this one have weight decay: a multiple of 8, or all
    uint64_t random_key = 0;    // used with bf16 moments only
    int64_t first_element = 0;  // the index of a slice's first element in the whole: a multiple of 8
  };
  std::vector<Part> parts;
  Tensor grad_norm;  // [R] fp32: the norms of R parts of the gradients, by GlobalNorm. The norm of all
                     // gradients is the root of the sum of their squares
  double max_norm;   // 0 or less: no clipping
  // double, because 1 - beta2 in fp32 would be off by 1e-5
  double learning_rate, beta1, beta2, epsilon, weight_decay;
  int64_t step;         // from 1
  Tensor verdict = {};  // [1] fp32, of JudgeStep: nothing changes unless it is kUpdate; none: only the norm
                        // decides

  void check_on(Device device) const;
};

// Measures what an AdamW step is about to do to some ranges of its parameters. sums[s] has three sums over
// range s: of the squares of the weights (masters), of the gradient as the step scales it, and of what the
// step adds to the weights. It writes nothing else, and runs before the step. The sums are 0 if the step
// changes nothing.
struct AdamWNorms {
  static constexpr const char* kName = "adamw norms";
  struct Range {
    size_t part = 0;               // the index of a part of the step
    int64_t first = 0, count = 0;  // elements of that part; first: a multiple of 8
  };
  const AdamW& step;
  std::span<const Range> ranges;
  Tensor sums;  // [S, 3] fp32

  void check_on(Device device) const;
};

// Muon updates a matrix by the direction of the mean of its gradients, whatever its length (Jordan et al.,
// 2024, https://kellerjordan.github.io/posts/muon). It consists of three operations, so that ranks can
// exchange their parts of the direction between them.
//
// The first is for any elements that lie side by side: m = momentum m + (1 - momentum) g, and the direction,
// after Nesterov, (1 - momentum) g + momentum m, where g is the gradient after clipping. It changes nothing
// where AdamW does not.
struct MuonMomentum {
  static constexpr const char* kName = "muon momentum";
  Tensor gradient;   // [n] as AdamW's
  Tensor mean;       // [n] m: fp32, or bf16 that is rounded at random as in AdamW
  Tensor direction;  // [n], written, in the dtype of the weights
  Tensor grad_norm;  // this and all that follow as in AdamW
  double max_norm, momentum;
  int64_t step;
  uint64_t random_key = 0;
  int64_t first_element = 0;  // a multiple of 8
  Tensor verdict = {};

  void check_on(Device device) const;
};

// The second: X becomes approximately the nearest matrix with orthonormal rows or columns, times rms sqrt(the
// larger side). For an exactly orthonormal matrix that gives the root mean square `rms`. X / (margin |X|),
// with the Frobenius norm, goes through the polynomials a X + (b A + c A A) X with A = X X^T, one after the
// other, which move its singular values towards 1. For a tall matrix the same is done with X^T. A matrix of
// zeros stays zero. The rounded result of each GEMM has the dtype of the matrix, and sums are fp32. Several
// matrices are computed together, so that small ones fill a device. Which others there are does not change
// the bits of a matrix.
struct Orthogonalise {
  static constexpr const char* kName = "orthogonalise";
  struct Polynomial {
    double a, b, c;
  };
  static constexpr size_t kMost = 24;
  std::span<const Tensor> matrices;         // [m, n] each, 1 to kMost
  Tensor room;                              // scratch of their dtype: room_for() elements for each matrix
  std::span<const Polynomial> polynomials;  // an odd number of them
  double margin = 1;                        // at least 1
  double rms = 1;

  // The elements of a matrix's scratch. It holds three matrices, which begin at multiples of 128 elements.
  static constexpr int64_t piece(int64_t elements) { return (elements + 127) / 128 * 128; }
  static constexpr int64_t room_for(int64_t rows, int64_t columns) {
    const int64_t least = std::min(rows, columns);
    return piece(rows * columns) + 2 * piece(least * least);
  }
  static int64_t room_for(const Tensor& matrix) { return room_for(matrix.shape[0], matrix.shape[1]); }
  void check_on(Device device) const;
};

// An optional operation between these two: it makes the rows of X equally long, by the mean over steps of the
// squares of their elements: r = beta r + (1 - beta) mean of squares, x = x / (sqrt(r) + epsilon). Then all
// of X is scaled to the root mean square `rms` (NorMuon: Li et al., arXiv:2510.05491). It changes nothing
// where AdamW does not.
struct NormaliseRows {
  static constexpr const char* kName = "normalise rows";
  static constexpr double kEpsilon = 1e-10;
  Tensor matrix;   // [m, n]
  Tensor squares;  // [m] fp32: r
  double beta, rms;
  Tensor grad_norm;  // as AdamW's
  Tensor verdict = {};

  void check_on(Device device) const;
};

// The third is for any elements that lie side by side: w -= learning_rate (direction + weight_decay w), with
// masters as in AdamW. It changes nothing where AdamW does not.
struct MuonUpdate {
  static constexpr const char* kName = "muon update";
  Tensor param, low;  // [n] as in AdamW
  Tensor direction;   // [n] like param
  Tensor grad_norm;   // as in AdamW
  double learning_rate, weight_decay;
  bool cautious = false;  // weight decay applies only where the direction also makes the weight smaller
  Tensor verdict = {};

  void check_on(Device device) const;
};

// As AdamWNorms, for a step of Muon and one range of it
struct MuonNorms {
  static constexpr const char* kName = "muon norms";
  const MuonUpdate& step;
  Tensor gradient;  // [n] as in MuonMomentum
  double max_norm;
  int64_t first, count;  // the range, in elements of the step
  Tensor sums;           // [3] fp32

  void check_on(Device device) const;
};

}  // namespace tessera
