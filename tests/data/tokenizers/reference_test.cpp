// The ids that Hugging Face's `tokenizers` gave (tests/fixtures/make_tokenizer_reference.py).
#include <chrono>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>

#include "data/tokenizers/nfc.h"
#include "tests/data/tokenizers/support.h"
#include "tests/shared_data.h"

namespace tessera {
namespace {

using nlohmann::json;

json fixture_json(const std::string& name) { return json::parse(read_file(tokenizer_fixture(name))); }

void expect_reference_ids(const Tokenizer& tokenizer, const std::string& kind) {
  const json strings = fixture_json("strings.json"), ids = fixture_json("ids.json").at(kind);
  ASSERT_GT(strings.size(), 25u);
  for (size_t i = 0; i < strings.size(); ++i) {
    const std::string text = strings[i];
    for (const auto& [name, special] :
         {std::pair("matched", SpecialTokens::kMatched), std::pair("as_text", SpecialTokens::kAsText)}) {
      const auto found = tokenizer.encode(text, special);
      EXPECT_EQ(found, ids.at(name)[i].get<std::vector<int32_t>>()) << kind << ", " << name << ": " << text;
    }
  }
}

TEST(TokenizerReference, IdsOfHardStringsAreThoseOfHuggingFace) {
  for (const std::string& kind : all_fixture_kinds())
    expect_reference_ids(*load_tokenizer(tokenizer_fixture(kind + ".json").string()), kind);
}

TEST(TokenizerReference, IdsAndTextsOfTokenizersOfCharacters) {
  for (const std::string& kind : character_fixture_kinds()) {
    const auto tokenizer = load_tokenizer(tokenizer_fixture(kind + ".json").string());
    expect_reference_ids(*tokenizer, kind);
    const json ids = fixture_json("ids.json").at(kind);
    for (size_t i = 0; i < ids.at("as_text").size(); ++i)
      EXPECT_EQ(tokenizer->decode(ids.at("as_text")[i].get<std::vector<int32_t>>()),
                ids.at("decoded")[i].get<std::string>())
          << kind;
  }
}

TEST(TokenizerReference, IdsOfGpt2) {
  const auto shared = testing::shared_data("gpt2/vocab.bpe");
  if (!shared.missing.empty()) GTEST_SKIP() << shared.missing;
  const auto gpt2 = load_tokenizer(shared.path.parent_path().string());
  EXPECT_EQ(gpt2->vocab_size(), 50257);
  EXPECT_EQ(gpt2->end_of_text(), 50256);
  expect_reference_ids(*gpt2, "openai");
  const auto bytes = random_bytes(100'000, 1);
  EXPECT_EQ(gpt2->decode(gpt2->encode(bytes)), bytes);
}

TEST(TokenizerReference, ReadFromTheFileThatItWrites) {
  for (const std::string& kind : all_fixture_kinds()) {
    const auto first = load_tokenizer(tokenizer_fixture(kind + ".json").string());
    EXPECT_EQ(first->json(), read_file(tokenizer_fixture(kind + ".json")));
    EXPECT_EQ(first->end_of_text(), 0);
  }
}

TEST(TokenizerReference, AnyBytesComeBack) {
  for (const std::string& kind : all_fixture_kinds()) {
    const auto tokenizer = load_tokenizer(tokenizer_fixture(kind + ".json").string());
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::string bytes = random_bytes(seed * 500, seed);
      const std::string back = tokenizer->decode(tokenizer->encode(bytes, SpecialTokens::kMatched), true);
      const bool keeps = kind != "qwen2" && kind != "claude";  // which bring texts into forms C and KC
      if (keeps) {
        EXPECT_EQ(back, bytes) << kind;
      }
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(back)), back) << kind;
    }
  }
}

// Bytes that are not UTF-8 are tokens of bytes.
TEST(TokenizerReference, AnyBytesComeBackFromByteFallback) {
  for (const std::string kind : {"llama2", "gemma", "mistral"}) {
    const auto tokenizer = load_tokenizer(tokenizer_fixture(kind + ".json").string());
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::string bytes = "x" + random_bytes(seed * 500, seed);
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(bytes)), bytes) << kind;
    }
    const std::string blanks = "  two\n  and \xc3\n ";
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(blanks)), kind == "mistral" ? blanks.substr(1) : blanks);
  }
}

TEST(TokenizerReference, ThreadsShareATokenizer) {
  for (const char* const kind : {"qwen2.json", "llama2.json"}) {
    const auto tokenizer = load_tokenizer(tokenizer_fixture(kind).string());
    std::string text;
    for (int i = 0; i < 20; ++i)
      for (const std::string part : fixture_json("strings.json")) text += part;
    const auto wanted = tokenizer->encode(text, SpecialTokens::kMatched);
    std::vector<std::future<bool>> running;
    for (int thread = 0; thread < 8; ++thread)
      running.push_back(std::async(std::launch::async, [&] {
        bool same = true;
        for (int i = 0; i < 10; ++i)
          same = same && tokenizer->encode(text, SpecialTokens::kMatched) == wanted;
        return same;
      }));
    for (auto& result : running) EXPECT_TRUE(result.get());
  }
}

TEST(TokenizerReference, NoTextIsQuadratic) {
  // Each would take minutes if the time grew with the square of the length.
  const std::string marks = [] {
    std::string text = "e";
    while (text.size() < 1'000'000) text += "\u0301\u0323";  // of different classes, in the wrong order
    return text;
  }();
  std::string pairs;
  for (int64_t i = 0; pairs.size() < 1'000'000; ++i) pairs += static_cast<char>('a' + i * i % 7);
  for (const std::string& text :
       {std::string(1'000'000, 'a'), std::string(1'000'000, ' ') + "x", std::string(1'000'000, '\n'),
        std::string(1'000'000, '\xff'), std::string(1'000'000, '!'), pairs, marks})
    for (const std::string& kind : all_fixture_kinds()) {
      const auto tokenizer = load_tokenizer(tokenizer_fixture(kind + ".json").string());
      const auto start = std::chrono::steady_clock::now();
      const auto ids = tokenizer->encode(text);
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30))
          << kind << text.substr(0, 5);
      const bool composed = (kind == "qwen2" || kind == "claude") && text.starts_with('e');
      EXPECT_EQ(tokenizer->decode(ids), composed ? compose(text) : text) << kind;
    }
}

TEST(TokenizerReference, NoTextOfCharactersIsQuadratic) {
  std::string pairs;  // whose merges depend on one another, as far as tokens of several words go
  for (int64_t i = 0; pairs.size() < 1'000'000; ++i) pairs += "etaoinsh"[i * i % 7];
  for (const std::string& text : {std::string(1'000'000, 'a'), "x" + std::string(1'000'000, ' ') + "x",
                                  std::string(1'000'000, '\n'), "x" + std::string(1'000'000, '\xff'), pairs})
    for (const std::string& kind : character_fixture_kinds()) {
      const auto tokenizer = load_tokenizer(tokenizer_fixture(kind + ".json").string());
      const auto start = std::chrono::steady_clock::now();
      std::vector<int32_t> ids;
      tokenizer->encode_known(text, SpecialTokens::kAsText, ids);
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30))
          << kind << text.substr(0, 5);
      if (kind != "metaspace" && kind != "phrases") {
        EXPECT_EQ(tokenizer->decode(ids), text) << kind;
      }
    }
}

TEST(TokenizerReference, ACutChangesNoId) {
  std::string text;
  for (const std::string part : fixture_json("strings.json")) text += part + " and so on ";
  std::vector<std::string> kinds = fixture_kinds();
  for (const char* kind : {"llama2", "gemma", "mistral"}) kinds.emplace_back(kind);
  for (const std::string& kind : kinds) {
    const auto made = json::parse(read_file(tokenizer_fixture(kind + ".json")));
    const auto with = [&](const std::function<void(json&)>& change) {
      json changed = made;
      // With Llama 2's normalizer that is a word after a blank, and looks at what is before the blank.
      if (kind == "llama2")
        for (auto& token : changed["added_tokens"]) token["single_word"] = false;
      change(changed["added_tokens"]);
      const auto path = std::filesystem::temp_directory_path() / fmt::format("tessera_cut_{}.json", getpid());
      std::ofstream(path) << changed.dump();
      auto tokenizer = load_tokenizer(path.string());
      std::filesystem::remove(path);
      return tokenizer;
    };
    const auto expect_same = [&](const Tokenizer& tokenizer, SpecialTokens special) {
      const auto ids = tokenizer.encode(text, special);
      int cuts = 0;
      for (size_t end = text.size(); end > 0; ++cuts) {
        const size_t cut = tokenizer.last_cut(std::string_view(text).substr(0, end));
        if (cut == 0) break;
        auto parts = tokenizer.encode(text.substr(0, cut), special);
        const auto rest = tokenizer.encode(text.substr(cut), special, TextPlace::kWithin);
        parts.insert(parts.end(), rest.begin(), rest.end());
        EXPECT_EQ(parts, ids) << kind << ", cut at " << cut;
        end = cut;
      }
      EXPECT_GT(cuts, 50);
    };
    const auto add = [&](const char* content, const char* field) {
      const int id = made["model"]["vocab"].value(content, 900);
      return [=](json& tokens) {
        tokens.push_back({{"id", id}, {"content", content}, {"special", false}, {field, true}});
      };
    };
    for (const SpecialTokens special : {SpecialTokens::kAsText, SpecialTokens::kMatched}) {
      expect_same(*with([](json&) {}), special);  // with tokens that take the blanks beside them
      expect_same(*with(add("  ", "normalized")), special);
      expect_same(*with(add(" so", "lstrip")), special);
      if (kind != "llama2") expect_same(*with(add("so", "single_word")), special);
    }
    if (kind == "llama2") {  // what follows a token gets a blank, and what follows a cut does not
      const auto so = with([](json& tokens) {
        tokens.push_back({{"id", 900}, {"content", "so"}, {"normalized", false}});
      });
      EXPECT_EQ(so->last_cut(text), 0u);
    }
    // Where a cut between a letter and a blank would change what is found
    for (const auto& [content, field] : {std::pair("and so", "normalized"), std::pair("d ", "normalized"),
                                         std::pair("so", "rstrip"), std::pair(" so", "single_word")})
      EXPECT_EQ(with(add(content, field))->last_cut(text), 0u) << content;
  }
}

}  // namespace
}  // namespace tessera
