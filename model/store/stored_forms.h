// StoredForms: what a store has of matrices besides their weights in its dtype, in a StoredFormat (StoredAs).
//   - kCopied: a copy and, in a store for training, its transpose, made of the whole matrix before the first
//     lease of a step.
//   - kOnly: frozen matrices have these values in place of others, whole on the device, or split, gathered
//     and copied as the other weights are. A lease that is not of a training step widens them to the dtype
//     of the others; where GEMMs do not read the format, each lease does.
//   - kBeside: each rank rounds its part of trained weights that take turns once a step, by a scale that all
//     ranks agree on, and a lease in training brings these values in place of the others.
// A lease for a backward has kOnly and kBeside transposed. Transposed and widened matrices lie in a buffer
// that all parts of the model share.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/present.h"
#include "model/store/setting.h"
#include "model/store/stored_format.h"
#include "model/store/turns.h"
#include "model/store/weight_source.h"

namespace tessera {

// A matrix in its stored form. Its tensors are valid during a lease of a training step.
struct StoredMatrix {
  size_t place;       // its index in the store's layout
  StoredAs how;       // not kNo
  std::string layer;  // as Fp8Place::name
  StoredValues values;
  Tensor transposed;  // [C, O], of experts [E, C, O], during a lease for a backward
  Tensor plain;  // [O, C], of experts [E, O, C], in the store's dtype; only for kOnly, in a lease that widens

  Fp8Matrix fp8() const { return {values.data, values.scales.rows(0, 1)}; }
};

// StoredShape::rows of a matrix: those of a layer's experts are one.
LayerParts stored_rows(const ParamInfo& info, const LoraConfig& lora);

class StoredForms {
 public:
  // `weights`: those that are kOnly become views of the widened values. `turns`: those of the weights; null:
  // weights are whole
  StoredForms(const StoreSetting& setting, Params& weights, Turns* turns, Arena& where,
              const StoredFormat& format);

  const std::vector<StoredMatrix>& matrices() const { return matrices_; }
  const Params& training_views() const { return training_views_; }
  // Whether some weights have no place in the store's dtype
  bool has_only() const;
  // Makes the matrices of a part as a lease needs them. `leases`: how many live, by bucket
  void make(size_t bucket, LeaseFor use, const std::vector<int64_t>& leases);
  void copy(size_t bucket);  // makes the copies for kCopied, unless that has been done
  void begin_step();         // from now on the copies are old: they belong to the step before
  void forget() { is_old_.assign(is_old_.size(), true), buffer_of_ = Turns::kNobody; }
  // A parameter of a bucket that is whole; if it is kOnly, the widened values
  Tensor whole(const Params& weights, const ParamPlace& place) const;
  // Writes a matrix that is kOnly. fill(to, first) writes the values of its elements from `first` on to `to`
  // [n]. Every rank has all values, so that all ranks have the same scales.
  using Fill = std::function<void(const Tensor& to, int64_t first)>;
  void write(const ParamPlace& place, const Fill& fill);
  // The same for values on the host that have the format already
  void write(const ParamPlace& place, const StoredValues& values);

  // If weights take turns:
  void start(size_t bucket, WeightSource& source) {
    source.start(own_[bucket], present(turns_).views()[bucket]);
  }
  bool has_beside(size_t bucket) const { return setting_.layout.buckets[bucket].stored == StoredAs::kBeside; }
  // Rounds the trained weights of a bucket that is whole to FP8.
  void round_whole(size_t bucket);
  // Each rank rounds its own parts. The scale is found from the largest element of all parts of a matrix, so
  // scale and values are those of the whole matrix. Error: all weights are frozen
  struct OwnWeights {
    std::function<ParamSlice(const ParamPlace&)> slice;
    std::function<Tensor(size_t bucket)> trained;
  };
  void round_parts(const OwnWeights& own, WeightSource& source);

 private:
  void allocate_values(Params& weights);
  const StoredMatrix& matrix_of(const ParamPlace& place) const {
    return *std::ranges::find(matrices_, place.index, &StoredMatrix::place);
  }
  void keep_own(const StoredMatrix& whole);  // of one that every rank has written
  void round(const StoredMatrix& to, const Fill& fill);
  void allocate_vectors();
  // The stored values of a place. `all` is the tensor of its bucket.
  Tensor stored_view(const Tensor& all, const ParamPlace& place) const;
  Tensor widened_view(const ParamPlace& place) const {
    return buffer_.rows(place.stored_first, place.info.shape.numel()).view(place.info.shape);
  }
  void allocate_buffer();

  const StoreSetting& setting_;
  const StoredFormat& format_;
  std::vector<StoredMatrix> matrices_;
  std::vector<Tensor> own_;            // this rank's values, by bucket
  std::optional<Turns> turns_;         // where they take turns
  Tensor scales_, amaxes_;             // of all matrices; of FP8 that ranks round, [ranks, 1, S] fp32
  Tensor buffer_;                      // room for the matrices of a part, transposed or widened
  size_t buffer_of_ = Turns::kNobody;  // whose matrices it has
  std::vector<Tensor> vectors_;        // by bucket, where matrices are kBeside: routers and vectors
  Params training_views_;              // with these
  std::vector<bool> is_old_;           // by bucket: copies are those of the step before
};

}  // namespace tessera
