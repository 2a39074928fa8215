// Small tokenizers made by hand, and the ones that Hugging Face's library made.
#pragma once

#include <nlohmann/json.hpp>
#include <random>

#include "data/tokenizers/load_tokenizer.h"
#include "tests/data/support.h"

namespace tessera {

inline std::filesystem::path tokenizer_fixture(const std::string& name) {
  return std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/fixtures/tokenizers" / name;
}

// A fixture whose added tokens take no blanks beside them, as those of chat models do not
inline std::string plain_tokenizer(const std::string& kind) {
  auto definition = nlohmann::json::parse(read_file(tokenizer_fixture(kind + ".json")));
  for (auto& token : definition["added_tokens"]) token["lstrip"] = token["rstrip"] = false;
  return definition.dump();
}

// The fixture llama3.json with Llama 3's special tokens, 700 to 703, instead of ChatML's
inline std::string llama3_chat_tokenizer() {
  auto definition = nlohmann::json::parse(read_file(tokenizer_fixture("llama3.json")));
  auto added = nlohmann::json::array({definition["added_tokens"][0]});
  for (const char* content :
       {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}) {
    added.push_back(added[0]);
    added.back()["id"] = 700 + std::ssize(added) - 2;
    added.back()["content"] = content;
    added.back()["lstrip"] = added.back()["rstrip"] = false;
  }
  definition["added_tokens"] = added;
  definition["post_processor"] = nullptr;
  return definition.dump();
}

inline const std::vector<std::string>& fixture_kinds() {
  static const std::vector<std::string> kinds{"gpt2", "llama3", "qwen2", "smollm2"};
  return kinds;
}

// And those with parts that few tokenizers have
inline const std::vector<std::string>& all_fixture_kinds() {
  static const std::vector<std::string> kinds{"gpt2",   "llama3",       "qwen2", "smollm2",
                                              "claude", "deepseek_llm", "falcon"};
  return kinds;
}

// A tokenizer.json with four letters, a blank and three merges. `changes` is a JSON Patch (RFC 6902).
inline std::string small_tokenizer(const std::string& changes = "[]") {
  const nlohmann::json json = nlohmann::json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 9, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
              "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "\u0120": 4, "ab": 5, "cd": 6, "abcd": 7},
              "merges": ["c d", ["a", "b"], "ab cd"]}})");
  return json.patch(nlohmann::json::parse(changes)).dump();
}

// Those of characters
inline const std::vector<std::string>& character_fixture_kinds() {
  static const std::vector<std::string> kinds{"llama2", "gemma", "mistral", "metaspace", "phrases"};
  return kinds;
}

// A tokenizer.json of characters, with four letters, Metaspace's blank, a few bytes and three merges
inline std::string small_character_tokenizer(const std::string& changes = "[]") {
  const nlohmann::json json = nlohmann::json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 1, "content": "</s>", "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": false},
    "post_processor": null,
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
              "vocab": {"<unk>": 0, "</s>": 1, "<0xC3>": 2, "<0xA9>": 3, "\u2581": 4, "a": 5, "b": 6, "c": 7,
                        "\u4e2d": 8, "ab": 9, "\u2581ab": 10, "abc": 11},
              "merges": ["a b", ["\u2581", "ab"], "ab c"]}})");
  return json.patch(nlohmann::json::parse(changes)).dump();
}

inline std::string random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(random() >> 56);
  return bytes;
}

}  // namespace tessera
