#include <nlohmann/json.hpp>

#include "data/chat/value.h"
#include "kernels/base/check.h"

namespace tessera::jinja {
namespace {

using nlohmann::ordered_json;

// Makes what the events of a JSON text say, with the digits of large integers as bytes: JSON has no such
// type.
class ExactBuilder : public nlohmann::json_sax<ordered_json> {
 public:
  bool null() override { return add(nullptr); }
  bool boolean(bool truth) override { return add(truth); }
  bool number_integer(number_integer_t number) override { return add(number); }
  bool number_unsigned(number_unsigned_t number) override { return add(number); }
  bool number_float(number_float_t number, const string_t& digits) override {
    if (digits.find_first_of(".eE") != digits.npos) return add(number);
    return add(ordered_json::binary({digits.begin(), digits.end()}));
  }
  bool string(string_t& text) override { return add(std::move(text)); }
  bool binary(binary_t& bytes) override { return add(ordered_json::binary(bytes)); }
  bool start_object(size_t) override { return open(ordered_json::object()); }
  bool start_array(size_t) override { return open(ordered_json::array()); }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    fail("{}", error.what());
  }

  ordered_json made;

 private:
  ordered_json& place(ordered_json value) {
    if (open_.empty()) return made = std::move(value);
    if (open_.back()->is_object()) return (*open_.back())[key_] = std::move(value);
    open_.back()->push_back(std::move(value));
    return open_.back()->back();
  }
  bool add(ordered_json value) {
    place(std::move(value));
    return true;
  }
  bool open(ordered_json value) {
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<ordered_json*> open_;
  std::string key_;
};

}  // namespace

ordered_json parse_json_exactly(std::string_view text) {
  ExactBuilder builder;
  ordered_json::sax_parse(text, &builder);
  return std::move(builder.made);
}

Value value_of(const ordered_json& json, Origin origin) {
  switch (json.type()) {
    case ordered_json::value_t::string:
      return Text(json.get<std::string>(), origin);
    case ordered_json::value_t::boolean:
      return json.get<bool>();
    case ordered_json::value_t::number_integer:
      return json.get<int64_t>();
    case ordered_json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
        return BigInteger{fmt::format("{}", json.get<uint64_t>())};
      return json.get<int64_t>();
    case ordered_json::value_t::number_float:
      return json.get<double>();
    case ordered_json::value_t::binary:
      return BigInteger{std::string(json.get_binary().begin(), json.get_binary().end())};
    case ordered_json::value_t::array: {
      List list;
      for (const auto& one : json) list.push_back(value_of(one, origin));
      return list;
    }
    case ordered_json::value_t::object: {
      Dict dict;
      for (const auto& [key, one] : json.items()) dict.emplace_back(Text(key, origin), value_of(one, origin));
      return dict;
    }
    default:
      return {};
  }
}

}  // namespace tessera::jinja
