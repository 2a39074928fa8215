#include "model/formats/field_values.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"

namespace tessera {

using nlohmann::json;

namespace {

constexpr int64_t kMost = 1'000'000'000;  // those of kSizeLimits are narrower

// Whether a shell takes it as it is
bool is_plain(std::string_view name) {
  return std::ranges::all_of(
      name, [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.' || c == '-'; });
}

}  // namespace

const json* Fields::find(std::string_view field, const char* synonym) const {
  const auto own = object.find(field);
  const json* found = own == object.end() ? nullptr : &*own;
  if (!synonym || !object.contains(synonym)) return found;
  const json& other = object[synonym];
  if (found && other.is_null()) return found;
  check(!found || found->is_null() || *found == other,
        "{}: {} is {} and {} is {}, but both name the same setting", file, name_of(field),
        brief(found ? *found : other), name_of(synonym), brief(other));
  return &other;
}

const json* Fields::find_value(std::string_view field, const char* synonym) const {
  const json* found = find(field, synonym);
  return found && !found->is_null() ? found : nullptr;
}

bool Fields::ignores(std::string_view field) const {
  return std::ranges::find(ignored, name_of(field)) != ignored.end();
}

void Fields::check_ignored(std::string_view field) const {
  const std::string name = name_of(field);
  check(ignores(field),
        "{}: the field {} is unknown and may change the model. If it does not: --ignore-field {}, which a "
        "configuration keeps as train.ignore_fields",
        file, brief(json(name)), is_plain(name) ? name : brief(json(name)));
}

void Fields::check_not_ignored(std::string_view field) const {
  check(!ignores(field),
        "{}: --ignore-field {} (train.ignore_fields): the field is known, so it is not ignored; only unknown "
        "ones are. Remove it there",
        file, name_of(field));
}

void Fields::read(std::string_view field, const json& value, int64_t& out) const {
  const std::string name = name_of(field);
  out = whole_number(json::object({{name, value}}), name, file, 1, kMost);
}

void Fields::read(std::string_view field, const json& value, bool& out) const {
  check(value.is_boolean(), "{}: \"{}\" must be true or false, found {}", file, name_of(field), brief(value));
  out = value.get<bool>();
}

void Fields::read(std::string_view field, const json& value, float& out) const {
  check(value.is_number() && value.get<double>() > 0 && value.get<double>() <= 1,
        "{}: \"{}\" must be a number above 0 and at most 1, found {}", file, name_of(field), brief(value));
  out = static_cast<float>(value.get<double>());
}

void Fields::read(std::string_view field, const json& value, double& out) const {
  check(value.is_number() && value.get<double>() > 0 && std::isfinite(value.get<double>()),
        "{}: \"{}\" must be a number above 0, found {}", file, name_of(field), brief(value));
  out = value.get<double>();
}

template <class E>
void Fields::read_word(std::string_view field, const json& value, std::span<const Word<E>> words,
                       E& out) const {
  std::string known;
  for (const auto& [word, named] : words) {
    if (value == json(word)) {
      out = named;
      return;
    }
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", word);
  }
  fail("{}: \"{}\" must be one of {}, found {}", file, name_of(field), known, brief(value));
}

void Fields::read(std::string_view field, const json& value, std::span<const MlpWord> words, Mlp& out) const {
  read_word(field, value, words, out);
}

void Fields::read(std::string_view field, const json& value, NormPlace& out) const {
  constexpr auto words = words_of(NormPlace{});
  read_word<NormPlace>(field, value, words, out);
}

void Fields::read(std::string_view field, const json& value, QkNorm& out) const {
  constexpr auto words = words_of(QkNorm{});
  read_word<QkNorm>(field, value.is_boolean() ? json(value.dump()) : value, words, out);
}

void Fields::read(std::string_view field, const json& value, Router& out) const {
  constexpr auto words = words_of(Router{});
  read_word<Router>(field, value, words, out);
}

json field_value(Router value) { return name_of(value); }
json field_value(QkNorm value) {
  if (value == QkNorm::kAllHeads) return name_of(value);
  return value == QkNorm::kHeads;
}
void Fields::read(std::string_view field, const json& value, std::vector<double>& out) const {
  check(value.is_array() && !value.empty(), "{}: \"{}\" must be a list of numbers, found {}", file,
        name_of(field), brief(value));
  out.assign(value.size(), 0);
  for (size_t i = 0; i < value.size(); ++i) read(fmt::format("{}[{}]", field, i), value[i], out[i]);
}

void Fields::read(std::string_view field, const json& value, std::vector<int64_t>& out) const {
  check(value.is_array(), "{}: \"{}\" must be a list of numbers of layers, found {}", file, name_of(field),
        brief(value));
  out.clear();
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string name = name_of(fmt::format("{}[{}]", field, i));
    out.push_back(whole_number(json::object({{name, value[i]}}), name, file, 0, kMost));
  }
  std::ranges::sort(out);
}

json field_value(const std::vector<int64_t>& values) { return values; }
json field_value(const std::vector<double>& values) { return values; }
json field_value(NormPlace value) { return name_of(value); }
json field_value(int64_t value) { return value; }
json field_value(bool value) { return value; }
json field_value(float value) {  // the shortest that reads back to the same float: 1e-05, not 9.999999747e-06
  return json::parse(fmt::format("{}", value));
}
json field_value(double value) { return value; }
json field_value(Mlp value, std::span<const MlpWord> words) {
  for (const auto& [word, mlp] : words)
    if (mlp == value) return word;
  fail("a config.json has no word for the MLP {}", name_of(value));
}

}  // namespace tessera
