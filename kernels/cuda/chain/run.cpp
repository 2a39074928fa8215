// A chain on CUDA: one kernel where it can be, else its operations one by one.
#include <algorithm>

#include "kernels/chain/translate.h"
#include "kernels/cuda/chain/kernel.h"
#include "kernels/cuda/cuda_backend.h"

namespace tessera {

void CudaBackend::run_op(const Chain& a, const Launch& on) {
  if (a.memory) {
    const int blocks = std::min(multiprocessors_, chain::kMostBlocks);
    if (cuda::chain::launch(chain::translate(a.operations, a.memory, blocks), blocks, on.stream)) return;
  }
  for (const ChainedOp& op : a.operations) std::visit([&](const auto& each) { run_op(each, on); }, op);
}

}  // namespace tessera
