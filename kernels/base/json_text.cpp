#include "kernels/base/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/file.h"

namespace tessera {
namespace {

using nlohmann::json;

// An iterator that knows how far the parser has read
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** furthest;

  reference operator*() const { return *at; }
  Cursor& operator++() {
    *furthest = ++at;
    return *this;
  }
  bool operator==(const Cursor& other) const { return at == other.at; }
  bool operator!=(const Cursor& other) const { return at != other.at; }
};

// nlohmann's message without its error number and place, and with long tokens cut.
std::string reason_of(const json::exception& error) {
  constexpr size_t kLongest = 300;
  std::string_view reason = error.what();
  const bool has_place = reason.find("] parse error at ") != std::string_view::npos;
  for (const std::string_view noise : {has_place ? "] parse error at " : "] ", has_place ? ": " : ""}) {
    const size_t at = reason.find(noise);
    if (at != std::string_view::npos) reason.remove_prefix(at + noise.size());
  }
  std::string out(reason.substr(0, kLongest));
  // The cut may have split a character.
  while (reason.size() > kLongest && !out.empty() && (out.back() & 0x80)) out.pop_back();
  return reason.size() > kLongest ? out + " ..." : out;
}

// Names places in a text.
class Place {
 public:
  Place(std::string_view text, const std::string& name, int64_t first_line)
      : text_(text), name_(name), first_line_(first_line) {}

  // The place of the byte before `at`. Reads all of the text before it, so it is for messages.
  std::string of(const char* at) const {
    const std::string_view before(text_.data(),
                                  static_cast<size_t>(std::max(at - 1, text_.data()) - text_.data()));
    const size_t line_end = before.rfind('\n');
    return fmt::format("{}:{}:{}", name_, first_line_ + std::count(before.begin(), before.end(), '\n'),
                       before.size() - (line_end == std::string_view::npos ? 0 : line_end + 1) + 1);
  }
  std::string of_byte(size_t number) const { return of(text_.data() + std::min(number, text_.size() + 1)); }

 private:
  std::string_view text_;
  const std::string& name_;
  int64_t first_line_;
};

// Takes what the parser finds, and makes the value of it.
class Builder {
 public:
  Builder(const Place& place, const char* const& furthest, const JsonLimits& limits,
          std::span<const JsonPart> parts)
      : place_(place), furthest_(furthest), limits_(limits), parts_(parts) {}
  json& root() { return root_; }

  // The parser calls these; true: go on.
  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(int64_t value) { return scalar(value); }
  bool number_unsigned(uint64_t value) { return scalar(value); }
  bool number_float(double value, const std::string&) { return scalar(value); }
  bool binary(json::binary_t&) { return false; }  // JSON has none
  bool string(const std::string& text) {
    json& value = slot();
    if (value.is_string())
      value.get_ref<std::string&>() = text;  // in the memory of the item before
    else
      value = text;
    return ended();
  }
  bool key(const std::string& text) {
    if (in_part()) {
      key_ = text;
      after_key_ = furthest_;
      return true;
    }
    const auto [member, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(text);
    if (!is_new && !limits_.repeated_keys) refuse_repeated(text, furthest_);
    member_ = &member->second;
    if (!parts_.empty() && part_ == nullptr) key_ = text;
    return true;
  }
  bool start_object(size_t) { return begin(json::value_t::object); }
  bool start_array(size_t) { return begin(json::value_t::array); }
  bool end_object() { return end(); }
  bool end_array() { return end(); }
  bool parse_error(size_t byte, const std::string&, const json::exception& error) {
    // Other errors than of the grammar are of a number too large for a double.
    const bool is_grammar = dynamic_cast<const json::parse_error*>(&error) != nullptr;
    fail("{}: not JSON: {}", is_grammar ? place_.of_byte(byte) : place_.of(furthest_), reason_of(error));
  }

 private:
  bool in_part() const { return part_ != nullptr && open_.size() == part_depth_; }

  [[noreturn]] void refuse_repeated(const std::string& key, const char* after) const {
    fail("{}: the key {} is given twice in one object", place_.of(after), brief(json(key)));
  }

  // Where the next value belongs. In an item of a part it may hold a value of the item before.
  json& slot() {
    if (open_.empty()) return root_;
    if (in_part()) return item_;
    json& parent = *open_.back();
    if (parent.is_object()) return *member_;
    if (&parent == &item_ && used_ < item_.size()) return item_[used_++];
    if (&parent == &item_) ++used_;
    parent.push_back(nullptr);
    return parent.back();
  }
  template <class T>
  bool scalar(T value) {
    slot() = value;
    return ended();
  }

  bool begin(json::value_t kind) {
    if (std::ssize(open_) + 1 > limits_.depth)
      fail("{}: lists and objects are nested more than {} deep", place_.of(furthest_), limits_.depth);
    const bool is_item = in_part();
    if (!parts_.empty() && part_ == nullptr) enter(kind == json::value_t::array);
    json& value = slot();
    used_ = is_item ? 0 : used_;
    // The strings of a list that is an item are written over those of the item before.
    if (!is_item || kind != json::value_t::array || !value.is_array()) value = kind;
    open_.push_back(&value);
    return true;
  }
  bool end() {
    json& value = *open_.back();
    if (&value == &item_ && item_.is_array())
      item_.erase(item_.begin() + static_cast<ptrdiff_t>(used_), item_.end());
    if (in_part()) part_ = nullptr;
    open_.pop_back();
    if (paths_.size() > open_.size()) paths_.pop_back();
    return ended();
  }

  // After a value: hands it over if it is an item.
  bool ended() {
    if (in_part() && !part_->on_item(key_, item_)) refuse_repeated(key_, after_key_);
    return true;
  }

  // A list or an object that is not within a part begins.
  void enter(bool is_list) {
    const bool is_member = !open_.empty() && open_.back()->is_object();
    std::string path = open_.empty() ? "" : is_member ? paths_.back() + key_ : paths_.back() + "[]";
    for (const JsonPart& part : parts_)
      if (part.path == path && part.is_list == is_list) {
        part_ = &part;
        key_.clear();  // which a list's items have none of
        part_depth_ = open_.size() + 1;
      }
    paths_.push_back(path.empty() ? "" : path + ".");
  }

  const Place& place_;
  const char* const& furthest_;  // how far the parser has read
  const JsonLimits& limits_;
  std::span<const JsonPart> parts_;
  json root_;
  std::vector<json*> open_;  // the lists and objects that have begun and not ended
  std::vector<std::string>
      paths_;               // where there are parts: of the open ones outside of them, with a last dot
  json* member_ = nullptr;  // the value of the last key
  const JsonPart* part_ = nullptr;  // the open one
  size_t part_depth_ = 0;           // of open_, where its items are the next values
  json item_;
  size_t used_ = 0;  // items of item_, where that is a list, that belong to this one
  std::string key_;  // the last one, but for those within items
  const char* after_key_ = nullptr;
};

const json& member(const json& object, const std::string& key, const std::string& name,
                   const char* expected) {
  check(object.is_object(), "{}: expected a JSON object, found {}", name, brief(object));
  const auto found = object.find(key);
  check(found != object.end(), "{} has no \"{}\"; expected {}", name, key, expected);
  return *found;
}

}  // namespace

json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits,
                std::span<const JsonPart> parts) {
  check(text.size() <= limits.bytes, "{}: {} bytes of JSON; the limit is {}", name, text.size(),
        limits.bytes);
  const Place place(text, name, limits.first_line);
  // The parser would take a zero byte for the end of the text and ignore the rest.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    fail("{}: not JSON: a zero byte", place.of(text.data() + zero + 1));
  const char* const end = text.data() + text.size();
  const char* furthest = text.data();
  Builder builder(place, furthest, limits, parts);
  json::sax_parse(Cursor{text.data(), &furthest}, Cursor{end, &furthest}, &builder);
  return std::move(builder.root());
}

json read_json(const std::filesystem::path& path, const JsonLimits& limits) {
  const MappedFile file(path);
  return parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path.string(),
                    limits);
}

FileChecksum write_json(const std::filesystem::path& path, const nlohmann::ordered_json& value) {
  return write_file(path, value.dump(2) + "\n");
}

std::string brief(const json& value) {
  constexpr size_t kLongest = 100;
  const auto cut = [](const std::string& text) {
    return text.size() <= kLongest ? text : text.substr(0, kLongest - 3) + "...";
  };
  if (value.is_string())
    return json(cut(value.get<std::string>())).dump(-1, ' ', true, json::error_handler_t::replace);
  return cut(value.dump(-1, ' ', true, json::error_handler_t::replace));
}

int64_t whole_number(const json& object, const std::string& key, const std::string& name, int64_t at_least,
                     int64_t at_most) {
  const json& value = member(object, key, name, "a whole number");
  // The parser makes numbers above the largest int64_t unsigned, and above that a double.
  const bool whole =
      value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{INT64_MAX} : value.is_number_integer();
  const int64_t number = whole ? value.get<int64_t>() : 0;
  const std::string upper = at_most == INT64_MAX ? "" : fmt::format(" and at most {}", at_most);
  check(whole && number >= at_least && number <= at_most,
        "{}: \"{}\" must be a whole number of at least {}{}, found {}", name, key, at_least, upper,
        brief(value));
  return number;
}

std::string text_value(const json& object, const std::string& key, const std::string& name) {
  const json& value = member(object, key, name, "a text");
  check(value.is_string(), "{}: \"{}\" must be a text, found {}", name, key, brief(value));
  return value.get<std::string>();
}

}  // namespace tessera
