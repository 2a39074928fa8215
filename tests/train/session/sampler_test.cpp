// Samples of a run: what is drawn, where a sample ends, and what becomes of one that outgrows the context.
#include "train/session/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "data/tokenizers/load_tokenizer.h"
#include "tests/says.h"
#include "tests/support.h"

namespace tessera::testing {
namespace {

struct Sampled : ::testing::Test {
  std::string sample(const Config::Sampling& config, int64_t step = 1, uint64_t seed = 7) {
    return *sample_text(session, *tokenizer, config, seed, step);
  }

  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(std::string(kBytesTokenizer));
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Arena arena = Arena::host();
  Session session{*backend,
                  arena,
                  {.model = {.vocab_size = 300, .context = 24, .layers = 1, .heads = 2, .channels = 16},
                   .batch = 1,
                   .sequence_length = 24}};
  void SetUp() override { session.initialize(3); }
};

TEST_F(Sampled, DependsOnTheSeedAndTheStepAlone) {
  const Config::Sampling config{.prompt = "To be", .tokens = 12, .temperature = 1, .top_k = 0};
  const std::string first = sample(config);
  EXPECT_LE(first.size(), 12u);
  EXPECT_EQ(sample(config), first);
  EXPECT_NE(sample(config, 2), first);
  EXPECT_NE(sample(config, 1, 8), first);
  EXPECT_EQ(arena.ledger().current()[static_cast<size_t>(MemoryTag::kCache)], 0);
}

TEST_F(Sampled, IsNothingOnceToldToStop) {
  int asked = 0;
  EXPECT_EQ(sample_text(session, *tokenizer, {.prompt = "a", .tokens = 5}, 1, 1,
                        [&](bool done) {
                          EXPECT_FALSE(done);
                          return ++asked < 3;
                        }),
            std::nullopt);
  EXPECT_EQ(asked, 3);
}

// As at a rank that is not the first, whose own text ends earlier than that of rank 0
TEST_F(Sampled, GoesOnDrawingAfterItsEndForOtherRanks) {
  const Config::Sampling config{.prompt = "To be", .tokens = 12, .temperature = 1, .top_k = 0};
  int64_t asked = 0, done_before = 0;
  const auto text = sample_text(session, *tokenizer, config, 7, 1, [&](bool done) {
    done_before += done;
    return ++asked <= 40;
  });
  EXPECT_EQ(text, sample(config));
  EXPECT_EQ(asked, 41);
  EXPECT_EQ(done_before, 41 - static_cast<int64_t>(text->size()));
}

// By hand: the text since the last start, of which the last half stays when it would have 25 tokens
TEST_F(Sampled, ContinuesFromTheLastHalfOfTheContext) {
  const std::string found = sample({.prompt = "once", .tokens = 70, .temperature = 0});
  std::vector<int32_t> text = tokenizer->encode("once"), read = text;
  for (int i = 0; i < 70; ++i) {
    if (read.size() > 24) read.assign(text.end() - 12, text.end());
    const std::vector<float> logits = session.last_logits(read, 1);
    const auto known = std::span(logits).first(257);
    const auto token = static_cast<int32_t>(std::max_element(known.begin(), known.end()) - known.begin());
    if (token == tokenizer->end_of_text()) break;
    text.push_back(token), read.push_back(token);
  }
  ASSERT_GT(text.size(), 60u) << "the sample ended too soon to test anything";
  EXPECT_EQ(found, tokenizer->decode(std::span(text).subspan(4)));
}

TEST_F(Sampled, TakesAPromptLongerThanTheContext) {
  const std::string prompt(40, 'x'), last(24, 'x');
  const Config::Sampling config{.prompt = prompt, .tokens = 1, .temperature = 0};
  EXPECT_EQ(sample(config), sample({.prompt = last, .tokens = 1, .temperature = 0}));
}

TEST_F(Sampled, RefusesLogitsThatAreNone) {
  session.store().weights().norm.weight.as<float>()[3] = NAN;
  try {
    sample({.prompt = "a", .tokens = 5});
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_TRUE(says(error.what(), {"logits", "finite", "0"}));
  }
}

}  // namespace
}  // namespace tessera::testing
