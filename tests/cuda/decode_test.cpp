// What a decode step adds to CUDA: products of few rows, the cache, drawn tokens, recordings, and a Decoder
// over all of them.
#include "tests/cuda/twin.h"
#include "tests/model_families.h"
#include "train/session/decoder.h"

namespace tessera::testing {
namespace {

using Epilogue = FusedLinear::Epilogue;

class DecodeOnCuda : public CudaTest {
 protected:
  // A model with the same weights on both devices, loud enough that logits are far apart
  struct Pair {
    Pair(Backend& cpu, Backend& cuda, const ModelConfig& model, DType dtype, float spread = 0.1f)
        : on_cpu(cpu, host, {.model = model, .batch = 1, .sequence_length = model.context}),
          on_cuda(cuda, device,
                  {.model = model, .batch = 1, .sequence_length = model.context, .dtype = dtype}) {
      const ParamSink to_cpu = on_cpu.store().writer(), to_cuda = on_cuda.store().writer();
      std::mt19937_64 random(11);
      for (const ParamPlace& place : on_cpu.store().layout().places) {
        Arena::Scope scope(host);
        const Tensor values = host.alloc(MemoryTag::kData, "values", DType::kF32, place.info.shape);
        std::normal_distribution<float> normal(place.info.init == Init::kOne ? 1.0f : 0.0f, spread);
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
    ModelConfig model = with_qwen3_parts(gpt2());
    model.kv_heads = 2, model.head_dim = 32, model.mlp_width = 96;
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
                         {7, 8, 1},
                         {4, 2056, 2112},
                         {1, 20, 6}})
      for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kGelu, Epilogue::kGeluExact, Epilogue::kRelu,
                                      Epilogue::kRelu2, Epilogue::kSwiglu})
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
          // The normed x is rounded, and so is what the CPU's passes do not store; a square has twice the
          // error.
          expect_same_norm(y, "y", epilogue == Epilogue::kRelu2 ? 4 : 2);
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
        const Twin starts = indices({B},
                                    [](int64_t b) {
                                      return std::array{0, -1, 7}[static_cast<size_t>(b)];
                                    }),
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
      for (const auto& [D, rotated] :
           {std::pair<int64_t, int64_t>{16, 16}, {6, 6}, {128, 128}, {6, 2}, {128, 64}})
        for (const int64_t K : {1, 2}) {
          const Twin starts = indices({B},
                                      [](int64_t b) {
                                        return std::array{0, -1, 7}[static_cast<size_t>(b)];
                                      }),
                     qkv = input(dtype, {B, T, H + 2 * K, D}), y = output(dtype, {B, T, H + K, D}),
                     k = input(dtype, {B, capacity, K, D}), v = input(dtype, {B, capacity, K, D}),
                     angles = with_values(DType::kF32, {capacity, rotated / 2, 2},
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

// Of three texts: one before its ring is full, an idle one, one that goes round for the third time
TEST_F(DecodeOnCuda, ARingTakesANewTokenInPlaceOfAnOldOne) {
  const int64_t B = 3, H = 4, K = 2, rows = 9, D = 16;
  for (const DType dtype : kReal) {
    const Twin starts = indices({B},
                                [](int64_t b) {
                                  return std::array{4, -1, 23}[static_cast<size_t>(b)];
                                }),
               qkv = input(dtype, {B, 1, H + 2 * K, D}), y = output(dtype, {B, 1, H + K, D}),
               k = input(dtype, {B, rows, K, D}), v = input(dtype, {B, rows, K, D}),
               angles = with_values(DType::kF32, {24, D / 2, 2},
                                    [&](int64_t i) { return std::sin(static_cast<float>(i)); });
    const auto append = [&](auto on, const Twin& keys, int64_t first) {
      return CacheAppend{.k = {on(keys), first, K},
                         .v = {on(qkv), H + K, K},
                         .starts = on(starts),
                         .k_cache = on(k),
                         .v_cache = on(v),
                         .ring = true};
    };
    run_on_both({k, v}, [&](auto on) { return append(on, qkv, H); });
    expect_same(k, "k", 0), expect_same(v, "v", 0);
    run_on_both({y, k, v}, [&](auto on) {
      return RotaryAppend{{.x = {on(qkv), 0, H + K},
                           .y = {on(y), 0, H + K},
                           .query_heads = H,
                           .angles = on(angles),
                           .starts = on(starts)},
                          append(on, y, H)};
    });
    expect_same(k, "k"), expect_same(v, "v", 0);
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
  void before(const AnyOp&, Backend&, const Launch&) override {}
  void after(const AnyOp&, Backend&, const Launch&) override { ++operations; }
  int operations = 0;
};

ModelConfig with_windows(ModelConfig model) {
  model.window = Windows({{.window = 7}, {.window = Windows::kFull}});
  if (model.positions == Positions::kRope) model.rope.local_theta = 100;
  return model;
}

// A Decoder on CUDA: its logits are those of the CPU's, and of a forward without a cache; a graph and plain
// launches, which an observer asks for, give the same bits. Of one text also by separate kernels. With
// windows the caches are rings, which texts and prompts go round several times.
TEST_F(DecodeOnCuda, TextsAreThoseOfTheCpuAndOfPlainLaunches) {
  struct Case {
    int64_t slots;
    bool separate_kernels;
  };
  for (const DType dtype : kReal)
    for (const ModelConfig& model : {gpt2(), qwen3(), with_windows(qwen3()), with_windows(gpt2())})
      for (const auto [slots, separate_kernels] :
           {Case{1, false}, Case{1, true}, Case{3, false}, Case{11, false}}) {
        const bool can_be_one = slots == 1 && dtype == DType::kBF16 && cuda().backend().traits().arch >= 90;
        if (separate_kernels && !can_be_one) continue;
        SCOPED_TRACE(fmt::format("{}, {} slots, {}, window {}{}", name_of(dtype), slots,
                                 model.has_qk_norm() ? "qwen3" : "gpt2", text_of(model.window),
                                 separate_kernels ? ", separate kernels" : ""));
        Pair pair(cpu().backend(), cuda().backend(), model, dtype);
        const Decoder::Settings settings{
            .slots = slots, .capacity = 60, .prefill = 8, .separate_kernels = separate_kernels};
        Decoder with_graph(pair.on_cuda, settings), plain(pair.on_cuda, settings);
        Decoder reference(pair.on_cpu, settings);
        EXPECT_EQ(with_graph.is_one_kernel(), can_be_one && !separate_kernels);
        EXPECT_FALSE(reference.is_one_kernel());
        std::vector<int32_t> text;
        for (int32_t i = 0; i < 20; ++i) text.push_back(i * 37 % 211);
        std::vector<std::vector<int32_t>> texts;
        for (int64_t slot = 0; slot < slots; ++slot) {
          texts.emplace_back(text.begin(), text.begin() + 1 + slot % 20);
          for (Decoder* decoder : {&with_graph, &plain, &reference}) decoder->start(slot, texts.back(), slot);
        }
        if (slots > 1) {  // a copied prompt has the bits of one that was read
          texts[0] = texts.back();
          with_graph.start_copy(0, slots);
          for (Decoder* decoder : {&plain, &reference}) decoder->start(0, texts[0], slots);
          EXPECT_EQ(with_graph.logits(0), plain.logits(0));
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
        EXPECT_GE(silent.operations, 30 * 2);  // a step may be one operation
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

// Over small caches a graph and plain launches give the same bits, whether groups become codes while texts
// are read or drawn. An integer of 8 bits is off by 1/510 of its channel's spread, about as a key in bf16
// is.
TEST_F(DecodeOnCuda, TextsOverSmallCachesAreThoseOfPlainLaunches) {
  ModelConfig model = qwen3();
  model.context = 400;
  for (const CacheDtype cache : {CacheDtype::kFp8, CacheDtype::kInt8, CacheDtype::kInt4})
    for (const int64_t slots : {1, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} slots", name_of(cache), slots));
      Pair pair(cpu().backend(), cuda().backend(), model, DType::kBF16, 0.05f);
      const Decoder::Settings settings{.slots = slots, .capacity = 400, .prefill = 100, .cache = cache};
      Decoder with_graph(pair.on_cuda, settings), plain(pair.on_cuda, settings);
      EXPECT_FALSE(with_graph.is_one_kernel());
      if (slots == 1 && cuda().backend().traits().arch >= 90) {  // else another reason comes first
        EXPECT_NE(with_graph.kernels_text().find(name_of(cache)), std::string::npos)
            << with_graph.kernels_text();
      }
      std::vector<std::vector<int32_t>> texts;
      for (int64_t slot = 0; slot < slots; ++slot) {
        std::vector<int32_t>& text = texts.emplace_back();
        for (int64_t i = 0; i < 250 - 110 * slot; ++i) text.push_back(static_cast<int32_t>(i * 37 % 211));
        for (Decoder* decoder : {&with_graph, &plain}) decoder->start(slot, text, slot);
      }
      Silent silent;
      for (int step = 0; step < 90; ++step) {
        const std::span<const int32_t> drawn = with_graph.next({.temperature = 0.9f}, 5);
        cuda().backend().add_observer(silent);
        const std::span<const int32_t> again = plain.next({.temperature = 0.9f}, 5);
        cuda().backend().remove_observer(silent);
        for (size_t slot = 0; slot < texts.size(); ++slot) {
          ASSERT_EQ(drawn[slot], again[slot]) << step;
          texts[slot].push_back(drawn[slot]);
        }
      }
      for (int64_t slot = 0; slot < slots; ++slot) {
        const std::vector<float> found = with_graph.logits(slot), same = plain.logits(slot),
                                 without = pair.on_cuda.last_logits(texts[static_cast<size_t>(slot)], 1);
        EXPECT_EQ(std::memcmp(found.data(), same.data(), found.size() * 4), 0) << "slot " << slot;
        double error = 0, size = 0;
        for (size_t i = 0; i < found.size(); ++i)
          error += std::pow(found[i] - without[i], 2), size += std::pow(without[i], 2);
        if (cache == CacheDtype::kInt8) {
          EXPECT_LT(std::sqrt(error / size), 2 * 0.03) << "slot " << slot;
        }
      }
    }
}

// A step of one text as one kernel against the same operations one by one, at contexts of one and of several
// parts of a head, and the keys and values that it appends.
TEST_F(DecodeOnCuda, OneKernelIsThatOfItsOperations) {
  if (cuda().backend().traits().arch < 90) GTEST_SKIP() << "one kernel needs compute capability 9.0";
  constexpr int64_t kContext = 4200;
  ModelConfig small = gpt2(), odd = qwen3(), wide = qwen3();
  small.channels = 768, small.heads = small.kv_heads = 12, small.head_dim = 64, small.mlp_width = 3072;
  odd.channels = 72, odd.heads = 9, odd.kv_heads = 3, odd.head_dim = 24, odd.mlp_width = 200;
  wide.channels = 1024, wide.heads = 16, wide.kv_heads = 8, wide.head_dim = 128, wide.mlp_width = 3072;
  // Rings of several parts of a head, and of a few keys; neither is a multiple of a tile of keys.
  ModelConfig windows = wide, window = small;
  windows.window = Windows({{.window = 1003}, {.window = Windows::kFull}}), windows.rope.local_theta = 100;
  window.window = Windows(37);
  for (ModelConfig model : {small, odd, wide, windows, window}) {
    model.context = kContext, model.vocab_size = 1003;
    SCOPED_TRACE(fmt::format("{} channels, head dim {}, window {}", model.channels, model.head_dim,
                             text_of(model.window)));
    Pair pair(cpu().backend(), cuda().backend(), model, DType::kBF16, 0.04f);
    Arena& arena = pair.device;
    Arena::Scope scope(arena);
    const Stream& stream = pair.on_cuda.stream();
    const KvCache cache = allocate_kv_cache(arena, model, DType::kBF16, 1, kContext);
    const Model one = decoding(pair.on_cuda.model(), cache, stream.backend().traits());
    const Tensor tokens = arena.alloc(MemoryTag::kData, "tokens", DType::kI32, {1, 1}),
                 logits = arena.alloc(MemoryTag::kData, "logits", DType::kBF16, {1, model.padded_vocab()});
    const Saved saved = allocate_saved(arena, one, Keep::nothing());
    const auto prepared = [&](bool separate_kernels) {
      return prepare_decode(stream, arena,
                            {.model = one,
                             .cache = cache,
                             .tokens = tokens,
                             .saved = saved,
                             .logits = logits,
                             .separate_kernels = separate_kernels});
    };
    const DecodeStep step = prepared(false), one_by_one = prepared(true);
    ASSERT_TRUE(step.memory);
    // Behind the text a cache holds what was there before
    const auto set_rows = [&](int64_t first, int64_t count, float spread, float centre) {
      for (const KvCache::Layer& layer : cache.layers)
        for (const Tensor& t : {layer.k, layer.v}) {
          const int64_t begin = std::min(first, layer.rows()), end = std::min(first + count, layer.rows());
          if (begin == end) continue;
          const Tensor rows = t.view({t.shape[1], t.shape[2] * t.shape[3]}).rows(begin, end - begin);
          stream.run(Copy{input(DType::kBF16, rows.shape, spread, centre).cuda, rows});
        }
    };
    set_rows(0, kContext, 1, NAN);
    int32_t tokens_before = 0;
    for (const int32_t start : {0, 1, 15, 16, 36, 37, 127, 128, 511, 700, 1002, 1003, 2100, 4199}) {
      SCOPED_TRACE(start);
      if (start > 0) set_rows(tokens_before, start - tokens_before, 1, 0);
      tokens_before = start;
      const auto set = [&](int32_t value, const Tensor& to) {
        stream.run(Copy{{&value, DType::kI32, to.shape, Device::kCpu}, to});
      };
      set(start % 1003, tokens), set(start, cache.starts);
      const auto run = [&](const DecodeStep& each) {
        decode(stream, each);
        stream.synchronize();
        std::vector<std::vector<char>> bits{bytes_of(logits)};
        for (const KvCache::Layer& layer : cache.layers)
          for (const Tensor& t : {layer.k, layer.v}) bits.push_back(bytes_of(t));
        return bits;
      };
      const auto wanted = run(one_by_one), found = run(step);
      EXPECT_TRUE(run(step) == found) << "other bits the second time";
      for (size_t i = 0; i < wanted.size(); ++i) {
        double error = 0, size = 0;
        const auto *x = reinterpret_cast<const uint16_t*>(found[i].data()),
                   *y = reinterpret_cast<const uint16_t*>(wanted[i].data());
        for (size_t j = 0; j < wanted[i].size() / 2; ++j) {
          if (i > 0 && x[j] == y[j] && std::isnan(float_from_bf16(y[j]))) continue;  // behind the text
          error += std::pow(float_from_bf16(x[j]) - float_from_bf16(y[j]), 2);
          size += std::pow(float_from_bf16(y[j]), 2);
        }
        EXPECT_LE(error, 0.03 * 0.03 * size) << (i == 0 ? "logits" : "cache");
      }
    }
  }
}

// Of one kernel, of separate ones, and with a small cache. A plan has no tokens to look at, so the text fills
// the cache.
TEST_F(DecodeOnCuda, ItsMemoryIsItsPlan) {
  for (const auto& [separate_kernels, cache] :
       {std::pair{false, CacheDtype::kAuto}, std::pair{true, CacheDtype::kAuto},
        std::pair{true, CacheDtype::kInt4}}) {
    const int64_t capacity = is_small(cache) ? 300 : 40;
    SCOPED_TRACE(fmt::format("{}, {}", separate_kernels, name_of(cache)));
    ModelConfig model = gpt2();
    model.context = std::max(model.context, capacity);
    const DeviceTraits device = cuda().backend().traits();
    const auto ledger_of = [&](Backend& backend, Arena arena) {
      Session session(backend, arena,
                      {.model = model, .batch = 1, .sequence_length = 1, .dtype = DType::kBF16});
      Decoder decoder(session, {.capacity = capacity, .cache = cache, .separate_kernels = separate_kernels});
      decoder.start(0, std::vector<int32_t>(static_cast<size_t>(capacity), 1), 0);
      decoder.next({}, 0);
      return arena.ledger();
    };
    const MemoryLedger plan = ledger_of(*make_plan_backend(device), Arena::plan(Device::kCuda)),
                       found = ledger_of(cuda().backend(), Arena::cuda());
    EXPECT_EQ(found.at_peak(), plan.at_peak());
    EXPECT_EQ(found.peak_of_each(), plan.peak_of_each());
    EXPECT_EQ(found.current_bytes(), plan.current_bytes());
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
