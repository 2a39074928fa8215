#include "data/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <initializer_list>
#include <set>

#include "data/tokenizers/byte_alphabet.h"
#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

bool is_id(const json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{kMostTokenIds};
}

// A value within the file, and where it is.
class Node {
 public:
  Node(const json& value, std::string where, const char* separator = ".")
      : value_(value), where_(std::move(where)), separator_(separator) {}
  static Node file(const json& value, const std::string& name) { return {value, name, ": "}; }

  const json& value() const { return value_; }
  const std::string& where() const { return where_; }

  [[noreturn]] void refuse(std::string_view wanted) const {
    fail("{} is {}, which is not known; wanted {}", where_, brief(value_), wanted);
  }

  // An object that has no other keys.
  const Node& with_keys(std::initializer_list<std::string_view> known) const {
    if (!value_.is_object()) refuse("an object");
    for (const auto& [key, value] : value_.items())
      if (std::ranges::find(known, key) == known.end())
        Node(value, where_ + separator_ + key)
            .refuse("one of the keys " + join_words({known.begin(), known.end()}));
    return *this;
  }
  bool has(const std::string& key) const {
    const auto found = value_.find(key);
    return found != value_.end() && !found->is_null();
  }
  Node at(const std::string& key) const {
    if (!value_.is_object() || !value_.contains(key))
      fail("{} has no \"{}\"; found {}", where_, key, brief(value_));
    return {value_.at(key), where_ + separator_ + key};
  }
  std::vector<Node> items() const {
    if (!value_.is_array()) refuse("a list");
    std::vector<Node> nodes;
    for (size_t i = 0; i < value_.size(); ++i)
      nodes.emplace_back(value_[i], fmt::format("{}[{}]", where_, i));
    return nodes;
  }
  const std::string& text() const {
    if (!value_.is_string()) refuse("a text");
    return value_.get_ref<const std::string&>();
  }
  bool flag(const std::string& key, bool absent) const {
    if (!has(key)) return absent;
    if (!value_.at(key).is_boolean()) at(key).refuse("true or false");
    return value_.at(key).get<bool>();
  }
  int32_t id() const {
    if (!is_id(value_)) refuse(fmt::format("an id, 0 to {}", kMostTokenIds - 1));
    return value_.get<int32_t>();
  }
  // A setting that this program only knows at values that change nothing.
  void must_be(const std::string& key, std::initializer_list<json> harmless) const {
    if (!has(key) || std::ranges::find(harmless, value_.at(key)) != harmless.end()) return;
    std::string wanted = "null";
    for (const json& value : harmless) wanted += " or " + value.dump();
    at(key).refuse(wanted);
  }

 private:
  const json& value_;
  std::string where_;      // "tokenizer.json: model.merges[7]"
  const char* separator_;  // before the name of a part
};

// Calls `read` with the type and the node of each part of a normalizer, pre_tokenizer or other, in a
// Sequence or alone.
template <class Read>
void for_each_part(const Node& node, const char* list, const Read& read) {
  if (node.value().is_null()) return;
  const std::string type = node.at("type").text();
  if (type != "Sequence") return read(type, node);
  node.with_keys({"type", list});
  for (const Node& part : node.at(list).items()) for_each_part(part, list, read);
}

void read_normalizer(const Node& node, TokenizerDefinition& definition) {
  for_each_part(node, "normalizers", [&](const std::string& type, const Node& part) {
    part.with_keys({"type"});
    if (type != "NFC") part.at("type").refuse("\"NFC\" or \"Sequence\"");
    definition.compose = true;
  });
}

SplitRule read_split(const Node& part) {
  part.with_keys({"type", "pattern", "behavior", "invert"});
  const Node pattern = part.at("pattern").with_keys({"Regex", "String"});
  SplitRule rule{.pattern = "", .literal = pattern.has("String"), .invert = part.flag("invert", false)};
  rule.pattern = pattern.at(rule.literal ? "String" : "Regex").text();
  if (rule.pattern.empty() || pattern.value().size() != 1)
    pattern.refuse("one \"Regex\" or \"String\" with a text");
  const auto behavior = from_word<SplitBehavior>(part.at("behavior").text());
  if (!behavior)
    part.at("behavior").refuse(join_words(names_of<SplitBehavior>(values_with_words<SplitBehavior>())));
  rule.behavior = *behavior;
  return rule;
}

void read_pre_tokenizer(const Node& node, TokenizerDefinition& definition) {
  bool ended = false;  // ByteLevel makes characters of bytes, so it is last
  for_each_part(node, "pretokenizers", [&](const std::string& type, const Node& part) {
    if (ended) part.refuse("nothing after ByteLevel");
    if (type == "Split") {
      definition.splits.push_back(read_split(part));
    } else if (type == "Digits") {
      part.with_keys({"type", "individual_digits"});
      const bool individual = part.flag("individual_digits", false);
      definition.splits.push_back(
          {.pattern = kDigitPattern,
           .behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
    } else if (type == "ByteLevel") {
      part.with_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      ended = true;
      definition.prefix_blank = part.flag("add_prefix_space", true);
      if (definition.prefix_blank && !definition.splits.empty())
        part.at("add_prefix_space").refuse("false after other parts");
      if (part.flag("use_regex", true)) definition.splits.push_back({.pattern = kGpt2Pattern});
    } else {
      part.at("type").refuse("\"Split\", \"Digits\", \"ByteLevel\" or \"Sequence\"");
    }
  });
  if (!ended) node.refuse("a ByteLevel: this program reads byte-level BPE");
}

std::vector<int32_t> template_ids(const Node& post_processor, const std::string& token) {
  std::vector<int32_t> ids;
  const Node special = post_processor.at("special_tokens").at(token).with_keys({"id", "ids", "tokens"});
  for (const Node& id : special.at("ids").items()) ids.push_back(id.id());
  return ids;
}

void read_post_processor(const Node& node, TokenizerDefinition& definition) {
  bool has_template = false;
  for_each_part(node, "processors", [&](const std::string& type, const Node& part) {
    if (type == "ByteLevel") {  // concerns where tokens are in the text, not which they are
      part.with_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    } else if (type == "TemplateProcessing") {
      part.with_keys({"type", "single", "pair", "special_tokens"});
      if (std::exchange(has_template, true)) part.refuse("one template");
      bool has_text = false;
      for (const Node& item : part.at("single").items()) {
        item.with_keys({"Sequence", "SpecialToken"});
        if (item.has("SpecialToken")) {
          auto& side = has_text ? definition.after : definition.before;
          const Node token = item.at("SpecialToken").with_keys({"id", "type_id"});
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

void read_decoder(const Node& node) {
  for_each_part(node, "decoders", [&](const std::string& type, const Node& part) {
    if (type != "ByteLevel") part.at("type").refuse("\"ByteLevel\" or \"Sequence\"");
    part.with_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  });
}

void read_merges(const Node& list, const TokenIds& ids, TokenizerDefinition& definition) {
  for (const Node& merge : list.items()) {
    const json& value = merge.value();
    if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
      definition.merges.push_back(merge_of(ids, value[0].get_ref<const std::string&>(),
                                           value[1].get_ref<const std::string&>(), merge.where()));
      continue;
    }
    const std::string_view text = value.is_string() ? std::string_view(merge.text()) : "";
    const size_t blank = text.find(' ');
    if (blank == text.npos || text.find(' ', blank + 1) != text.npos)
      merge.refuse("a pair of tokens: [\"a\", \"b\"] or \"a b\"");
    definition.merges.push_back(merge_of(ids, text.substr(0, blank), text.substr(blank + 1), merge.where()));
  }
}

void read_model(const Node& model, TokenizerDefinition& definition) {
  model.with_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                   "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (model.has("type") && model.at("type").value() != "BPE") model.at("type").refuse("\"BPE\"");
  model.must_be("dropout", {0.0});
  model.must_be("continuing_subword_prefix", {""});
  model.must_be("end_of_word_suffix", {""});
  definition.ignore_merges = model.flag("ignore_merges", false);
  const Node vocabulary = model.at("vocab");
  const TokenIds ids = read_vocabulary(vocabulary.value(), vocabulary.where());
  set_tokens(definition, ids, vocabulary.where());
  read_merges(model.at("merges"), ids, definition);
  // What is done with characters without a token does not matter where every byte has one.
  int bytes = 0;
  for (const std::string& token : definition.tokens) bytes += token.size() == 1;
  if (bytes < 256) {
    model.must_be("byte_fallback", {false});
    model.must_be("unk_token", {});
  }
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
  const Node node(token, where);
  node.with_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken added{.id = id, .content = node.at("content").text(), .special = node.flag("special", false)};
  if (added.content.empty()) node.at("content").refuse("a text that is not empty");
  added.normalized = node.flag("normalized", !added.special);
  added.single_word = node.flag("single_word", false);
  added.strip_left = node.flag("lstrip", false);
  added.strip_right = node.flag("rstrip", false);
  return added;
}

TokenIds read_vocabulary(const json& vocabulary, const std::string& where) {
  if (!vocabulary.is_object()) Node(vocabulary, where).refuse("an object of tokens and their ids");
  check(!vocabulary.empty(), "{} is empty", where);
  TokenIds ids;
  std::map<int32_t, std::string_view> tokens;
  for (const auto& [token, id] : vocabulary.items()) {
    check(!token.empty(), "{} has the token \"\", which no text has", where);
    if (!is_id(id)) Node(id, fmt::format("{}[{}]", where, in_quotes(token))).id();  // fails
    const auto number = id.get<int32_t>();
    const auto at = ids.emplace(token, number).first;
    const auto [other, is_new] = tokens.emplace(number, at->first);
    if (!is_new)
      fail("{}: the tokens {} and {} have the same id, {}", where, in_quotes(other->second), in_quotes(token),
           number);
  }
  return ids;
}

void set_tokens(TokenizerDefinition& definition, const TokenIds& ids, const std::string& where) {
  std::map<std::string_view, int32_t> added;
  for (const AddedToken& token : definition.added) {
    added[token.content] = token.id;
    const auto found = ids.find(token.content);
    check(found == ids.end() || found->second == token.id,
          "{} gives {} the id {}, and the list of added tokens the id {}", where, in_quotes(token.content),
          found == ids.end() ? 0 : found->second, token.id);
  }
  int32_t largest = 0;
  for (const auto& [token, id] : ids) largest = std::max(largest, id);
  definition.tokens.resize(static_cast<size_t>(largest) + 1);
  for (const auto& [token, id] : ids) {
    const auto bytes = from_byte_alphabet(token);
    if (!bytes && !added.contains(token))
      fail(
          "{}: the token {} (id {}) has a character that is not in the byte alphabet, and is not among "
          "the added tokens; wanted byte-level BPE",
          where, in_quotes(token), id);
    if (bytes) definition.tokens[static_cast<size_t>(id)] = *bytes;
  }
  for (const AddedToken& token : definition.added) {
    const auto id = static_cast<size_t>(token.id);
    check(ids.contains(token.content) || id >= definition.tokens.size() || definition.tokens[id].empty(),
          "{} has another token with the id {} of the added token {}", where, token.id,
          in_quotes(token.content));
  }
}

Merge merge_of(const TokenIds& ids, std::string_view left, std::string_view right, const std::string& where) {
  const auto id_of = [&](std::string_view token) {
    const auto found = ids.find(token);
    if (found == ids.end())
      fail("{} merges {} and {}, and {} is not in the vocabulary", where, in_quotes(left), in_quotes(right),
           in_quotes(token));
    return found->second;
  };
  return {
      .left = id_of(left), .right = id_of(right), .result = id_of(std::string(left) + std::string(right))};
}

TokenizerDefinition read_tokenizer_json(std::string_view text, const std::string& name) {
  const json parsed = parse_json(text, name);
  const Node file = Node::file(parsed, name);
  file.with_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                  "post_processor", "decoder", "model"});
  const auto part = [&](const char* key) {
    static const json none;
    return file.has(key) ? file.at(key) : Node(none, name + ": " + key);
  };
  file.must_be("version", {"1.0"});
  // "truncation" and "padding" are left by the last call of a program that saved the file. They are set anew
  // for each text, and never apply to data.
  TokenizerDefinition definition;
  if (file.has("added_tokens"))
    for (const Node& token : part("added_tokens").items())
      definition.added.push_back(read_added_token(token.value(), token.at("id").id(), token.where()));
  std::ranges::sort(definition.added, {}, &AddedToken::id);
  read_normalizer(part("normalizer"), definition);
  read_pre_tokenizer(part("pre_tokenizer"), definition);
  read_post_processor(part("post_processor"), definition);
  read_decoder(part("decoder"));
  read_model(file.at("model"), definition);
  check_ids(definition, name);
  return definition;
}

namespace {

ordered_json byte_level(bool prefix_blank, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", prefix_blank},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

ordered_json pre_tokenizer_json(const TokenizerDefinition& definition) {
  ordered_json parts = ordered_json::array();
  std::vector<SplitRule> splits = definition.splits;
  const bool use_regex = !splits.empty() && splits.back() == SplitRule{.pattern = kGpt2Pattern};
  if (use_regex) splits.pop_back();
  for (const SplitRule& rule : splits)
    parts.push_back({{"type", "Split"},
                     {"pattern", {{rule.literal ? "String" : "Regex", rule.pattern}}},
                     {"behavior", name_of(rule.behavior)},
                     {"invert", rule.invert}});
  parts.push_back(byte_level(definition.prefix_blank, use_regex));
  if (parts.size() == 1) return parts[0];
  return {{"type", "Sequence"}, {"pretokenizers", parts}};
}

const std::string& content_of(const TokenizerDefinition& definition, int32_t id, std::string& scratch) {
  for (const AddedToken& token : definition.added)
    if (token.id == id) return token.content;
  return scratch = to_byte_alphabet(definition.tokens[static_cast<size_t>(id)]);
}

ordered_json post_processor_json(const TokenizerDefinition& definition) {
  if (definition.before.empty() && definition.after.empty()) return byte_level(true, true);
  ordered_json special = ordered_json::object();
  const auto side = [&](const std::vector<int32_t>& ids, ordered_json& items) {
    for (const int32_t id : ids) {
      std::string scratch;
      const std::string& content = content_of(definition, id, scratch);
      special[content] = {{"id", content}, {"ids", {id}}, {"tokens", {content}}};
      items.push_back({{"SpecialToken", {{"id", content}, {"type_id", 0}}}});
    }
  };
  const auto items_for = [&](std::initializer_list<const char*> texts) {
    ordered_json items = ordered_json::array();
    for (const char* text : texts) {
      side(definition.before, items);
      items.push_back({{"Sequence", {{"id", text}, {"type_id", 0}}}});
      side(definition.after, items);
    }
    return items;
  };
  const ordered_json single = items_for({"A"}), pair = items_for({"A", "B"});
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

}  // namespace

std::string tokenizer_json(const TokenizerDefinition& definition) {
  ordered_json added = ordered_json::array(), vocabulary = ordered_json::object(),
               merges = ordered_json::array();
  for (const AddedToken& token : definition.added)
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.strip_left},
                     {"rstrip", token.strip_right},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  std::string text = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null";
  const auto member = [&](const char* key, const ordered_json& value) {
    text += fmt::format(",\n  \"{}\": {}", key, value.dump());
  };
  member("added_tokens", added);
  member("normalizer", definition.compose ? ordered_json{{"type", "NFC"}} : ordered_json());
  member("pre_tokenizer", pre_tokenizer_json(definition));
  member("post_processor", post_processor_json(definition));
  member("decoder", byte_level(true, true));
  // One token and one merge a line. An object of nlohmann's that keeps its order is slow to add to.
  text +=
      ",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
      "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": "
      "false,\n"
      "    \"byte_fallback\": false,\n";
  text += fmt::format("    \"ignore_merges\": {},\n    \"vocab\": {{", definition.ignore_merges);
  std::vector<std::string> names(definition.tokens.size());
  bool first = true;
  std::map<size_t, std::string_view> contents;  // of added tokens
  for (const AddedToken& token : definition.added) contents[static_cast<size_t>(token.id)] = token.content;
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    const auto content = contents.find(id);
    if (definition.tokens[id].empty() && content == contents.end()) continue;
    names[id] = json(content != contents.end() ? std::string(content->second)
                                               : to_byte_alphabet(definition.tokens[id]))
                    .dump();
    text += fmt::format("{}\n      {}: {}", first ? "" : ",", names[id], id);
    first = false;
  }
  text += "\n    },\n    \"merges\": [";
  for (size_t i = 0; i < definition.merges.size(); ++i)
    text += fmt::format("{}\n      [{}, {}]", i == 0 ? "" : ",",
                        names[static_cast<size_t>(definition.merges[i].left)],
                        names[static_cast<size_t>(definition.merges[i].right)]);
  return text + (definition.merges.empty() ? "]\n  }\n}\n" : "\n    ]\n  }\n}\n");
}

}  // namespace tessera
