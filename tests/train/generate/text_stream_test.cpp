// Text of tokens that come one by one: characters and stop strings that lie across tokens.
#include "train/generate/text_stream.h"

#include <gtest/gtest.h>

#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/random.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

struct TextStreamTest : ::testing::Test {
  const std::unique_ptr<Tokenizer> bytes = load_tokenizer(std::string(kBytesTokenizer));

  // The text after each byte, with "|" between, and after "." what finish() gives
  std::string streamed(std::string_view text, const TextStream::Options& options = {}) const {
    TextStream stream(*bytes, options);
    std::string out;
    for (const char byte : text) out += stream.add(static_cast<unsigned char>(byte)) + "|";
    return out + "." + stream.finish();
  }
};

TEST_F(TextStreamTest, ACharacterComesWhenItsLastByteDoes) {
  EXPECT_EQ(streamed("aé"), "a||é|.");
  EXPECT_EQ(streamed("€!"), "||€|!|.");
  EXPECT_EQ(streamed("😀"), "|||😀|.");
}

// Tokens of bytes, and the blank of the first token, which goes on what was asked
TEST_F(TextStreamTest, TokensOfBytesMakeOneCharacter) {
  const auto llama2 = load_tokenizer(TESSERA_SOURCE_DIR "/tests/fixtures/tokenizers/llama2.json");
  TextStream stream(*llama2, {});
  std::string out;
  for (const int32_t id : llama2->encode("the 😀é\n")) out += stream.add(id) + "|";
  EXPECT_EQ(out + "." + stream.finish(), " the| ||||😀|é|\n|.");
  const auto cut = llama2->encode("😀", SpecialTokens::kAsText, TextPlace::kWithin);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(stream.add(cut[i]), "");
  EXPECT_EQ(stream.finish(), "\uFFFD\uFFFD\uFFFD");
}

TEST_F(TextStreamTest, BytesThatAreNoUtf8BecomeReplacementCharacters) {
  EXPECT_EQ(streamed("\xff"
                     "a"),
            "\uFFFD|a|.");
  EXPECT_EQ(streamed("\x80"), "\uFFFD|.");
  EXPECT_EQ(streamed("\xe2\x82"), "||.\uFFFD\uFFFD");  // cut in the middle
  EXPECT_EQ(streamed("\xe2"
                     "a"),
            "|\uFFFDa|.");
  EXPECT_EQ(streamed("\xc3\xc3\xa9"), "|\uFFFD|é|.");
  EXPECT_EQ(streamed("\xe0\x80"), "|\uFFFD\uFFFD|.");             // longer than needed
  EXPECT_EQ(streamed("\xed\xa0\x80"), "|\uFFFD\uFFFD|\uFFFD|.");  // a surrogate
  EXPECT_EQ(streamed("\xf4\x90"), "|\uFFFD\uFFFD|.");             // above U+10FFFF
}

// Every cut of any bytes: what has come so far is well-formed, and what is held back can become a character.
TEST_F(TextStreamTest, HoldsBackWhatMayBecomeACharacterAndNothingElse) {
  for (uint32_t code : {0x7fu, 0x80u, 0x7ffu, 0x800u, 0xd7ffu, 0xe000u, 0xffffu, 0x10000u, 0x10ffffu}) {
    std::string text;
    append_utf8(text, code);
    for (size_t cut = 0; cut < text.size(); ++cut)
      EXPECT_EQ(unfinished_utf8(text.substr(0, cut)), cut) << code;
    EXPECT_EQ(unfinished_utf8(text), 0u) << code;
    EXPECT_EQ(unfinished_utf8("x" + text), 0u) << code;
  }
  const Philox random(1, 2);
  for (uint64_t i = 0; i < 200000; ++i) {
    const auto words = random.bits(i);
    std::string text;
    for (int b = 0; b < 3; ++b)  // bytes of 0x80 and above, of which most are malformed
      text += static_cast<char>(0x80 | (words[b / 2] >> 8 * (b % 2) & 0x7f));
    const size_t held = unfinished_utf8(text);
    ASSERT_LE(held, 3u);
    if (held == 0) continue;
    bool can = false;  // become a character
    const std::string end = text.substr(text.size() - held);
    for (int next = 0x80; next < 0xC0; ++next)
      for (const char* more : {"", "\x80", "\x80\x80"})
        can = can || first_code_point(end + static_cast<char>(next) + more).has_value();
    ASSERT_TRUE(can) << in_quotes(text);
  }
}

TEST_F(TextStreamTest, TheTextEndsBeforeAStopString) {
  const TextStream::Options options{.stops = {"END"}};
  EXPECT_EQ(streamed("abENDcd", options), "a|b||||||.");
  EXPECT_EQ(streamed("aENENDx", options), "a|||EN||||.");
}

TEST_F(TextStreamTest, TheBeginningOfAStopStringIsHeldBackUntilItIsDecided) {
  EXPECT_EQ(streamed("ENx", {.stops = {"END"}}), "||ENx|.");
  EXPECT_EQ(streamed("xEN", {.stops = {"END"}}), "x|||.EN");
  EXPECT_EQ(streamed("aab", {.stops = {"ab"}}), "|a||.");
  // The longest beginning of any of them
  EXPECT_EQ(streamed("12345", {.stops = {"34x", "1239"}}), "|||12|345|.");
}

TEST_F(TextStreamTest, TheFirstOfSeveralStopStringsCounts) {
  EXPECT_EQ(streamed("one two", {.stops = {"two", " t", "o t"}}), "|on|e|||||.");
}

TEST_F(TextStreamTest, AStopStringMayHaveCharactersOfSeveralBytes) {
  const TextStream::Options options{.stops = {"é€"}};
  EXPECT_EQ(streamed("aé€b", options), "a|||||||.");
  EXPECT_EQ(streamed("é!", options), "||é!|.");
}

TEST_F(TextStreamTest, NothingComesAfterAStopString) {
  TextStream stream(*bytes, {.stops = {"x"}});
  EXPECT_EQ(stream.add('x'), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.add('y'), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST_F(TextStreamTest, SpecialTokensAreShownOnRequest) {
  const auto gpt2 = load_tokenizer(TESSERA_SOURCE_DIR "/tests/fixtures/tokenizers/gpt2.json");
  const int32_t end = gpt2->end_of_text();
  TextStream hides(*gpt2, {}), shows(*gpt2, {.show_special = true});
  EXPECT_EQ(hides.add(end), "");
  EXPECT_EQ(shows.add(end), "<|endoftext|>");
}

TEST_F(TextStreamTest, AnEmptyStopStringIsRefused) {
  EXPECT_THROW(TextStream(*bytes, {.stops = {""}}), std::runtime_error);
}

}  // namespace
}  // namespace tessera
