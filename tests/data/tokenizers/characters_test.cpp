// Tokenizers of characters: what becomes of characters without a token, of blanks, of the start of a text,
// and which files are refused.
#include "tests/data/tokenizers/support.h"

namespace tessera {
namespace {

using Ids = std::vector<int32_t>;

class Characters : public InTempFolder {
 protected:
  std::unique_ptr<Tokenizer> load(const std::string& changes = "") const {
    return load_tokenizer(
        write("tokenizer.json", small_character_tokenizer(fmt::format("[{}]", changes))).string());
  }
  static std::string replace(const char* path, const std::string& value) {
    return fmt::format(R"({{"op": "replace", "path": "{}", "value": {}}})", path, value);
  }
};

// Expected: tokenizers 0.23
TEST_F(Characters, WithoutATokenTheyAreBytesOrUnknown) {
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->encode("abc"), (Ids{10, 7}));
  EXPECT_EQ(tokenizer->encode("c \u4e2dabc"), (Ids{4, 7, 4, 8, 11}));
  EXPECT_EQ(tokenizer->encode("\u00e9"), (Ids{4, 2, 3}));
  EXPECT_EQ(tokenizer->encode("xyab"), (Ids{4, 0, 9}));
  EXPECT_EQ(tokenizer->encode("x\u00e9y\u00e9c"), (Ids{4, 2, 3, 2, 3, 0, 7})) << "the unknown token waits";
  EXPECT_EQ(load(replace("/model/fuse_unk", "false"))->encode("xyab"), (Ids{4, 0, 0, 9}));
  EXPECT_EQ(load(replace("/model/byte_fallback", "false"))->encode("\u00e9"), (Ids{4, 0}));
  EXPECT_EQ(tokenizer->encode("\xc3"), Ids{2}) << "not UTF-8, as the token of the byte";

  const auto none = load(R"({"op": "remove", "path": "/model/unk_token"})");
  expect_error([&] { none->encode("a\nb\u20acc"); }, {"the byte 0x0a"});
  expect_error([&] { none->encode("ab\u20acc"); }, {"the character \"\u20ac\"", "\"\u2581ab\u20acc\""});
  std::vector<int32_t> ids;
  EXPECT_EQ(none->encode_known("a\u20acbc", SpecialTokens::kAsText, ids), 3);
  EXPECT_EQ(ids, (Ids{10, 7})) << "neighbours of what is left out are merged";
}

TEST_F(Characters, ABlankIsPutBeforeTextsThatStart) {
  const auto ids = [](const Tokenizer& tokenizer, TextPlace place) {
    return tokenizer.encode("ab</s>ab", SpecialTokens::kMatched, place);
  };
  const auto metaspace = [&](const char* scheme) {
    return load(replace("/pre_tokenizer/prepend_scheme", fmt::format("\"{}\"", scheme)));
  };
  const auto first = metaspace("first"), always = metaspace("always"), never = metaspace("never");
  EXPECT_EQ(ids(*first, TextPlace::kStart), (Ids{10, 1, 9}));
  EXPECT_EQ(ids(*first, TextPlace::kAfterToken), (Ids{9, 1, 9}));
  EXPECT_EQ(ids(*first, TextPlace::kWithin), (Ids{9, 1, 9}));
  EXPECT_EQ(ids(*always, TextPlace::kStart), (Ids{10, 1, 10}));
  EXPECT_EQ(ids(*always, TextPlace::kAfterToken), (Ids{10, 1, 10}));
  EXPECT_EQ(ids(*always, TextPlace::kWithin), (Ids{9, 1, 10}));
  EXPECT_EQ(ids(*never, TextPlace::kStart), (Ids{9, 1, 9}));
  EXPECT_EQ(first->encode(" ab"), Ids{10});
  const auto prepend = load(
      replace("/pre_tokenizer", "null") + "," +
      replace("/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]})"));
  EXPECT_EQ(ids(*prepend, TextPlace::kStart), (Ids{10, 1, 10}));
  EXPECT_EQ(ids(*prepend, TextPlace::kAfterToken), (Ids{10, 1, 10}));
  EXPECT_EQ(ids(*prepend, TextPlace::kWithin), (Ids{9, 1, 10}));
  EXPECT_EQ(prepend->encode(" ab"), (Ids{4, 10}));
  // What is decoded is a text that starts; what stands within one keeps its blank.
  EXPECT_EQ(prepend->decode(Ids{4, 10}), " ab");
  EXPECT_EQ(prepend->token_text(10), " ab");
  EXPECT_EQ(prepend->token_text(2), "\xc3");
  EXPECT_EQ(prepend->token_text(1), "");
  EXPECT_EQ(prepend->token_text(1, true), "</s>");
}

TEST_F(Characters, NamesAreOfAllThatDecidesIds) {
  std::vector<std::string> names;
  for (const std::string& change :
       {std::string(), replace("/pre_tokenizer/prepend_scheme", "\"always\""),
        replace("/pre_tokenizer/split", "true"), replace("/pre_tokenizer/replacement", "\"_\""),
        replace("/pre_tokenizer", "null"), replace("/model/fuse_unk", "false"),
        replace("/model/byte_fallback", "false"), replace("/model/unk_token", "\"a\""),
        replace("/normalizer", R"({"type": "Prepend", "prepend": "a"})"),
        replace("/normalizer", R"({"type": "Replace", "pattern": {"String": "a"}, "content": "b"})"),
        replace("/normalizer", R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": "b"})"),
        replace("/normalizer", R"({"type": "Replace", "pattern": {"String": "a"}, "content": "c"})")}) {
    const std::string name(load(change)->name());
    EXPECT_EQ(std::ranges::count(names, name), 0) << change;
    names.push_back(name);
  }
  EXPECT_EQ(load(replace("/decoder/decoders/3/start", "0"))->name(), names[0]) << "which ids have what text";
}

// A few changes that each multiply a text would take all memory.
TEST_F(Characters, ChangesThatMultiplyATextAreRefused) {
  const auto changed = [](const std::string& type, const std::string& more, int times) {
    std::string list;
    for (int i = 0; i < times; ++i)
      list += (i > 0 ? "," : "") + ("{\"type\": \"" + type + "\", " + more + "}");
    return replace("/normalizer", R"({"type": "Sequence", "normalizers": [)" + list + "]}");
  };
  const std::string many(200, 'a');
  for (const char* kind : {"String", "Regex"}) {
    const std::string more = fmt::format(R"("pattern": {{"{}": "a"}}, "content": "{}")", kind, many);
    expect_error([&] { load(changed("Replace", more, 8))->encode("ab ab"); },
                 {"normalizer", "Replace of \"a\"", "bytes of a text of"});
    EXPECT_NO_THROW(load(changed("Replace", more, 1))->encode(std::string(40, 'b') + "a"));
  }
  const std::string blanks = R"("pattern": {"String": " "}, "content": ")" + std::string(200, ' ') + "\"";
  expect_error([&] { load(changed("Replace", blanks, 8))->encode("a b"); }, {"normalizer", "Replace"});
  expect_error(
      [&] {
        load(changed("Prepend", R"("prepend": ")" + std::string(100'000, 'a') + "\"", 20))->encode("ab");
      },
      {"normalizer", "Prepend", "..."});
  expect_error([&] { load(changed("Prepend", R"("prepend": "a")", 1001)); }, {"among the first 1000"});
}

TEST_F(Characters, WhatIsNotKnownIsRefusedByName) {
  struct Case {
    const char *path, *value;
    std::vector<std::string> words;
  };
  const Case cases[]{
      {"/normalizer", R"({"type": "Prepend", "prepend": ""})", {"normalizer.prepend", "not empty"}},
      {"/normalizer",
       R"({"type": "Replace", "pattern": {"Regex": "a*"}, "content": ""})",
       {"may match nothing"}},
      {"/normalizer",
       R"({"type": "Replace", "pattern": {"String": ""}, "content": ""})",
       {"normalizer.pattern"}},
      {"/normalizer", R"({"type": "Lowercase"})", {"normalizer.type", "\"Lowercase\"", "\"Replace\""}},
      {"/normalizer",
       R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a"}, {"type": "NFC"}]})",
       {"normalizer.normalizers[1]", "before Replace and Prepend"}},
      {"/pre_tokenizer/replacement", "\"__\"", {"pre_tokenizer.replacement", "one character"}},
      {"/pre_tokenizer/replacement", "\" \"", {"pre_tokenizer.replacement", "other than a blank"}},
      {"/pre_tokenizer/prepend_scheme", "\"last\"", {"prepend_scheme", "first, always or never"}},
      {"/pre_tokenizer",
       R"({"type": "Sequence", "pretokenizers": [{"type": "Metaspace", "replacement": "_"},
         {"type": "Metaspace", "replacement": "_"}]})",
       {"pretokenizers[1]", "one Metaspace"}},
      {"/decoder", "null", {"decoder", "found null", "ByteFallback"}},
      {"/decoder", R"({"type": "ByteLevel"})", {"decoder.type", "without a pre_tokenizer ByteLevel"}},
      {"/decoder", R"({"type": "WordPiece"})", {"decoder.type", "\"WordPiece\"", "\"Fuse\""}},
      {"/decoder/decoders/1", R"({"type": "Fuse"})", {"decoders[2]", "in this order"}},
      {"/decoder/decoders/2",
       R"({"type": "Strip", "content": " ", "start": 1, "stop": 0})",
       {"decoders[2]", "in this order"}},
      {"/decoder/decoders/3/content", "\"ab\"", {"decoders[3].content", "one character"}},
      {"/decoder/decoders/3/start", "-1", {"decoders[3].start"}},
      {"/model/unk_token", "\"none\"", {"model.unk_token", "found \"none\"", "a token of the vocabulary"}},
      {"/model/byte_fallback", "1", {"model.byte_fallback", "true or false"}},
  };
  for (const Case& c : cases)
    for (const std::string& word : c.words) expect_error([&] { load(replace(c.path, c.value)); }, {word});
}

}  // namespace
}  // namespace tessera
