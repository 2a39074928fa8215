// A tokenizer as fields of GGUF: names of pre-tokenizers, kinds of tokens, and what is refused.
#include "train/export/gguf_tokenizer.h"

#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/load_tokenizer.h"
#include "data/tokenizers/tokenizer_json.h"
#include "tests/data/support.h"
#include "tests/data/tokenizers/support.h"
#include "tests/shared_data.h"

namespace tessera::testing {
namespace {

using nlohmann::json;

const GgufValue* find(const GgufTokenizer& made, const std::string& key) {
  for (const GgufField& field : made.fields)
    if (field.key == "tokenizer." + key) return &field.value;
  return nullptr;
}
template <class T>
T value(const GgufTokenizer& made, const std::string& key) {
  const GgufValue* found = find(made, key);
  if (!found) throw std::runtime_error("no " + key);
  return std::get<T>(*found);
}

// Bytes 'a' and 'b', "ab", a hole at 3, and two added tokens
TokenizerDefinition small() {
  TokenizerDefinition made = definition_of(PreTokenizerKind::kGpt2);
  made.tokens = {"a", " ", "a ", ""};
  made.merges = {{.left = 0, .right = 1, .result = 2}};
  made.added = {{.id = 4, .content = "<|end|>", .special = true}, {.id = 5, .content = "<think>"}};
  return made;
}

TEST(GgufTokenizer, TokensTypesAndMerges) {
  const GgufTokenizer made =
      gguf_tokenizer(small(), 8, {{"eos_token_id", {4, 5}}, {"bos_token_id", 4}, {"pad_token_id", 99}}, "");
  EXPECT_EQ(value<std::string>(made, "ggml.model"), "gpt2");
  EXPECT_EQ(value<std::string>(made, "ggml.pre"), "gpt-2");
  EXPECT_EQ(value<std::vector<std::string>>(made, "ggml.tokens"),
            (std::vector<std::string>{"a", "Ġ", "aĠ", "[PAD3]", "<|end|>", "<think>", "[PAD6]", "[PAD7]"}));
  EXPECT_EQ(value<std::vector<int32_t>>(made, "ggml.token_type"),
            (std::vector<int32_t>{1, 1, 1, 5, 3, 4, 5, 5}));
  EXPECT_EQ(value<std::vector<std::string>>(made, "ggml.merges"), (std::vector<std::string>{"a Ġ"}));
  EXPECT_EQ(value<uint32_t>(made, "ggml.eos_token_id"), 4u);
  EXPECT_EQ(value<uint32_t>(made, "ggml.eot_token_id"), 5u);
  EXPECT_EQ(value<uint32_t>(made, "ggml.bos_token_id"), 4u);
  EXPECT_EQ(find(made, "ggml.padding_token_id"), nullptr) << "an id outside the vocabulary";
  EXPECT_FALSE(value<bool>(made, "ggml.add_bos_token"));
  EXPECT_EQ(find(made, "chat_template"), nullptr);
  EXPECT_TRUE(made.notices.empty());
}

// Of characters: "<unk>", "<s>", the bytes, blank, "a", "b", "ab", blank and "a", blank and "ab", two blanks
TokenizerDefinition small_of_characters() {
  TokenizerDefinition made;
  made.byte_level = false;
  made.byte_fallback = made.fuse_unknown = true;
  made.unknown = 0;
  made.tokens = {"<unk>", "<s>"};
  for (int byte = 0; byte < 256; ++byte) made.tokens.push_back(byte_token(static_cast<uint8_t>(byte)));
  for (const char* token : {"\u2581", "a", "b", "ab", "\u2581a", "\u2581ab", "\u2581\u2581", "c"})
    made.tokens.emplace_back(token);
  made.merges = {{258, 258, 264}, {259, 260, 261}, {258, 259, 262}, {258, 261, 263}, {262, 260, 263}};
  made.added = {{.id = 0, .content = "<unk>", .special = true},
                {.id = 1, .content = "<s>", .special = true},
                {.id = 264, .content = "\u2581\u2581"},
                {.id = 266, .content = "<think>"}};
  made.changes = {{.pattern = "", .content = "\u2581"}, {.pattern = " ", .content = "\u2581"}};
  made.before = {1};
  return made;
}

TEST(GgufTokenizer, ANameThatLlamaCppTakesForPhi3) {
  const std::vector<std::string> of_phi3{"<unk>", "<s>", "</s>", "a", "<|endoftext|>"}, others{"a", "b"};
  for (const char* name : {"Phi-3-mini", "my_phi3_run", "a model", "phi-4"}) {
    EXPECT_EQ(name_for_llama_cpp(name, of_phi3), name);
    const std::string found = name_for_llama_cpp(name, others);
    EXPECT_EQ(found, name == std::string("Phi-3-mini")    ? "Phi- 3-mini"
                     : name == std::string("my_phi3_run") ? "my_phi 3_run"
                                                          : name);
  }
  EXPECT_EQ(name_for_llama_cpp("PHI3 of phi-3", others), "PHI 3 of phi- 3");
}

TEST(GgufTokenizer, OfCharacters) {
  const GgufTokenizer made = gguf_tokenizer(small_of_characters(), 268, {{"bos_token_id", 1}}, "");
  EXPECT_EQ(value<std::string>(made, "ggml.model"), "llama");
  EXPECT_EQ(value<std::string>(made, "ggml.pre"), "default");
  EXPECT_EQ(find(made, "ggml.merges"), nullptr);
  EXPECT_TRUE(value<bool>(made, "ggml.add_bos_token"));
  EXPECT_TRUE(value<bool>(made, "ggml.add_space_prefix"));
  EXPECT_EQ(value<uint32_t>(made, "ggml.unknown_token_id"), 0u);
  const auto tokens = value<std::vector<std::string>>(made, "ggml.tokens");
  const auto types = value<std::vector<int32_t>>(made, "ggml.token_type");
  const auto scores = value<std::vector<float>>(made, "ggml.scores");
  ASSERT_EQ(tokens.size(), 268u);
  ASSERT_EQ(types.size(), 268u);
  ASSERT_EQ(scores.size(), 268u);
  EXPECT_EQ((std::vector(types.begin(), types.begin() + 3)), (std::vector{2, 3, 6}));
  EXPECT_EQ((std::vector(types.begin() + 257, types.end())), (std::vector{6, 1, 1, 1, 1, 1, 1, 1, 1, 4, 5}));
  EXPECT_EQ((std::vector(tokens.begin() + 262, tokens.end())),
            (std::vector<std::string>{"\u2581a", "\u2581ab", "\u2581\u2581", "c", "<think>", "[PAD267]"}));
  // The order of the merges; those that make the same token have one score.
  EXPECT_EQ((std::vector(scores.begin() + 258, scores.end())),
            (std::vector<float>{0, 0, 0, -2, -3, -4, -1, 0, 0, 0}));
}

TEST(GgufTokenizer, WhatLlamaCppDoesNotDoWithCharacters) {
  const auto refused = [](const std::function<void(TokenizerDefinition&)>& change,
                          std::initializer_list<std::string_view> words) {
    TokenizerDefinition definition = small_of_characters();
    change(definition);
    expect_error([&] { gguf_tokenizer(definition, 268, {{"bos_token_id", 1}}, ""); }, words);
    expect_error([&] { gguf_tokenizer(definition, 268, {{"bos_token_id", 1}}, ""); }, {"--format hf"});
  };
  using Definition = TokenizerDefinition;
  refused([](Definition& d) { d.tokens[5] = "x"; }, {"256 bytes", "has 255"});
  refused([](Definition& d) { d.byte_fallback = false; }, {"256 bytes", "makes no use"});
  refused([](Definition& d) { d.ignore_merges = true; }, {"without merges"});
  refused([](Definition& d) { d.changes.pop_back(); }, {"replaces blanks"});
  refused([](Definition& d) { d.changes[0].content = "x"; }, {"replaces blanks"});
  refused([](Definition& d) { d.splits = {{.pattern = "\n", .literal = true}}; }, {"splits texts"});
  refused([](Definition& d) { d.metaspace = Metaspace{.split = false}; }, {"changes or splits texts"});
  refused([](Definition& d) { d.merges.erase(d.merges.begin() + 3); },
          {"would merge \"\u2581\" and \"ab\"", "the tokenizer does not"});
  refused([](Definition& d) { d.changes = {}, d.metaspace = Metaspace{}; }, {"\"\u2581\u2581\"", "within"});

  // What it does a little differently is told.
  TokenizerDefinition definition = small_of_characters();
  definition.splits = {
      {.pattern = " ", .behavior = SplitBehavior::kMergedWithPrevious, .literal = true}};  // Gemma's
  EXPECT_TRUE(gguf_tokenizer(definition, 268, {{"bos_token_id", 1}}, "").notices.empty());
  definition.splits = {};
  definition.changes = {};
  definition.metaspace = Metaspace{.prepend = PrependScheme::kFirst, .split = false};
  const GgufTokenizer first = gguf_tokenizer(definition, 268, {{"bos_token_id", 1}}, "");
  EXPECT_TRUE(value<bool>(first, "ggml.add_space_prefix"));
  ASSERT_EQ(first.notices.size(), 1u);
  EXPECT_NE(first.notices[0].find("after special tokens"), std::string::npos);
  definition.metaspace->prepend = PrependScheme::kNever;
  const GgufTokenizer never = gguf_tokenizer(definition, 268, {{"bos_token_id", 1}}, "");
  EXPECT_FALSE(value<bool>(never, "ggml.add_space_prefix"));
  EXPECT_TRUE(never.notices.empty());
}

// Tokens whose merges are interleaved have one score where llama.cpp then makes the same tokens, from left
// to right.
TEST(GgufTokenizer, MergesThatAreInterleaved) {
  const auto made = [](const TokenizerDefinition& definition) {
    return gguf_tokenizer(definition, std::ssize(definition.tokens), {{"bos_token_id", 1}}, "");
  };
  const auto scores_of = [&](const TokenizerDefinition& definition) {
    return value<std::vector<float>>(made(definition), "ggml.scores");
  };
  // Runs of 2 to 4 blanks, as transformers 4 orders merges of equal scores: by the lengths of both parts
  TokenizerDefinition blanks = small_of_characters();
  blanks.added.resize(2);
  for (const char* token : {"\u2581\u2581\u2581", "\u2581\u2581\u2581\u2581"})
    blanks.tokens.emplace_back(token);
  const int32_t one = 258, two = 264, three = 266, four = 267;
  std::erase_if(blanks.merges, [](const Merge& merge) { return merge.result == 264; });
  const std::vector<Merge> tied{{three, one, four}, {two, two, four},  {two, one, three},
                                {one, three, four}, {one, two, three}, {one, one, two}};
  blanks.merges.insert(blanks.merges.end(), tied.begin(), tied.end());
  const std::vector<float> scores = scores_of(blanks);
  EXPECT_EQ(scores[three], scores[four]);
  EXPECT_LT(scores[two], scores[three]) << "its merge is after theirs";
  EXPECT_LT(scores[four], scores[263]) << "after all others";

  // In another order four blanks are two pairs, and from left to right three and one.
  TokenizerDefinition other = blanks;
  other.merges.erase(other.merges.end() - 6, other.merges.end());
  for (const Merge& merge : {Merge{one, two, three}, {one, one, two}, {two, one, three}})
    other.merges.push_back(merge);
  other.tokens.pop_back();
  expect_error([&] { made(other); }, {"runs of \"\u2581\"", "4 in a row become other tokens", "--format hf"});

  // Two tokens that want the same piece
  TokenizerDefinition shared = small_of_characters();  // "\u2581", "a", "b", "ab", "\u2581a", "\u2581ab"
  shared.added.pop_back();
  shared.merges = {{259, 260, 261}, {258, 259, 262}, {258, 261, 263}, {262, 260, 263}, {258, 258, 264}};
  EXPECT_NO_THROW(made(shared));
  shared.tokens.emplace_back("ba");  // of "aba", "a" and "ba" or "ab" and "a"
  shared.merges.insert(shared.merges.begin() + 1, {260, 259, 266});
  shared.merges.insert(shared.merges.begin() + 2, {259, 260, 261});
  expect_error([&] { made(shared); },
               {"\"ab\"", "\"ba\"", "interleaved", "may want the same", "--format hf"});
  // A token that begins with the end of a run: after all merges of runs it has a score of its own.
  TokenizerDefinition after = blanks;
  after.merges.push_back({one, 265, 268});
  after.tokens.emplace_back("\u2581c");
  EXPECT_NO_THROW(made(after));
  std::swap(after.merges[after.merges.size() - 1], after.merges[after.merges.size() - 3]);
  expect_error([&] { made(after); }, {"\"\u2581c\"", "may want the same \"\u2581\""});
  // An earlier merge that takes one of them
  TokenizerDefinition earlier = blanks;
  earlier.tokens.emplace_back("\u2581\u2581\u2581c");
  earlier.merges.insert(earlier.merges.begin(), {three, 265, 268});
  expect_error([&] { made(earlier); }, {"interleaved", "earlier merge", "\"c\"", "--format hf"});
}

// The tokens of a text in llama.cpp: of the pairs that are tokens the best is merged, of equal ones the
// leftmost.
std::vector<int32_t> merged_by_score(const std::vector<std::string>& tokens, const std::vector<float>& scores,
                                     std::vector<std::string> pieces) {
  std::map<std::string_view, size_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) ids[tokens[id]] = id;
  while (true) {
    size_t at = pieces.size();
    float best = -std::numeric_limits<float>::infinity();
    for (size_t i = 0; i + 1 < pieces.size(); ++i) {
      const auto found = ids.find(pieces[i] + pieces[i + 1]);
      if (found != ids.end() && scores[found->second] > best) best = scores[found->second], at = i;
    }
    if (at == pieces.size()) break;
    pieces[at] += pieces[at + 1];
    pieces.erase(pieces.begin() + static_cast<int64_t>(at) + 1);
  }
  std::vector<int32_t> made;
  for (const std::string& piece : pieces) made.push_back(static_cast<int32_t>(ids.at(piece)));
  return made;
}

// As transformers 4 converts what SentencePiece learns, where it gives runs of blanks one score
TEST(GgufTokenizer, RunsOfBlanksOfOneScore) {
  const json wanted = json::parse(read_file(tokenizer_fixture("tied_ids.json")));
  for (const char* name : {"tied_llama", "tied_gemma"}) {
    SCOPED_TRACE(name);
    const std::string path = tokenizer_fixture(std::string(name) + ".json");
    const TokenizerDefinition definition = read_tokenizer_json(read_file(path), path);
    const GgufTokenizer made = gguf_tokenizer(definition, 704, {{"bos_token_id", 1}}, "");
    const auto tokens = value<std::vector<std::string>>(made, "ggml.tokens");
    const auto scores = value<std::vector<float>>(made, "ggml.scores");
    const auto tokenizer = load_tokenizer(path);
    for (size_t count = 1; count < 300; ++count) {
      const auto ids = wanted[name][count - 1].get<std::vector<int32_t>>();
      EXPECT_EQ(tokenizer->encode(std::string(count, ' ')), ids) << count;
      EXPECT_EQ(merged_by_score(tokens, scores, std::vector<std::string>(count, "\u2581")), ids) << count;
    }
  }
}

// Their merges are of SentencePiece's kind: all that make a token, in its place. So are Mistral's, whose
// order the scores give back.
TEST(GgufTokenizer, OfLlama2AndMistral) {
  for (const char* kind : {"llama2", "gemma", "mistral"}) {
    const std::string path = tokenizer_fixture(std::string(kind) + ".json");
    const TokenizerDefinition definition = read_tokenizer_json(read_file(path), path);
    const GgufTokenizer made = gguf_tokenizer(definition, 800, {{"bos_token_id", 1}}, "");
    EXPECT_EQ(value<bool>(made, "ggml.add_space_prefix"), kind != std::string("gemma"));
  }
  for (const char* name : {"mistral_v1", "mistral_v3"}) {
    const auto shared = testing::shared_data(std::string("tokenizers/") + name + "/tokenizer.json");
    if (!shared.missing.empty()) GTEST_SKIP() << shared.missing;
    const TokenizerDefinition definition = read_tokenizer_json(read_file(shared.path), shared.path.string());
    const GgufTokenizer made =
        gguf_tokenizer(definition, std::ssize(definition.tokens), {{"bos_token_id", 1}}, "");
    const auto scores = value<std::vector<float>>(made, "ggml.scores");
    for (size_t i = 1; i < definition.merges.size(); ++i)
      EXPECT_LE(scores[static_cast<size_t>(definition.merges[i].result)],
                scores[static_cast<size_t>(definition.merges[i - 1].result)]);
  }
}

TEST(GgufTokenizer, TheTemplateAroundTexts) {
  TokenizerDefinition definition = small();
  definition.before = {4};
  definition.after = {5};
  const json ids{{"bos_token_id", 4}, {"eos_token_id", 5}};
  const GgufTokenizer made = gguf_tokenizer(definition, 6, ids, "{{ messages }}");
  EXPECT_TRUE(value<bool>(made, "ggml.add_bos_token"));
  EXPECT_TRUE(value<bool>(made, "ggml.add_eos_token"));
  EXPECT_EQ(value<std::string>(made, "chat_template"), "{{ messages }}");
  expect_error(
      [&] {
        gguf_tokenizer(definition, 6, {{"bos_token_id", 0}}, "");
      },
      {"1 tokens before", "id 4", "only bos_token_id", "--format hf"});
  definition.before = {4, 4};
  expect_error([&] { gguf_tokenizer(definition, 6, ids, ""); }, {"2 tokens before"});
}

TEST(GgufTokenizer, NamesOfPreTokenizers) {
  for (const auto& [kind, name] :
       {std::pair(PreTokenizerKind::kGpt2, "gpt-2"), std::pair(PreTokenizerKind::kLlama3, "dbrx"),
        std::pair(PreTokenizerKind::kQwen2, "qwen2"), std::pair(PreTokenizerKind::kSmolLm2, "smollm"),
        std::pair(PreTokenizerKind::kGpt4o, "gpt-4o")})
    EXPECT_EQ(llama_cpp_pre_tokenizer(definition_of(kind)), name);
  TokenizerDefinition llama3 = definition_of(PreTokenizerKind::kLlama3);
  llama3.ignore_merges = true;
  EXPECT_EQ(llama_cpp_pre_tokenizer(llama3), "llama-bpe");
  // llama.cpp's "gpt-4o" goes by the merges, also of a piece that is a token.
  TokenizerDefinition gpt_oss = definition_of(PreTokenizerKind::kGpt4o);
  gpt_oss.tokens = {"a", "b", "c", "ab", "abc"};
  gpt_oss.merges = {{.left = 0, .right = 1, .result = 3}, {.left = 3, .right = 2, .result = 4}};
  gpt_oss.ignore_merges = true;
  EXPECT_EQ(llama_cpp_pre_tokenizer(gpt_oss), "gpt-4o");
  gpt_oss.merges.pop_back();
  expect_error([&] { llama_cpp_pre_tokenizer(gpt_oss); }, {"without merges", "GPT-4o"});
  for (const auto& [file, name] : {std::pair("gpt2", "gpt-2"), std::pair("llama3", "llama-bpe"),
                                   std::pair("qwen2", "qwen2"), std::pair("smollm2", "smollm")}) {
    const std::string path = tokenizer_fixture(std::string(file) + ".json");
    EXPECT_EQ(llama_cpp_pre_tokenizer(read_tokenizer_json(read_file(path), path)), name);
  }
}

TEST(GgufTokenizer, WhatLlamaCppDoesNotDo) {
  TokenizerDefinition definition = small();
  definition.splits = {{.pattern = R"(\s+)", .behavior = SplitBehavior::kRemoved}};
  expect_error([&] { llama_cpp_pre_tokenizer(definition); },
               {R"(splits texts by "\\s+" (Removed))", "GPT-2, Llama 3, Qwen2, SmolLM2 and GPT-4o", "--format hf"});
  definition = small();
  definition.ignore_merges = true;
  expect_error([&] { llama_cpp_pre_tokenizer(definition); }, {"without merges"});
  definition = small();
  definition.prefix_blank = true;
  expect_error([&] { llama_cpp_pre_tokenizer(definition); }, {"a blank before"});
  definition = definition_of(PreTokenizerKind::kQwen2);
  definition.tokens = {"a"};
  definition.added = {{.id = 1, .content = "<mask>", .strip_left = true}};
  const GgufTokenizer made = gguf_tokenizer(definition, 2, json::object(), "");
  ASSERT_EQ(made.notices.size(), 2u);
  EXPECT_NE(made.notices[0].find("NFC"), std::string::npos);
  EXPECT_NE(made.notices[1].find("<mask>"), std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
