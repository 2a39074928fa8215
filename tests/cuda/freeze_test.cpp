// train.freeze on CUDA, in both precisions.
#include "tests/cuda/twin.h"
#include "tests/frozen_steps.h"
#include "tests/model_families.h"

namespace tessera::testing {
namespace {

using CudaFreeze = CudaTest;

TEST_F(CudaFreeze, WhatIsTrainedGetsTheSameGradientsAndWhatIsNotKeepsItsBits) {
  DeviceTraits device;
  std::string why_not;
  ASSERT_TRUE(find_cuda_device(device, why_not)) << why_not;
  const ModelConfig gpt2{.vocab_size = 61, .context = 24, .layers = 3, .heads = 2, .channels = 128};
  for (const ModelConfig& model : {gpt2, with_qwen3_parts(gpt2)})
    for (const DType dtype : {DType::kF32, DType::kBF16}) expect_frozen_keep_their_bits(device, model, dtype);
}

}  // namespace
}  // namespace tessera::testing
