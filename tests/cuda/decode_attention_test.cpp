// attn_decode() against fp64, and the operation of the Backend against the CPU's.
#include <cuda_runtime_api.h>

#include "kernels/attention/decode.h"
#include "tests/cuda/attention_fixture.h"
#include "tests/cuda/twin.h"
#include "tests/random_blocks.h"

namespace tessera::test {
namespace {

struct DecodeCase {
  AttnDtype dtype;
  int64_t kv_heads, group;
  int head_dim;
  std::vector<int32_t> starts;
  double size = 1;  // of q and k
  bool has_sinks = false;
  int alibi_heads = 0, first_head = 0;
  double cap = 0;
  int64_t block = 0;  // tokens of sparse blocks, drawn at random; 0: none

  int64_t batch() const { return static_cast<int64_t>(starts.size()); }
  int64_t heads() const { return kv_heads * group; }
  int64_t capacity() const { return std::max(0, *std::ranges::max_element(starts)) + 6; }
  bool bf16() const { return dtype == ATTN_BF16; }
  double scale() const { return 1 / std::sqrt(head_dim); }
  std::string text() const {
    return fmt::format("{}, {} x {} heads of {}, {} sequences, the first at {}{}, ALiBi of {}",
                       bf16() ? "bf16" : "fp32", kv_heads, group, head_dim, batch(), starts[0],
                       has_sinks ? ", sinks" : "", alibi_heads);
  }
  // As the paper has it, for numbers of heads that are powers of two
  double slope(int64_t h) const {
    return alibi_heads == 0 ? 0 : std::exp2(-8.0 * static_cast<double>(first_head + h + 1) / alibi_heads);
  }
};

// Rows of [batch, tokens, heads, head_dim] with gaps between heads; what is not put in stays NaN.
class Rows {
 public:
  Rows(const DecodeCase& c, int64_t tokens, int64_t heads, int64_t gap)
      : tokens_(tokens),
        heads_(heads),
        D_(c.head_dim),
        pitch_(c.head_dim + gap),
        bf16_(c.bf16()),
        image_(static_cast<size_t>(c.batch() * tokens * heads * pitch_) * size(), 0xff),
        buffer_(image_.size()) {}

  void put(int64_t b, int64_t token, int64_t head, const double* row) {
    for (int64_t d = 0; d < D_; ++d) {
      const auto value = static_cast<float>(row[d]);
      const uint16_t half = to_bf16(value);
      std::memcpy(&image_[at(b, token, head, d)], bf16_ ? static_cast<const void*>(&half) : &value, size());
    }
  }
  void upload() { buffer_.upload(image_); }
  void poison() { buffer_.poison(); }
  void expect_unchanged() const { EXPECT_TRUE(buffer_.download() == image_) << "an input was written"; }
  std::vector<uint8_t> bytes() const { return buffer_.download(); }
  // The values of the first token, and nothing else may have been written.
  std::vector<double> values(int64_t batch) const {
    std::vector<uint8_t> found = buffer_.download();
    std::vector<double> all;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t h = 0; h < heads_; ++h)
        for (int64_t d = 0; d < D_; ++d) {
          uint16_t half;
          float value;
          std::memcpy(bf16_ ? static_cast<void*>(&half) : &value, &found[at(b, 0, h, d)], size());
          all.push_back(bf16_ ? from_bf16(half) : value);
          std::memset(&found[at(b, 0, h, d)], 0xff, size());
        }
    EXPECT_EQ(std::ranges::count(found, 0xff), std::ssize(found)) << "a gap between heads was written";
    return all;
  }
  AttnTensor tensor() const { return {buffer_.data(), tokens_ * heads_ * pitch_, heads_ * pitch_, pitch_}; }

 private:
  size_t size() const { return bf16_ ? 2 : 4; }
  size_t at(int64_t b, int64_t token, int64_t head, int64_t d) const {
    return static_cast<size_t>(((b * tokens_ + token) * heads_ + head) * pitch_ + d) * size();
  }

  int64_t tokens_, heads_, D_, pitch_;
  bool bf16_;
  std::vector<uint8_t> image_;
  GuardedBuffer buffer_;
};

// Keys behind the last that is seen, gaps and the workspace hold NaN.
class Decode {
 public:
  explicit Decode(const DecodeCase& c)
      : case_(c),
        q_values_(random_values(c.batch() * c.heads() * c.head_dim, 1, c.size, c.bf16())),
        k_values_(random_values(c.batch() * c.capacity() * c.kv_heads * c.head_dim, 2, c.size, c.bf16())),
        v_values_(random_values(c.batch() * c.capacity() * c.kv_heads * c.head_dim, 3, 1, c.bf16())),
        q_(c, 1, c.heads(), 8),
        k_(c, c.capacity(), c.kv_heads, 16),
        v_(c, c.capacity(), c.kv_heads, 24),
        out_(c, 1, c.heads(), 40),
        starts_(c.starts.size() * 4),
        sinks_values_(random_values(c.has_sinks ? c.heads() : 0, 4, 2, c.bf16())),
        sinks_(sinks_values_.size() * (c.bf16() ? 2 : 4)),
        workspace_(workspace_bytes()) {
    for (int64_t b = 0; b < c.batch(); ++b)
      for (int64_t t = 0; t <= c.starts[b]; ++t)
        if (sees(b, t)) put_key(b, t);
    upload_queries();
    upload(c.starts);
    const AttentionCase numbers{.mask = MaskCase(true)};
    sinks_.upload(Elements{numbers, c.bf16()}.packed(sinks_values_));
  }

  double* q(int64_t b, int64_t h) { return &q_values_[(b * case_.heads() + h) * case_.head_dim]; }
  double* k(int64_t b, int64_t t, int64_t h) { return &k_values_[row(b, t, h)]; }
  void put_key(int64_t b, int64_t t) {
    for (int64_t h = 0; h < case_.kv_heads; ++h) {
      k_.put(b, t, h, &k_values_[row(b, t, h)]);
      v_.put(b, t, h, &v_values_[row(b, t, h)]);
    }
  }
  void upload_queries() {
    for (int64_t b = 0; b < case_.batch(); ++b)
      for (int64_t h = 0; h < case_.heads(); ++h) q_.put(b, 0, h, q(b, h));
    q_.upload();
  }
  void upload(const std::vector<int32_t>& starts) {
    case_.starts = starts;
    k_.upload();
    v_.upload();
    cuda_ok(cudaMemcpy(starts_.data(), starts.data(), starts_.bytes(), cudaMemcpyHostToDevice));
  }
  AttnDecode args() const {
    return {.q = q_.tensor(),
            .k = k_.tensor(),
            .v = v_.tensor(),
            .out = out_.tensor(),
            .starts = reinterpret_cast<const int32_t*>(starts_.data()),
            .workspace = workspace_.data(),
            .workspace_bytes = workspace_.bytes(),
            .sinks = case_.has_sinks ? sinks_.data() : nullptr,
            .problem = problem_};
  }
  void enqueue(cudaStream_t stream) const {
    const AttnDecode call = args();
    const AttnStatus status = attn_decode(&call, device_arch(), stream);
    ASSERT_EQ(status, ATTN_OK) << attn_status_text(status);
  }
  void poison() {
    out_.poison();
    workspace_.poison();
  }
  std::vector<uint8_t> run() {
    poison();
    enqueue(nullptr);
    cuda_ok(cudaDeviceSynchronize());
    workspace_.download();  // for its guards
    return out_.bytes();
  }
  std::vector<double> out() const { return out_.values(case_.batch()); }
  void expect_inputs_unchanged() const {
    for (const Rows* rows : {&q_, &k_, &v_}) rows->expect_unchanged();
  }

  // As the formula stands, in fp64
  std::vector<double> reference() const {
    const int64_t D = case_.head_dim;
    std::vector<double> all(static_cast<size_t>(case_.batch() * case_.heads() * D), 0.0);
#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < case_.batch(); ++b)
      for (int64_t h = 0; h < case_.heads(); ++h) {
        const int64_t keys = case_.starts[b] + int64_t{1}, kv_head = h / case_.group;
        std::vector<double> s(static_cast<size_t>(std::max<int64_t>(keys, 0)));
        double most = -INFINITY, sum = 0;
        for (int64_t t = 0; t < keys; ++t) {
          if (!sees(b, t)) {
            s[t] = -INFINITY;
            continue;
          }
          for (int64_t d = 0; d < D; ++d)
            s[t] += q_values_[(b * case_.heads() + h) * D + d] * k_values_[row(b, t, kv_head) + d];
          s[t] *= case_.scale();
          if (case_.cap > 0) s[t] = case_.cap * std::tanh(s[t] / case_.cap);
          s[t] -= case_.slope(h) * static_cast<double>(keys - 1 - t);
          most = std::max(most, s[t]);
        }
        if (case_.has_sinks && !std::isinf(most)) {  // a score of no key
          most = std::max(most, sinks_values_[h]);
          sum = std::exp(sinks_values_[h] - most);
        }
        if (std::isinf(most)) continue;  // it sees nothing
        for (double& x : s) sum += x = std::exp(x - most);
        for (int64_t t = 0; t < keys; ++t)
          for (int64_t d = 0; d < D && sees(b, t); ++d)
            all[(b * case_.heads() + h) * D + d] += s[t] / sum * v_values_[row(b, t, kv_head) + d];
      }
    return all;
  }

 private:
  bool sees(int64_t b, int64_t key) const {
    return case_.block == 0 || blocks_.shows(0, case_.starts[b] / case_.block, key / case_.block);
  }
  int64_t row(int64_t b, int64_t t, int64_t h) const {
    return ((b * problem_.capacity + t) * case_.kv_heads + h) * case_.head_dim;
  }
  size_t workspace_bytes() {
    problem_ = {.struct_size = sizeof(AttnDecodeProblem),
                .dtype = case_.dtype,
                .batch = case_.batch(),
                .capacity = case_.capacity(),
                .heads = case_.heads(),
                .kv_heads = case_.kv_heads,
                .head_dim = case_.head_dim,
                .scale = static_cast<float>(case_.scale()),
                .sinks = case_.has_sinks,
                .alibi_heads = case_.alibi_heads,
                .first_head = case_.first_head,
                .score_cap = static_cast<float>(case_.cap)};
    if (case_.block > 0) {
      const int64_t capacity = case_.capacity();
      const BlockLists lists = lists_of(blocks_, capacity, capacity);
      lists_.emplace(lists.numbers().size() * 4);
      cuda_ok(cudaMemcpy(lists_->data(), lists.numbers().data(), lists_->bytes(), cudaMemcpyHostToDevice));
      problem_.blocks = lists.shape().at(reinterpret_cast<const int32_t*>(lists_->data()));
    }
    return attn_decode_workspace(&problem_, device_arch());
  }

  DecodeCase case_;
  BlockCase blocks_ = case_.block > 0 ? random_blocks({.size = case_.block, .seed = 3}, case_.capacity(),
                                                      case_.capacity())
                                      : BlockCase{};
  std::optional<GuardedBuffer> lists_;
  AttnDecodeProblem problem_{};
  std::vector<double> q_values_, k_values_, v_values_;
  Rows q_, k_, v_, out_;
  GuardedBuffer starts_;
  std::vector<double> sinks_values_;
  GuardedBuffer sinks_, workspace_;
};

double worst_error(const std::vector<double>& got, const std::vector<double>& want) {
  double most = 0, largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    const double difference = std::abs(got[i] - want[i]);
    if (!(difference <= most)) most = difference;
    if (std::isnan(most)) return most;
  }
  return largest == 0 ? most : most / largest;
}

void expect_right(Decode& decode, const DecodeCase& c) {
  SCOPED_TRACE(c.text());
  const std::vector<uint8_t> bits = decode.run();
  EXPECT_LE(worst_error(decode.out(), decode.reference()), c.bf16()
                                                               ? tessera::tolerance::attention::kBf16DecodeOut
                                                               : tessera::tolerance::attention::kF32Out);
  EXPECT_TRUE(decode.run() == bits) << "other bits the second time";
  decode.expect_inputs_unchanged();
}
void expect_right(const DecodeCase& c) {
  Decode decode(c);
  expect_right(decode, c);
}

struct AttentionDecode : ::testing::Test {
  void SetUp() override {
    if (device_arch() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(AttentionDecode, AgreesWithFp64) {
  for (const AttnDtype dtype : {ATTN_BF16, ATTN_F32})
    for (const int head_dim : {8, 40, 64, 80, 96, 128, 256})
      for (const int64_t group : {1, 2, 3, 4, 7, 8, 12}) {
        expect_right({dtype, 2, group, head_dim, {0, 1, -1, 30, 32}});
        expect_right({dtype, 1, group, head_dim, {126, -7, 999}});
      }
}

TEST_F(AttentionDecode, AgreesWithFp64WhereManyThreadBlocksShareAHead) {
  for (const AttnDtype dtype : {ATTN_BF16, ATTN_F32})
    for (const int head_dim : {64, 96, 128, 256})
      for (const int64_t group : {1, 4, 8}) expect_right({dtype, 1, group, head_dim, {8190}});
}

TEST_F(AttentionDecode, WithSinksAndAlibiAgreesWithFp64) {
  for (const AttnDtype dtype : {ATTN_BF16, ATTN_F32})
    for (const int head_dim : {40, 64, 128, 256})
      for (const int64_t group : {1, 3, 8})
        for (const bool sinks : {true, false})
          for (const int alibi : {0, 32}) {
            if (!sinks && alibi == 0) continue;
            DecodeCase c{dtype, 2, group, head_dim, {0, 1, -1, 30, 999}};
            c.has_sinks = sinks, c.alibi_heads = alibi, c.first_head = alibi == 0 ? 0 : 5;
            expect_right(c);
            c.kv_heads = 1, c.starts = {8190};  // many thread blocks share a head
            expect_right(c);
          }
}

TEST_F(AttentionDecode, WithACapAgreesWithFp64) {
  for (const AttnDtype dtype : {ATTN_BF16, ATTN_F32})
    for (const int head_dim : {40, 64, 128, 256})
      for (const int64_t group : {1, 2, 8})
        for (const double cap : {0.5, 50.0}) {
          DecodeCase c{dtype, 2, group, head_dim, {0, 1, -1, 30, 999}};
          c.cap = cap, c.has_sinks = group == 2;
          expect_right(c);
          c.kv_heads = 1, c.starts = {8190};
          expect_right(c);
        }
}

// NaN in blocks that no list has must not show: see Decode.
TEST_F(AttentionDecode, WithSparseBlocksAgreesWithFp64) {
  for (const AttnDtype dtype : {ATTN_BF16, ATTN_F32})
    for (const int head_dim : {40, 64, 96, 128, 256})
      for (const int64_t group : {1, 3, 8, 12})
        for (const int64_t block : {128, 256}) {
          DecodeCase c{dtype, 2, group, head_dim, {0, 127, -1, 128, 130, 700, 999, 1023}};
          c.block = block;
          expect_right(c);
          // A list may lack all near blocks: beside a sink, steep slopes would leave nothing of its keys.
          c.has_sinks = true, c.cap = group == 8 ? 5 : 0;
          if (group == 3) c.alibi_heads = 32, c.first_head = 32 - 6, c.has_sinks = false;
          expect_right(c);
          c.kv_heads = 1, c.starts = {8190};  // many thread blocks share a head
          expect_right(c);
        }
}

TEST_F(AttentionDecode, AgreesWithFp64OverManySequencesOfDifferentLengths) {
  std::mt19937 random(7);
  DecodeCase c{ATTN_BF16, 3, 2, 64, {}};
  for (int b = 0; b < 100; ++b)
    c.starts.push_back(static_cast<int32_t>(random() % 5 == 0 ? -1 : random() % (b % 3 == 0 ? 700 : 20)));
  expect_right(c);
  std::ranges::fill(c.starts, -1);
  expect_right(c);  // all are idle
}

// m is raised again and again, and lags.
TEST_F(AttentionDecode, AgreesWithFp64WhereScoresAreLarge) {
  DecodeCase c{ATTN_BF16, 2, 4, 64, {2000, 77}};
  c.size = 4;
  Decode decode(c);
  decode.run();
  EXPECT_LE(
      worst_error(decode.out(), decode.reference()),
      tessera::tolerance::attention::kBf16DecodeOut + tessera::tolerance::attention::kScoresOfAThousand);
}

// Captured once, replayed while the sequences grow
TEST_F(AttentionDecode, AGraphFollowsTheLengths) {
  const DecodeCase c{ATTN_BF16, 2, 4, 128, {-1, 1500, 4}};
  Decode decode(c);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  cuda_ok(cudaStreamCreate(&stream));
  cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  decode.enqueue(stream);
  cuda_ok(cudaStreamEndCapture(stream, &graph));
  cuda_ok(cudaGraphInstantiate(&replay, graph, 0));
  for (const std::vector<int32_t>& starts :
       {std::vector<int32_t>{0, 1501, 5}, {64, -1, 300}, {1505, 1505, 1505}, {-1, -1, -1}}) {
    for (int64_t b = 0; b < c.batch(); ++b)
      for (int64_t t = 0; t <= starts[b]; ++t) decode.put_key(b, t);
    decode.upload(starts);
    decode.poison();
    cuda_ok(cudaGraphLaunch(replay, stream));
    cuda_ok(cudaStreamSynchronize(stream));
    EXPECT_LE(worst_error(decode.out(), decode.reference()), tessera::tolerance::attention::kBf16DecodeOut);
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST_F(AttentionDecode, TakesScoresOfMinusInfinityAndKeepsNan) {
  for (const AttnDtype dtype : {ATTN_BF16, ATTN_F32}) {
    const DecodeCase c{dtype, 1, 2, 64, {3000, 300}};
    Decode decode(c);
    for (int64_t h = 0; h < 2; ++h) std::fill_n(decode.q(0, h), 64, 2.0);
    for (int64_t t = 0; t <= 3000; ++t) {
      std::fill_n(decode.k(0, t, 0), 64, -3e38);  // 64 such products are below what fp32 holds
      decode.put_key(0, t);
    }
    *decode.k(1, 123, 0) = NAN;
    decode.put_key(1, 123);
    decode.upload_queries();
    decode.upload(c.starts);
    decode.run();
    const std::vector<double> out = decode.out();
    for (int64_t i = 0; i < 2 * 64; ++i) EXPECT_EQ(out[i], 0);
    for (int64_t i = 2 * 64; i < 4 * 64; ++i) EXPECT_TRUE(std::isnan(out[i]));
  }
}

}  // namespace
}  // namespace tessera::test

namespace tessera {
namespace {

// The queries of a packed projection; a sequence that is idle
TEST_F(CudaTest, DecodeAttentionIsThatOfTheCpu) {
  struct Size {
    int64_t batch, heads, kv_heads, head_dim, capacity;
  };
  for (const DType dtype : kReal)
    for (const Size& s : {Size{3, 6, 6, 64, 200}, Size{2, 8, 2, 128, 1030}, Size{1, 7, 1, 40, 65}}) {
      SCOPED_TRACE(fmt::format("{} {} heads of {}", name_of(dtype), s.heads, s.head_dim));
      const DecodeShape shape{s.batch, s.heads, s.head_dim, s.kv_heads, s.capacity};
      const DecodePlan on_cpu = choose_decode(shape, DType::kF32, cpu().backend().traits()),
                       on_cuda = choose_decode(shape, dtype, cuda().backend().traits());
      const Twin qkv = input(dtype, {s.batch, 1, s.heads + 2 * s.kv_heads, s.head_dim}),
                 k = input(dtype, {s.batch, s.capacity, s.kv_heads, s.head_dim}),
                 v = input(dtype, {s.batch, s.capacity, s.kv_heads, s.head_dim}),
                 starts = indices(
                     {s.batch},
                     [&](int64_t b) { return b == 1 ? -1 : static_cast<int32_t>(s.capacity - 1 - 3 * b); }),
                 y = output(dtype, {s.batch, 1, s.heads, s.head_dim});
      const Tensor scratch = output(DType::kF32, {(on_cuda.workspace_bytes + 3) / 4}).cuda;
      run_on_both({y}, [&](auto on) {
        return DecodeAttention{.plan = on(on_cpu, on_cuda),
                               .q = {on(qkv), 0, s.heads},
                               .k_cache = on(k),
                               .v_cache = on(v),
                               .starts = on(starts),
                               .y = on(y),
                               .workspace = on(Tensor{}, scratch)};
      });
      expect_same(y, "y");
    }
}

// A prompt and then a token, which completes a block in one of the sequences: the means of whole blocks, and
// attention of queries that choose among them
TEST_F(CudaTest, DecodeAttentionOfChosenBlocksIsThatOfTheCpu) {
  struct Size {
    int64_t heads, kv_heads, head_dim, block, chosen;
  };
  constexpr int64_t kSequences = 3;
  for (const DType dtype : kReal)
    for (const Size& s : {Size{6, 6, 64, 16, 3}, Size{8, 2, 128, 128, 2}, Size{7, 1, 40, 8, 8},
                          Size{2, 1, 256, 1024, 2}, Size{2, 2, 64, 32, 1}}) {
      SCOPED_TRACE(fmt::format("{} {} heads of {}, {} blocks of {}", name_of(dtype), s.heads, s.head_dim,
                               s.chosen, s.block));
      const int64_t capacity = 5 * s.block + 3, prompt = 4 * s.block - 1;
      DecodeShape shape{kSequences, s.heads, s.head_dim, s.kv_heads, capacity};
      shape.choice = {.size = s.block, .count = s.chosen};
      const DecodePlan on_cpu = choose_decode(shape, DType::kF32, cpu().backend().traits()),
                       on_cuda = choose_decode(shape, dtype, cuda().backend().traits());
      const Shape cache{kSequences, capacity, s.kv_heads, s.head_dim};
      const Twin k = input(dtype, cache), v = input(dtype, cache),
                 means = output(DType::kF32, {kSequences, s.kv_heads, shape.slots(), s.head_dim});
      // Tokens [count] from where each sequence stands; the middle one is idle
      const auto append = [&](int64_t tokens, int64_t start, int64_t last_start) {
        const Twin new_k = input(dtype, {kSequences, tokens, s.kv_heads, s.head_dim}),
                   new_v = input(dtype, new_k.cpu.shape),
                   starts = indices({kSequences}, [&](int64_t b) {
                     return static_cast<int32_t>(b == 0 ? start : b == 1 ? -1 : last_start);
                   });
        run_on_both({k, v, means}, [&](auto on) {
          return CacheAppend{.k = all_heads(on(new_k)),
                             .v = all_heads(on(new_v)),
                             .starts = on(starts),
                             .k_cache = on(k),
                             .v_cache = on(v),
                             .means = on(means),
                             .block = s.block};
        });
        return starts;
      };
      append(prompt, 0, 2);
      const Twin starts = append(1, prompt, prompt + 2);
      const Twin q = input(dtype, {kSequences, 1, s.heads, s.head_dim}), y = output(dtype, q.cpu.shape);
      const Tensor scratch = output(DType::kF32, {(on_cuda.workspace_bytes + 3) / 4}).cuda;
      run_on_both({y}, [&](auto on) {
        return DecodeAttention{.plan = on(on_cpu, on_cuda),
                               .q = all_heads(on(q)),
                               .k_cache = on(k),
                               .v_cache = on(v),
                               .starts = on(starts),
                               .y = on(y),
                               .workspace = on(Tensor{}, scratch),
                               .means = on(means)};
      });
      expect_same(y, "y");
    }
}

// All tokens of one sequence over its cache, with sparse blocks: a prompt that begins within one
TEST_F(CudaTest, DecodeAttentionOfOneCacheIsThatOfTheCpu) {
  for (const DType dtype : kReal)
    for (const int64_t tokens : {1, 5, 127}) {
      SCOPED_TRACE(fmt::format("{} {} tokens", name_of(dtype), tokens));
      constexpr int64_t kCapacity = 700, kHeads = 6, kKvHeads = 2, kHeadDim = 64;
      const BlockLists lists = test::lists_of(
          test::random_blocks({.size = 128, .seed = 11}, kCapacity, kCapacity), kCapacity, kCapacity);
      const DecodeShape shape{.batch = tokens,
                              .heads = kHeads,
                              .head_dim = kHeadDim,
                              .kv_heads = kKvHeads,
                              .capacity = kCapacity,
                              .one_cache = true,
                              .blocks = lists.shape()};
      const DecodePlan on_cpu = choose_decode(shape, DType::kF32, cpu().backend().traits()),
                       on_cuda = choose_decode(shape, dtype, cuda().backend().traits());
      const Twin qkv = input(dtype, {tokens, 1, kHeads + 2 * kKvHeads, kHeadDim}),
                 k = input(dtype, {1, kCapacity, kKvHeads, kHeadDim}),
                 v = input(dtype, {1, kCapacity, kKvHeads, kHeadDim}),
                 starts = indices({tokens}, [&](int64_t t) { return static_cast<int32_t>(519 + t); }),
                 blocks = indices({lists.shape().numbers()},
                                  [&](int64_t i) { return lists.numbers()[static_cast<size_t>(i)]; }),
                 y = output(dtype, {tokens, 1, kHeads, kHeadDim});
      const Tensor scratch = output(DType::kF32, {(on_cuda.workspace_bytes + 3) / 4}).cuda;
      run_on_both({y}, [&](auto on) {
        return DecodeAttention{.plan = on(on_cpu, on_cuda),
                               .q = {on(qkv), 0, kHeads},
                               .k_cache = on(k),
                               .v_cache = on(v),
                               .starts = on(starts),
                               .y = on(y),
                               .workspace = on(Tensor{}, scratch),
                               .blocks = on(blocks)};
      });
      expect_same(y, "y");
    }
}

}  // namespace
}  // namespace tessera
