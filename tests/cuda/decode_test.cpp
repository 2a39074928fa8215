// What a decode step adds to CUDA: products of few rows, the cache, drawn tokens, recordings, and a Decoder
// over all of them.
#include "tests/cuda/twin.h"
#include "train/session/decoder.h"

namespace tessera::testing {
namespace {

using Epilogue = FusedLinear::Epilogue;

class DecodeOnCuda : public CudaTest {
 protected:
  // A model with the same weights on both devices, loud enough that logits are far apart
  struct Pair {
    Pair(Backend& cpu, Backend& cuda, const ModelConfig& model, DType dtype)
        : on_cpu(cpu, host, {.model = model, .batch = 1, .sequence_length = model.context}),
          on_cuda(cuda, device,
                  {.model = model, .batch = 1, .sequence_length = model.context, .dtype = dtype}) {
      const ParamSink to_cpu = on_cpu.writer(), to_cuda = on_cuda.writer();
      std::mt19937_64 random(11);
      for (const ParamPlace& place : on_cpu.layout().places) {
        Arena::Scope scope(host);
        const Tensor values = host.alloc(MemoryTag::kData, "values", DType::kF32, place.info.shape);
        std::normal_distribution<float> normal(place.info.init == Init::kOne ? 1.0f : 0.0f, 0.1f);
        for (int64_t i = 0; i < values.numel(); ++i)
          values.as<float>()[i] = float_from_bf16(bf16_from_float(normal(random)));
        const int64_t padding = place.info.padding * values.numel() / place.info.shape[0];
        std::fill_n(values.as<float>() + values.numel() - padding, padding, 0.0f);
        to_cpu(place, values);
        to_cuda(place, values);
      }
    }
    Arena host = Arena::host(), device = Arena::cuda();
    Session on_cpu, on_cuda;
  };

  static ModelConfig gpt2() {
    return {.vocab_size = 211, .context = 96, .layers = 2, .heads = 4, .channels = 64};
  }
  static ModelConfig qwen3() {
    ModelConfig model = gpt2();
    model.kv_heads = 2, model.head_dim = 32, model.mlp_width = 96;
    model.norm = NormKind::kRmsNorm, model.positions = Positions::kRope, model.mlp = Mlp::kSwiglu;
    model.bias = Bias::kNone, model.qk_norm = true, model.tied = false;
    return model;
  }
};

TEST_F(DecodeOnCuda, FusedLinearIsThatOfTheCpu) {
  struct Case {
    int64_t N, C, O;
  };
  for (const DType dtype : kReal)
    for (const Case c : {Case{1, 64, 24},
                         {2, 768, 17},
                         {3, 40, 1000},
                         {5, 1024, 9},
                         {8, 3072, 33},
                         {9, 64, 24},
                         {1, 8, 1},
                         {4, 2056, 2112},
                         {1, 20, 6}})
      for (const Epilogue epilogue :
           {Epilogue::kNone, Epilogue::kGelu, Epilogue::kGeluExact, Epilogue::kRelu, Epilogue::kSwiglu})
        for (const int norm : {0, 1, 2}) {
          // What serves few rows needs none of this; nine, and rows that are no whole packs, take the plain
          // operations, whose norms and SwiGLU want whole packs.
          const int64_t width = dtype == DType::kBF16 ? 8 : 4;
          const bool plain = c.N > 8 || c.C % width != 0;
          if (plain && (c.C % width != 0 || c.O % width != 0) && (norm > 0 || epilogue == Epilogue::kSwiglu))
            continue;
          SCOPED_TRACE(fmt::format("{} [{}, {}] x [{}, {}], activation {}, norm {}", name_of(dtype), c.N, c.C,
                                   c.O, c.C, static_cast<int>(epilogue), norm));
          const int64_t rows = epilogue == Epilogue::kSwiglu ? 2 * c.O : c.O;
          const float spread = 1 / std::sqrt(static_cast<float>(c.C));
          const Twin x = input(dtype, {c.N, c.C}, 1, 0.2f), w = input(dtype, {rows, c.C}, spread),
                     bias = input(dtype, {rows}), add = input(dtype, {c.N, c.O}),
                     norm_weight = input(dtype, {c.C}, 0.3f, 1), norm_bias = input(dtype, {c.C}, 0.3f),
                     y = output(dtype, {c.N, c.O}), normed = output(dtype, {c.N, c.C}),
                     mean = output(DType::kF32, {c.N}), rstd = output(DType::kF32, {c.N}),
                     sums = output(dtype, {c.N, rows});
          const bool adds = epilogue == Epilogue::kNone && c.N % 2 == 1;
          run_on_both({y}, [&](auto on) {
            FusedLinear op{.x = on(x), .weight = on(w), .y = on(y), .activation = epilogue, .sums = on(sums)};
            if (c.N != 2) op.bias = on(bias);
            if (adds) op.add = on(add);
            if (norm > 0) op.norm_weight = on(norm_weight), op.epsilon = 1e-5f, op.normed = on(normed);
            if (norm > 0) op.mean = on(mean), op.rstd = on(rstd);
            if (norm == 2) op.norm_bias = on(norm_bias);
            return op;
          });
          // The normed x is rounded, and so is what the CPU's passes do not store
          expect_same_norm(y, "y", 2);
        }
}

TEST_F(DecodeOnCuda, LinearOfFewRowsDoesNotDependOnTheOthers) {
  const int64_t C = 768, O = 100;
  const Twin x = input(DType::kBF16, {8, C}), w = input(DType::kBF16, {O, C}, 0.05f),
             all = output(DType::kBF16, {8, O}), one = output(DType::kBF16, {1, O});
  cuda().run(LinearForward{.x = x.cuda, .weight = w.cuda, .y = all.cuda});
  for (int64_t n = 0; n < 8; ++n) {
    cuda().run(LinearForward{.x = x.cuda.rows(n, 1), .weight = w.cuda, .y = one.cuda});
    EXPECT_EQ(bytes_of(one.cuda), bytes_of(all.cuda.rows(n, 1))) << n;
  }
}

TEST_F(DecodeOnCuda, ResidualMayBeTheOutput) {
  for (const DType dtype : kReal) {
    const Twin x = input(dtype, {2, 64}), w = input(dtype, {40, 64}, 0.1f), y = input(dtype, {2, 40});
    run_on_both(
        {y}, [&](auto on) { return LinearForward{.x = on(x), .weight = on(w), .y = on(y), .add = on(y)}; });
    expect_same(y, "y");
  }
}

TEST_F(DecodeOnCuda, StartsMovePositions) {
  const int64_t B = 4, T = 3, H = 3, D = 16, places = 40;
  const auto start = [](int64_t b) { return std::array{0, 17, -1, 37}[static_cast<size_t>(b)]; };
  for (const DType dtype : kReal)
    for (const bool norm : {false, true}) {
      const Twin starts = indices({B}, start), x = input(dtype, {B, T, H, D}),
                 y = output(dtype, {B, T, H, D}),
                 angles = with_values(DType::kF32, {places, D / 2, 2},
                                      [&](int64_t i) { return std::sin(static_cast<float>(i)); }),
                 q = input(dtype, {D}, 0.2f, 1), k = input(dtype, {D}, 0.2f, 1),
                 rstd = output(DType::kF32, {B * T, H});
      run_on_both({y}, [&](auto on) {
        RotaryForward op{.x = {on(x), 0, H}, .y = {on(y), 0, H}, .query_heads = 2, .angles = on(angles)};
        if (norm) op.q_weight = on(q), op.k_weight = on(k), op.epsilon = 1e-6f, op.rstd = on(rstd);
        op.starts = on(starts);
        return op;
      });
      expect_same(y, "y");

      const Twin tokens = random_indices({B, T}, 50), table = input(dtype, {50, 64}),
                 positions = input(dtype, {places, 64}), rows = output(dtype, {B, T, 64});
      run_on_both({rows}, [&](auto on) {
        return EmbeddingForward{.tokens = on(tokens),
                                .token_table = on(table),
                                .position_table = norm ? on(positions) : Tensor{},
                                .y = on(rows),
                                .starts = on(starts)};
      });
      expect_same(rows, "rows");
    }
}

TEST_F(DecodeOnCuda, AppendedRowsLieWhereStartsSay) {
  const int64_t B = 3, T = 2, capacity = 9;
  for (const DType dtype : kReal)
    for (const int64_t D : {16, 6})
      for (const int64_t K : {1, 3}) {
        const Twin starts =
                       indices({B}, [](int64_t b) { return std::array{0, -1, 7}[static_cast<size_t>(b)]; }),
                   qkv = input(dtype, {B, T, 2 * K + 1, D}), k = input(dtype, {B, capacity, K, D}),
                   v = input(dtype, {B, capacity, K, D});
        run_on_both({k, v}, [&](auto on) {
          return CacheAppend{.k = {on(qkv), 1, K},
                             .v = {on(qkv), 1 + K, K},
                             .starts = on(starts),
                             .k_cache = on(k),
                             .v_cache = on(v)};
        });
        expect_same(k, "k", 0), expect_same(v, "v", 0);
      }
}

TEST_F(DecodeOnCuda, RotatedKeysAndValuesAreAppendedInOnePass) {
  const int64_t B = 3, T = 2, H = 4, capacity = 9;
  for (const DType dtype : kReal)
    for (const bool norm : {false, true})
      for (const int64_t D : {16, 6, 128})
        for (const int64_t K : {1, 2}) {
          const Twin starts =
                         indices({B}, [](int64_t b) { return std::array{0, -1, 7}[static_cast<size_t>(b)]; }),
                     qkv = input(dtype, {B, T, H + 2 * K, D}), y = output(dtype, {B, T, H + K, D}),
                     k = input(dtype, {B, capacity, K, D}), v = input(dtype, {B, capacity, K, D}),
                     angles = with_values(DType::kF32, {capacity, D / 2, 2},
                                          [&](int64_t i) { return std::sin(static_cast<float>(i)); }),
                     q_weight = input(dtype, {D}, 0.2f, 1), k_weight = input(dtype, {D}, 0.2f, 1),
                     rstd = output(DType::kF32, {B * T, H + K});
          run_on_both({y, k, v}, [&](auto on) {
            RotaryForward rotary{
                .x = {on(qkv), 0, H + K}, .y = {on(y), 0, H + K}, .query_heads = H, .angles = on(angles)};
            if (norm) rotary.q_weight = on(q_weight), rotary.k_weight = on(k_weight), rotary.epsilon = 1e-6f;
            if (norm) rotary.rstd = on(rstd);
            rotary.starts = on(starts);
            return RotaryAppend{rotary,
                                {.k = {on(y), H, K},
                                 .v = {on(qkv), H + K, K},
                                 .starts = on(starts),
                                 .k_cache = on(k),
                                 .v_cache = on(v)}};
          });
          expect_same(y, "y"), expect_same(k, "k"), expect_same(v, "v", 0);
        }
}

TEST_F(DecodeOnCuda, DrawsAreThoseOfTheCpu) {
  const SamplingRule rules[] = {
      {.temperature = 0},
      {},
      {.temperature = 0.7f},
      {.top_k = 1},
      {.top_k = 50},
      {.top_p = 0.9f},
      {.top_p = 0.05f},
      {.min_p = 0.1f},
      {.repetition_penalty = 1.3f, .temperature = 0},
      {.repetition_penalty = 1.2f, .temperature = 0.8f, .top_k = 40, .top_p = 0.8f, .min_p = 0.02f}};
  for (const DType dtype : kReal)
    for (const int64_t V : {5, 211, 50257, 151936}) {
      const int64_t B = 4, padded = (V + 127) / 128 * 128, words = (V + 31) / 32;
      // Spread over few values, so that many tokens are equal
      const Twin logits = input(dtype, {B, padded}, 3),
                 seen = indices({B, words}, [](int64_t i) { return static_cast<int32_t>(i * 2654435761u); });
      for (const SamplingRule& rule : rules) {
        const Twin draws = indices({B, 2}, [](int64_t i) { return static_cast<int32_t>(7 * i + 1); }),
                   starts =
                       indices({B}, [](int64_t b) { return b == 2 ? -1 : static_cast<int32_t>(10 * b); }),
                   tokens = output(DType::kI32, {B}),
                   marked = indices({B, words}, [&](int64_t i) { return seen.cpu.as<int32_t>()[i]; });
        for (int draw = 0; draw < 3; ++draw) {
          run_on_both({tokens, starts, draws, marked}, [&](auto on) {
            return SampleTokens{.logits = on(logits),
                                .vocab_size = V,
                                .rule = rule,
                                .seed = 99,
                                .seen = on(marked),
                                .draws = on(draws),
                                .starts = on(starts),
                                .tokens = on(tokens)};
          });
          for (const Twin& twin : {tokens, starts, draws, marked})
            ASSERT_EQ(std::memcmp(bytes_of(twin.cuda).data(), twin.cpu.data, twin.cpu.bytes()), 0)
                << name_of(dtype) << " V " << V << " temperature " << rule.temperature << " top_k "
                << rule.top_k << " top_p " << rule.top_p << " min_p " << rule.min_p << " draw " << draw;
        }
      }
    }
}

TEST_F(DecodeOnCuda, LogitsThatAreNanDrawNothing) {
  const Twin logits = with_values(DType::kF32, {2, 128},
                                  [](int64_t i) { return i == 200 ? NAN : 1.0f * (i % 7); }),
             seen = indices({2, 4}, [](int64_t) { return 0; }),
             draws = indices({2, 2}, [](int64_t) { return 0; }),
             starts = indices({2}, [](int64_t) { return 3; }), tokens = output(DType::kI32, {2});
  run_on_both({tokens, starts, draws, seen}, [&](auto on) {
    return SampleTokens{.logits = on(logits),
                        .vocab_size = 128,
                        .rule = {},
                        .seed = 1,
                        .seen = on(seen),
                        .draws = on(draws),
                        .starts = on(starts),
                        .tokens = on(tokens)};
  });
  for (const Twin& twin : {tokens, starts, draws, seen})
    EXPECT_EQ(std::memcmp(bytes_of(twin.cuda).data(), twin.cpu.data, twin.cpu.bytes()), 0);
}

struct Silent final : OpObserver {
  void before(const char*, Backend&, const Launch&) override {}
  void after(const char*, Backend&, const Launch&) override { ++operations; }
  int operations = 0;
};

// A Decoder on CUDA: its logits are those of the CPU's, and of a forward without a cache; a graph and plain
// launches, which an observer asks for, give the same bits.
TEST_F(DecodeOnCuda, TextsAreThoseOfTheCpuAndOfPlainLaunches) {
  for (const DType dtype : kReal)
    for (const ModelConfig& model : {gpt2(), qwen3()})
      for (const int64_t slots : {1, 3, 11}) {
        SCOPED_TRACE(
            fmt::format("{}, {} slots, {}", name_of(dtype), slots, model.qk_norm ? "qwen3" : "gpt2"));
        Pair pair(cpu().backend(), cuda().backend(), model, dtype);
        Decoder with_graph(pair.on_cuda, {.slots = slots, .capacity = 60, .prefill = 8});
        Decoder plain(pair.on_cuda, {.slots = slots, .capacity = 60, .prefill = 8});
        Decoder reference(pair.on_cpu, {.slots = slots, .capacity = 60, .prefill = 8});
        std::vector<int32_t> text;
        for (int32_t i = 0; i < 20; ++i) text.push_back(i * 37 % 211);
        std::vector<std::vector<int32_t>> texts;
        for (int64_t slot = 0; slot < slots; ++slot) {
          texts.emplace_back(text.begin(), text.begin() + 1 + slot % 20);
          for (Decoder* decoder : {&with_graph, &plain, &reference}) decoder->start(slot, texts.back(), slot);
        }
        const SamplingRule rule{.temperature = 0.9f, .top_k = 20};
        Silent silent;
        for (int step = 0; step < 30; ++step) {
          const std::span<const int32_t> drawn = with_graph.next(rule, 5);
          cuda().backend().add_observer(silent);
          const std::span<const int32_t> again = plain.next(rule, 5);
          cuda().backend().remove_observer(silent);
          for (size_t slot = 0; slot < texts.size(); ++slot) {
            ASSERT_EQ(drawn[slot], again[slot]) << step;
            ASSERT_GE(drawn[slot], 0);
            texts[slot].push_back(drawn[slot]);
          }
        }
        EXPECT_GT(silent.operations, 30 * 2 * 6);
        for (int64_t slot = 0; slot < slots; ++slot) {
          const std::vector<int32_t>& whole = texts[static_cast<size_t>(slot)];
          const std::vector<float> found = with_graph.logits(slot), same = plain.logits(slot);
          EXPECT_EQ(std::memcmp(found.data(), same.data(), found.size() * 4), 0) << "slot " << slot;
          const std::vector<float> on_cpu = pair.on_cpu.last_logits(whole, 1),
                                   without = pair.on_cuda.last_logits(whole, 1);
          double error = 0, own = 0, size = 0;
          for (size_t i = 0; i < found.size(); ++i) {
            error += std::pow(found[i] - on_cpu[i], 2), own += std::pow(found[i] - without[i], 2);
            size += std::pow(on_cpu[i], 2);
          }
          const double limit = dtype == DType::kBF16 ? 0.03 : 2e-5;
          EXPECT_LT(std::sqrt(error / size), limit) << "slot " << slot << " against the CPU";
          EXPECT_LT(std::sqrt(own / size), limit) << "slot " << slot << " against a forward without a cache";
        }
      }
}

TEST_F(DecodeOnCuda, FullSlotsStop) {
  Pair pair(cpu().backend(), cuda().backend(), gpt2(), DType::kBF16);
  Decoder decoder(pair.on_cuda, {.slots = 2, .capacity = 10});
  decoder.start(0, std::array{1, 2, 3, 4, 5, 6, 7, 8, 9}, 0);
  decoder.start(1, std::array{1, 2}, 1);
  const SamplingRule greedy{.temperature = 0};
  decoder.next(greedy, 1);
  EXPECT_EQ(decoder.length(0), 10);
  EXPECT_GE(decoder.next(greedy, 1)[0], 0);
  EXPECT_TRUE(decoder.is_idle(0));
  EXPECT_EQ(decoder.next(greedy, 1)[0], kIdleToken);
  EXPECT_EQ(decoder.length(1), 5);
}

}  // namespace
}  // namespace tessera::testing
