// What is done with a text before BPE: the normal form, added tokens, expressions.
#include "data/tokenizers/added_tokens.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/nfc.h"
#include "data/tokenizers/nfc_tables.h"
#include "data/tokenizers/pre_tokenizer.h"
#include "kernels/base/text.h"
#include "tests/data/tokenizers/support.h"

namespace tessera {
namespace {

using Strings = std::vector<std::string>;

TEST(ByteAlphabet, EveryByteHasACharacter) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const std::string text = to_byte_alphabet(all);
  EXPECT_EQ(utf8_prefix(text), text.size());
  EXPECT_EQ(from_byte_alphabet(text), all);
  EXPECT_EQ(to_byte_alphabet(" a\n\xff"), "\u0120a\u010a\u00ff");
  for (const char* other : {" ", "\u0144", "\u00ad", "\x80", "\u4e00"})
    EXPECT_EQ(from_byte_alphabet(other), std::nullopt) << other;
}

TEST(NormalForm, ComposesAsTheStandardSays) {
  EXPECT_EQ(compose("e\u0301"), "\u00e9");
  EXPECT_EQ(compose("\u212b"), "\u00c5");
  EXPECT_EQ(compose("q\u0307\u0323"), "q\u0323\u0307");  // sorted by class
  EXPECT_EQ(compose("\u1e9b\u0323"), "\u1e9b\u0323");    // a mark of a lower class is not taken
  EXPECT_EQ(compose("a\u0315\u0300\u05ae\u0301"), "\u00e0\u05ae\u0301\u0315");
  EXPECT_EQ(compose("\u0958"), "\u0915\u093c");  // excluded from composition
  EXPECT_EQ(compose("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(compose("\uac00\u11a8 \uac00\u1161"), "\uac01 \uac00\u1161");
  EXPECT_EQ(compose("\u0301"), "\u0301");
  EXPECT_EQ(compose(""), "");
}

TEST(NormalForm, ReplacesWhatIsCompatible) {
  const auto kc = [](std::string_view text) { return compose(text, NormalForm::kNfkc); };
  EXPECT_EQ(kc("\ufb01x\u00b2\u2460\u3000\u00a0"), "fix21  ");
  EXPECT_EQ(kc("\u1e9b\u0323"), "\u1e69");  // the long s becomes s, which takes both marks
  EXPECT_EQ(kc("\u1fc1"), " \u0308\u0342");
  EXPECT_EQ(kc("\uff76\uff9e"), "\u30ac");  // halfwidth, with a mark of its own
  EXPECT_EQ(kc("\uffa1\uffc2"), "\uac00");  // so are parts of syllables
  EXPECT_EQ(kc("e\u0301 \uac01"), "\u00e9 \uac01");
  EXPECT_FALSE(looks_composed("a\u00a0", NormalForm::kNfkc));
  EXPECT_TRUE(looks_composed("a\u00a0"));
  EXPECT_TRUE(looks_composed("a\u00e9\u4e2d", NormalForm::kNfkc));
}

TEST(NormalForm, EveryCharacterOfTheTables) {
  for_each_replaced(kCompatible, [](uint32_t code, std::u32string_view) {
    std::string text;
    append_utf8(text, code);
    const std::string composed = compose(text, NormalForm::kNfkc);
    EXPECT_FALSE(looks_composed(text, NormalForm::kNfkc));
    EXPECT_NE(composed, text);
    EXPECT_EQ(compose(composed, NormalForm::kNfkc), composed);
  });
  for_each_replaced(kComposites, [](uint32_t code, std::u32string_view to) {
    std::string whole, parts;
    append_utf8(whole, code);
    for (const uint32_t part : to) append_utf8(parts, part);
    EXPECT_EQ(compose(parts), whole);
    EXPECT_EQ(compose(whole), whole);
    EXPECT_FALSE(looks_composed(parts));
  });
  for_each_replaced(kNeverComposed, [](uint32_t code, std::u32string_view) {
    std::string whole;
    append_utf8(whole, code);
    EXPECT_NE(compose(whole), whole);
    EXPECT_FALSE(looks_composed(whole));
    EXPECT_EQ(compose(compose(whole)), compose(whole));
  });
  EXPECT_TRUE(looks_composed("plain \u00e9\u4e2d\u6587\uac01\U0001f600"));
}

Strings pieces_of(const std::vector<SplitRule>& rules, std::string_view text) {
  const PreTokenizer splitter(rules, "test");
  Regex::Scratch scratch;
  Strings pieces;
  splitter.split(text, scratch, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(PreTokenizer, KindsSplitAsTheirModels) {
  const auto split = [](PreTokenizerKind kind, std::string_view text) {
    return pieces_of(definition_of(kind).splits, text);
  };
  const char* const text = "It's  12345 DON'T\n\n x";
  EXPECT_EQ(split(PreTokenizerKind::kGpt2, text),
            (Strings{"It", "'s", " ", " 12345", " DON", "'", "T", "\n\n", " x"}));
  EXPECT_EQ(split(PreTokenizerKind::kLlama3, text),
            (Strings{"It", "'s", " ", " ", "123", "45", " DON", "'T", "\n\n", " x"}));
  EXPECT_EQ(split(PreTokenizerKind::kQwen2, text),
            (Strings{"It", "'s", " ", " ", "1", "2", "3", "4", "5", " DON", "'T", "\n\n", " x"}));
  EXPECT_EQ(split(PreTokenizerKind::kSmolLm2, text),
            (Strings{"It", "'s", "  ", "1", "2", "3", "4", "5", " DON", "'", "T", "\n\n", " x"}));
  EXPECT_EQ(split(PreTokenizerKind::kGpt4o, text),
            (Strings{"It's", " ", " ", "123", "45", " DON'T", "\n\n", " x"}));
  EXPECT_EQ(split(PreTokenizerKind::kGpt4o, "camelCaseÉté/\n//x ABCd"),
            (Strings{"camel", "Case", "Été", "/\n//", "x", " ABCd"}));
}

TEST(PreTokenizer, BehaviorsOfMatches) {
  const auto split = [](SplitBehavior behavior, bool invert = false) {
    return pieces_of({{.pattern = "-", .behavior = behavior, .literal = true, .invert = invert}}, "-a--b-c");
  };
  EXPECT_EQ(split(SplitBehavior::kIsolated), (Strings{"-", "a", "-", "-", "b", "-", "c"}));
  EXPECT_EQ(split(SplitBehavior::kRemoved), (Strings{"a", "b", "c"}));
  EXPECT_EQ(split(SplitBehavior::kMergedWithPrevious), (Strings{"-", "a-", "-", "b-", "c"}));
  EXPECT_EQ(split(SplitBehavior::kMergedWithNext), (Strings{"-a", "-", "-b", "-c"}));
  EXPECT_EQ(split(SplitBehavior::kContiguous), (Strings{"-", "a", "--", "b", "-", "c"}));
  EXPECT_EQ(split(SplitBehavior::kRemoved, true), (Strings{"-", "-", "-", "-"}));
}

TEST(Regex, BlanksAreThoseOfUnicode) {
  EXPECT_EQ(pieces_of({{.pattern = "\\s+"}}, "a\u0085\u00a0\u2028b\u180ec"),
            (Strings{"a", "\u0085\u00a0\u2028", "b\u180ec"}));
  EXPECT_EQ(pieces_of({{.pattern = "[^\\s.]+|\\S"}}, "a\u180e.b \u3000c"),
            (Strings{"a\u180e", ".", "b", " \u3000", "c"}));
}

// As in Ruby, whose syntax Hugging Face's library has
TEST(Regex, AnchorsAreOfLines) {
  EXPECT_EQ(pieces_of({{.pattern = "\\s+$"}}, "a  \n\nb \n"), (Strings{"a", "  \n", "\nb", " \n"}));
  EXPECT_EQ(pieces_of({{.pattern = "[ab]+$"}}, "ab\nab ab\r\nab"), (Strings{"ab", "\nab ab\r\n", "ab"}));
  EXPECT_EQ(pieces_of({{.pattern = "^a"}}, "aa\na\n"), (Strings{"a", "a\n", "a", "\n"}));
  // Each piece has lines of its own.
  EXPECT_EQ(pieces_of({{.pattern = "-"}, {.pattern = "^b|b$"}}, "abb-bba"),
            (Strings{"ab", "b", "-", "b", "ba"}));
}

TEST(PreTokenizer, PunctuationIsOfUnicodeAndAscii) {
  EXPECT_EQ(pieces_of({{.pattern = kPunctuationPattern}}, "a$b\u3002c+\u00a7~d\u20ac"),
            (Strings{"a", "$", "b", "\u3002", "c", "+", "\u00a7", "~", "d\u20ac"}));
}

TEST(Regex, WhatIsNotKnownIsRefusedByName) {
  for (const auto& [pattern, named] : std::initializer_list<std::pair<const char*, const char*>>{
           {"a\\w", "\\\\w"},
           {"\\bx", "\\\\b"},
           {"\\p{Han}", "\\\\p{Han}"},
           {"[a[b]]", "[b"},
           {"[a&&b]", "&&"},
           {"(?<n>a)", "(?<n"},
           {"(*UCP)a", "(*"},
           {"a{,3}", "{,3}"},
           {"a{2}+", "Oniguruma"},
           {"(?:ab){1,3}+", "{1,3}+\", which is read in two ways"},
           {"$", "may match nothing"},
           {"[\\S]", "\\\\S"},
           {"(?m:a)", "(?m:"},
           {"a\\", "\\\\"},
           {"[ab", "without its ]"},
           {"a(b", "not valid"},
           {"a*", "may match nothing"},
           {"\\x41", "\\\\x"},
           {"[]a]", "]"}})
    expect_error([&] { Regex(pattern, "t.json: pre_tokenizer"); }, {"t.json: pre_tokenizer", named});
  expect_error([] { Regex::literal("", "t.json"); }, {"t.json", "may match nothing"});
}

TEST(Regex, TooMuchWorkIsAnError) {
  const Regex nested("(a+)+[bc]", "t.json");
  Regex::Scratch scratch;
  expect_error([&] { nested.find(std::string(5'000, 'a'), 0, scratch); },
               {"t.json", "(a+)+[bc]", "5000 bytes"});
}

Strings found_in(const std::vector<AddedToken>& tokens, std::string_view text,
                 SpecialTokens special = SpecialTokens::kMatched) {
  const AddedTokenFinder finder(tokens, false, {});
  Strings found;
  finder.split(
      text, special, [&](std::string_view part) { found.emplace_back(part); },
      [&](const AddedToken& token) { found.push_back(fmt::format("#{}", token.id)); });
  return found;
}

TEST(AddedTokens, TheLongestAtTheFirstPlace) {
  const std::vector<AddedToken> tokens{{.id = 1, .content = "<a>", .special = true},
                                       {.id = 2, .content = "<a>b"}};
  EXPECT_EQ(found_in(tokens, "x<a><a>bb<a"), (Strings{"x", "#1", "#2", "b<a"}));
  EXPECT_EQ(found_in(tokens, "x<a><a>bb", SpecialTokens::kAsText), (Strings{"x<a>", "#2", "b"}));
  EXPECT_EQ(found_in(tokens, ""), Strings{});
}

TEST(AddedTokens, BlanksAndWordsBesideThem) {
  EXPECT_EQ(
      found_in({{.id = 1, .content = "<a>", .strip_left = true, .strip_right = true}}, "b \t<a>\u3000 c<a>"),
      (Strings{"b", "#1", "c", "#1"}));
  EXPECT_EQ(found_in({{.id = 1, .content = "a", .single_word = true}}, "a ba ab a. \u00e9a a\u0301 -a"),
            (Strings{"#1", " ba ab ", "#1", ". \u00e9a a\u0301 -", "#1"}));
}

}  // namespace
}  // namespace tessera
