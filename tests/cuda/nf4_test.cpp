// RoundNf4 and WidenNf4 on a GPU, and adapters on top of weights in NF4.
#include "tests/cuda/twin.h"
#include "tests/lora_nf4.h"
#include "tests/nf4_reference.h"
#include "tests/offloaded_steps.h"

namespace tessera::testing {
namespace {

class CudaNf4 : public CudaTest {};

TEST_F(CudaNf4, ValuesAndBytesAreThoseOfBitsandbytes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) expect_nf4_of_bitsandbytes(cuda(), dtype);
}

TEST_F(CudaNf4, TakesTheNearestValue) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 64}, {7, 192}, {333, 320}})
    expect_nf4_by_definition(cuda(), rows, columns);
}

TEST_F(CudaNf4, HasTheBitsOfRoundedWeights) {
  for (const ModelConfig& model : models_with_adapters(128, 3))
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const bool graphs : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, {}", name_of(model.mlp), name_of(dtype)));
        RunShape shape = lora_shape(model, dtype);
        shape.model.mlp_width = 192, shape.cuda_graphs = graphs;
        expect_bits_of_rounded_weights(cuda().backend().traits(), shape);
      }
}

TEST_F(CudaNf4, OnTheHostChangesNoBit) {
  for (const Keep keep : {kKeepAll, kKeepOutputs}) {
    RunShape shape = lora_nf4_shape(lora_shape(models_with_adapters(128, 3)[1], DType::kBF16));
    shape.model.mlp_width = 192, shape.keep = keep, shape.model.layers = 5;
    expect_offload_changes_no_bit(cuda().backend(), shape, Poison::kYes, {.weights = true});
  }
}

}  // namespace
}  // namespace tessera::testing
