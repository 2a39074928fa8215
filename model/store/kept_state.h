// KeptState: what an update rule keeps of the parameters, under names: masters, and a tensor of each
// bucket for each name that it adds. They are undefined until clear().
//
// It can lie in host memory (Arena::mapped): the update reads and writes it there, over the bus.
//
// bf16 weights are updated by their fp32 masters. The lower 16 bits of these are kept, which with the
// weights are the masters (kernels/base/master.h). So what writes weights writes the bits of its part as
// well.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/store/weight_home.h"
#include "model/update_rule.h"

namespace tessera {

// Names besides those of the update rule: the fp32 weights, and the weights as the model reads them
inline constexpr const char *kMaster = "master", *kWeight = "weight";

class KeptState {
 public:
  // `where`: the memory of what is kept
  KeptState(const StoreSetting& setting, const WeightHome& weights, Arena& where)
      : setting_(setting), weights_(weights), where_(where) {}
  KeptState(const KeptState&) = delete;

  void keep_masters();
  // Of the trained parameters that has() says
  using Has = std::function<bool(const ParamInfo& info)>;
  void keep(const StateTensor& state, const Has& has);
  std::vector<std::string> names() const;  // in the order of keeping
  // This rank's part of a bucket; under kMaster fp32 weights, or of bf16 weights the lower bits of their
  // masters. The last elements of the part, from the first on that a parameter with this state can have:
  // the count is the same on every rank. With StateTensor::of_rows a value for each row of its matrices.
  // None where nothing is kept of the bucket. Error: an unknown name
  const Tensor& of(const std::string& name, size_t bucket) const;
  // Where the rows of a matrix begin, in a tensor of rows
  int64_t first_row(const std::string& name, const ParamPlace& matrix) const;
  void clear();

  // Whether write() writes anything of a parameter
  bool has(const std::string& name, const ParamPlace& place) const;
  // What is this rank's of values in fp32 or bf16, on the host or the device. A value of a row stands in
  // each of its elements, on the host. Weights are written by the store.
  void write(const std::string& name, const ParamPlace& place, const Tensor& values);
  // Whether a name has a value for each row; reads them to each of their elements, on the host.
  bool is_of_rows(const std::string& name) const;
  void read_rows(const std::string& name, const ParamPlace& place, const Tensor& to) const;

  // What a rank has of the weights of a parameter, cut where its lower bits begin and end. low: none where
  // there is no master, or another rank has its bits
  struct WeightSlice {
    int64_t first;
    Tensor own, low;
  };
  std::vector<WeightSlice> weight_slices(const ParamPlace& place, ElementRange range) const;

 private:
  struct Kept {
    std::string name;
    std::vector<Tensor> buckets;
    bool of_rows = false;
    Has has = {};
  };
  const Kept& find(const std::string& name) const;
  // The first element of the bucket that a tensor of this rank's part has
  int64_t first_of(const Tensor& kept, size_t bucket) const {
    return (setting_.part.index + 1) * setting_.part_elements(bucket) - kept.numel();
  }
  std::vector<Tensor> allocate(const std::string& words, const StateTensor& state, const Has& has) const;
  int64_t rows_before(const Has& has, size_t bucket, size_t place) const;
  ParamSlice slice(const std::string& name, const ParamPlace& place, ElementRange range) const;
  Tensor rows_of(const std::string& name, const ParamPlace& place) const {
    return of(name, place.bucket).rows(first_row(name, place), place.info.shape[0]);
  }

  const StoreSetting& setting_;
  const WeightHome& weights_;
  Arena& where_;
  std::vector<Kept> kept_;
};

}  // namespace tessera
