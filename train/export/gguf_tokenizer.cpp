#include "train/export/gguf_tokenizer.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "data/tokenizers/bpe.h"
#include "data/tokenizers/byte_alphabet.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"
#include "train/export/merge_scores.h"

namespace tessera {
namespace {

using nlohmann::json;

// llama.cpp's numbers in tokenizer.ggml.token_type
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

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
                                       {PreTokenizerKind::kSmolLm2, false, "smollm"},
                                       {PreTokenizerKind::kGpt4o, false, "gpt-4o"}};

bool splits_as(PreTokenizerKind kind, const TokenizerDefinition& definition) {
  return definition.splits == definition_of(kind).splits;
}

// Whether the merges make each token of its bytes, so that a piece which is a token has the same id with and
// without them
bool merges_make_all_tokens(TokenizerDefinition definition) {
  definition.ignore_merges = false;
  const Bpe bpe(definition, "the tokenizer");
  Bpe::Cache cache;
  std::vector<int32_t> ids;
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    if (definition.tokens[id].empty()) continue;
    ids.clear();
    bpe.encode(definition.tokens[id], cache, ids);
    if (ids != std::vector{static_cast<int32_t>(id)}) return false;
  }
  return true;
}

constexpr const char* kBlank = "\u2581";  // llama.cpp's, of its model "llama"
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
    if (!is_token)
      set(id, fmt::format("[PAD{}]", id), TokenType::kUnused);
    else if (definition.byte_level)
      set(id, to_byte_alphabet(definition.tokens[id]), TokenType::kNormal);
    else
      set(id, definition.tokens[id],
          byte_of_token(definition.tokens[id]) ? TokenType::kByte : TokenType::kNormal);
  }
  for (const UnreachableToken& token : definition.unreachable)
    if (!token.content.empty()) set(static_cast<size_t>(token.id), token.content, TokenType::kUnused);
  for (const AddedToken& token : definition.added) {
    // As a user's token a run of blanks would be decoded as it is written; merges make it, too.
    const bool is_blanks = !definition.byte_level && token.content.find(kBlank) != token.content.npos;
    set(static_cast<size_t>(token.id), token.content,
        token.special ? TokenType::kControl
        : is_blanks   ? TokenType::kNormal
                      : TokenType::kUserDefined);
  }
  if (!definition.byte_level && definition.unknown >= 0)
    list.types[static_cast<size_t>(definition.unknown)] = static_cast<int32_t>(TokenType::kUnknown);
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
  if (splits_as(PreTokenizerKind::kGpt4o, definition))
    notices.push_back(
        "llama.cpp tells capitals from small letters only in ASCII, and ends words at combining marks, which "
        "the tokenizer does not: texts with such letters may get other ids there");
  std::string stripping;
  for (const AddedToken& token : definition.added)
    if (token.strip_left || token.strip_right || token.single_word ||
        (token.normalized && !definition.changes.empty()))
      stripping += fmt::format("{}{}", stripping.empty() ? "" : ", ", in_quotes(token.content));
  if (!stripping.empty())
    notices.push_back(fmt::format(
        "llama.cpp finds {} in texts without regard to the blanks and letters beside them", stripping));
  if (definition.metaspace && definition.metaspace->prepend != PrependScheme::kNever)
    notices.push_back(fmt::format(
        "llama.cpp puts a blank before a text also where it begins with one{}, and the tokenizer does not",
        definition.metaspace->prepend == PrependScheme::kFirst ? ", and after special tokens" : ""));
  return notices;
}

}  // namespace

std::string llama_cpp_pre_tokenizer(const TokenizerDefinition& definition) {
  check(!definition.prefix_blank,
        "the tokenizer puts a blank before texts, which llama.cpp does not do with byte-level BPE. {}",
        kInstead);
  for (const PreTokenizerName& known : kNames)
    if (splits_as(known.kind, definition) && definition.ignore_merges == known.ignore_merges)
      return known.name;
  // gpt-oss: its merges are those of tiktoken, whose tokens are ranked by them.
  if (splits_as(PreTokenizerKind::kGpt4o, definition) && merges_make_all_tokens(definition)) return "gpt-4o";
  fail(
      "llama.cpp knows no tokenizer that splits texts by {}{}. It knows how GPT-2, Llama 3, Qwen2, SmolLM2 "
      "and GPT-4o split. {}",
      splits_of(definition),
      definition.ignore_merges ? " and takes pieces that are tokens without merges" : "", kInstead);
}

namespace {

// Whether llama.cpp puts a blank before a text. Error: the tokenizer does something else to texts
bool adds_blank(const TokenizerDefinition& definition) {
  const TextChange prefix{.pattern = "", .content = kBlank}, blanks{.pattern = " ", .content = kBlank};
  const std::vector<TextChange>& changes = definition.changes;
  const auto has = [&](const TextChange& change) { return std::ranges::count(changes, change) == 1; };
  const bool knows_changes = changes.empty() || (has(blanks) && changes.size() == (has(prefix) ? 2u : 1u));
  const bool splits_nothing = std::ranges::all_of(definition.splits, [](const SplitRule& rule) {
    return rule.literal && !rule.invert && rule.pattern == " ";  // there is none any more
  });
  const auto& metaspace = definition.metaspace;
  const bool known = metaspace
                         ? changes.empty() && definition.splits.empty() && metaspace->replacement == kBlank
                         : !changes.empty();
  check(
      knows_changes && known && splits_nothing && definition.late_splits.empty(),
      "the tokenizer changes or splits texts in a way that llama.cpp does not; it replaces blanks by {}, and "
      "may put one before a text. {}",
      in_quotes(kBlank), kInstead);
  return metaspace ? metaspace->prepend != PrependScheme::kNever : has(prefix);
}

void check_characters(const TokenizerDefinition& definition) {
  std::set<uint8_t> bytes;
  for (const std::string& token : definition.tokens)
    if (const auto byte = byte_of_token(token))
      bytes.insert(*byte);
    else if (token.size() == 1)  // Gemma's tab, which llama.cpp finds as a character
      bytes.insert(static_cast<uint8_t>(token[0]));
  check(definition.byte_fallback && bytes.size() == 256,
        "llama.cpp needs a token for each of the 256 bytes, of which the tokenizer {}. {}",
        definition.byte_fallback ? fmt::format("has {}", bytes.size()) : std::string("makes no use"),
        kInstead);
  check(!definition.ignore_merges,
        "the tokenizer takes pieces that are tokens without merges, which llama.cpp does not do with "
        "characters. {}",
        kInstead);
  if (!definition.metaspace || !definition.metaspace->split) return;
  for (const Merge& merge : definition.merges)
    check(
        definition.tokens[static_cast<size_t>(merge.result)].find(kBlank, 1) == std::string::npos,
        "the tokenizer splits texts at blanks, which llama.cpp does not, and its token {} has one within. {}",
        in_quotes(definition.tokens[static_cast<size_t>(merge.result)]), kInstead);
}

}  // namespace

std::string name_for_llama_cpp(std::string name, const std::vector<std::string>& tokens) {
  const auto has = [&](std::string_view token) { return std::ranges::find(tokens, token) != tokens.end(); };
  if (has("</s>") && has("<unk>") && has("<s>") && has("<|endoftext|>")) return name;
  std::string lower = name;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const std::string_view word : {"phi-3", "phi3"})
    for (size_t at = lower.find(word); at != lower.npos; at = lower.find(word))
      for (std::string* const text : {&name, &lower}) text->replace(at + word.size() - 1, 0, " ");
  return name;
}

GgufTokenizer gguf_tokenizer(const TokenizerDefinition& definition, int64_t vocab_size, const json& token_ids,
                             const std::string& chat_template) {
  GgufTokenizer made{.fields = {}, .notices = notices_of(definition)};
  const auto add = [&](const char* key, GgufValue value) {
    made.fields.push_back({std::string("tokenizer.") + key, std::move(value)});
  };
  add("ggml.model", std::string(definition.byte_level ? "gpt2" : "llama"));
  add("ggml.pre", definition.byte_level ? llama_cpp_pre_tokenizer(definition) : std::string("default"));
  TokenList tokens = tokens_of(definition, vocab_size);
  add("ggml.tokens", std::move(tokens.texts));
  add("ggml.token_type", std::move(tokens.types));
  if (definition.byte_level) {
    add("ggml.merges", merges_of(definition));
  } else {
    check_characters(definition);
    add("ggml.scores", llama_cpp_scores(definition, vocab_size));
    add("ggml.add_space_prefix", adds_blank(definition));
    if (definition.unknown >= 0) add("ggml.unknown_token_id", static_cast<uint32_t>(definition.unknown));
  }
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
