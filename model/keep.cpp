#include "model/keep.h"

#include "kernels/base/word_set.h"

namespace tessera {

std::string text_of(Keep keep) {
  return words_with_plus<Recomputed>([&](Recomputed part) { return keep.recomputes(part); });
}

}  // namespace tessera
