// choose_decode, and what attn_decode() refuses. Needs no device: nothing is launched, no pointer followed.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention/decode.h"
#include "kernels/base/check.h"
#include "tests/says.h"

namespace tessera {
namespace {

const DeviceTraits kHopperGpu{.device = Device::kCuda, .arch = 90, .name = "NVIDIA H100"};
constexpr DecodeShape kShape{.batch = 4, .heads = 32, .head_dim = 128, .kv_heads = 8, .capacity = 8192};

std::string refusal(DecodeShape shape, const DeviceTraits& device, DType dtype = DType::kBF16) {
  try {
    choose_decode(shape, dtype, device);
  } catch (const Error& error) {
    return error.what();
  }
  return "was not refused";
}

template <class Change>
std::string refusal_with(Change&& change, const DeviceTraits& device = kHopperGpu) {
  DecodeShape shape = kShape;
  change(shape);
  return refusal(shape, device, device.device == Device::kCpu ? DType::kF32 : DType::kBF16);
}

TEST(DecodePlan, KnowsItsScaleAndItsWorkspace) {
  const DecodePlan plan = choose_decode(kShape, DType::kBF16, kHopperGpu);
  EXPECT_FLOAT_EQ(plan.scale, 1 / std::sqrt(128.0f));
  // Two parts for each of at most 384 thread blocks, of 4 heads of 128 columns and a log-sum-exp
  EXPECT_EQ(plan.workspace_bytes, 384 * 2 * 4 * (128 + 1) * 4);
  EXPECT_EQ(choose_decode(kShape, DType::kF32, {}).workspace_bytes, 0);  // the CPU
  DecodeShape tiny = kShape;
  tiny.batch = 1, tiny.capacity = 64;  // eight heads of one unit each: no more than so many thread blocks
  EXPECT_EQ(choose_decode(tiny, DType::kBF16, kHopperGpu).workspace_bytes, 8 * 2 * 4 * 128 * 4 + 256);
}

TEST(DecodePlan, RefusesWithTheSizesFoundAndWanted) {
  EXPECT_TRUE(says(refusal_with([](DecodeShape& s) { s.capacity = 0; }),
                   {"decode attention", "positive", "batch 4, heads 32, head dim 128, capacity 0"}));
  EXPECT_TRUE(says(refusal_with([](DecodeShape& s) { s.kv_heads = 5; }, DeviceTraits{}),
                   {"key/value heads", "decode attention", "32 heads, found 5"}));
  EXPECT_TRUE(says(refusal_with([](DecodeShape& s) { s.head_dim = 100; }),
                   {"decode attention ", "batch 4, 32 heads of 100 in bf16, 8 key/value heads", "8192 tokens",
                    "NVIDIA H100 (compute capability 9.0): ", "head_dim", "8 up to 256 in bf16",
                    "8 up to 256 in fp32", "sampling.every=0"}));
  EXPECT_EQ(refusal_with([](DecodeShape& s) { s.head_dim = 100; }, DeviceTraits{}), "was not refused");
  DeviceTraits old = kHopperGpu;
  old.arch = 75;
  EXPECT_TRUE(says(refusal(kShape, old), {"compute capability 7.5)", "this compute capability"}));
  EXPECT_NE(refusal(kShape, kHopperGpu, DType::kI32).find("fp32 or bf16"), std::string::npos);
}

struct DecodeRefusals : ::testing::Test {
  AttnDecodeProblem problem = attn_decode_problem(choose_decode(kShape, DType::kBF16, kHopperGpu));
  static AttnTensor tensor(uintptr_t address) {
    return {reinterpret_cast<void*>(address), 8192 * 1024, 1024, 128};
  }
  AttnDecode call{.q = tensor(0x1000),
                  .k = tensor(0x2000),
                  .v = tensor(0x3000),
                  .out = tensor(0x4000),
                  .starts = reinterpret_cast<const int32_t*>(0x5000),
                  .workspace = reinterpret_cast<void*>(0xa000),
                  .workspace_bytes = attn_decode_workspace(&problem, 90),
                  .problem = problem};

  template <class Change>
  void expect_refused(AttnStatus status, Change&& change) {
    AttnDecode changed = call;
    change(changed.problem);
    EXPECT_EQ(attn_decode_supports(&changed.problem, 90), status);
    EXPECT_EQ(attn_decode_workspace(&changed.problem, 90), 0u);
    EXPECT_EQ(attn_decode(&changed, 90, nullptr), status);
  }
  template <class Change>
  AttnStatus answer(Change&& change) {
    AttnDecode changed = call;
    change(changed);
    return attn_decode(&changed, 90, nullptr);
  }
};

TEST_F(DecodeRefusals, OfTheProblem) {
  EXPECT_EQ(attn_decode_supports(&problem, 80), ATTN_OK);
  EXPECT_EQ(attn_decode_supports(&problem, 75), ATTN_BAD_ARCH);
  expect_refused(ATTN_BAD_STRUCT, [](AttnDecodeProblem& p) { p.struct_size = 8; });
  for (const int head_dim : {0, -8, 4, 12, 264})
    expect_refused(ATTN_BAD_HEAD_DIM, [&](AttnDecodeProblem& p) { p.head_dim = head_dim; });
  expect_refused(ATTN_BAD_SHAPE, [](AttnDecodeProblem& p) { p.batch = 0; });
  expect_refused(ATTN_BAD_SHAPE, [](AttnDecodeProblem& p) { p.capacity = -1; });
  expect_refused(ATTN_BAD_SHAPE, [](AttnDecodeProblem& p) { p.kv_heads = 3; });
  expect_refused(ATTN_BAD_SHAPE, [](AttnDecodeProblem& p) { p.scale = -1; });
  expect_refused(ATTN_BAD_SHAPE, [](AttnDecodeProblem& p) { p.scale = NAN; });
  expect_refused(ATTN_BAD_SHAPE, [](AttnDecodeProblem& p) { p.capacity = int64_t{1} << 31; });
  expect_refused(ATTN_BAD_SHAPE, [](AttnDecodeProblem& p) { p.batch = 60000, p.capacity = 1 << 28; });
}

TEST_F(DecodeRefusals, OfSparseBlocks) {
  const auto with = [](int size, int lists, int blocks) {
    return [=](AttnDecodeProblem& p) {
      p.blocks.size = size, p.blocks.lists = lists;
      p.blocks.query_blocks = p.blocks.key_blocks = blocks;
    };
  };
  AttnDecodeProblem served = problem;
  with(128, 1, 64)(served);
  EXPECT_EQ(attn_decode_supports(&served, 80), ATTN_OK);
  EXPECT_EQ(attn_decode_workspace(&served, 80), attn_decode_workspace(&problem, 80));
  expect_refused(ATTN_BAD_BLOCKS, with(64, 1, 128));
  expect_refused(ATTN_BAD_BLOCKS, with(192, 1, 64));
  expect_refused(ATTN_BAD_BLOCKS, with(128, 2, 64));
  expect_refused(ATTN_BAD_BLOCKS, with(128, 1, 63));
  DecodeShape ring = kShape;
  ring.blocks = {.size = 128, .lists = 1, .query_blocks = 64, .key_blocks = 64}, ring.ring = true;
  EXPECT_TRUE(says(refusal(ring, kHopperGpu), {"sparse blocks", "a ring"}));
}

TEST_F(DecodeRefusals, OfPointersAndWorkspace) {
  EXPECT_EQ(answer([](AttnDecode& d) { d.q.data = nullptr; }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(answer([](AttnDecode& d) { d.k.row = 1020; }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(answer([](AttnDecode& d) { d.v.data = reinterpret_cast<void*>(0x3008); }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(answer([](AttnDecode& d) { d.starts = nullptr; }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(answer([](AttnDecode& d) { d.workspace = reinterpret_cast<void*>(0xa010); }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(answer([](AttnDecode& d) { d.workspace = nullptr; }), ATTN_NO_WORKSPACE);
  EXPECT_EQ(answer([](AttnDecode& d) { --d.workspace_bytes; }), ATTN_NO_WORKSPACE);
}

}  // namespace
}  // namespace tessera
