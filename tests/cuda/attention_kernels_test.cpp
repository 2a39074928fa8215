// attention.h on a device: every size, both layouts, both modes, grouped heads, every family of kernels that
// the device runs. Short sequences against fp64 on the CPU, long ones in bf16 against the fp32 kernels, which
// these tests hold to fp64.
#include <map>

#include "tests/cuda/attention_problem.h"

namespace tessera::test {
namespace {

struct Family {
  bool bf16;
  int head_dim;
  bool causal;
};
// For the lists of tests; without it GoogleTest prints the bytes, padding included.
void PrintTo(const Family& family, std::ostream* out) {
  *out << (family.bf16 ? "bf16" : "fp32") << ", head dim " << family.head_dim
       << (family.causal ? ", causal" : ", full");
}

constexpr int64_t kGroups[] = {1, 2, 4, 8};  // query heads that share a head of keys

class AttentionSizes : public AttentionKernels, public ::testing::WithParamInterface<Family> {
 protected:
  AttentionCase shape(int64_t batch, int64_t tokens, int64_t kv_heads, int64_t group) const {
    const Family& f = GetParam();
    return {batch, tokens, kv_heads * group, kv_heads, f.head_dim, f.causal, 1 / std::sqrt(f.head_dim)};
  }

  void expect_agreement(const AttentionCase& c, const Inputs& inputs, const AttentionReference& want,
                        std::initializer_list<Packing> packings) {
    const bool bf16 = GetParam().bf16;
    for (int arch : archs_here(bf16)) {
      for (Packing packing : packings) {
        Problem problem(c, bf16, packing, inputs, arch);
        SCOPED_TRACE(::testing::Message() << "arch " << arch << ", N = " << c.tokens << ", " << c.heads
                                          << " heads, " << c.kv_heads << " of keys, " << name_of(packing));
        const Errors e = errors_of(problem.run(), want, c.tokens == 1 ? cancelled_terms(c, inputs) : 0);
        expect_within(e, limits(bf16));
        worst_[arch].take(e);
      }
    }
  }
  void expect_agreement_with_fp64(const AttentionCase& c, std::initializer_list<Packing> packings = {
                                                              Packing::kPackedQkv, Packing::kSeparate}) {
    const Inputs inputs(c, GetParam().bf16);
    expect_agreement(c, inputs, reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout), packings);
  }
  void expect_agreement_with_fp32(const AttentionCase& c, Packing packing) {
    const Inputs inputs(c, true);
    const Outputs fp32 = Problem(c, false, Packing::kSeparate, inputs, device_arch()).run();
    const AttentionReference want = {fp32.out, {fp32.lse.begin(), fp32.lse.end()}, fp32.dq, fp32.dk, fp32.dv};
    expect_agreement(c, inputs, want, {packing});
  }
  void TearDown() override {
    for (const auto& [arch, errors] : worst_) print_worst(arch, errors);
  }

 private:
  std::map<int, Errors> worst_;
};

TEST_P(AttentionSizes, ShortAgreeWithFp64) {
  for (int64_t tokens : {1, 2, 15, 63, 64, 65, 113, 127, 128, 129, 203, 256}) {
    for (int64_t group : kGroups) expect_agreement_with_fp64(shape(2, tokens, group <= 2 ? 2 : 1, group));
  }
}

TEST_P(AttentionSizes, LongAgree) {
  if (!GetParam().bf16) {
    for (int64_t tokens : {511, 1000, 2047})
      for (int64_t group : {1, 2}) expect_agreement_with_fp64(shape(1, tokens, 1, group));
    return;
  }
  for (int64_t tokens : {511, 1000, 1023, 1024, 2047, 4096, 8192}) {
    for (int64_t group : kGroups)
      expect_agreement_with_fp32(shape(1, tokens, tokens < 2047 ? 2 : 1, group),
                                 group % 4 == 1 ? Packing::kPackedQkv : Packing::kSeparate);
  }
}

// More tiles than a GPU has multiprocessors: kernels whose CTAs stay have several in a row.
class AttentionManyTiles : public AttentionSizes {};

TEST_P(AttentionManyTiles, AgreeWithFp32) {
  expect_agreement_with_fp32(shape(40, 100, 8, 1), Packing::kPackedQkv);
  expect_agreement_with_fp32(shape(16, 512, 8, 1), Packing::kPackedQkv);
  // Works of the backward on Hopper with some of the heads that share their keys, and with all
  expect_agreement_with_fp32(shape(8, 700, 4, 4), Packing::kSeparate);
  expect_agreement_with_fp32(shape(8, 1000, 4, 3), Packing::kSeparate);
  expect_agreement_with_fp32(shape(2, 1500, 12, 1), Packing::kPackedQkv);
}

// More blocks of keys than a GPU has multiprocessors
TEST_P(AttentionManyTiles, LongAgreeWithFp32) {
  expect_agreement_with_fp32(shape(1, 17'003, 3, 1), Packing::kPackedQkv);
  expect_agreement_with_fp32(shape(1, 17'003, 2, 2), Packing::kSeparate);
}

// Few, but many for the emulated GPU: there, some heads of the backward go upwards.
TEST_P(AttentionManyTiles, SmallAgreeWithFp32) {
  expect_agreement_with_fp32(shape(2, 400, 3, 2), Packing::kPackedQkv);
}

// Heads narrower than the tiles that hold them, and those that only the widest tiles hold. What follows a
// head in memory is the next one, or NaN: neither may be read or written.
class AttentionHeadDims : public AttentionSizes {};

TEST_P(AttentionHeadDims, AgreeWithFp64) {
  for (int64_t tokens : {1, 37, 129, 203}) {
    for (int64_t group : {1, 3}) {
      expect_agreement_with_fp64(shape(tokens < 200 ? 2 : 1, tokens, 2, group),
                                 {Packing::kPackedQkv, Packing::kPackedApart});
    }
  }
}

// So many tiles that each CTA that stays has several
class AttentionHeadDimsManyTiles : public AttentionSizes {};

TEST_P(AttentionHeadDimsManyTiles, AgreeWithFp32) {
  expect_agreement_with_fp32(shape(8, 300, 6, 2), Packing::kPackedApart);
}

std::vector<Family> bf16_families() {
  return {{true, 64, true}, {true, 128, true}, {true, 64, false}, {true, 128, false}};
}
std::vector<Family> families() {
  std::vector<Family> all = bf16_families();
  for (bool causal : {true, false}) {
    for (int head_dim : {16, 32, 64, 128}) all.push_back({false, head_dim, causal});
  }
  return all;
}
std::vector<Family> with_head_dims(bool bf16, std::initializer_list<int> head_dims) {
  std::vector<Family> all;
  for (bool causal : {true, false}) {
    for (int head_dim : head_dims) all.push_back({bf16, head_dim, causal});
  }
  return all;
}
// 136, 192, 200: beside the halves and the quarters of the widest tiles
constexpr std::initializer_list<int> kManyHeadDims = {8,   16,  24,  40,  48,  72,  80, 96,
                                                      104, 112, 120, 136, 192, 200, 256};
std::string family_name(const ::testing::TestParamInfo<Family>& info) {
  const Family& f = info.param;
  return std::string(f.bf16 ? "Bf16" : "F32") + (f.causal ? "Causal" : "Full") + std::to_string(f.head_dim);
}
INSTANTIATE_TEST_SUITE_P(AttentionKernels, AttentionSizes, ::testing::ValuesIn(families()), family_name);
INSTANTIATE_TEST_SUITE_P(AttentionKernelsBf16, AttentionHeadDims,
                         ::testing::ValuesIn(with_head_dims(true, kManyHeadDims)), family_name);
INSTANTIATE_TEST_SUITE_P(AttentionKernelsF32, AttentionHeadDims,
                         ::testing::ValuesIn(with_head_dims(false, kManyHeadDims)), family_name);
INSTANTIATE_TEST_SUITE_P(AttentionKernels, AttentionHeadDimsManyTiles,
                         ::testing::ValuesIn(with_head_dims(true, {8, 40, 72, 96, 256})), family_name);
INSTANTIATE_TEST_SUITE_P(AttentionKernels, AttentionManyTiles, ::testing::ValuesIn(bf16_families()),
                         family_name);

}  // namespace
}  // namespace tessera::test
