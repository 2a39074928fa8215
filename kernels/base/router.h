// How a router makes the weights of the experts that a token chooses from its logits.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

enum class Router : uint8_t {
  kSoftmax,          // a softmax of all logits, then the largest
  kSoftmaxOfChosen,  // the largest logits, then a softmax of these
};
constexpr auto words_of(Router) {  // of model.experts.router
  return std::array{Word{"softmax", Router::kSoftmax}, Word{"softmax_of_chosen", Router::kSoftmaxOfChosen}};
}

struct RouterRule {
  Router router = Router::kSoftmax;
  bool renormalise = false;  // with kSoftmax: the weights of a token are divided by their sum

  // Whether the weights of a token are a softmax of the logits of its choices
  constexpr bool sums_to_one() const { return router == Router::kSoftmaxOfChosen || renormalise; }
  bool operator==(const RouterRule&) const = default;
};

}  // namespace tessera
