#include "data/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/json_node.h"
#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

using nlohmann::json;

// Calls `read` with the type and the node of each part of a normalizer, pre_tokenizer or other, in a
// Sequence or alone.
template <class Read>
void for_each_part(const JsonNode& node, const char* list, const Read& read) {
  if (node.value().is_null()) return;
  const std::string type = node.at("type").text();
  if (type != "Sequence") return read(type, node);
  node.with_keys({"type", list});
  for (const JsonNode& part : node.at(list).items()) for_each_part(part, list, read);
}

// {"Regex": ...} or {"String": ...}
std::pair<std::string, bool> read_pattern(const JsonNode& part) {
  const JsonNode pattern = part.at("pattern").with_keys({"Regex", "String"});
  const bool literal = pattern.has("String");
  const std::string& text = pattern.at(literal ? "String" : "Regex").text();
  if (text.empty() || pattern.value().size() != 1) pattern.refuse("one \"Regex\" or \"String\" with a text");
  return {text, literal};
}

TextChange read_replace(const JsonNode& part) {
  part.with_keys({"type", "pattern", "content"});
  const auto [pattern, literal] = read_pattern(part);
  return {.pattern = pattern, .content = part.at("content").text(), .literal = literal};
}

constexpr int64_t kMostChanges = 1000;  // each reads the whole text

void read_normalizer(const JsonNode& node, TokenizerDefinition& definition) {
  for_each_part(node, "normalizers", [&](const std::string& type, const JsonNode& part) {
    if (std::ssize(definition.changes) == kMostChanges)
      part.refuse(fmt::format("among the first {} of Replace and Prepend", kMostChanges));
    if (type == "Replace") {
      definition.changes.push_back(read_replace(part));
    } else if (type == "Prepend") {
      part.with_keys({"type", "prepend"});
      definition.changes.push_back({.pattern = "", .content = part.at("prepend").text()});
      if (definition.changes.back().content.empty()) part.at("prepend").refuse("a text that is not empty");
    } else if (type == "NFC" || type == "NFKC") {
      part.with_keys({"type"});
      if (!definition.changes.empty()) part.refuse("before Replace and Prepend");
      // A text in NFKC is in NFC as well, and NFC before it changes nothing.
      if (definition.form != NormalForm::kNfkc)
        definition.form = type == "NFC" ? NormalForm::kNfc : NormalForm::kNfkc;
    } else {
      part.at("type").refuse("\"NFC\", \"NFKC\", \"Replace\", \"Prepend\" or \"Sequence\"");
    }
  });
}

SplitBehavior read_behavior(const JsonNode& node) {
  const auto behavior = from_word<SplitBehavior>(node.text());
  if (!behavior) node.refuse(join_words(names_of<SplitBehavior>(values_with_words<SplitBehavior>())));
  return *behavior;
}

SplitRule read_split(const JsonNode& part) {
  part.with_keys({"type", "pattern", "behavior", "invert"});
  const auto [pattern, literal] = read_pattern(part);
  return {.pattern = pattern,
          .behavior = read_behavior(part.at("behavior")),
          .literal = literal,
          .invert = part.flag("invert", false)};
}

// A part other than ByteLevel and Metaspace
SplitRule read_rule(const std::string& type, const JsonNode& part) {
  if (type == "Split") return read_split(part);
  if (type == "Digits") {
    part.with_keys({"type", "individual_digits"});
    const bool individual = part.flag("individual_digits", false);
    return {.pattern = kDigitPattern,
            .behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous};
  }
  if (type == "Punctuation") {
    part.with_keys({"type", "behavior"});
    return {.pattern = kPunctuationPattern,
            .behavior = part.has("behavior") ? read_behavior(part.at("behavior")) : SplitBehavior::kIsolated};
  }
  part.at("type").refuse(
      "\"Split\", \"Digits\", \"Punctuation\", \"ByteLevel\", \"Metaspace\" or \"Sequence\"");
}

// Of a Metaspace that splits texts or decodes tokens
Metaspace read_metaspace(const JsonNode& part) {
  part.with_keys({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  Metaspace made{.replacement = part.at("replacement").text(), .split = part.flag("split", true)};
  const auto character = first_code_point(made.replacement);
  if (!character || character->bytes != made.replacement.size() || character->code == ' ')
    part.at("replacement").refuse("one character other than a blank");
  if (part.has("prepend_scheme")) {
    const auto scheme = from_word<PrependScheme>(part.at("prepend_scheme").text());
    if (!scheme)
      part.at("prepend_scheme")
          .refuse(join_words(names_of<PrependScheme>(values_with_words<PrependScheme>())));
    made.prepend = *scheme;
  }
  // An older way to say "never", in which the library itself refuses other words.
  if (!part.flag("add_prefix_space", true)) made.prepend = PrependScheme::kNever;
  return made;
}

void read_pre_tokenizer(const JsonNode& node, TokenizerDefinition& definition) {
  definition.byte_level = false;
  bool is_late = false;  // ByteLevel makes characters of bytes, which is what the parts after it split
  for_each_part(node, "pretokenizers", [&](const std::string& type, const JsonNode& part) {
    if (type != "ByteLevel" && type != "Metaspace") {
      (is_late ? definition.late_splits : definition.splits).push_back(read_rule(type, part));
      return;
    }
    if (std::exchange(is_late, true)) part.refuse("one ByteLevel, or one Metaspace");
    if (type == "Metaspace") {
      definition.metaspace = read_metaspace(part);
      return;
    }
    definition.byte_level = true;
    part.with_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    definition.prefix_blank = part.flag("add_prefix_space", true);
    if (definition.prefix_blank && !definition.splits.empty())
      part.at("add_prefix_space").refuse("false after other parts");
    if (part.flag("use_regex", true)) definition.splits.push_back({.pattern = kGpt2Pattern});
  });
}

std::vector<int32_t> template_ids(const JsonNode& post_processor, const std::string& token) {
  std::vector<int32_t> ids;
  const JsonNode special = post_processor.at("special_tokens").at(token).with_keys({"id", "ids", "tokens"});
  for (const JsonNode& id : special.at("ids").items()) ids.push_back(id.id());
  return ids;
}

void read_post_processor(const JsonNode& node, TokenizerDefinition& definition) {
  bool has_template = false;
  for_each_part(node, "processors", [&](const std::string& type, const JsonNode& part) {
    if (type == "ByteLevel") {  // concerns where tokens are in the text, not which they are
      part.with_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    } else if (type == "TemplateProcessing") {
      part.with_keys({"type", "single", "pair", "special_tokens"});
      if (std::exchange(has_template, true)) part.refuse("one template");
      bool has_text = false;
      for (const JsonNode& item : part.at("single").items()) {
        item.with_keys({"Sequence", "SpecialToken"});
        if (item.has("SpecialToken")) {
          auto& side = has_text ? definition.after : definition.before;
          const JsonNode token = item.at("SpecialToken").with_keys({"id", "type_id"});
          for (const int32_t id : template_ids(part, token.at("id").text())) side.push_back(id);
        } else if (item.at("Sequence").at("id").value() != "A" || std::exchange(has_text, true)) {
          item.refuse("the text, {\"Sequence\":{\"id\":\"A\"}}, once");
        }
      }
      if (!has_text) part.at("single").refuse("a list with {\"Sequence\":{\"id\":\"A\"}}");
    } else {
      part.at("type").refuse("\"ByteLevel\", \"TemplateProcessing\" or \"Sequence\"");
    }
  });
}

void read_byte_decoder(const JsonNode& node) {
  for_each_part(node, "decoders", [&](const std::string& type, const JsonNode& part) {
    if (type != "ByteLevel") part.at("type").refuse("\"ByteLevel\" or \"Sequence\"");
    part.with_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  });
}

// Replace works on each token, and so must come before Fuse, Strip on the whole text, and so after it.
void read_character_decoder(const JsonNode& node, CharacterDecoder& decoder) {
  constexpr const char* kOrder = "Replace..., ByteFallback, Fuse, Strip, in this order, or Metaspace";
  enum Step { kReplace, kBytes, kFuse, kEnd };
  Step done = kReplace;
  bool has_parts = false;
  for_each_part(node, "decoders", [&](const std::string& type, const JsonNode& part) {
    const auto step_to = [&](Step step) {
      if (step < done || (step == done && step != kReplace)) part.refuse(kOrder);
      done = step;
    };
    has_parts = true;
    if (type == "Replace") {
      step_to(kReplace);
      decoder.changes.push_back(read_replace(part));
    } else if (type == "ByteFallback") {
      part.with_keys({"type"});
      step_to(kBytes);
      decoder.bytes = true;
    } else if (type == "Fuse") {
      part.with_keys({"type"});
      step_to(kFuse);
    } else if (type == "Strip") {
      part.with_keys({"type", "content", "start", "stop"});
      if (done != kFuse) part.refuse(kOrder);
      step_to(kEnd);
      const std::string& content = part.at("content").text();
      if (content.size() != 1) part.at("content").refuse("one character of ASCII");
      decoder.strip = content[0];
      decoder.strip_start = part.at("start").id();
      decoder.strip_stop = part.at("stop").id();
    } else if (type == "Metaspace") {
      const Metaspace metaspace = read_metaspace(part);
      if (done > kBytes || !decoder.changes.empty()) part.refuse(kOrder);
      done = kFuse;
      decoder.changes.push_back({.pattern = metaspace.replacement, .content = " "});
      if (metaspace.prepend != PrependScheme::kNever) decoder.dropped_from_first = metaspace.replacement;
    } else {
      part.at("type").refuse(
          "\"Replace\", \"ByteFallback\", \"Fuse\", \"Strip\", \"Metaspace\" or \"Sequence\" without a "
          "pre_tokenizer ByteLevel");
    }
  });
  if (!has_parts) node.refuse(std::string(kOrder) + ", without a pre_tokenizer ByteLevel");
}

// The vocabulary and the merges are most of a file. They are taken as the parser reads them, and examined
// after all that is smaller: a file of another kind is refused for its kind.
class VocabularyReader {
 public:
  JsonPart part(std::string path) {
    return {.path = std::move(path), .on_item = [this](const std::string& token, const json& id) {
              const bool known = is_token_id(id);
              if (!known && !refused_) refused_ = {token, id};
              return ids_.add(token, known ? id.get<int32_t>() : 0);
            }};
  }

  // `node`: what parse_json left of it
  TokenIds finish(const JsonNode& node) {
    const std::string& where = node.where();
    if (!node.value().is_object()) node.refuse("an object of tokens and their ids");
    check(!ids_.empty(), "{} is empty", where);
    if (refused_)
      JsonNode(refused_->second, fmt::format("{}[{}]", where, in_quotes(refused_->first))).id();  // fails
    std::vector<int64_t> owner;  // number of the token, by id; -1: none
    for (size_t i = 0; i < ids_.size(); ++i) {
      const auto [token, id] = ids_[i];
      if (static_cast<size_t>(id) >= owner.size())
        owner.resize(std::max(static_cast<size_t>(id) + 1, 2 * owner.size()), -1);
      int64_t& of_id = owner[static_cast<size_t>(id)];
      if (of_id >= 0)
        fail("{}: the tokens {} and {} have the same id, {}", where,
             in_quotes(ids_[static_cast<size_t>(of_id)].token), in_quotes(token), id);
      of_id = static_cast<int64_t>(i);
    }
    return std::move(ids_);
  }

 private:
  TokenIds ids_;
  std::optional<std::pair<std::string, json>> refused_;  // the first member that is no id
};

class MergesReader {
 public:
  JsonPart part(std::string path) {
    return {
        .path = std::move(path), .is_list = true, .on_item = [this](const std::string&, const json& item) {
          if (!add(item) && !refused_) refused_ = {merges_.size(), item};
          return true;
        }};
  }

  // `node`: what parse_json left of them
  std::vector<Merge> finish(const JsonNode& node, const TokenIds& ids) const {
    if (!node.value().is_array()) node.refuse("a list");
    size_t i = 0;
    const std::function<std::string()> where = [&] { return fmt::format("{}[{}]", node.where(), i); };
    std::vector<Merge> merges;
    merges.reserve(merges_.size());
    const std::string_view texts(texts_);
    for (; i < merges_.size() && (!refused_ || i < refused_->first); ++i) {
      const auto [first, left, right] = merges_[i];
      merges.push_back(merge_of(ids, texts.substr(first, left), texts.substr(first + left, right), where));
    }
    if (refused_) JsonNode(refused_->second, where()).refuse("a pair of tokens: [\"a\", \"b\"] or \"a b\"");
    return merges;
  }

 private:
  struct Stored {
    size_t first;        // byte of texts_
    size_t left, right;  // bytes
  };

  bool add(const json& item) {
    if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      add(item[0].get_ref<const std::string&>(), item[1].get_ref<const std::string&>());
      return true;
    }
    const std::string_view text = item.is_string() ? item.get_ref<const std::string&>() : std::string_view();
    const size_t blank = text.find(' ');
    if (blank == text.npos || text.find(' ', blank + 1) != text.npos) return false;
    add(text.substr(0, blank), text.substr(blank + 1));
    return true;
  }
  void add(std::string_view left, std::string_view right) {
    merges_.push_back({texts_.size(), left.size(), right.size()});
    texts_ += left;
    texts_ += right;
  }

  std::string texts_;  // of the tokens, one after another
  std::vector<Stored> merges_;
  std::optional<std::pair<size_t, json>> refused_;  // the first item that is no merge, and its number
};

void read_model(const JsonNode& model, VocabularyReader& vocabulary, const MergesReader& merges,
                TokenizerDefinition& definition) {
  model.with_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                   "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model.has("type") && model.at("type").value() != "BPE") model.at("type").refuse("\"BPE\"");
  model.must_be("dropout", {0.0});
  model.must_be("continuing_subword_prefix", {""});
  model.must_be("end_of_word_suffix", {""});
  definition.ignore_merges = model.flag("ignore_merges", false);
  const JsonNode tokens = model.at("vocab");
  const TokenIds ids = vocabulary.finish(tokens);
  set_tokens(definition, ids, tokens.where());
  definition.merges = merges.finish(model.at("merges"), ids);
  int bytes = 0;
  if (definition.byte_level) {
    // What is done with characters without a token does not matter where every byte has one.
    for (const std::string& token : definition.tokens) bytes += token.size() == 1;
    if (bytes == 256) return;
    model.must_be("byte_fallback", {false});
    model.must_be("unk_token", {});
    return;
  }
  definition.byte_fallback = model.flag("byte_fallback", false);
  for (const std::string& token : definition.tokens) bytes += byte_of_token(token).has_value();
  definition.fuse_unknown = model.flag("fuse_unk", false);
  if (!model.has("unk_token")) return;
  definition.unknown = ids.find(model.at("unk_token").text());
  const bool is_needed = !definition.byte_fallback || bytes < 256;
  if (definition.unknown < 0 && is_needed) model.at("unk_token").refuse("a token of the vocabulary");
}

void check_ids(const TokenizerDefinition& definition, const std::string& name) {
  std::set<std::string_view> contents;
  for (const AddedToken& token : definition.added)
    check(contents.insert(token.content).second, "{}: added_tokens has {} twice", name,
          in_quotes(token.content));
  for (size_t i = 1; i < definition.added.size(); ++i)
    check(definition.added[i - 1].id != definition.added[i].id,
          "{}: the added tokens {} and {} have the same id, {}", name,
          in_quotes(definition.added[i - 1].content), in_quotes(definition.added[i].content),
          definition.added[i].id);
  for (const auto& side : {definition.before, definition.after})
    for (const int32_t id : side)
      check(has_token(definition, id), "{}: the template has the id {}, which is no token's", name, id);
}

}  // namespace

AddedToken read_added_token(const json& token, int32_t id, const std::string& where) {
  const JsonNode node(token, where);
  node.with_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken added{.id = id, .content = node.at("content").text(), .special = node.flag("special", false)};
  if (added.content.empty()) node.at("content").refuse("a text that is not empty");
  added.normalized = node.flag("normalized", !added.special);
  added.single_word = node.flag("single_word", false);
  added.strip_left = node.flag("lstrip", false);
  added.strip_right = node.flag("rstrip", false);
  return added;
}

TokenIds read_vocabulary(std::string_view text, const std::string& name) {
  VocabularyReader reader;
  const JsonPart part = reader.part("");
  return reader.finish({parse_json(text, name, {}, {&part, 1}), name});
}

void set_tokens(TokenizerDefinition& definition, const TokenIds& ids, const std::string& where) {
  std::set<std::string_view> added;
  for (const AddedToken& token : definition.added) {
    added.insert(token.content);
    const int32_t id = ids.find(token.content);
    check(id < 0 || id == token.id, "{} gives {} the id {}, and the list of added tokens the id {}", where,
          in_quotes(token.content), id, token.id);
  }
  int32_t largest = 0;
  for (size_t i = 0; i < ids.size(); ++i) largest = std::max(largest, ids[i].id);
  definition.tokens.resize(static_cast<size_t>(largest) + 1);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto [token, id] = ids[i];
    auto bytes = definition.byte_level ? from_byte_alphabet(token) : std::optional(std::string(token));
    if (bytes && !bytes->empty())
      definition.tokens[static_cast<size_t>(id)] = std::move(*bytes);
    else if (!added.contains(token))
      definition.unreachable.push_back({id, std::string(token)});
  }
  std::ranges::sort(definition.unreachable, {}, &UnreachableToken::id);
  for (const AddedToken& token : definition.added) {
    const auto id = static_cast<size_t>(token.id);
    const bool is_taken =
        (id < definition.tokens.size() && !definition.tokens[id].empty()) ||
        std::ranges::binary_search(definition.unreachable, token.id, {}, &UnreachableToken::id);
    check(ids.contains(token.content) || !is_taken,
          "{} has another token with the id {} of the added token {}", where, token.id,
          in_quotes(token.content));
  }
}

Merge merge_of(const TokenIds& ids, std::string_view left, std::string_view right,
               const std::function<std::string()>& where) {
  const auto id_of = [&](std::string_view token) {
    const int32_t id = ids.find(token);
    if (id < 0)
      fail("{} merges {} and {}, and {} is not in the vocabulary", where(), in_quotes(left), in_quotes(right),
           in_quotes(token));
    return id;
  };
  std::string both(left);
  both += right;
  return {.left = id_of(left), .right = id_of(right), .result = id_of(both)};
}

TokenizerDefinition read_tokenizer_json(std::string_view text, const std::string& name) {
  VocabularyReader vocabulary;
  MergesReader merges;
  const JsonPart large[]{vocabulary.part("model.vocab"), merges.part("model.merges")};
  const json parsed = parse_json(text, name, {}, large);
  const JsonNode file = JsonNode::file(parsed, name);
  file.with_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                  "post_processor", "decoder", "model"});
  const auto part = [&](const char* key) {
    static const json none;
    return file.has(key) ? file.at(key) : JsonNode(none, name + ": " + key);
  };
  file.must_be("version", {"1.0"});
  // "truncation" and "padding" are left by the last call of a program that saved the file. They are set anew
  // for each text, and never apply to data.
  TokenizerDefinition definition;
  if (file.has("added_tokens"))
    for (const JsonNode& token : part("added_tokens").items())
      definition.added.push_back(read_added_token(token.value(), token.at("id").id(), token.where()));
  std::ranges::sort(definition.added, {}, &AddedToken::id);
  read_normalizer(part("normalizer"), definition);
  read_pre_tokenizer(part("pre_tokenizer"), definition);
  read_post_processor(part("post_processor"), definition);
  if (definition.byte_level)
    read_byte_decoder(part("decoder"));
  else
    read_character_decoder(part("decoder"), definition.decoder);
  read_model(file.at("model"), vocabulary, merges, definition);
  check_ids(definition, name);
  return definition;
}

}  // namespace tessera
