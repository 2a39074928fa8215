// Fp8: the linear layers that are multiplied in FP8, and the scales of what they multiply. The store has
// their weights (store/stored_forms.h), rounded once a step by their own largest element. The scales of
// activations and gradients stay for a step: they follow from the largest elements of the step before,
// over all micro-batches and ranks, so that they depend on no order. A run's first step, which has none
// before it, scales each tensor by itself.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/fp8_config.h"
#include "model/fp8_linear.h"

namespace tessera {

// Exponents of the scales of x and dy, by the layer's name: "blocks.1.mlp.expand", "head"
struct Fp8Exponents {
  int x = 0, dy = 0;
  bool operator==(const Fp8Exponents&) const = default;
};
using Fp8Scales = std::map<std::string, Fp8Exponents>;

// "blocks 1 to 10 of 12; delayed scales"
std::string fp8_text(const ModelConfig& model, const Fp8Config& config);

// A linear layer that is multiplied in FP8. All of a model: fp8_places.h
struct Fp8Place {
  std::string name;        // "blocks.1.mlp.expand", "head"
  int64_t number;          // of the block; L: the head
  size_t linear;           // of the block, as LinearOfStage::index; not of the head
  Fp8Matrix weight;        // [O, C]
  Tensor transposed;       // [C, O]
  bool in_chunks = false;  // as StageRow::in_chunks
  // Whether x or dy is written by the GEMM of another layer, which reads its own operand at the same time
  bool gemm_writes_x = false, gemm_writes_dy = false;
};

struct Fp8Run {
  Fp8Config config;
  std::vector<Fp8Place> places;
  int64_t rows;                  // of a micro-batch, N
  int64_t mlp_rows, logit_rows;  // of its MLPs' hidden layers, of its logits: that are in memory at a time
  int64_t rank = 0, ranks = 1;
};

class Fp8 {
 public:
  // Allocates; nothing where the run has no such layer. The weights must outlive it.
  Fp8(Arena& arena, const ModelConfig& model, const Fp8Run& run);
  Fp8(const Fp8&) = delete;

  explicit operator bool() const { return !layers_.empty(); }
  std::vector<Fp8Place> places() const { return {layers_.begin(), layers_.end()}; }  // by Fp8Linear::number
  const Fp8Layers* layers() const { return *this ? &fp8_ : nullptr; }  // for Model::fp8, while this lives
  // The same layers with the weights of another store, whose forwards round their x by the scales of these.
  // Error: other layers than these
  const Fp8Layers* layers_of(const std::vector<Fp8Place>& others);

  void begin_step(const Stream& stream);
  // The scales are again those of before the last begin_step(): that step does not count.
  void take_back_step(const Stream& stream);
  // The scales of the next step, once all ranks have one another's amaxes()
  void end_step(const Stream& stream);
  const Tensor& amaxes() const { return amaxes_; }  // [ranks, 2, S] fp32
  Tensor own_amaxes() const;                        // [2 S], of this rank: a part of it

  // Whether x and dy are rounded by passes of their own alone, for comparison: the same bits, more to read
  void read_again(bool reads_again);

  void forget();                                 // the scales: the next step is again the first
  Fp8Scales scales(const Stream& stream) const;  // of the next step; empty: it is the first, or needs none
  // Those of a checkpoint. Where a layer of this run is not among them, the next step is again the first.
  void set_scales(const Stream& stream, const Fp8Scales& scales);

 private:
  struct Layer : Fp8Place {
    Fp8Linear* fp8;              // of fp8_
    Fp8Linear* other = nullptr;  // of others_
  };
  Fp8Linear& linear_of(Fp8Layers& of, const Fp8Place& place) const;

  Fp8Config config_;
  Fp8Layers fp8_, others_;
  std::vector<Layer> layers_;
  Tensor before_;  // scales_ of the step before
  Tensor scales_;  // as UpdateScales has them: of x and of dy, of S layers
  Tensor amaxes_;  // [ranks, 2, S] fp32, of this step
  int64_t rank_ = 0;
  bool known_ = false;  // the scales are those of a step before
  bool known_before_ = false;
};

}  // namespace tessera
