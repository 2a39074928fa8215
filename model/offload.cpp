#include "model/offload.h"

#include "kernels/base/word_set.h"

namespace tessera {

std::string text_of(const Offload& offload) {
  return words_with_plus<Offloaded>([&](Offloaded what) { return offload.has(what); });
}

}  // namespace tessera
