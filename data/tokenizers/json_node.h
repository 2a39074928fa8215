// A value within a JSON file of a tokenizer, which knows where in the file it is: what is refused is named.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

bool is_token_id(const nlohmann::json& value);

class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string where, const char* separator = ".");
  static JsonNode file(const nlohmann::json& value, const std::string& name) { return {value, name, ": "}; }

  const nlohmann::json& value() const { return value_; }
  const std::string& where() const { return where_; }

  [[noreturn]] void refuse(std::string_view expected) const;
  // An object that has no other keys
  const JsonNode& with_keys(std::initializer_list<std::string_view> known) const;
  bool has(const std::string& key) const;
  JsonNode at(const std::string& key) const;
  std::vector<JsonNode> items() const;
  const std::string& text() const;
  bool flag(const std::string& key, bool absent) const;
  int32_t id() const;
  // A setting that this program only knows at values that change nothing
  void must_be(const std::string& key, std::initializer_list<nlohmann::json> harmless) const;

 private:
  const nlohmann::json& value_;
  std::string where_;      // "tokenizer.json: model.merges[7]"
  const char* separator_;  // before the name of a part
};

}  // namespace tessera
