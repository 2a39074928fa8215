#include "data/tokenizers/json_node.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/tokenizers/token_ids.h"
#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/text.h"

namespace tessera {

using nlohmann::json;

bool is_token_id(const json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{kMostTokenIds};
}

JsonNode::JsonNode(const json& value, std::string where, const char* separator)
    : value_(value), where_(std::move(where)), separator_(separator) {}

void JsonNode::refuse(std::string_view expected) const {
  fail("{} must be {}, found {}", where_, expected, brief(value_));
}

const JsonNode& JsonNode::with_keys(std::initializer_list<std::string_view> known) const {
  if (!value_.is_object()) refuse("an object");
  for (const auto& [key, value] : value_.items())
    if (std::ranges::find(known, key) == known.end())
      fail("{}{}{} is {}, and the key is not known; expected {}", where_, separator_, key, brief(value),
           join_words({known.begin(), known.end()}));
  return *this;
}

bool JsonNode::has(const std::string& key) const {
  const auto found = value_.find(key);
  return found != value_.end() && !found->is_null();
}

JsonNode JsonNode::at(const std::string& key) const {
  if (!value_.is_object() || !value_.contains(key))
    fail("{} has no \"{}\"; found {}", where_, key, brief(value_));
  return {value_.at(key), where_ + separator_ + key};
}

std::vector<JsonNode> JsonNode::items() const {
  if (!value_.is_array()) refuse("a list");
  std::vector<JsonNode> nodes;
  for (size_t i = 0; i < value_.size(); ++i) nodes.emplace_back(value_[i], fmt::format("{}[{}]", where_, i));
  return nodes;
}

const std::string& JsonNode::text() const {
  if (!value_.is_string()) refuse("a text");
  return value_.get_ref<const std::string&>();
}

bool JsonNode::flag(const std::string& key, bool absent) const {
  if (!has(key)) return absent;
  if (!value_.at(key).is_boolean()) at(key).refuse("true or false");
  return value_.at(key).get<bool>();
}

int32_t JsonNode::id() const {
  if (!is_token_id(value_)) refuse(fmt::format("an id, 0 to {}", kMostTokenIds - 1));
  return value_.get<int32_t>();
}

void JsonNode::must_be(const std::string& key, std::initializer_list<json> harmless) const {
  if (!has(key) || std::ranges::find(harmless, value_.at(key)) != harmless.end()) return;
  std::string expected = "null";
  for (const json& value : harmless) expected += " or " + value.dump();
  at(key).refuse(expected);
}

}  // namespace tessera
