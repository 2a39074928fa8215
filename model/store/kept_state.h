// KeptState: what an update rule keeps for the parameters: masters, and a tensor of each bucket for each name
// that the rule adds. The tensors are undefined until clear().
//
// They may lie in host memory (Arena::mapped): the update reads and writes them there, over the bus.
//
// bf16 weights are updated by their fp32 masters. Only the lower 16 bits of the masters are kept; together
// with the weights they give the masters (kernels/base/master.h). So whatever writes weights also writes the
// lower bits of its part.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/store/weight_home.h"
#include "model/update_rule.h"

namespace tessera {

// Two names beside those of the update rule: the fp32 weights, and the weights as the model reads them
inline constexpr const char *kMaster = "master", *kWeight = "weight";

class KeptState {
 public:
  // `where`: the memory for the kept tensors
  KeptState(const StoreSetting& setting, const WeightHome& weights, Arena& where)
      : setting_(setting), weights_(weights), where_(where) {}
  KeptState(const KeptState&) = delete;

  void keep_masters();
  // Keeps a state for the trained parameters for which has() is true.
  using Has = std::function<bool(const ParamInfo& info)>;
  void keep(const StateTensor& state, const Has& has);
  std::vector<std::string> names() const;  // in the order of keeping
  // The tensor of a name, for this rank's part of a bucket. Under kMaster it has the fp32 weights, or for
  // bf16 weights the lower bits of their masters. It has the last elements of the part, beginning with the
  // first element that may have this state on any rank, so its length is the same on every rank. With
  // StateTensor::of_rows it has a value for each row of the bucket's matrices. None: nothing is kept of the
  // bucket. Error: an unknown name
  const Tensor& of(const std::string& name, size_t bucket) const;
  // The index of a matrix's first row in a tensor of rows
  int64_t first_row(const std::string& name, const ParamPlace& matrix) const;
  void clear();

  // Whether write() would write anything for a parameter
  bool has(const std::string& name, const ParamPlace& place) const;
  // Writes this rank's elements of `values`, which are in fp32 or bf16, on the host or the device. For a
  // state of rows they are on the host, and each element of a row has the row's value. Weights are written by
  // the store.
  void write(const std::string& name, const ParamPlace& place, const Tensor& values);
  // Whether a name has a value for each row. read_rows() writes such a value to each element of the row, on
  // the host.
  bool is_of_rows(const std::string& name) const;
  void read_rows(const std::string& name, const ParamPlace& place, const Tensor& to) const;

  // A slice of a parameter's weights that this rank has, cut where its lower bits begin and end. low: none if
  // there is no master, or if another rank has the lower bits
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
  // The index in the bucket of the first element of a tensor of this rank's part
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
