// The list of a step's matrix products: complete by its arithmetic, and right where it is known.
#include "train/session/step_gemms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace tessera {
namespace {

const DeviceTraits kGpu{Device::kCuda, 90, "a GPU"};

RunShape shape_of(const ModelConfig& model, int64_t micro_batch, int64_t sequence_length) {
  return {.model = model,
          .micro_batch = micro_batch,
          .micro_steps = 2,
          .sequence_length = sequence_length,
          .dtype = DType::kBF16};
}

double flops_of(const std::vector<StepGemm>& gemms) {
  double flops = 0;
  for (const StepGemm& gemm : gemms) flops += gemm_of(gemm.key).flops() * static_cast<double>(gemm.calls);
  return flops;
}

constexpr ModelConfig kGpt2{.vocab_size = 50257, .context = 1024, .layers = 12, .heads = 12, .channels = 768};

// Every element of a matrix is multiplied by a row of activations three times: once forward, twice backward.
double linear_flops(const RunShape& shape) {
  const ModelConfig& m = shape.model;
  const int64_t block = (m.qkv_heads() + m.heads) * m.head_dim * m.channels +
                        (m.gated() ? 3 : 2) * m.channels * m.mlp_width,
                elements = m.layers * block + m.padded_vocab() * m.channels;
  return 6.0 * static_cast<double>(shape.rows()) * static_cast<double>(elements);
}

TEST(StepGemms, OfGpt2) {
  const std::vector<StepGemm> gemms = step_gemms(shape_of(kGpt2, 4, 1000), kGpu);
  std::map<std::string, int64_t> found;
  for (const StepGemm& gemm : gemms) {
    std::string name = describe(gemm.key);
    if (const size_t adds = name.find(", adds"); adds != std::string::npos) name.erase(adds, 6);
    found[name] += gemm.calls;
  }
  const std::map<std::string, int64_t> wanted{// forward
                                              {"[4000, 768] x [2304, 768]^T in bf16, bias", 12},
                                              {"[4000, 768] x [768, 768]^T in bf16, bias", 12},
                                              {"[4000, 768] x [3072, 768]^T in bf16, gelu_aux_bias", 12},
                                              {"[4000, 3072] x [768, 3072]^T in bf16, bias", 12},
                                              {"[4000, 768] x [50304, 768]^T in bf16", 1},
                                              // gradients of inputs
                                              {"[4000, 50304] x [50304, 768] in bf16", 1},
                                              {"[4000, 768] x [768, 3072] in bf16, dgelu", 12},
                                              {"[4000, 3072] x [3072, 768] in bf16", 12},
                                              {"[4000, 768] x [768, 768] in bf16", 12},
                                              {"[4000, 2304] x [2304, 768] in bf16", 12},
                                              // gradients of weights
                                              {"[4000, 50304]^T x [4000, 768] in bf16", 1},
                                              {"[4000, 768]^T x [4000, 3072] in bf16", 12},
                                              {"[4000, 3072]^T x [4000, 768] in bf16", 12},
                                              {"[4000, 768]^T x [4000, 768] in bf16", 12},
                                              {"[4000, 2304]^T x [4000, 768] in bf16, 768 sums", 12}};
  EXPECT_EQ(found, wanted);
  for (const StepGemm& gemm : gemms)
    for (const GemmKey::Matrix& matrix : {gemm.key.a, gemm.key.b, gemm.key.d})
      EXPECT_EQ(matrix.alignment, kFullAlignment) << describe(gemm.key);
}

TEST(StepGemms, HaveAllArithmeticOfLinearLayers) {
  ModelConfig gated = kGpt2;
  gated.kv_heads = 4, gated.head_dim = 80, gated.mlp_width = 2000;
  gated.mlp = Mlp::kSwiglu, gated.norm = NormKind::kRmsNorm, gated.positions = Positions::kRope;
  gated.bias = Bias::kNone, gated.tied = false;
  for (const ModelConfig& model : {kGpt2, gated}) {
    RunShape shape = shape_of(model, 2, 512);
    const std::vector<StepGemm> whole = step_gemms(shape, kGpu);
    EXPECT_NEAR(flops_of(whole) / linear_flops(shape), 1, 1e-12);
    shape.classifier_chunk = 300;  // the last chunk is smaller
    const std::vector<StepGemm> chunked = step_gemms(shape, kGpu);
    EXPECT_NEAR(flops_of(chunked) / linear_flops(shape), 1, 1e-12);
    EXPECT_GE(chunked.size(), whole.size() + 3);
  }
}

TEST(StepGemms, OfAnAdapter) {
  ModelConfig model = kGpt2;
  model.lora.rank = 16;
  RunShape shape = shape_of(model, 1, 256);
  shape.freeze = Freeze::all_but_adapters();
  const std::vector<StepGemm> gemms = step_gemms(shape, kGpu);
  const auto narrow = std::ranges::find(gemms, 3 * 16, [](const StepGemm& gemm) { return gemm.key.n; });
  ASSERT_NE(narrow, gemms.end()) << "u = x A^T of queries, keys and values";
  EXPECT_EQ(narrow->calls, 12);
  EXPECT_TRUE(std::ranges::any_of(gemms, [](const StepGemm& gemm) {
    return gemm.key.d.ld == 2304 && gemm.key.n == 768;
  })) << "a layer's columns of u B^T";
}

TEST(StepGemms, AreComputedAgainWhereBlocksAre) {
  RunShape shape = shape_of(kGpt2, 1, 256);
  const std::vector<StepGemm> kept = step_gemms(shape, kGpu);
  shape.keep = kKeepOutputs;
  const std::vector<StepGemm> again = step_gemms(shape, kGpu);
  EXPECT_EQ(again.size(), kept.size());
  // The forward of every block but the last, which is still there, without its last product
  const int64_t C = kGpt2.channels, F = kGpt2.mlp_width,
                elements = (kGpt2.layers - 1) * (3 * C * C + C * C + C * F);
  const double wanted =
      flops_of(kept) + 2.0 * static_cast<double>(shape.rows()) * static_cast<double>(elements);
  EXPECT_NEAR(flops_of(again) / wanted, 1, 1e-12);
}

TEST(StepGemms, AreThoseOfARankWhateverTheirNumber) {
  RunShape shape = shape_of(kGpt2, 1, 256);
  const std::vector<StepGemm> one = step_gemms(shape, kGpu);
  shape.mesh.data = 4;
  const std::vector<StepGemm> four = step_gemms(shape, kGpu);
  ASSERT_EQ(one.size(), four.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i].key, four[i].key);
}

}  // namespace
}  // namespace tessera
