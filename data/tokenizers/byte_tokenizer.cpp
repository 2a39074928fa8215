#include "data/tokenizers/byte_tokenizer.h"

#include <nlohmann/json.hpp>

#include "data/tokenizers/definition.h"
#include "kernels/base/check.h"

namespace tessera {
namespace {

constexpr int32_t kByteValues = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  std::string_view name() const override { return kBytesTokenizer; }
  int32_t vocab_size() const override { return kEndOfText + 1; }
  int32_t end_of_text() const override { return kEndOfText; }
  std::span<const AddedToken> added_tokens() const override { return {}; }
  int32_t special_token(std::string_view) const override { return -1; }
  std::span<const int32_t> before_text() const override { return {}; }
  std::span<const int32_t> after_text() const override { return {}; }
  using Tokenizer::encode;

  // No text stands for the end of text.
  void encode(std::string_view text, SpecialTokens, std::vector<int32_t>& ids, TextPlace) const override {
    // Through unsigned char: a plain char above 127 would become a negative id.
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    ids.insert(ids.end(), bytes, bytes + text.size());
  }
  int64_t encode_known(std::string_view text, SpecialTokens special, std::vector<int32_t>& ids,
                       TextPlace place) const override {
    encode(text, special, ids, place);
    return 0;
  }

  std::string decode(std::span<const int32_t> ids, bool show_special) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) text += token_text(id, show_special);
    return text;
  }
  std::string token_text(int32_t id, bool) const override {
    check(0 <= id && id < vocab_size(), "token {} is outside the {} ids of the tokenizer '{}'", id,
          vocab_size(), name());
    return id == kEndOfText ? std::string() : std::string(1, static_cast<char>(id));
  }

  size_t last_cut(std::string_view text) const override { return text.size(); }
  const std::string& json() const override {
    static const std::string none;
    return none;
  }
  std::vector<std::array<std::string, 2>> facts() const override {
    return {{"splits", "nothing: each byte is a token"}};
  }

 private:
  static constexpr int32_t kEndOfText = kByteValues;
};

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens special, TextPlace place) const {
  std::vector<int32_t> ids;
  encode(text, special, ids, place);
  return ids;
}

TokenizerDefinition bytes_as_bpe() {
  // Without merges it does not matter how texts are split; every program knows how GPT-2 does.
  TokenizerDefinition made = definition_of(PreTokenizerKind::kGpt2);
  for (int32_t byte = 0; byte < kByteValues; ++byte) made.tokens.emplace_back(1, static_cast<char>(byte));
  made.added = {{.id = kByteValues, .content = "<|endoftext|>", .special = true}};
  return made;
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace tessera
