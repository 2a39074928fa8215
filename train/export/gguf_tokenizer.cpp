#include "train/export/gguf_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/tokenizers/byte_alphabet.h"
#include "kernels/base/check.h"

namespace tessera {
namespace {

using nlohmann::json;

// llama.cpp's numbers in tokenizer.ggml.token_type
enum class TokenType : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

struct PreTokenizerName {
  PreTokenizerKind kind;
  bool ignore_merges;
  const char* name;
};
// "llama-bpe" also takes a piece that is a token as that token; "dbrx" splits alike without that.
constexpr PreTokenizerName kNames[] = {{PreTokenizerKind::kGpt2, false, "gpt-2"},
                                       {PreTokenizerKind::kLlama3, true, "llama-bpe"},
                                       {PreTokenizerKind::kLlama3, false, "dbrx"},
                                       {PreTokenizerKind::kQwen2, false, "qwen2"},
                                       {PreTokenizerKind::kSmolLm2, false, "smollm"}};

constexpr const char* kInstead = "Export it with --format hf";

std::string splits_of(const TokenizerDefinition& definition) {
  std::string text;
  for (const SplitRule& rule : definition.splits)
    text += fmt::format("{}{} ({}{})", text.empty() ? "" : ", then ", in_quotes(rule.pattern),
                        name_of(rule.behavior), rule.invert ? ", inverted" : "");
  return text.empty() ? "nothing" : text;
}

struct TokenList {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
};

TokenList tokens_of(const TokenizerDefinition& definition, int64_t vocab_size) {
  const auto size = static_cast<size_t>(vocab_size);
  TokenList list{.texts = std::vector<std::string>(size), .types = std::vector<int32_t>(size)};
  const auto set = [&](size_t id, std::string text, TokenType type) {
    list.texts[id] = std::move(text);
    list.types[id] = static_cast<int32_t>(type);
  };
  for (size_t id = 0; id < size; ++id) {
    const bool is_token = id < definition.tokens.size() && !definition.tokens[id].empty();
    if (is_token)
      set(id, to_byte_alphabet(definition.tokens[id]), TokenType::kNormal);
    else
      set(id, fmt::format("[PAD{}]", id), TokenType::kUnused);
  }
  for (const UnreachableToken& token : definition.unreachable)
    if (!token.content.empty()) set(static_cast<size_t>(token.id), token.content, TokenType::kUnused);
  for (const AddedToken& token : definition.added)
    set(static_cast<size_t>(token.id), token.content,
        token.special ? TokenType::kControl : TokenType::kUserDefined);
  return list;
}

std::vector<std::string> merges_of(const TokenizerDefinition& definition) {
  std::vector<std::string> merges;
  const auto text = [&](int32_t id) { return to_byte_alphabet(definition.tokens[static_cast<size_t>(id)]); };
  for (const Merge& merge : definition.merges) {
    const std::string left = text(merge.left), right = text(merge.right);
    if (!left.empty() && !right.empty())
      merges.push_back(left + " " + right);  // else of a token that no text has
  }
  return merges;
}

// That with this number, where there are several
std::optional<uint32_t> id_of(const json& token_ids, const char* field, int64_t vocab_size,
                              size_t number = 0) {
  const auto found = token_ids.find(field);
  if (found == token_ids.end() || (number > 0 && !found->is_array())) return std::nullopt;
  if (found->is_array() && found->size() <= number) return std::nullopt;
  const json& id = found->is_array() ? (*found)[number] : *found;
  if (!id.is_number_integer()) return std::nullopt;
  const auto value = id.get<int64_t>();
  return value >= 0 && value < vocab_size ? std::optional(static_cast<uint32_t>(value)) : std::nullopt;
}

// Whether the template adds a token on one side of a text. Error: it adds another one, or several
bool adds(const std::vector<int32_t>& side, std::optional<uint32_t> id, const char* where,
          const char* token) {
  if (side.empty()) return false;
  check(
      side.size() == 1 && id && static_cast<uint32_t>(side[0]) == *id,
      "the tokenizer's template puts {} tokens {} a text, first the id {}; llama.cpp puts only {} there. {}",
      side.size(), where, side[0], token, kInstead);
  return true;
}

std::vector<std::string> notices_of(const TokenizerDefinition& definition) {
  std::vector<std::string> notices;
  if (definition.form != NormalForm::kNone)
    notices.push_back(fmt::format(
        "the tokenizer brings texts into Unicode's form {}, and llama.cpp does not: texts in another "
        "form get other ids there",
        name_of(definition.form)));
  std::string stripping;
  for (const AddedToken& token : definition.added)
    if (token.strip_left || token.strip_right || token.single_word)
      stripping += fmt::format("{}{}", stripping.empty() ? "" : ", ", in_quotes(token.content));
  if (!stripping.empty())
    notices.push_back(fmt::format(
        "llama.cpp finds {} in texts without regard to the blanks and letters beside them", stripping));
  return notices;
}

}  // namespace

std::string llama_cpp_pre_tokenizer(const TokenizerDefinition& definition) {
  check(!definition.prefix_blank,
        "the tokenizer puts a blank before texts, which llama.cpp does not do with byte-level BPE. {}",
        kInstead);
  for (const PreTokenizerName& known : kNames)
    if (definition.splits == definition_of(known.kind).splits &&
        definition.ignore_merges == known.ignore_merges)
      return known.name;
  fail(
      "llama.cpp knows no tokenizer that splits texts by {}{}. It knows how GPT-2, Llama 3, Qwen2 and "
      "SmolLM2 "
      "split. {}",
      splits_of(definition),
      definition.ignore_merges ? " and takes pieces that are tokens without merges" : "", kInstead);
}

GgufTokenizer gguf_tokenizer(const TokenizerDefinition& definition, int64_t vocab_size, const json& token_ids,
                             const std::string& chat_template) {
  GgufTokenizer made{.fields = {}, .notices = notices_of(definition)};
  const auto add = [&](const char* key, GgufValue value) {
    made.fields.push_back({std::string("tokenizer.") + key, std::move(value)});
  };
  add("ggml.model", std::string("gpt2"));
  add("ggml.pre", llama_cpp_pre_tokenizer(definition));
  TokenList tokens = tokens_of(definition, vocab_size);
  add("ggml.tokens", std::move(tokens.texts));
  add("ggml.token_type", std::move(tokens.types));
  add("ggml.merges", merges_of(definition));
  const auto bos = id_of(token_ids, "bos_token_id", vocab_size),
             eos = id_of(token_ids, "eos_token_id", vocab_size),
             pad = id_of(token_ids, "pad_token_id", vocab_size);
  if (bos) add("ggml.bos_token_id", *bos);
  if (eos) add("ggml.eos_token_id", *eos);
  // llama.cpp has one end of turns beside the end of texts; others it finds by their names.
  if (const auto eot = id_of(token_ids, "eos_token_id", vocab_size, 1)) add("ggml.eot_token_id", *eot);
  if (pad) add("ggml.padding_token_id", *pad);
  add("ggml.add_bos_token", adds(definition.before, bos, "before", "bos_token_id"));
  if (adds(definition.after, eos, "after", "eos_token_id")) add("ggml.add_eos_token", true);
  if (!chat_template.empty()) add("chat_template", chat_template);
  return made;
}

}  // namespace tessera
