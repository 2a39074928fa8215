// RoundToFourBits and WidenFourBits on a GPU, and adapters on top of weights in 4 bits.
#include "tests/cuda/twin.h"
#include "tests/four_bits_reference.h"
#include "tests/lora_four_bits.h"
#include "tests/offloaded_steps.h"

namespace tessera::testing {
namespace {

class CudaFourBits : public CudaTest {};

TEST_F(CudaFourBits, ValuesAndBytesAreTheReferences) {
  for (const FourBits format : kFourBits)
    for (const DType dtype : {DType::kF32, DType::kBF16})
      expect_four_bits_of_reference(cuda(), format, dtype);
}

TEST_F(CudaFourBits, TakeTheNearestValue) {
  for (const FourBits format : kFourBits)
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 64}, {7, 192}, {333, 320}})
      expect_four_bits_by_definition(cuda(), format, rows, columns);
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 32}, {7, 96}, {333, 288}})
    expect_four_bits_by_definition(cuda(), FourBits::kMxfp4, rows, columns);
}

TEST_F(CudaFourBits, HaveTheBitsOfRoundedWeights) {
  for (const FourBits format : kFourBits)
    for (const ModelConfig& model : models_for_four_bits(128, 3))
      for (const DType dtype : {DType::kF32, DType::kBF16})
        for (const bool graphs : {false, true}) {
          SCOPED_TRACE(fmt::format("{}, {}, experts {}, {}", name_of(format), name_of(model.mlp),
                                   model.experts.count, name_of(dtype)));
          RunShape shape = lora_shape(model, dtype);
          shape.cuda_graphs = graphs;
          expect_bits_of_rounded_weights(cuda().backend().traits(), shape, format);
        }
}

TEST_F(CudaFourBits, OnTheHostChangeNoBit) {
  for (const FourBits format : kFourBits)
    for (const Keep keep : {kKeepAll, kKeepOutputs}) {
      RunShape shape =
          lora_four_bits_shape(lora_shape(models_with_adapters(128, 3)[1], DType::kBF16), format);
      shape.model.mlp_width = 192, shape.keep = keep, shape.model.layers = 5;
      expect_offload_changes_no_bit(cuda().backend(), shape, Poison::kYes, {.weights = true});
    }
}

}  // namespace
}  // namespace tessera::testing
