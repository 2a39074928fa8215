// Reads values of config.json, checking their type and range, and writes them.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "model/formats/family.h"

namespace tessera {

// The fields of one JSON object of config.json
struct Fields {
  nlohmann::json object;
  std::string file;       // for messages
  std::string lead = "";  // what the names begin with in messages: "rope_scaling."
  std::vector<std::string> ignored =
      {};  // unknown fields that change nothing, as a user says; their names include the lead

  // The value of a field or of its synonym; null: neither is there. Error: both have a value, and the values
  // differ.
  const nlohmann::json* find(std::string_view field, const char* synonym = nullptr) const;
  // The same, but null if the value is a JSON null
  const nlohmann::json* find_value(std::string_view field, const char* synonym = nullptr) const;

  // Error: the value has another type, or is out of range
  void read(std::string_view field, const nlohmann::json& value, int64_t& out) const;  // from 1
  void read(std::string_view field, const nlohmann::json& value, bool& out) const;
  void read(std::string_view field, const nlohmann::json& value, float& out) const;   // above 0, at most 1
  void read(std::string_view field, const nlohmann::json& value, double& out) const;  // above 0
  void read(std::string_view field, const nlohmann::json& value, std::span<const MlpWord> words,
            Mlp& out) const;
  void read(std::string_view field, const nlohmann::json& value, NormPlace& out) const;
  void read(std::string_view field, const nlohmann::json& value, QkNorm& out) const;  // or true, or false
  void read(std::string_view field, const nlohmann::json& value, Router& out) const;
  void read(std::string_view field, const nlohmann::json& value, std::vector<double>& out) const;  // above 0
  void read(std::string_view field, const nlohmann::json& value,
            std::vector<int64_t>& out) const;  // from 0, rising
  std::string name_of(std::string_view field) const { return lead + std::string(field); }
  // The fields of an object that is the value of the field `name`
  Fields within(std::string_view name, nlohmann::json fields) const {
    return {.object = std::move(fields), .file = file, .lead = std::string(name) + ".", .ignored = ignored};
  }

  bool ignores(std::string_view field) const;
  // Called for a field that no reader knows. Error: it is not ignored
  void check_ignored(std::string_view field) const;
  // Called for a known field. Error: it is ignored
  void check_not_ignored(std::string_view field) const;

 private:
  template <class E>
  void read_word(std::string_view field, const nlohmann::json& value, std::span<const Word<E>> words,
                 E& out) const;
};

nlohmann::json field_value(int64_t value);
nlohmann::json field_value(bool value);
nlohmann::json field_value(float value);
nlohmann::json field_value(double value);
nlohmann::json field_value(NormPlace value);
nlohmann::json field_value(QkNorm value);
nlohmann::json field_value(Router value);
nlohmann::json field_value(const std::vector<double>& values);
nlohmann::json field_value(const std::vector<int64_t>& values);
nlohmann::json field_value(Mlp value, std::span<const MlpWord> words);

}  // namespace tessera
