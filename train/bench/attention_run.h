// One way to attend on one problem, ready to be called: what `./bench attention` times.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/stream.h"
#include "train/bench/ladder.h"

namespace tessera {

// What a contender computes in addition to the plain problem: a feature of the attention family
struct AttentionExtra {
  std::string name;  // the word of --with; empty: nothing
  Dropout dropout = {};
  bool sinks = false, alibi = false;
  float cap = 0;

  void add_to(AttnProblem& problem) const;
};

// A way to attend as the benchmark knows it: a rung of the ladder,
// cuDNN, or on the CPU a kind of its backend.
struct Contender {
  std::string name;
  const attention::Rung* rung = nullptr;  // null: cuDNN, or a kind of the CPU's
  AttentionExtra extra = {};

  DType dtype(Device device) const;
  // Empty, or a word or two on why it cannot run.
  std::string why_not(const AttnProblem& problem, const DeviceTraits& device) const;
  // FLOP/s that any device reaches. It gives a first guess of how long a call takes.
  double least_flops(Device device) const;
};
std::vector<Contender> all_contenders(Device device);

// Packed projections [B, T, H + 2 K, D], the gradient of the output [B, T, H, D] and sinks [H], all with
// random values; and the problem's documents on the device, int32 [B, T, 2].
struct AttentionInputs {
  AttnProblem problem;
  Tensor qkv, dout, sinks;
  Tensor documents = {};
  Tensor blocks = {};  // for mask.blocks: its lists, see BlockLists
  AttentionExtra extra = {};
};
// Values from the standard normal distribution, the same each time
void fill_random(const Stream& stream, const Tensor& tensor);
AttentionInputs random_inputs(const Stream& stream, Arena& arena, const AttnProblem& problem);

class AttentionRun {
 public:
  virtual ~AttentionRun() = default;
  virtual void forward() = 0;
  virtual void backward() = 0;  // call it after forward()
  int64_t saved_bytes() const { return saved_bytes_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }

 protected:
  int64_t saved_bytes_ = 0, workspace_bytes_ = 0;
};

// Allocates outputs, what is saved, and workspace from an arena of its own. Stream and inputs must outlive
// it. Error: OutOfMemory, and what the kernels refuse.
std::unique_ptr<AttentionRun> make_attention_run(const Contender& contender, const Stream& stream,
                                                 const AttentionInputs& inputs, bool cudnn_deterministic);

}  // namespace tessera
