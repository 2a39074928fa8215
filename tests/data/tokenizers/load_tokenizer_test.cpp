// Files of tokenizers: what is read, and what is refused by name.
#include "data/tokenizers/load_tokenizer.h"

#include "data/tokenizers/bpe_tokenizer.h"
#include "data/tokenizers/tokenizer_json.h"
#include "tests/data/tokenizers/support.h"

namespace tessera {
namespace {

using Ids = std::vector<int32_t>;

class LoadTokenizer : public InTempFolder {
 protected:
  std::unique_ptr<Tokenizer> load(const std::string& json) const {
    return load_tokenizer(write("tokenizer.json", json).string());
  }
  void expect_refused(const std::string& changes, std::initializer_list<std::string_view> words) const {
    const auto path = write("tokenizer.json", small_tokenizer(changes)).string();
    expect_error([&] { load_tokenizer(path); }, words);
    expect_error([&] { load_tokenizer(path); }, {path + ": "});
  }
};

TEST_F(LoadTokenizer, ReadsMergesOfBothKinds) {
  const auto tokenizer = load(small_tokenizer());
  EXPECT_EQ(tokenizer->vocab_size(), 10);
  EXPECT_EQ(tokenizer->end_of_text(), 9);
  EXPECT_EQ(tokenizer->encode("abcd abc"), (Ids{7, 4, 5, 2}));
  EXPECT_EQ(tokenizer->decode(Ids{7, 4, 5, 9, 2}), "abcd abc");
  EXPECT_EQ(tokenizer->decode(Ids{5, 9}, true), "ab<|endoftext|>");
  EXPECT_TRUE(tokenizer->before_text().empty());
  for (const int32_t id : {8, 10, -1})
    expect_error([&] { tokenizer->decode(Ids{id}); }, {fmt::format("id {} ", id), "0 to 9"});
  expect_error([&] { tokenizer->encode("abx"); }, {"the byte 0x78", "\"abx\""});
}

TEST_F(LoadTokenizer, SpecialTokensAreTextUnlessAsked) {
  const auto tokenizer =
      load(small_tokenizer(R"([{"op": "replace", "path": "/added_tokens/0/content", "value": "cab"}])"));
  EXPECT_EQ(tokenizer->encode("abcab", SpecialTokens::kMatched), (Ids{5, 9}));
  EXPECT_EQ(tokenizer->encode("abcab"), (Ids{5, 2, 5}));
}

TEST_F(LoadTokenizer, NamesAreOfTheContent) {
  const std::string name(load(small_tokenizer())->name());
  EXPECT_TRUE(name.starts_with("bpe-") && name.size() == 36) << name;
  // The same in other words
  EXPECT_EQ(load(small_tokenizer(R"([{"op": "replace", "path": "/model/merges/0", "value": ["c", "d"]},
      {"op": "remove", "path": "/model/dropout"}, {"op": "remove", "path": "/padding"},
      {"op": "replace", "path": "/pre_tokenizer", "value": {"type": "Sequence", "pretokenizers": [
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false}]}}])"))
                ->name(),
            name);
  for (
      const char* change :
      {R"({"op": "replace", "path": "/model/merges/2", "value": "b cd"}, {"op": "add", "path": "/model/vocab/bcd", "value": 8})",
       R"({"op": "replace", "path": "/model/ignore_merges", "value": true})",
       R"({"op": "replace", "path": "/normalizer", "value": {"type": "NFC"}})",
       R"({"op": "replace", "path": "/added_tokens/0/special", "value": false})",
       R"({"op": "replace", "path": "/pre_tokenizer/use_regex", "value": false})",
       R"({"op": "replace", "path": "/pre_tokenizer/add_prefix_space", "value": true})"})
    EXPECT_NE(load(small_tokenizer(fmt::format("[{}]", change)))->name(), name) << change;
}

// As Hugging Face's library takes and decodes them: a character that stands for no byte, and nothing at all
TEST_F(LoadTokenizer, TokensThatNoTextHasAreOnlyDecoded) {
  const auto plain = load(small_tokenizer());
  const auto tokenizer = load(small_tokenizer(R"([{"op": "add", "path": "/model/vocab/\u6f22", "value": 10},
    {"op": "add", "path": "/model/vocab/", "value": 11}, {"op": "add", "path": "/model/vocab/ ", "value": 12},
    {"op": "add", "path": "/model/vocab/\u0120\u6f22", "value": 13}, {"op": "add", "path": "/model/vocab/\u6f22a", "value": 14},
    {"op": "add", "path": "/model/merges/0", "value": "\u6f22 a"}])"));
  EXPECT_NE(tokenizer->name(), plain->name());
  EXPECT_EQ(tokenizer->vocab_size(), 15);
  EXPECT_EQ(tokenizer->encode("abcd a"), plain->encode("abcd a"));  // the raw blank is not the blank
  EXPECT_EQ(tokenizer->decode(Ids{10}), "\u6f22");
  EXPECT_EQ(tokenizer->decode(Ids{0, 11, 12, 13, 1}), "a \u0120\u6f22b");
  expect_error([&] { tokenizer->encode("\u6f22"); }, {"the byte 0xe6"});
  EXPECT_EQ(load_tokenizer((folder_ / "tokenizer.json").string(), {.id = 11})->end_of_text(), 11);
  const auto written = make_bpe_tokenizer(read_tokenizer_json(tokenizer->json(), "a"), -1, "", "a");
  EXPECT_EQ(written->name(), tokenizer->name());
  EXPECT_EQ(load(written->json())->name(), tokenizer->name());
}

// The line, whatever was made of the text before
TEST_F(LoadTokenizer, AByteWithoutATokenHasItsLine) {
  const auto line_of = [&](const std::string& changes, std::string_view text) {
    const std::string with_newline = R"([{"op": "add", "path": "/model/vocab/\u010a", "value": 8})";
    const auto tokenizer = load(small_tokenizer(with_newline + changes + "]"));
    std::vector<int32_t> ids;
    EXPECT_EQ(tokenizer->encode_known(text, SpecialTokens::kAsText, ids), 1);
    try {
      tokenizer->encode(text);
    } catch (const ByteWithoutToken& error) {
      return error.line;
    }
    return int64_t{0};
  };
  const std::string blank =
      R"(, {"op": "replace", "path": "/pre_tokenizer/add_prefix_space", "value": true})";
  const std::string composed = R"(, {"op": "replace", "path": "/normalizer", "value": {"type": "NFC"}},
    {"op": "add", "path": "/model/vocab/\u00c3", "value": 10}, {"op": "add", "path": "/model/vocab/\u00a9", "value": 11})";
  for (const std::string& changes : {std::string(), blank, composed, blank + composed}) {
    EXPECT_EQ(line_of(changes, "x"), 1);
    EXPECT_EQ(line_of(changes, "a\n\nb\ncx\n\n"), 4);
    EXPECT_EQ(line_of(changes, "a\n\xff\n"), 2);
  }
  for (const std::string& changes : {composed, blank + composed}) {
    EXPECT_EQ(line_of(changes, "a\ne\u0301\n\nxa\n"), 4);
    EXPECT_EQ(line_of(changes, "e\u0301\n\xff\n\n"), 2);
  }
}

// What transformers sets anew for each text
TEST_F(LoadTokenizer, TruncationAndPaddingChangeNothing) {
  const auto plain = load(small_tokenizer());
  for (const char* value :
       {R"({"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0})",
        R"({"strategy": {"Fixed": 64}, "direction": "Left", "pad_id": 0, "pad_token": "a"})", "7", "[]"}) {
    const auto tokenizer = load(small_tokenizer(fmt::format(
        R"([{{"op": "replace", "path": "/truncation", "value": {0}}}, {{"op": "replace", "path": "/padding", "value": {0}}}])",
        value)));
    EXPECT_EQ(tokenizer->name(), plain->name());
    EXPECT_EQ(tokenizer->encode("abcd abc"), plain->encode("abcd abc"));
  }
}

TEST_F(LoadTokenizer, PartsAfterByteLevelSeeTheByteAlphabet) {
  // U+00C2 U+00B2: the second byte of a superscript two is written as a superscript two, which is a digit.
  const auto change = [](const char* after) {
    return fmt::format(
        R"([{{"op": "replace", "path": "/pre_tokenizer", "value": {{"type": "Sequence", "pretokenizers": [
          {{"type": "Punctuation", "behavior": "Contiguous"}},
          {{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}{}]}}}},
          {{"op": "add", "path": "/model/vocab/\u00c2", "value": 10}}, {{"op": "add", "path": "/model/vocab/\u00b2", "value": 11}},
          {{"op": "add", "path": "/model/vocab/\u00c2\u00b2", "value": 12}}, {{"op": "add", "path": "/model/merges/0", "value": "\u00c2 \u00b2"}}])",
        after);
  };
  const auto before = load(small_tokenizer(change("")));
  const auto after = load(small_tokenizer(change(R"(, {"type": "Digits", "individual_digits": false})")));
  EXPECT_EQ(before->encode("a\u00b2b"), (Ids{0, 12, 1}));
  EXPECT_EQ(after->encode("a\u00b2b"), (Ids{0, 10, 11, 1}));
  EXPECT_NE(before->name(), after->name());
  for (const Tokenizer* one : {before.get(), after.get()}) {
    const auto written = make_bpe_tokenizer(read_tokenizer_json(one->json(), "a"), -1, "", "a");
    EXPECT_EQ(written->name(), one->name());
    EXPECT_EQ(load(written->json())->name(), one->name());
  }
}

TEST_F(LoadTokenizer, TheFileThatIsWrittenIsTheSameTokenizer) {
  // From a pair of files, whose tokenizer.json is written anew
  write("vocab.json", R"({"a": 0, "b": 1, "c": 2, "\u0120": 3, "ab": 4, "abc": 5, "<|endoftext|>": 6})");
  write("merges.txt", "#version: 0.2\na b\nab c\n");
  const auto pair = load_tokenizer(folder_.string());
  EXPECT_EQ(pair->encode("abc ab", SpecialTokens::kMatched), (Ids{5, 3, 4}));
  EXPECT_EQ(pair->encode("ab<|endoftext|>", SpecialTokens::kMatched), (Ids{4, 6}));
  EXPECT_EQ(pair->end_of_text(), 6);
  for (const char* file : {"vocab.json", "merges.txt"})
    EXPECT_EQ(load_tokenizer((folder_ / file).string())->name(), pair->name());
  const auto again = load(pair->json());
  EXPECT_EQ(again->name(), pair->name());
  EXPECT_EQ(again->end_of_text(), 6);
  // A folder's tokenizer.json goes before the pair.
  write("merges.txt", "broken");
  EXPECT_EQ(load_tokenizer(folder_.string())->name(), pair->name());
}

TEST_F(LoadTokenizer, ThePairOfAQwenIsSplitAsQwensIs) {
  write("vocab.json", R"({"e": 0, "1": 1, "2": 2, "\u00c3": 3, "\u00a9": 4, "12": 5})");
  write("merges.txt", "1 2\n");
  EXPECT_EQ(load_tokenizer(folder_.string())->encode("12"), Ids{5});
  write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer", "eos_token": {"content": "<e>"},
    "added_tokens_decoder": {"7": {"content": "<e>", "special": true, "lstrip": false}}})");
  const auto qwen = load_tokenizer(folder_.string());
  EXPECT_EQ(qwen->encode("12e\u0301", SpecialTokens::kMatched), (Ids{1, 2, 3, 4}));
  EXPECT_EQ(qwen->end_of_text(), 7);
  EXPECT_EQ(qwen->vocab_size(), 8);
  write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  expect_error([&] { load_tokenizer(folder_.string()); },
               {"tokenizer_config.json", "LlamaTokenizer", "a tokenizer.json"});
  std::filesystem::remove(folder_ / "tokenizer_config.json");
  write("added_tokens.json", R"({"<e>": 7})");
  expect_error([&] { load_tokenizer(folder_.string()); }, {"added_tokens.json", "a tokenizer.json"});
}

TEST_F(LoadTokenizer, TheEndOfTextMayBeNamed) {
  const std::string path = write("tokenizer.json", small_tokenizer()).string();
  EXPECT_EQ(load_tokenizer(path, {.content = "ab"})->end_of_text(), 5);
  EXPECT_EQ(load_tokenizer(path, {.id = 2})->end_of_text(), 2);
  expect_error([&] { load_tokenizer(path, {.content = "xy"}); }, {"no token \"xy\""});
  expect_error([&] { load_tokenizer(path, {.id = 8}); }, {"no token 8"});
  expect_error([] { load_tokenizer("bytes", {.content = "x"}); }, {"--end-of-text \"x\""});
  EXPECT_EQ(
      load(small_tokenizer(R"([{"op": "replace", "path": "/added_tokens", "value": []}])"))->end_of_text(),
      -1);
}

// As transformers 5.24 reads them
TEST_F(LoadTokenizer, FilesBesideATokenizerJsonNameTokens) {
  const auto token = [](const std::string& content, bool special = true) {
    return nlohmann::json{{"content", content},  {"lstrip", false},      {"rstrip", false},
                          {"normalized", false}, {"single_word", false}, {"special", special}};
  };
  using Files = std::map<std::string, nlohmann::json>;
  const auto load = [&](const Files& files) {
    for (const std::string& name : names()) fs::remove(folder_ / name);
    write("tokenizer.json", small_tokenizer());
    for (const auto& [name, json] : files) write(name, json.dump());
    return load_tokenizer(folder_.string());
  };
  const auto ids = [&](const Files& files, const char* text) {
    return load(files)->encode(text, SpecialTokens::kMatched);
  };
  const std::string plain(load({})->name());
  const nlohmann::json decoder{
      {"9", token("<|endoftext|>")}, {"10", token("<s>")}, {"11", token("<t>", false)}};
  const Files config{{"tokenizer_config.json", {{"added_tokens_decoder", decoder}}}};
  EXPECT_EQ(ids(config, "a<t>a<s>"), (std::vector<int32_t>{0, 11, 0, 10}));
  EXPECT_EQ(load(config)->special_token("<s>"), 10);
  EXPECT_EQ(load(config)->special_token("<t>"), -1);
  // The tokenizer.json that is written with data and exports has them.
  write("whole.json", load(config)->json());
  const std::string name(load_tokenizer((folder_ / "whole.json").string())->name());
  fs::remove(folder_ / "tokenizer_config.json");
  EXPECT_EQ(load_tokenizer((folder_ / "whole.json").string())->name(), name);
  EXPECT_NE(name, plain);

  EXPECT_EQ(ids({{"added_tokens.json", {{"<s>", 10}, {"<t>", 11}}},
                 {"special_tokens_map.json", {{"eos_token", "<s>"}}}},
                "<t>a<s>"),
            (std::vector<int32_t>{11, 0, 10}));
  EXPECT_EQ(ids({{"special_tokens_map.json",
                  {{"additional_special_tokens", {"<t>"}}, {"pad_token", token("<p>")}}}},
                "<t>a<p>"),
            (std::vector<int32_t>{11, 0, 10}));
  EXPECT_EQ(
      ids({{"tokenizer_config.json", {{"eos_token", "a"}, {"add_bos_token", true}, {"bos_token", nullptr}}}},
          "ba"),
      (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(load({{"tokenizer_config.json", {{"eos_token", "a"}}}})->special_token("a"), 0);
  EXPECT_EQ(
      load({{"tokenizer_config.json", {{"eos_token", "<|endoftext|>"}, {"model_max_length", 8}}}})->name(),
      plain);

  const auto refused = [&](const char* id, const char* content, const char* file) {
    Files files{{"tokenizer_config.json", {{"added_tokens_decoder", {{id, token(content)}}}}}};
    if (std::string_view(file) == "added_tokens.json") files = {{file, {{content, std::stoi(id)}}}};
    expect_error([&] { load(files); }, {file, "tokenizer.json", content, id});
  };
  for (const char* file : {"tokenizer_config.json", "added_tokens.json"}) {
    refused("10", "<|endoftext|>", file);  // has another id
    refused("9", "<s>", file);             // the id has another token
    refused("12", "<s>", file);            // not the next one
    refused("3", "a", file);
  }
}

TEST_F(LoadTokenizer, TheTemplateIsRead) {
  const auto tokenizer = load(small_tokenizer(R"([{"op": "replace", "path": "/post_processor", "value":
    {"type": "Sequence", "processors": [{"type": "ByteLevel", "trim_offsets": false}, {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "<e>", "type_id": 0}}], "pair": [],
     "special_tokens": {"<s>": {"id": "<s>", "ids": [5, 6], "tokens": ["x", "y"]},
                        "<e>": {"id": "<e>", "ids": [9], "tokens": ["z"]}}}]}}])"));
  EXPECT_TRUE(std::ranges::equal(tokenizer->before_text(), Ids{5, 6}));
  EXPECT_TRUE(std::ranges::equal(tokenizer->after_text(), Ids{9}));
  EXPECT_EQ(tokenizer->encode("ab"), Ids{5});
}

TEST_F(LoadTokenizer, WhatIsNotKnownIsRefusedByName) {
  struct Case {
    const char* change;
    std::vector<std::string> words;
  };
  const Case cases[]{
      {R"("add", "path": "/extra", "value": 1)", {"extra is 1", "pre_tokenizer"}},
      {R"("replace", "path": "/normalizer", "value": {"type": "NFKD"})",
       {"normalizer.type", "found \"NFKD\"", "\"NFC\"", "\"NFKC\""}},
      {R"("replace", "path": "/pre_tokenizer", "value": {"type": "WhitespaceSplit"})",
       {"pre_tokenizer.type", "found \"WhitespaceSplit\"", "\"ByteLevel\"", "\"Metaspace\""}},
      {R"("replace", "path": "/pre_tokenizer", "value": null)",
       {"decoder.type", "found \"ByteLevel\"", "\"ByteFallback\"", "without a pre_tokenizer ByteLevel"}},
      {R"("add", "path": "/pre_tokenizer/x", "value": 1)", {"pre_tokenizer.x is 1"}},
      {R"("replace", "path": "/pre_tokenizer/use_regex", "value": 1)",
       {"pre_tokenizer.use_regex", "found 1", "true or false"}},
      {R"("replace", "path": "/pre_tokenizer", "value": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Any"})",
       {"pre_tokenizer.behavior", "found \"Any\"", "MergedWithNext"}},
      {R"("replace", "path": "/pre_tokenizer", "value": {"type": "Sequence", "pretokenizers": [
           {"type": "ByteLevel", "add_prefix_space": false}, {"type": "ByteLevel"}]})",
       {"pre_tokenizer.pretokenizers[1]", "one ByteLevel"}},
      {R"("replace", "path": "/pre_tokenizer", "value": {"type": "Punctuation", "behavior": "any"})",
       {"pre_tokenizer.behavior", "found \"any\"", "Contiguous"}},
      {R"("replace", "path": "/post_processor", "value": {"type": "BertProcessing"})",
       {"post_processor.type", "BertProcessing"}},
      {R"("replace", "path": "/decoder", "value": {"type": "Metaspace"})",
       {"decoder.type", "found \"Metaspace\""}},
      {R"("replace", "path": "/model/type", "value": "Unigram")",
       {"model.type", "found \"Unigram\"", "\"BPE\""}},
      {R"("add", "path": "/model/new", "value": 1)", {"model.new is 1", "byte_fallback"}},
      {R"("replace", "path": "/model/dropout", "value": 0.1)", {"model.dropout", "found 0.1", "null or 0.0"}},
      {R"("replace", "path": "/model/end_of_word_suffix", "value": "</w>")",
       {"model.end_of_word_suffix", "found \"</w>\""}},
      {R"("replace", "path": "/model/unk_token", "value": "a")", {"model.unk_token", "found \"a\"", "null"}},
      {R"("replace", "path": "/model/byte_fallback", "value": true)", {"model.byte_fallback", "found true"}},
      {R"("replace", "path": "/model/vocab/ab", "value": 0)", {"model.vocab: the tokens", "the same id, 0"}},
      {R"("replace", "path": "/model/vocab/ab", "value": -1)", {"model.vocab[\"ab\"]", "found -1", "an id"}},
      {R"("replace", "path": "/model/vocab/ab", "value": 4194304)",
       {"model.vocab[\"ab\"]", "found 4194304", "0 to 4194303"}},
      {R"("replace", "path": "/model/vocab/ab", "value": 9)",
       {"another token with the id 9", "<|endoftext|>"}},
      {R"("add", "path": "/model/vocab/x y", "value": 9)", {"another token with the id 9", "<|endoftext|>"}},
      {R"("replace", "path": "/model/vocab", "value": {})", {"model.vocab is empty"}},
      {R"("remove", "path": "/model/vocab/abcd")",
       {"model.merges[2] merges \"ab\" and \"cd\"", "\"abcd\" is not in"}},
      {R"("replace", "path": "/model/merges/1", "value": "x b")",
       {"model.merges[1] merges \"x\" and \"b\"", "\"x\" is not in"}},
      {R"("replace", "path": "/model/merges/1", "value": "a b c")",
       {"model.merges[1]", "found \"a b c\"", "a pair of tokens"}},
      {R"("replace", "path": "/model/merges/1", "value": ["a"])", {"model.merges[1]", "found [\"a\"]"}},
      {R"("replace", "path": "/model/merges/1", "value": "c d")", {"merges 0 and 1"}},
      {R"("replace", "path": "/model/merges/1", "value": ["", "a"])",
       {"model.merges[1] merges \"\" and \"a\""}},
      {R"("replace", "path": "/model/merges", "value": 5)", {"model.merges", "found 5", "a list"}},
      {R"("add", "path": "/added_tokens/-", "value": {"id": 9, "content": "x"})", {"the same id, 9"}},
      {R"("add", "path": "/added_tokens/-", "value": {"id": 8, "content": "<|endoftext|>"})", {"twice"}},
      {R"("add", "path": "/added_tokens/-", "value": {"id": 8, "content": "ab"})",
       {"\"ab\" the id 5", "the id 8"}},
      {R"("replace", "path": "/added_tokens/0/content", "value": "")",
       {"added_tokens[0].content", "found \"\""}},
      {R"("add", "path": "/added_tokens/0/x", "value": 1)", {"added_tokens[0].x is 1"}},
  };
  for (const Case& c : cases) {
    const std::string changes = fmt::format(R"([{{"op": {}}}])", c.change);
    for (const std::string& word : c.words) expect_refused(changes, {word});
  }
}

TEST_F(LoadTokenizer, DamagedFilesAreRefusedWithTheirPlace) {
  const auto refused = [&](std::string_view json, std::initializer_list<std::string_view> words) {
    const auto path = write("tokenizer.json", json).string();
    expect_error([&] { load_tokenizer(path); }, words);
  };
  refused("", {"tokenizer.json:1:1: not JSON"});
  refused("[]", {"tokenizer.json must", "object", "found []"});
  refused("{}", {"pre_tokenizer", "ByteLevel", "found null"});
  refused(small_tokenizer().substr(0, 300), {"tokenizer.json:1:301: not JSON"});
  refused(std::string(100'000, '['), {"tokenizer.json:1:65", "nested", "64"});
  refused("{\n\"a\": \"" + std::string(1, '\0') + "\"}", {"tokenizer.json:2:7: not JSON: a zero byte"});
  std::string nested = R"({"type": "ByteLevel"})";
  for (int i = 0; i < 28; ++i) nested = R"({"type": "Sequence", "pretokenizers": [)" + nested + "]}";
  EXPECT_EQ(load(small_tokenizer(R"([{"op": "replace", "path": "/pre_tokenizer", "value": )" + nested + "}]"))
                ->encode("a b"),
            (Ids{4, 0, 4, 1}));
}

TEST_F(LoadTokenizer, DamagedPairsAreRefusedWithTheirPlace) {
  write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  const auto refused = [&](std::string_view merges, std::initializer_list<std::string_view> words) {
    write("merges.txt", merges);
    expect_error([&] { load_tokenizer(folder_.string()); }, words);
  };
  refused("#version: 0.2\na b\nb a\n", {"merges.txt:3 merges \"b\" and \"a\"", "\"ba\""});
  refused("a b\na\n", {"merges.txt:2: ", "two tokens", "\"a\""});
  refused("a b\n\na b", {"merges.txt:2: ", "two tokens"});
  refused("a b\na b", {"merges.txt: the merges 0 and 1"});
  refused(std::string("a b\n\0 b\n", 8), {"merges.txt:2 merges \"\\x00\""});
  refused("a  b", {"merges.txt:1"});
  write("vocab.json", R"({"a": 0, "b": 1, "ab": 0})");
  refused("", {"vocab.json: the tokens", "the same id, 0"});
  write("vocab.json", R"({"a": 0, "x y": 1})");
  refused("", {"vocab.json: the token \"x y\" (id 1)", "byte alphabet"});
  write("vocab.json", R"({"a": 0, "\u0000": 1})");
  refused("", {"vocab.json: the token \"\\x00\" (id 1)", "byte alphabet"});
  write("vocab.json", R"({"a": 0, "b": [1]})");
  refused("", {"vocab.json[\"b\"]", "an id", "found [1]"});
  write("vocab.json", "{\"a\": 0,\n \"a\": 1}");
  refused("", {"vocab.json:2:4: ", "\"a\"", "twice"});
  write("vocab.json", "[1]");
  refused("", {"vocab.json must", "object", "found [1]"});
}

TEST_F(LoadTokenizer, APointerOfGitLfsIsNamed) {
  const auto refused = [&](const std::string& name) {
    const std::string path = (folder_ / name).string();
    expect_error([&] { load_tokenizer(folder_.string()); }, {path + " is a Git LFS pointer", "lfs pull"});
  };
  write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  write("merges.txt", kLfsPointer);
  refused("merges.txt");
  write("vocab.json", kLfsPointer);
  refused("vocab.json");
  write("tokenizer_config.json", kLfsPointer);
  refused("tokenizer_config.json");
  write("tokenizer.json", kLfsPointer);
  refused("tokenizer.json");
}

TEST_F(LoadTokenizer, WhatHasNoTokenizerSaysWhatIsWanted) {
  expect_error(
      [&] { load_tokenizer(folder_.string()); },
      {"has no tokenizer", "tokenizer.json", "vocab.json with merges.txt", "encoder.json with vocab.bpe"});
  EXPECT_FALSE(has_tokenizer(folder_));
  write("tokenizer.model", "x");
  for (const auto& path : {folder_, folder_ / "tokenizer.model"})
    expect_error([&] { load_tokenizer(path.string()); },
                 {"tokenizer.model is a tokenizer of SentencePiece", "no tokenizer.json",
                  "from_pretrained('" + folder_.string() + "').save_pretrained("});
  write("vocab.json", "{}");
  expect_error([&] { load_tokenizer((folder_ / "vocab.json").string()); }, {"has no tokenizer"});
  expect_error([] { load_tokenizer("word"); }, {"tokenizer 'word'", "'bytes'"});
  write("tokenizer.json", small_tokenizer());
  EXPECT_TRUE(has_tokenizer(folder_));
}

}  // namespace
}  // namespace tessera
