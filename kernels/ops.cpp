#include "kernels/ops.h"

#include "kernels/expert_ops.h"
#include "kernels/score_ops.h"

namespace tessera {

const char* name_of(const AnyOp& op) {
  return std::visit([](const auto* a) { return a->kName; }, op);
}

}  // namespace tessera
