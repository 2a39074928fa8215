// Writing a tokenizer.json
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>

#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/tokenizer_json.h"
#include "kernels/base/check.h"

namespace tessera {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

ordered_json byte_level(bool prefix_blank, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", prefix_blank},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

ordered_json pre_tokenizer_json(const TokenizerDefinition& definition) {
  ordered_json parts = ordered_json::array();
  const auto add = [&](const std::vector<SplitRule>& rules) {
    for (const SplitRule& rule : rules)
      parts.push_back({{"type", "Split"},
                       {"pattern", {{rule.literal ? "String" : "Regex", rule.pattern}}},
                       {"behavior", name_of(rule.behavior)},
                       {"invert", rule.invert}});
  };
  std::vector<SplitRule> splits = definition.splits;
  const bool use_regex = !splits.empty() && splits.back() == SplitRule{.pattern = kGpt2Pattern};
  if (use_regex) splits.pop_back();
  add(splits);
  parts.push_back(byte_level(definition.prefix_blank, use_regex));
  add(definition.late_splits);
  if (parts.size() == 1) return parts[0];
  return {{"type", "Sequence"}, {"pretokenizers", parts}};
}

const std::string& content_of(const TokenizerDefinition& definition, int32_t id, std::string& scratch) {
  for (const AddedToken& token : definition.added)
    if (token.id == id) return token.content;
  for (const UnreachableToken& token : definition.unreachable)
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

ordered_json added_tokens_json(std::span<const AddedToken> tokens) {
  ordered_json list = ordered_json::array();
  for (const AddedToken& token : tokens)
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"single_word", token.single_word},
                    {"lstrip", token.strip_left},
                    {"rstrip", token.strip_right},
                    {"normalized", token.normalized},
                    {"special", token.special}});
  return list;
}

std::string tokenizer_json(const TokenizerDefinition& definition) {
  check(definition.byte_level && definition.changes.empty(),
        "only byte-level tokenizers are written; others come with their tokenizer.json");
  const ordered_json added = added_tokens_json(definition.added);
  ordered_json vocabulary = ordered_json::object(), merges = ordered_json::array();
  std::string text = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null";
  const auto member = [&](const char* key, const ordered_json& value) {
    text += fmt::format(",\n  \"{}\": {}", key, value.dump());
  };
  member("added_tokens", added);
  member("normalizer", definition.form == NormalForm::kNone
                           ? ordered_json()
                           : ordered_json{{"type", name_of(definition.form)}});
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
  std::map<size_t, std::string_view> contents;  // that are not written in the byte alphabet
  for (const UnreachableToken& token : definition.unreachable)
    contents[static_cast<size_t>(token.id)] = token.content;
  for (const AddedToken& token : definition.added) contents[static_cast<size_t>(token.id)] = token.content;
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    const auto content = contents.find(id);
    if (definition.tokens[id].empty()) {
      // An added token that is written in the byte alphabet and has no bytes was not in the vocabulary.
      const bool is_unknown = content == contents.end();
      if (is_unknown || (!content->second.empty() && from_byte_alphabet(content->second))) continue;
    }
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
