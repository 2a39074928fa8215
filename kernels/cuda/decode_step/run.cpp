// A decode step on CUDA: the persistent kernel where it can be, else its operations one by one.
#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/decode_step/kernel.h"
#include "kernels/decode_step/lower.h"

namespace tessera {

void CudaBackend::run_op(const FusedDecodeStep& a, const Launch& on) {
  if (a.memory) {
    const int blocks = std::min(multiprocessors_, decode_step::kMostBlocks);
    const decode_step::Args args = decode_step::lower(a.operations, a.memory, blocks);
    if (cuda::decode_step::launch(args, blocks, on.stream)) return;
  }
  for (const DecodeOp& op : a.operations) op.each_plain([&](const auto& one) { run_op(one, on); });
}

}  // namespace tessera
