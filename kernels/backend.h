// Backend: every operation of a transformer, one argument struct and one virtual call each.
//
// Shape letters: B batch, T tokens of a sequence, C channels, H heads, D head dim, V vocabulary, N = B T
// rows, O output features.
//
// Rules for every operation:
//   - It allocates nothing. Scratch comes from the workspace that the caller lends with lend_workspace().
//   - Gradients of parameters are added to (zero them at the start of a step); gradients of activations are
//   overwritten.
//   - Unless a field says otherwise, tensors share one dtype: fp32 on the CPU; bf16 or fp32 on CUDA.
//     Statistics and sums are fp32. Arithmetic inside an operation is fp32 whatever the dtype; a result is
//     rounded once.
//   - CUDA enqueues on one stream and returns; copy() to host memory and synchronize() wait.
//   - Same arguments, same bits, unless AttentionPlan::deterministic is off.
// Errors: a shape, dtype or device that does not fit is an Error naming the field.
#pragma once

#include <memory>
#include <span>

#include "kernels/attention/choose.h"
#include "kernels/base/activation.h"
#include "kernels/base/arena.h"
#include "kernels/base/tensor.h"

struct CUstream_st;

namespace tessera {

// y[b, t] = token_table[tokens[b, t]] + position_table[t]
struct EmbeddingForward {
  Tensor tokens;          // [B, T] int32, each < V
  Tensor token_table;     // [V, C]
  Tensor position_table;  // [>= T, C]
  Tensor y;               // [B, T, C]
};
struct EmbeddingBackward {
  Tensor tokens;            // [B, T] int32
  Tensor dy;                // [B, T, C]
  Tensor d_token_table;     // [V, C], added to
  Tensor d_position_table;  // [>= T, C], added to
};

// y = (x - mean) rstd weight + bias over the channels of each row; rstd = 1 / sqrt(variance + epsilon)
struct LayerNormForward {
  Tensor x, weight, bias, y;  // [N, C] [C] [C] [N, C]
  Tensor mean, rstd;          // [N] fp32, saved for the backward
  float epsilon = 1e-5f;
};
struct LayerNormBackward {
  Tensor dy, x, weight, mean, rstd;
  Tensor dx;              // [N, C]
  Tensor dweight, dbias;  // [C], added to
  Tensor add = {};        // [N, C]: dx = add + ..., the residual's own gradient; may be dx itself
};

// y = x weight^T + bias + add, or with pre_activation: pre_activation = x weight^T + bias,
// y = activation(pre_activation).
struct LinearForward {
  Tensor x, weight, y;         // [N, C] [O, C] [N, O]
  Tensor bias = {};            // [O]
  Tensor add = {};             // [N, O], a residual; may be y itself; not together with pre_activation
  Tensor pre_activation = {};  // [N, O], saved for the backward
  Activation activation = Activation::kGelu;  // where there is a pre_activation
};
struct LinearBackward {
  Tensor dy, x, weight;        // [N, O] [N, C] [O, C]
  Tensor dx;                   // [N, C]; may be x itself: dweight and dbias are computed first
  Tensor dweight;              // [O, C], added to
  Tensor dbias = {};           // [O], added to
  Tensor pre_activation = {};  // [N, C], if x = activation(pre_activation): then dx is the gradient of that
  Activation activation = Activation::kGelu;
};

struct AttentionForwardOp {
  const AttentionPlan& plan;
  Tensor qkv;             // [B, T, 3, H, D]
  Tensor y;               // [B, T, H, D]
  Tensor saved;           // plan.saved_shape, for the backward
  Tensor workspace = {};  // plan.forward_workspace_bytes
};
struct AttentionBackwardOp {
  const AttentionPlan& plan;
  Tensor qkv, y, saved;   // as the forward took and left them
  Tensor dy;              // [B, T, H, D]
  Tensor dqkv;            // [B, T, 3, H, D]
  Tensor workspace = {};  // plan.backward_workspace_bytes
};

// losses[n] = -log softmax(logits[n])[targets[n]], over the first `vocab_size` columns: the rest is padding.
// With want_gradient, logits become gradient_scale (softmax - onehot) in the same pass, 0 in the padding.
struct CrossEntropy {
  Tensor logits;   // [N, padded V], read, and overwritten by the gradient if wanted
  Tensor targets;  // [N] int32, each < vocab_size
  Tensor losses;   // [N] fp32
  int64_t vocab_size;
  bool want_gradient;
  float gradient_scale = 1;
};

// norm[0] = sqrt of the sum of squares of every element of every tensor
struct GlobalNorm {
  std::span<const Tensor> tensors;
  Tensor norm;  // [1] fp32
};

// One AdamW step, Loshchilov and Hutter, arXiv:1711.05101, with the gradient scaled by min(1, max_norm /
// (norm + 1e-6)). Nothing is changed if the norm is not finite, so a diverged step can be refused without
// harm.
//
// Moments in bf16 are widened to fp32, the step is computed as with fp32 moments, and only then are they
// rounded, at random (kernels/base/bf16.h): to nearest, a decay of less than half a unit in the last place
// would never move them. With i = first_element + the element's index, the word i % 4 of
// Philox(random_key, step).bits(i / 4) rounds both: its lower half m, its upper half v. So a tensor may be
// cut into slices, each with its own first_element, and the bits are those of the whole.
struct AdamW {
  Tensor param;      // bf16, or fp32 (on the CPU always)
  Tensor master;     // fp32 copy that the step is computed on; none if param is fp32
  Tensor grad;       // like param, or fp32
  Tensor m, v;       // both fp32 or both bf16, on either device
  Tensor grad_norm;  // [R] fp32: norms, as GlobalNorm left them, of R parts that the gradients fall into. The
                     // norm of all is the root of the sum of their squares; of one part, that part's
  double max_norm;   // 0 or less: no clipping
  // double, because 1 - beta2 in fp32 would be off by 1e-5
  double learning_rate, beta1, beta2, epsilon, weight_decay;
  int64_t step;               // from 1
  uint64_t random_key = 0;    // used with bf16 moments only
  int64_t first_element = 0;  // of a slice in the whole: a multiple of 8
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const DeviceTraits& traits() const = 0;
  Device device() const { return traits().device; }
  virtual void lend_workspace(
      Tensor workspace) = 0;  // at least workspace_bytes(); must outlive the backend's last call

  virtual void embedding_forward(const EmbeddingForward& a) = 0;
  virtual void embedding_backward(const EmbeddingBackward& a) = 0;
  virtual void layernorm_forward(const LayerNormForward& a) = 0;
  virtual void layernorm_backward(const LayerNormBackward& a) = 0;
  virtual void linear_forward(const LinearForward& a) = 0;
  virtual void linear_backward(const LinearBackward& a) = 0;
  virtual void attention_forward(const AttentionForwardOp& a) = 0;
  virtual void attention_backward(const AttentionBackwardOp& a) = 0;
  virtual void cross_entropy(const CrossEntropy& a) = 0;
  virtual void global_norm(const GlobalNorm& a) = 0;
  virtual void adamw(const AdamW& a) = 0;

  virtual void fill_zero(Tensor tensor) = 0;
  // Copies between host and device, and converts between fp32 and bf16, as the two tensors say; equal element
  // counts.
  virtual void copy(Tensor from, Tensor to) = 0;
  virtual void synchronize() = 0;
  // What CUDA operations are enqueued on; null on the CPU.
  virtual CUstream_st* stream() const { return nullptr; }
};

// Scratch that the operations of a device need for batches of up to `rows` = B T rows, models of `channels`,
// and linear layers with a bias of up to `features` outputs. Needs no device.
int64_t workspace_bytes(Device device, int64_t rows, int64_t channels, int64_t features);

std::unique_ptr<Backend> make_cpu_backend();
std::unique_ptr<Backend> make_cuda_backend();  // fails without a CUDA build or device
// Does nothing: walking a step with it over Arena::plan() gives the step's memory, on a machine without the
// device.
std::unique_ptr<Backend> make_plan_backend(const DeviceTraits& traits);

// How many GPUs this process can see; 0 without a CUDA build or driver.
int count_cuda_devices();
// Makes GPU `index` of those the current one of the calling thread, and of threads that are told so.
void use_cuda_device(int index);

// The traits of the current CUDA device; false, with the reason, if there is none that can be used.
bool find_cuda_device(DeviceTraits& traits, std::string& why_not);

}  // namespace tessera
