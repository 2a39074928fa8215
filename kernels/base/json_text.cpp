#include "kernels/base/json_text.h"

#include <algorithm>
#include <set>
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

const json& member(const json& object, const std::string& key, const std::string& name, const char* wanted) {
  check(object.is_object(), "{}: wanted a JSON object, found {}", name, brief(object));
  const auto found = object.find(key);
  check(found != object.end(), "{} has no \"{}\"; wanted {}", name, key, wanted);
  return *found;
}

}  // namespace

json parse_json(std::string_view text, const std::string& name, const JsonLimits& limits) {
  check(text.size() <= limits.bytes, "{}: {} bytes of JSON; the limit is {}", name, text.size(),
        limits.bytes);
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const char* furthest = begin;
  const auto place = [&](const char* at) {  // of the byte before `at`
    const std::string_view before(begin, static_cast<size_t>(std::max(at - 1, begin) - begin));
    const size_t line_end = before.rfind('\n');
    return fmt::format("{}:{}:{}", name, limits.first_line + std::count(before.begin(), before.end(), '\n'),
                       before.size() - (line_end == std::string_view::npos ? 0 : line_end + 1) + 1);
  };

  // The parser would take a zero byte for the end of the text and ignore the rest.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    fail("{}: not JSON: a zero byte", place(begin + zero + 1));

  int64_t depth = 0;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    // place() reads all of the text before it, so it is only called for a message.
    if (event == Event::object_start || event == Event::array_start) {
      if (++depth > limits.depth)
        fail("{}: lists and objects are nested more than {} deep", place(furthest), limits.depth);
      if (event == Event::object_start) keys.emplace_back();
    } else if (event == Event::object_end || event == Event::array_end) {
      --depth;
      if (event == Event::object_end) keys.pop_back();
    } else if (event == Event::key && !limits.repeated_keys) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second)
        fail("{}: the key {} is given twice in one object", place(furthest), brief(parsed));
    }
    return true;
  };
  try {
    return json::parse(Cursor{begin, &furthest}, Cursor{end, &furthest}, watch);
  } catch (const json::parse_error& error) {
    fail("{}: not JSON: {}", place(begin + std::min(error.byte, text.size() + 1)), reason_of(error));
  } catch (const json::exception& error) {  // a number too large for a double
    fail("{}: not JSON: {}", place(furthest), reason_of(error));
  }
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
        "{}: \"{}\" wants a whole number of at least {}{}, found {}", name, key, at_least, upper,
        brief(value));
  return number;
}

std::string text_value(const json& object, const std::string& key, const std::string& name) {
  const json& value = member(object, key, name, "a text");
  check(value.is_string(), "{}: \"{}\" wants a text, found {}", name, key, brief(value));
  return value.get<std::string>();
}

}  // namespace tessera
