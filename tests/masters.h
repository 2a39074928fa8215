// Masters as tests need them: on the host, and the weights that are rounded from them.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/store/param_store.h"
#include "tests/support.h"

namespace tessera::testing {

struct NamedTensor {
  std::string name;
  Tensor tensor;  // fp32 on the host
};

// The bf16 number nearest to a finite one, of two the larger: std::round() takes halves away from zero.
inline double nearest_bf16(float value) {
  constexpr int kSignificant = 8, kLeastQuantum = -133;  // bits; the exponent of the smallest bf16
  int exponent = 0;
  std::frexp(value, &exponent);
  const int quantum = std::max(exponent - kSignificant, kLeastQuantum);
  return std::ldexp(std::round(std::ldexp(static_cast<double>(value), -quantum)), quantum);
}

// What a store keeps under a name, in the order of the parameters, wherever it lies. Every rank has to call
// it.
inline std::vector<NamedTensor> kept_on_host(const Stream& stream, ParamStore& store, const std::string& name,
                                             HostTensors& make) {
  const ParamLayout& layout = store.layout();
  std::vector<NamedTensor> all(layout.places.size());
  for (size_t b = 0; b < layout.buckets.size(); ++b)
    store.with_whole(name, b, [&](const ParamReader& read) {
      for (size_t i = 0; i < all.size(); ++i) {
        const ParamPlace& place = layout.places[i];
        if (place.bucket != b || !(place.trained || name == kMaster || name == kWeight)) continue;
        all[i] = {place.info.name, make.poisoned(place.info.shape)};
        read(place, all[i].tensor);
      }
      stream.synchronize();
    });
  std::erase_if(all, [](const NamedTensor& one) { return !one.tensor; });
  return all;
}

}  // namespace tessera::testing
