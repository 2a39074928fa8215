// Fp8: the linear layers that are multiplied in FP8, and the scales of their operands. The store has their
// weights (store/stored_forms.h), which are rounded once a step by their own largest element. The scales of
// activations and gradients are fixed for a step. They follow from the largest elements of the step before,
// over all micro-batches and ranks, so that they depend on no order. The first step of a run has no step
// before it, so each tensor has a scale of its own.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/fp8_config.h"
#include "model/fp8_linear.h"

namespace tessera {

// The exponents of the scales of x and dy. Fp8Scales has them by the layer's name: "blocks.1.mlp.expand",
// "head"
struct Fp8Exponents {
  int x = 0, dy = 0;
  bool operator==(const Fp8Exponents&) const = default;
};
using Fp8Scales = std::map<std::string, Fp8Exponents>;

// "blocks 1 to 10 of 12; not routers; delayed scales"
std::string fp8_text(const ModelConfig& model, const Fp8Config& config);

// A linear layer that is multiplied in FP8. fp8_places.h finds all of a model.
struct Fp8Place {
  std::string name;        // "blocks.1.mlp.expand", "head"
  int64_t number;          // of the block; L for the head
  size_t linear;           // LinearOfStage::index in the block; unused for the head
  Fp8Matrix weight;        // [O, C]; of experts [E, O, C]
  Tensor transposed;       // [C, O]; of experts [E, C, O]
  // The values of x and of dy for each token: C and O, and k times as many where experts have a row for each
  // choice
  int64_t x_values = 0, dy_values = 0;
  bool in_chunks = false;  // see StageRow::in_chunks
  // Whether x or dy is written by the GEMM of another layer, which reads its own operand at the same time
  bool gemm_writes_x = false, gemm_writes_dy = false;
};

struct Fp8Run {
  Fp8Config config;
  std::vector<Fp8Place> places;
  int64_t rows;                  // of a micro-batch, N
  int64_t mlp_rows, logit_rows;  // the rows of the MLPs' hidden layers, and of logits, that exist at a time
  int64_t rank = 0, ranks = 1;
};

class Fp8 {
 public:
  // Allocates; allocates nothing if no layer of the run is in FP8. The weights must outlive it.
  Fp8(Arena& arena, const ModelConfig& model, const Fp8Run& run);
  Fp8(const Fp8&) = delete;

  explicit operator bool() const { return !layers_.empty(); }
  std::vector<Fp8Place> places() const { return {layers_.begin(), layers_.end()}; }  // by Fp8Linear::number
  const Fp8Layers* layers() const { return *this ? &fp8_ : nullptr; }  // for Model::fp8, while this lives
  // The same layers with the weights of another store, whose forwards round their x by the scales of these.
  // Error: other layers than these
  const Fp8Layers* layers_of(const std::vector<Fp8Place>& others);

  void begin_step(const Stream& stream);
  // Restores the scales from before the last begin_step(), because that step does not count.
  void take_back_step(const Stream& stream);
  // Computes the scales of the next step. All ranks must have exchanged amaxes() before.
  void end_step(const Stream& stream);
  const Tensor& amaxes() const { return amaxes_; }  // [ranks, 2, S] fp32
  Tensor own_amaxes() const;                        // [2 S], the part of them that belongs to this rank

  // Whether x and dy are only rounded by passes of their own, for comparison: that gives the same bits, but
  // reads more
  void read_again(bool reads_again);

  void forget();                                 // forgets the scales: the next step is again the first one
  Fp8Scales scales(const Stream& stream) const;  // of the next step; empty if it is the first, or needs none
  // Takes the scales of a checkpoint. If a layer of this run is not among them, the next step is again the
  // first one.
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
  bool known_ = false;         // scales_ come from an earlier step
  bool known_before_ = false;  // and so do before_
};

}  // namespace tessera
