// A Decoder against forwards over whole texts, and against transformers.
#include "train/session/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/base/clock.h"
#include "tests/model_variants.h"
#include "tests/reference_folder.h"
#include "tests/says.h"
#include "tests/tolerances.h"

namespace {
std::atomic<int64_t> allocations{0};  // by operator new, of this program so far
}
// Not inline: g++ then does not see, and warn, that free() frees what `new` gave.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace tessera::testing {
namespace {

constexpr SamplingRule kGreedy{.temperature = 0};
constexpr int64_t kContext = 256;

// A session on the CPU with weights so large that logits are far apart
struct LoudSession {
  // `sequence_length`: 0: the model's context
  explicit LoudSession(const ModelConfig& model, AttentionKind attention = AttentionKind::kFlash,
                       int64_t sequence_length = 0)
      : session(*backend, arena,
                {.model = model,
                 .batch = 1,
                 .sequence_length = sequence_length > 0 ? sequence_length : model.context,
                 .attention = attention}) {
    HostTensors make;
    const ParamSink write = session.store().writer();
    for (const ParamPlace& place : session.store().layout().places) {
      const Tensor values = make.normal(place.info.shape, 0.3, place.info.init == Init::kOne ? 1 : 0);
      const int64_t padding = place.info.padding * values.numel() / place.info.shape[0];
      std::fill_n(values.as<float>() + values.numel() - padding, padding, 0.0f);
      write(place, values);
    }
  }
  std::vector<int32_t> text(int64_t count) {
    const Tensor ids = make.tokens({count}, session.shape().model.vocab_size);
    return {ids.as<int32_t>(), ids.as<int32_t>() + count};
  }

  HostTensors make;
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Arena arena = Arena::host();
  Session session;
};

ModelConfig gpt2() {
  return {.vocab_size = 61, .context = kContext, .layers = 2, .heads = 2, .channels = 32};
}
Variant variant(const std::string& name) {
  for (const Variant& each : parts_of(gpt2()))
    if (each.name == name) return each;
  fail("no variant {}", name);
}
std::vector<Variant> families() {
  ModelConfig sparse = variant("qwen3").model;
  sparse.sparse = SparseBlocks({{.pattern = {.window = 2, .global = 1, .block = 16}}, {.pattern = {}}});
  return {{"gpt2", gpt2()},
          variant("llama"),
          variant("qwen3"),
          variant("windows with angles of their own"),
          {"sparse blocks", sparse}};
}

int32_t largest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Draws `count` tokens of every slot. Each list begins with a prompt, and the tokens follow.
void draw(Decoder& decoder, std::vector<std::vector<int32_t>>& texts, int64_t count,
          const SamplingRule& rule = kGreedy) {
  for (int64_t i = 0; i < count; ++i) {
    const std::span<const int32_t> drawn = decoder.next(rule, 5);
    for (size_t slot = 0; slot < texts.size(); ++slot) texts[slot].push_back(drawn[slot]);
  }
}
std::vector<int32_t> drawn_alone(LoudSession& of, std::vector<int32_t> prompt, int64_t count,
                                 const SamplingRule& rule, int64_t sequence) {
  Decoder decoder(of.session, {.capacity = kContext});
  decoder.start(0, prompt, sequence);
  std::vector<std::vector<int32_t>> texts{std::move(prompt)};
  draw(decoder, texts, count, rule);
  return texts[0];
}

// By induction the tokens are those of one forward for each token: every one of 200 has the greatest logit
// after those before it.
TEST(GreedyTokens, AreThoseWithoutACache) {
  for (const auto& [name, model] : families())
    for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash}) {
      SCOPED_TRACE(fmt::format("{}, {}", name, name_of(attention)));
      LoudSession loud(model, attention);
      Decoder decoder(loud.session, {.slots = 4, .capacity = kContext, .prefill = 16});
      std::vector<std::vector<int32_t>> texts{loud.text(1), loud.text(9), loud.text(16), loud.text(50)};
      for (size_t slot = 0; slot < texts.size(); ++slot)
        decoder.start(static_cast<int64_t>(slot), texts[slot], 0);
      draw(decoder, texts, 200);
      const auto V = static_cast<size_t>(model.vocab_size);
      for (const std::vector<int32_t>& text : texts) {
        const std::vector<float> logits =
            loud.session.last_logits(std::span(text).first(text.size() - 1), 200);
        for (size_t i = 0; i < 200; ++i)
          ASSERT_EQ(text[text.size() - 200 + i], largest(std::span(logits).subspan(i * V, V))) << i;
      }
    }
}

struct Generated : ::testing::TestWithParam<const char*> {};

// Prompts of 1 to 56 tokens, alone and together, read whole and in pieces
TEST_P(Generated, TextsAreThoseOfTransformers) {
  const std::filesystem::path folder = fixture(fmt::format("generation/{}", GetParam()));
  if (!std::filesystem::exists(folder))
    GTEST_SKIP() << folder << " is absent; python3 tests/fixtures/make_generation_reference.py makes it";
  const nlohmann::json texts = nlohmann::json::parse(std::ifstream(folder / "generated.json"))["texts"];
  const ModelConfig model = read_model_config(folder).model;
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  Session session(*be, arena, {.model = model, .batch = 1, .sequence_length = 1});
  load_weights(folder, session);
  const auto expect_texts = [&](size_t first, size_t slots, int64_t prefill) {
    Decoder decoder(session,
                    {.slots = static_cast<int64_t>(slots), .capacity = model.context, .prefill = prefill});
    std::vector<std::vector<int32_t>> found(slots), wanted;
    for (size_t slot = 0; slot < slots; ++slot) {
      decoder.start(static_cast<int64_t>(slot), texts[first + slot]["prompt"].get<std::vector<int32_t>>(), 0);
      wanted.push_back(texts[first + slot]["tokens"].get<std::vector<int32_t>>());
      EXPECT_EQ(wanted.back().size(), 200u);
    }
    draw(decoder, found, 200);
    EXPECT_EQ(found, wanted) << slots << " slots, prompts read by " << prefill;
  };
  ASSERT_EQ(texts.size(), 4u);
  for (size_t text = 0; text < 4; ++text) expect_texts(text, 1, 2048);
  for (const int64_t prefill : {2048, 7, 1}) expect_texts(0, 4, prefill);
}
INSTANTIATE_TEST_SUITE_P(All, Generated,
                         ::testing::Values("gpt2", "llama", "qwen3", "qwen3_moe", "olmoe", "mistral",
                                           "mistral_window", "qwen2", "olmo2", "gemma2", "gemma3", "phi3",
                                           "phi3_longrope", "bloom", "gpt_oss", "qwen2_moe", "granitemoe"),
                         [](const auto& family) { return std::string(family.param); });

TEST(Decoder, HasTheLogitsOfAForwardAfterEveryToken) {
  for (const auto& [name, model] : families()) {
    SCOPED_TRACE(name);
    LoudSession loud(model);
    Decoder decoder(loud.session, {.slots = 2, .capacity = 40, .prefill = 6});
    std::vector<std::vector<int32_t>> texts{loud.text(13), loud.text(2)};
    for (const int64_t slot : {0, 1}) decoder.start(slot, texts[static_cast<size_t>(slot)], slot);
    for (int64_t i = 0; i <= 20; ++i) {
      for (const int64_t slot : {0, 1}) {
        const std::vector<int32_t>& text = texts[static_cast<size_t>(slot)];
        const std::vector<float> found = decoder.logits(slot), wanted = loud.session.last_logits(text, 1);
        ASSERT_EQ(decoder.length(slot), std::ssize(text));
        ASSERT_EQ(found.size(), wanted.size());
        const float most = std::abs(*std::max_element(
            wanted.begin(), wanted.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
        for (size_t v = 0; v < wanted.size(); ++v)
          EXPECT_NEAR(found[v], wanted[v], tolerance::kCachedLogits * static_cast<double>(most));
      }
      draw(decoder, texts, 1, {});
    }
  }
}

// longrope by length: a text has the short factors up to the original context, and is read anew with the
// long ones where it outgrows it, whatever the decoder has room for, and however it came to its length.
TEST(Decoder, FactorsAreThoseOfTheTextSoFar) {
  ModelConfig model = variant("llama").model;
  model.rope.scaling = RopeScaling::kLongrope;
  model.rope.original_context = 24;
  const auto pairs = static_cast<size_t>(model.rotated_channels() / 2);
  model.rope.short_factors.assign(pairs, 1), model.rope.long_factors.assign(pairs, 6);
  LoudSession loud(model);  // whose sequences have the long factors
  LoudSession brief(model, AttentionKind::kFlash, 24);
  const auto expect_right = [&](const Decoder& decoder, int64_t slot, const std::vector<int32_t>& text) {
    const std::vector<float> found = decoder.logits(slot),
                             wanted = (text.size() <= 24 ? brief : loud).session.last_logits(text, 1);
    float most = 0;
    for (const float logit : wanted) most = std::max(most, std::abs(logit));
    for (size_t v = 0; v < wanted.size(); ++v)
      ASSERT_NEAR(found[v], wanted[v], tolerance::kCachedLogits * static_cast<double>(most)) << text.size();
  };
  Decoder decoder(loud.session, {.slots = 3, .capacity = 64, .prefill = 7, .factors_by_length = true});
  std::vector<std::vector<int32_t>> texts{loud.text(20), loud.text(5), loud.text(30)};
  for (const int64_t slot : {0, 1, 2}) decoder.start(slot, texts[static_cast<size_t>(slot)], slot);
  for (int64_t i = 0; i < 12; ++i) {
    for (const int64_t slot : {0, 1, 2}) expect_right(decoder, slot, texts[static_cast<size_t>(slot)]);
    draw(decoder, texts, 1, {});
  }
  // By append(), and by start_copy() of a text that has been read anew since
  const std::vector<int32_t> more = loud.text(15), prompt = loud.text(22);
  decoder.append(1, more);
  texts[1].insert(texts[1].end(), more.begin(), more.end());
  expect_right(decoder, 1, texts[1]);
  decoder.start(0, prompt, 5);
  std::vector<std::vector<int32_t>> again{prompt, texts[1], texts[2]};
  draw(decoder, again, 6, {});
  expect_right(decoder, 0, again[0]);
  decoder.start_copy(0, 5);
  decoder.start_copy(2, 6);
  expect_right(decoder, 0, prompt);
  expect_right(decoder, 2, prompt);
  std::vector<std::vector<int32_t>> copied{prompt, again[1], prompt};
  draw(decoder, copied, 6, {});
  EXPECT_EQ(copied[0], again[0]);
  expect_right(decoder, 2, copied[2]);
}

// What a slot draws depends neither on the others, nor on what it held before.
TEST(Decoder, SlotsAreIndependent) {
  LoudSession loud(variant("qwen3").model);
  const SamplingRule rule{.temperature = 2};
  const std::vector<int32_t> a = loud.text(7), b = loud.text(3), c = loud.text(20);
  const std::vector<int32_t> of_a = drawn_alone(loud, a, 30, rule, 11),
                             of_b = drawn_alone(loud, b, 25, rule, 12),
                             of_c = drawn_alone(loud, c, 15, rule, 13);
  Decoder decoder(loud.session, {.slots = 3, .capacity = kContext});
  decoder.start(2, a, 11);
  std::vector<std::vector<int32_t>> texts(3);
  texts[2] = a;
  EXPECT_TRUE(decoder.is_idle(0) && decoder.is_idle(1));
  draw(decoder, texts, 5, rule);
  EXPECT_EQ(texts[0], std::vector<int32_t>(5, kIdleToken));
  decoder.start(0, b, 12);
  texts[0] = b;
  draw(decoder, texts, 10, rule);
  decoder.stop(0);
  EXPECT_TRUE(decoder.is_idle(0));
  EXPECT_EQ(texts[0], std::vector<int32_t>(of_b.begin(), of_b.begin() + 13));
  decoder.start(0, c, 13);
  texts[0] = c;
  decoder.start(1, b, 12);
  texts[1] = b;
  draw(decoder, texts, 15, rule);
  EXPECT_EQ(texts[2], of_a);
  EXPECT_EQ(texts[0], of_c);
  EXPECT_EQ(texts[1], std::vector<int32_t>(of_b.begin(), of_b.begin() + 18));
  EXPECT_NE(drawn_alone(loud, a, 30, rule, 14), of_a) << "another number draws the same";
}

// A text that is started again with what was drawn goes on as if it had not stopped.
TEST(Decoder, ContinuesATextThatIsStartedAgain) {
  LoudSession loud(gpt2());
  const SamplingRule rule{.repetition_penalty = 1.3f, .temperature = 2};
  const std::vector<int32_t> prompt = loud.text(7), wanted = drawn_alone(loud, prompt, 30, rule, 3);
  Decoder decoder(loud.session, {.capacity = kContext});
  decoder.start(0, std::span(wanted).first(7 + 12), 3, 12);
  std::vector<std::vector<int32_t>> texts{{wanted.begin(), wanted.begin() + 7 + 12}};
  draw(decoder, texts, 18, rule);
  EXPECT_EQ(texts[0], wanted);
}

// Texts of one prompt, each as if it had been read: in another slot, in one that had another text, and in the
// slot that read it, which has gone on, and again when it is full.
TEST(Decoder, CopiesThePromptThatItReadLast) {
  const SamplingRule rule{.repetition_penalty = 1.3f, .temperature = 2};
  for (const auto& [name, model] : families()) {
    SCOPED_TRACE(name);
    LoudSession loud(model);
    const std::vector<int32_t> prompt = loud.text(21), other = loud.text(60);
    const auto wanted = [&](int64_t count, int64_t sequence) {
      return drawn_alone(loud, prompt, count, rule, sequence);
    };
    Decoder decoder(loud.session, {.slots = 3, .capacity = 60, .prefill = 8});
    decoder.start(1, other, 9);
    decoder.start(0, prompt, 3);
    decoder.start_copy(1, 4);
    EXPECT_EQ(decoder.length(1), 21);
    EXPECT_EQ(decoder.logits(1), decoder.logits(0));
    std::vector<std::vector<int32_t>> texts(3, prompt);
    draw(decoder, texts, 10, rule);
    EXPECT_EQ(texts[0], wanted(10, 3));
    decoder.append(0, std::array{1, 2, 3});
    decoder.start_copy(2, 5);
    texts[2] = prompt;
    draw(decoder, texts, 29, rule);
    EXPECT_EQ(texts[1], wanted(39, 4));
    EXPECT_EQ(texts[2], wanted(29, 5));
    EXPECT_TRUE(decoder.is_idle(0)) << "full";
    decoder.start_copy(0, 6);
    texts[0] = prompt;
    draw(decoder, texts, 12, rule);
    EXPECT_EQ(texts[0], wanted(12, 6));
  }
}

TEST(Decoder, CopiesNoTextThatWasNotRead) {
  LoudSession loud(gpt2());
  Decoder decoder(loud.session, {.slots = 2, .capacity = 8});
  EXPECT_THROW(decoder.start_copy(0, 0), Error);
  decoder.start(0, std::array{1, 2}, 0);
  EXPECT_THROW(decoder.start(1, std::array{1, 61}, 0), Error);
  EXPECT_THROW(decoder.start_copy(1, 0), Error);
  EXPECT_TRUE(decoder.is_idle(1));
  decoder.start(0, std::array{1, 2}, 0);
  EXPECT_THROW(decoder.start_copy(2, 0), Error);
  EXPECT_THROW(decoder.start_copy(1, -1), Error);
  EXPECT_TRUE(decoder.is_idle(1));
  EXPECT_EQ(decoder.length(0), 2);
}

TEST(Decoder, StopsASlotWhoseCacheIsFull) {
  LoudSession loud(gpt2());
  for (const int64_t capacity : {int64_t{1}, int64_t{5}, kContext}) {
    Decoder decoder(loud.session, {.slots = 2, .capacity = capacity});
    const std::vector<int32_t> full = loud.text(capacity), one = loud.text(1);
    decoder.start(0, full, 0);
    decoder.start(1, one, 0);
    const int32_t wanted = largest(loud.session.last_logits(full, 1));
    std::vector<std::vector<int32_t>> texts(2);
    draw(decoder, texts, 1);
    EXPECT_EQ(texts[0][0], wanted);
    EXPECT_TRUE(decoder.is_idle(0));
    EXPECT_EQ(decoder.is_idle(1), capacity == 1);
    draw(decoder, texts, capacity + 1);
    for (int64_t i = 1; i < capacity + 2; ++i) EXPECT_EQ(texts[0][static_cast<size_t>(i)], kIdleToken);
    // `capacity` draws in all: the first after the prompt of one token, the last when the cache was full
    EXPECT_EQ(std::count(texts[1].begin(), texts[1].end(), kIdleToken), 2);
    EXPECT_TRUE(decoder.is_idle(1));
  }
}

TEST(Decoder, DrawsKnownIdsAlone) {
  LoudSession loud(gpt2());
  Decoder decoder(loud.session, {.capacity = kContext, .known = 40});
  std::vector<int32_t> prompt = loud.text(5);
  prompt.push_back(60);  // may be read
  decoder.start(0, prompt, 0);
  std::vector<std::vector<int32_t>> texts(1);
  draw(decoder, texts, 200, {.repetition_penalty = 1.1f, .temperature = 5});
  EXPECT_LT(*std::max_element(texts[0].begin(), texts[0].end()), 40);
  EXPECT_GT(*std::max_element(texts[0].begin(), texts[0].end()), 30);
}

TEST(Decoder, StopsASlotWithLogitsThatAreNone) {
  LoudSession loud(gpt2());
  Decoder decoder(loud.session, {.slots = 2, .capacity = 8});
  for (const int64_t slot : {0, 1}) decoder.start(slot, std::array{1, 2}, 0);
  const Tensor norm = loud.session.store().weights().norm.weight;
  norm.as<float>()[3] = NAN;
  decoder.start(1, std::array{1, 2}, 0);
  const std::span<const int32_t> drawn = decoder.next(kGreedy, 0);
  EXPECT_GE(drawn[0], 0);
  EXPECT_EQ(drawn[1], kBadLogits);
  EXPECT_TRUE(decoder.is_idle(1));
  EXPECT_FALSE(decoder.is_idle(0));
}

TEST(Decoder, RefusesWhatItCannotHold) {
  LoudSession loud(variant("llama").model);
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "was not refused";
  };
  const auto decoder_of = [&](const Decoder::Settings& settings) {
    return refusal([&] { Decoder(loud.session, settings); });
  };
  EXPECT_TRUE(says(decoder_of({.capacity = 257}), {"capacity", "1", "256", "257"}));
  EXPECT_TRUE(says(decoder_of({.slots = 0, .capacity = 8}), {"slot", "token", "0", "2048"}));
  EXPECT_TRUE(says(decoder_of({.capacity = 8, .known = 62}), {"vocabulary", "62"}));
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  Session shorter(*be, arena,
                  {.model = variant("llama").model, .batch = 1, .sequence_length = 3, .sample_tokens = 9});
  EXPECT_TRUE(
      says(refusal([&] { Decoder(shorter, {.capacity = 10}); }), {"10", "sample_tokens", "positions", "9"}));

  Decoder decoder(loud.session, {.slots = 2, .capacity = 8});
  const auto start = [&](std::vector<int32_t> tokens, int64_t slot = 0, int64_t sequence = 0) {
    return refusal([&] { decoder.start(slot, tokens, sequence); });
  };
  EXPECT_EQ(start({1, 2, 3}), "was not refused");
  EXPECT_TRUE(says(start({}), {"1 to 8 tokens", "capacity", "0"}));
  EXPECT_TRUE(decoder.is_idle(0)) << "the text before";
  EXPECT_TRUE(says(start(std::vector<int32_t>(9)), {"1 to 8 tokens", "capacity", "9"}));
  EXPECT_TRUE(says(start({1, 61, 3}), {"token 61", "2 of 3", "vocabulary of 61"}));
  EXPECT_TRUE(says(start({1}, 2), {"slot 2", "0 to 1"}));
  EXPECT_TRUE(says(start({1}, 0, -1), {"draws", "0 to 2147483647", "-1", "0"}));
  EXPECT_TRUE(decoder.is_idle(0));
  EXPECT_TRUE(says(refusal([&] { decoder.logits(0); }), {"slot 0", "logits"}));
}

// The memory of a text as long as the cache is enough for one that is read in pieces of any place and length.
TEST(Decoder, AppendsWithinTheMemoryOfItsLongestText) {
  ModelConfig windowed = variant("windows with angles of their own").model, sparse = gpt2();
  windowed.window = Windows({{.window = 100}, {.window = Windows::kFull}});
  sparse.sparse = SparseBlocks(SparsePattern{.window = 2, .global = 1, .block = 32});
  for (const ModelConfig& model : {windowed, sparse}) {
    const Decoder::Settings settings{.slots = 2, .capacity = 250, .prefill = 64};
    const SessionShape shape{.model = model, .batch = 1, .sequence_length = model.context};
    const std::unique_ptr<Backend> planned = make_plan_backend({});
    Arena plan = Arena::plan(Device::kCpu);
    Session on_plan(*planned, plan, shape);
    Decoder(on_plan, settings).start(0, std::vector<int32_t>(250), 0);
    LoudSession loud(model);
    Decoder decoder(loud.session, settings);
    decoder.start(0, loud.text(41), 0);
    std::vector<std::vector<int32_t>> texts(2);
    for (const int64_t more : {64, 1, 100}) {
      draw(decoder, texts, 3);
      decoder.append(0, loud.text(more));
    }
    EXPECT_EQ(decoder.length(0), 41 + 64 + 1 + 100 + 9);
    EXPECT_LE(loud.arena.ledger().peak_bytes(), plan.ledger().peak_bytes());
  }
}

// A step allocates nothing, and a decoder gives back what it took.
TEST(Decoder, TakesItsMemoryOnce) {
  LoudSession loud(variant("qwen3").model);
  const int64_t before = loud.arena.ledger().current_bytes();
  {
    Decoder decoder(loud.session, {.slots = 2, .capacity = 64});
    const int64_t held = loud.arena.ledger().current_bytes();
    const ModelConfig& model = loud.session.shape().model;
    EXPECT_EQ(loud.arena.ledger().current()[static_cast<size_t>(MemoryTag::kCache)],
              2 * kv_cache_bytes(model, DType::kF32, 64) + Arena::kAlignment);
    decoder.start(0, loud.text(20), 0);
    decoder.start(1, loud.text(64), 0);
    EXPECT_EQ(loud.arena.ledger().current_bytes(), held);
    const int64_t peak = loud.arena.ledger().peak_bytes();
    std::vector<std::vector<int32_t>> texts(2);
    draw(decoder, texts, 30);
    EXPECT_EQ(loud.arena.ledger().current_bytes(), held);
    EXPECT_EQ(loud.arena.ledger().peak_bytes(), peak);
    const SamplingRule rule{.top_k = 20, .top_p = 0.9f};
    decoder.next(rule, 1);  // records the draws of a new rule
    const int64_t before_steps = allocations;
    for (int step = 0; step < 10; ++step) decoder.next(rule, 1);
    EXPECT_EQ(allocations, before_steps) << "a step allocates outside the arena";
  }
  EXPECT_EQ(loud.arena.ledger().current_bytes(), before);
}

// Where the device has one, and nobody wants separate kernels. A plan counts what it takes.
TEST(Decoder, AStepOfOneTextInBf16OnHopperIsOneKernel) {
  const DeviceTraits hopper{Device::kCuda, 90, "H200"}, ampere{Device::kCuda, 80, "A100"}, cpu{};
  struct Found {
    bool one_kernel;
    int64_t activations;  // bytes
  };
  const auto decoder_of = [](const DeviceTraits& device, DType dtype, const Decoder::Settings& settings) {
    const std::unique_ptr<Backend> be = make_plan_backend(device);
    Arena arena = Arena::plan(device.device);
    Session session(*be, arena, {.model = gpt2(), .batch = 1, .sequence_length = 1, .dtype = dtype});
    const Decoder decoder(session, settings);
    return Found{decoder.is_one_kernel(),
                 arena.ledger().current()[static_cast<size_t>(MemoryTag::kActivations)]};
  };
  for (const int64_t capacity : {int64_t{1}, kContext}) {
    const Found one = decoder_of(hopper, DType::kBF16, {.capacity = capacity}),
                separate = decoder_of(hopper, DType::kBF16, {.capacity = capacity, .separate_kernels = true});
    EXPECT_TRUE(one.one_kernel);
    EXPECT_FALSE(separate.one_kernel);
    EXPECT_GT(one.activations, separate.activations);
  }
  EXPECT_FALSE(decoder_of(hopper, DType::kBF16, {.slots = 2, .capacity = kContext}).one_kernel);
  EXPECT_FALSE(decoder_of(hopper, DType::kF32, {.capacity = kContext}).one_kernel);
  EXPECT_FALSE(decoder_of(ampere, DType::kBF16, {.capacity = kContext}).one_kernel);
  EXPECT_FALSE(decoder_of(cpu, DType::kF32, {.capacity = kContext}).one_kernel);
}

// At 1,024 tokens one more costs a row of each product, and not 1,024. The true factor is far above the ten.
TEST(Decoder, IsTenTimesAsFastAsWholeForwards) {
  LoudSession loud({.vocab_size = 512, .context = 1100, .layers = 4, .heads = 4, .channels = 256});
  Decoder decoder(loud.session, {.capacity = 1100});
  std::vector<std::vector<int32_t>> texts{loud.text(1024)};
  const auto fastest = [](int repetitions, const auto& call) {
    double least = INFINITY;
    for (int i = 0; i < repetitions; ++i) {
      const Clock::time_point start = Clock::now();
      call();
      least = std::min(least, seconds_since(start));
    }
    return least;
  };
  decoder.start(0, texts[0], 0);
  const double cached = fastest(10, [&] { draw(decoder, texts, 1); }),
               whole = fastest(2, [&] { loud.session.last_logits(std::span(texts[0]).first(1024), 1); });
  EXPECT_GT(whole, 10 * cached);
  fmt::print("[ measured ] a token after 1,024, {} parameters: {:.2f} ms with a cache, {:.1f} ms without\n",
             loud.session.shape().model.parameters(), 1e3 * cached, 1e3 * whole);
}

// Chunks of a prompt bound the memory of a long one.
TEST(Decoder, ReadsALongPromptInTheMemoryOfAChunk) {
  const ModelConfig model{.vocab_size = 61, .context = 4096, .layers = 2, .heads = 2, .channels = 32};
  const auto peak = [&](int64_t prefill) {
    const std::unique_ptr<Backend> be = make_plan_backend({});
    Arena arena = Arena::plan(Device::kCpu);
    Session session(*be, arena, {.model = model, .batch = 1, .sequence_length = 1});
    const int64_t held = arena.ledger().current_bytes();
    Decoder decoder(session, {.capacity = 4096, .prefill = prefill});
    decoder.start(0, std::vector<int32_t>(4096), 0);
    return static_cast<double>(arena.ledger().peak_bytes() - held -
                               arena.ledger().current()[static_cast<size_t>(MemoryTag::kCache)]);
  };
  EXPECT_LT(peak(256), peak(4096) / 8);
}

}  // namespace
}  // namespace tessera::testing
