#include "data/chat/text_parts.h"

#include <algorithm>
#include <optional>

#include "data/chat/letters.h"
#include "kernels/base/text.h"

namespace tessera::jinja {
namespace {

std::string_view first_character(std::string_view text) {
  const auto first = first_code_point(text.substr(0, 4));
  return text.substr(0, first ? first->bytes : 1);
}
std::string_view last_character(std::string_view text) {
  size_t bytes = 1;
  while (bytes < text.size() && bytes < 4 && (text[text.size() - bytes] & 0xC0) == 0x80) ++bytes;
  return text.substr(text.size() - bytes);
}
bool is_blank_character(std::string_view character) {
  const auto point = first_code_point(character);
  return point && is_blank(point->code);
}

template <class IsStripped>
size_t stripped_at_start(std::string_view text, const IsStripped& is_stripped) {
  size_t at = 0;
  while (at < text.size() && is_stripped(first_character(text.substr(at))))
    at += first_character(text.substr(at)).size();
  Budget::spend(static_cast<int64_t>(at / 4));
  return at;
}
template <class IsStripped>
size_t stripped_at_end(std::string_view text, const IsStripped& is_stripped) {
  size_t end = text.size();
  while (end > 0 && is_stripped(last_character(text.substr(0, end))))
    end -= last_character(text.substr(0, end)).size();
  Budget::spend(static_cast<int64_t>((text.size() - end) / 4));
  return text.size() - end;
}

// The end of what is no blank, from `at` on; and its beginning, before `end`
size_t end_of_word(std::string_view bytes, size_t at) {
  const size_t first = at;
  while (at < bytes.size() && !is_blank_character(first_character(bytes.substr(at))))
    at += first_character(bytes.substr(at)).size();
  Budget::spend(static_cast<int64_t>((at - first) / 4));
  return at;
}
size_t begin_of_word(std::string_view bytes, size_t end) {
  const size_t last = end;
  while (end > 0 && !is_blank_character(last_character(bytes.substr(0, end))))
    end -= last_character(bytes.substr(0, end)).size();
  Budget::spend(static_cast<int64_t>((last - end) / 4));
  return end;
}

List split_at_blanks(const Text& text, int64_t most) {
  const std::string_view bytes = text.bytes();
  List parts;
  for (size_t first = blanks_at_start(bytes); first < bytes.size();) {
    const bool is_rest = most >= 0 && std::ssize(parts) == most;
    const size_t end = is_rest ? bytes.size() : end_of_word(bytes, first);
    parts.emplace_back(text.part(first, end - first));
    first = end + blanks_at_start(bytes.substr(end));
  }
  return parts;
}
List split_at_blanks_from_right(const Text& text, int64_t most) {
  const std::string_view bytes = text.bytes();
  List parts;
  for (size_t end = bytes.size() - blanks_at_end(bytes); end > 0;) {
    const bool is_rest = most >= 0 && std::ssize(parts) == most;
    const size_t first = is_rest ? 0 : begin_of_word(bytes, end);
    parts.emplace_back(text.part(first, end - first));
    end = first - blanks_at_end(bytes.substr(0, first));
  }
  std::ranges::reverse(parts);
  return parts;
}

// Where a line ends, at or after `first`: bytes before its end, and with it
struct LineEnd {
  size_t first, last;
};
LineEnd line_end(std::string_view bytes, size_t first) {
  for (size_t at = first; at < bytes.size(); ++at) {
    const auto byte = static_cast<unsigned char>(bytes[at]);
    if (byte > 0x1E && byte < 0xC2) continue;
    if (byte == '\r') return {at, at + (bytes.substr(at, 2) == "\r\n" ? 2 : 1)};
    if ((byte >= '\n' && byte <= '\f') || (byte >= 0x1C && byte <= 0x1E)) return {at, at + 1};
    if (bytes.substr(at, 2) == "\xC2\x85") return {at, at + 2};  // U+0085
    if (bytes.substr(at, 3) == "\xE2\x80\xA8" || bytes.substr(at, 3) == "\xE2\x80\xA9")
      return {at, at + 3};  // U+2028
  }
  return {bytes.size(), bytes.size()};
}

Text with_between(const Text& text, const Text& with, int64_t most) {
  Text out;
  size_t at = 0;
  for (int64_t made = 0; most < 0 || made < most; ++made) {
    Budget::spend(1);
    out.append(with);
    if (at >= text.size()) return out;
    const size_t count = first_character(std::string_view(text.bytes()).substr(at)).size();
    out.append(text, at, count);
    at += count;
  }
  out.append(text, at, text.size() - at);
  return out;
}

}  // namespace

size_t blanks_at_start(std::string_view text) { return stripped_at_start(text, is_blank_character); }
size_t blanks_at_end(std::string_view text) { return stripped_at_end(text, is_blank_character); }

Text strip(const Text& text, Sides sides, const Text* characters) {
  const auto is_stripped = [&](std::string_view character) {
    return characters ? characters->bytes().find(character) != std::string::npos
                      : is_blank_character(character);
  };
  const size_t first = sides.left ? stripped_at_start(text.bytes(), is_stripped) : 0;
  const std::string_view rest = std::string_view(text.bytes()).substr(first);
  return text.part(first, rest.size() - (sides.right ? stripped_at_end(rest, is_stripped) : 0));
}

Text replace(const Text& text, const Text& old, const Text& with, int64_t most) {
  if (old.empty()) return with_between(text, with, most);
  Text out;
  size_t first = 0;
  Budget::spend_bytes(text.size());
  for (size_t at; most != 0 && (at = text.bytes().find(old.bytes(), first)) != std::string::npos; --most) {
    Budget::spend(1);
    out.append(text, first, at - first);
    out.append(with);
    first = at + old.size();
  }
  out.append(text, first, text.size() - first);
  return out;
}

List split(const Text& text, const Text* separator, int64_t most) {
  if (separator == nullptr) return split_at_blanks(text, most);
  const std::string& mark = separator->bytes();
  List parts;
  size_t first = 0;
  Budget::spend_bytes(text.size());
  for (size_t at;
       (most < 0 || std::ssize(parts) < most) && (at = text.bytes().find(mark, first)) != std::string::npos;
       first = at + mark.size()) {
    Budget::spend(1);
    parts.emplace_back(text.part(first, at - first));
  }
  parts.emplace_back(text.part(first));
  return parts;
}

List split_from_right(const Text& text, const Text* separator, int64_t most) {
  if (separator == nullptr) return split_at_blanks_from_right(text, most);
  const std::string& mark = separator->bytes();
  List parts;
  size_t end = text.size();
  Budget::spend_bytes(text.size());
  for (size_t at; (most < 0 || std::ssize(parts) < most) && end >= mark.size() &&
                  (at = text.bytes().rfind(mark, end - mark.size())) != std::string::npos;
       end = at) {
    Budget::spend(1);
    parts.emplace_back(text.part(at + mark.size(), end - at - mark.size()));
  }
  parts.emplace_back(text.part(0, end));
  std::ranges::reverse(parts);
  return parts;
}

List lines_of(const Text& text, bool keep_ends) {
  List lines;
  Budget::spend_bytes(text.size());
  for (size_t first = 0; first < text.size();) {
    const LineEnd end = line_end(text.bytes(), first);
    Budget::spend(1);
    lines.emplace_back(text.part(first, (keep_ends ? end.last : end.first) - first));
    first = end.last;
  }
  return lines;
}

Text centered(const Text& text, int64_t width, const Text& fill) {
  const int64_t missing = std::max<int64_t>(width - text.length(), 0);
  const int64_t left = missing / 2 + (missing & width & 1);
  Text out = repeated(fill, left);
  out.append(text);
  out.append(repeated(fill, missing - left));
  return out;
}

}  // namespace tessera::jinja
