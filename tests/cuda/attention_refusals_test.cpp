// What attention.h refuses, and how it says so. Needs no device:
// nothing is launched, and no pointer followed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <string>

#include "tests/attn_mask.h"

namespace tessera::test {
namespace {

class AttentionRefusals : public ::testing::TestWithParam<int> {
 protected:
  static constexpr AttnProblem kProblem = {.struct_size = sizeof(AttnProblem),
                                           .dtype = ATTN_BF16,
                                           .batch = 1,
                                           .tokens = 64,
                                           .kv_tokens = 64,
                                           .heads = 8,
                                           .kv_heads = 2,
                                           .head_dim = 64,
                                           .mask = attn_mask(1),
                                           .scale = 0.125f,
                                           .dropout = {}};
  static AttnTensor tensor(uintptr_t address) {
    return {reinterpret_cast<void*>(address), 64 * 512, 512, 64};
  }

  AttnForward forward_ = {.q = tensor(0x1000),
                          .k = tensor(0x2000),
                          .v = tensor(0x3000),
                          .out = tensor(0x4000),
                          .lse = reinterpret_cast<float*>(0x5000),
                          .workspace = reinterpret_cast<void*>(0xa000),
                          .workspace_bytes = attn_forward_workspace(&kProblem, GetParam()),
                          .problem = kProblem};
  AttnBackward backward_ = {.q = forward_.q,
                            .k = forward_.k,
                            .v = forward_.v,
                            .out = forward_.out,
                            .dout = tensor(0x6000),
                            .lse = forward_.lse,
                            .dq = tensor(0x7000),
                            .dk = tensor(0x8000),
                            .dv = tensor(0x9000),
                            .workspace = reinterpret_cast<void*>(0xa000),
                            .workspace_bytes = attn_backward_workspace(&kProblem, GetParam()),
                            .deterministic = 1,
                            .problem = kProblem};

  // The answer of every function to a problem that is like kProblem but for one thing
  template <class Change>
  void expect_refused(AttnStatus status, Change&& change) {
    AttnProblem p = kProblem;
    change(p);
    EXPECT_EQ(attn_supports(&p, GetParam()), status);
    EXPECT_EQ(attn_forward_workspace(&p, GetParam()), 0u);
    EXPECT_EQ(attn_backward_workspace(&p, GetParam()), 0u);
    AttnForward f = forward_;
    f.problem = p;
    EXPECT_EQ(attn_forward(&f, GetParam(), nullptr), status);
    AttnBackward g = backward_;
    g.problem = p;
    EXPECT_EQ(attn_backward(&g, GetParam(), nullptr), status);
  }
  template <class Change>
  AttnStatus forward(Change&& change) {
    AttnForward f = forward_;
    change(f);
    return attn_forward(&f, GetParam(), nullptr);
  }
  template <class Change>
  AttnStatus backward(Change&& change) {
    AttnBackward f = backward_;
    change(f);
    return attn_backward(&f, GetParam(), nullptr);
  }
};
INSTANTIATE_TEST_SUITE_P(, AttentionRefusals, ::testing::Values(80, 86, 90),
                         ::testing::PrintToStringParamName());

TEST_P(AttentionRefusals, OfProblems) {
  EXPECT_EQ(attn_supports(&kProblem, GetParam()), ATTN_OK);
  EXPECT_GT(backward_.workspace_bytes, 0u);
  for (int head_dim : {-8, 0, 4, 12, 63, 100, 252, 264, 512})
    expect_refused(ATTN_BAD_HEAD_DIM, [&](AttnProblem& p) { p.head_dim = head_dim; });
  expect_refused(ATTN_BAD_HEAD_DIM, [](AttnProblem& p) { p.dtype = static_cast<AttnDtype>(7); });
  for (int64_t size : {int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
    expect_refused(ATTN_BAD_SHAPE, [&](AttnProblem& p) { p.batch = size; });
    expect_refused(ATTN_BAD_SHAPE, [&](AttnProblem& p) { p.tokens = size; });
    expect_refused(ATTN_BAD_SHAPE, [&](AttnProblem& p) { p.kv_tokens = size; });
    expect_refused(ATTN_BAD_SHAPE, [&](AttnProblem& p) { p.heads = size; });
    expect_refused(ATTN_BAD_SHAPE, [&](AttnProblem& p) { p.kv_heads = size; });
  }
  for (int64_t kv_heads : {3, 5, 7, 16})  // 16: more than there are heads
    expect_refused(ATTN_BAD_SHAPE, [&](AttnProblem& p) { p.kv_heads = kv_heads; });
  for (float scale : {NAN, INFINITY, -1.0f})
    expect_refused(ATTN_BAD_SHAPE, [&](AttnProblem& p) { p.scale = scale; });
  for (int threshold : {-1, 256, 1000})
    expect_refused(ATTN_BAD_DROPOUT, [&](AttnProblem& p) { p.dropout.threshold = threshold; });
  // Of 8 heads, the last would count as head 0 of the next place.
  expect_refused(ATTN_BAD_DROPOUT, [](AttnProblem& p) { p.dropout.threshold = 26, p.dropout.place = 65529; });
  for (size_t size : {size_t{0}, sizeof(AttnProblem) - 8, sizeof(AttnProblem) + 8})
    expect_refused(ATTN_BAD_STRUCT, [&](AttnProblem& p) { p.struct_size = size; });
}

TEST_P(AttentionRefusals, OfMasks) {
  const auto* documents = reinterpret_cast<const int32_t*>(0xb000);
  constexpr int64_t kTooFar = int64_t{1} << 40;
  for (const AttnMask& mask :
       {attn_mask(1, 0, -1), attn_mask(1, 0, kTooFar), attn_mask(1, kTooFar, 0), attn_mask(1, -kTooFar, 0),
        attn_mask(0, 0, 8), attn_mask(0, 8, 0), attn_mask(1, 8, 0, documents)})
    expect_refused(ATTN_BAD_MASK, [&](AttnProblem& p) { p.mask = mask; });
  expect_refused(ATTN_BAD_MASK, [&](AttnProblem& p) {
    p.mask.documents = documents;
    p.kv_tokens = 65;
  });
  // Of dealt queries: tables that need one another
  expect_refused(ATTN_BAD_MASK, [&](AttnProblem& p) { p.mask = attn_mask(0), p.mask.seen_by = documents; });
  expect_refused(ATTN_BAD_MASK, [&](AttnProblem& p) {
    p.mask = attn_mask(1, 0, 0, documents);
    p.mask.seen_by = documents;
  });
  expect_refused(ATTN_BAD_MASK, [&](AttnProblem& p) {
    p.mask = attn_mask(0, 0, 0, documents);
    p.mask.query_tokens = documents;
  });
}

TEST_P(AttentionRefusals, DealtQueriesAndSomeHeadsAreServed) {
  const auto* table = reinterpret_cast<const int32_t*>(0xb000);
  for (AttnDtype dtype : {ATTN_BF16, ATTN_F32})
    for (int head_dim : {64, 128, 256})
      for (int threshold : {0, 26}) {
        AttnProblem p = kProblem;
        p.dtype = dtype, p.head_dim = head_dim, p.kv_tokens = 300;
        p.mask = attn_mask(0, 0, 0, table);
        p.mask.seen_by = p.mask.query_tokens = table;
        p.dropout.threshold = threshold, p.dropout.place = 65536 + 65528;  // heads 65528 to 65535
        EXPECT_EQ(attn_supports(&p, GetParam()), ATTN_OK);
        EXPECT_GT(attn_backward_workspace(&p, GetParam()), 0u);
        p.mask.blocks.size = 128, p.mask.blocks.lists = 1;
        p.mask.blocks.query_blocks = 1, p.mask.blocks.key_blocks = 3;
        EXPECT_EQ(attn_supports(&p, GetParam()), threshold > 0 ? ATTN_BAD_BLOCKS : ATTN_OK);
      }
}

// A forward that wants a workspace is refused without one, or with less.
TEST_P(AttentionRefusals, MasksAreServed) {
  const auto* documents = reinterpret_cast<const int32_t*>(0xb000);
  for (const AttnMask& mask :
       {attn_mask(1, 0, 8), attn_mask(1, 8, 0), attn_mask(1, 0, 8, documents), attn_mask(0, 0, 0, documents)})
    for (AttnDtype dtype : {ATTN_BF16, ATTN_F32})
      for (int64_t kv_tokens : {int64_t{64}, int64_t{300}}) {
        if (mask.documents != nullptr && kv_tokens != kProblem.tokens) continue;
        AttnProblem p = kProblem;
        p.dtype = dtype;
        p.kv_tokens = kv_tokens;
        p.mask = mask;
        EXPECT_EQ(attn_supports(&p, GetParam()), ATTN_OK);
        EXPECT_GT(attn_backward_workspace(&p, GetParam()), 0u);
        const size_t bytes = attn_forward_workspace(&p, GetParam());
        if (bytes == 0) continue;
        const auto with = [&](void* workspace, size_t its_bytes) {
          return forward([&](AttnForward& f) {
            f.problem = p;
            f.workspace = workspace;
            f.workspace_bytes = its_bytes;
          });
        };
        EXPECT_EQ(with(nullptr, bytes), ATTN_NO_WORKSPACE);
        EXPECT_EQ(with(forward_.workspace, bytes - 1), ATTN_NO_WORKSPACE);
        EXPECT_EQ(with(static_cast<uint8_t*>(forward_.workspace) + 16, bytes), ATTN_BAD_ALIGNMENT);
      }
}

TEST(AttnDocumentsRefusals, OfSizesAndPointers) {
  const auto* from = reinterpret_cast<const int32_t*>(0x1000);
  auto* to = reinterpret_cast<int32_t*>(0x2000);
  for (int64_t size : {int64_t{0}, int64_t{-1}, int64_t{1} << 31, INT64_MAX}) {
    EXPECT_EQ(attn_documents(from, size, 2, 64, to, nullptr), ATTN_BAD_SHAPE);
    EXPECT_EQ(attn_documents(from, 3, size, 64, to, nullptr), ATTN_BAD_SHAPE);
    EXPECT_EQ(attn_documents(from, 3, 2, size, to, nullptr), ATTN_BAD_SHAPE);
  }
  EXPECT_EQ(attn_documents(from, 3, 1 << 16, 1 << 15, to, nullptr), ATTN_BAD_SHAPE) << "2^31 tokens";
  EXPECT_EQ(attn_documents(nullptr, 3, 2, 64, to, nullptr), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(attn_documents(from, 3, 2, 64, nullptr, nullptr), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(attn_documents(reinterpret_cast<const int32_t*>(0x1002), 3, 2, 64, to, nullptr),
            ATTN_BAD_ALIGNMENT);
}

TEST_P(AttentionRefusals, OfNoHeadDimThatIsServed) {
  for (AttnDtype dtype : {ATTN_BF16, ATTN_F32}) {
    for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
      AttnProblem p = kProblem;
      p.dtype = dtype;
      p.head_dim = head_dim;
      EXPECT_EQ(attn_supports(&p, GetParam()), ATTN_OK) << head_dim;
      EXPECT_GT(attn_backward_workspace(&p, GetParam()), 0u) << head_dim;
      p.dropout.threshold = 255;
      EXPECT_EQ(attn_supports(&p, GetParam()), ATTN_OK) << head_dim << " with dropout";
    }
  }
}

// dQ is summed in tiles, whatever they hold of a head.
TEST_P(AttentionRefusals, WorkspacesHoldWholeTiles) {
  const auto bytes = [](int head_dim) {
    AttnProblem p = kProblem;
    p.head_dim = head_dim;
    return attn_backward_workspace(&p, GetParam());
  };
  EXPECT_EQ(bytes(8), bytes(64));
  EXPECT_EQ(bytes(72), bytes(128));
  EXPECT_EQ(bytes(136), bytes(256));
  EXPECT_GE(bytes(128), bytes(64) + kProblem.heads * kProblem.tokens * 64 * sizeof(float));
}

TEST_P(AttentionRefusals, OfArguments) {
  const auto shift = [](AttnTensor& t) { t.data = static_cast<uint8_t*>(t.data) + 8; };
  EXPECT_EQ(forward([&](AttnForward& f) { shift(f.q); }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(forward([](AttnForward& f) { f.k.data = nullptr; }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(forward([](AttnForward& f) { f.v.batch += 1; }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(forward([](AttnForward& f) { f.out.row += 4; }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(forward([](AttnForward& f) { f.lse = nullptr; }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(backward([&](AttnBackward& f) { shift(f.dout); }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(backward([&](AttnBackward& f) { shift(f.dq); }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(backward([](AttnBackward& f) { f.dk.head += 1; }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(backward([](AttnBackward& f) { f.dv.data = nullptr; }), ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(backward([](AttnBackward& f) { f.workspace = static_cast<uint8_t*>(f.workspace) + 16; }),
            ATTN_BAD_ALIGNMENT);
  EXPECT_EQ(backward([](AttnBackward& f) { f.workspace = nullptr; }), ATTN_NO_WORKSPACE);
  EXPECT_EQ(backward([](AttnBackward& f) { --f.workspace_bytes; }), ATTN_NO_WORKSPACE);
}

TEST(AttentionStatus, OfOldDevicesAndInWords) {
  const AttnProblem p = {sizeof(AttnProblem), ATTN_F32, 1, 64, 64, 8, 2, 16, attn_mask(1), 0.25f, {}};
  for (int arch : {0, 70, 75}) EXPECT_EQ(attn_supports(&p, arch), ATTN_BAD_ARCH);
  for (int arch : {80, 86, 89, 90, 100, 120}) EXPECT_EQ(attn_supports(&p, arch), ATTN_OK);
  std::set<std::string> texts;
  for (int status = ATTN_OK; status <= ATTN_BAD_STRUCT; ++status)
    texts.insert(attn_status_text(static_cast<AttnStatus>(status)));
  EXPECT_EQ(texts.size(), static_cast<size_t>(ATTN_BAD_STRUCT) + 1) << "one text for each";
}

}  // namespace
}  // namespace tessera::test
