#include "kernels/base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <numeric>

namespace tessera {

std::optional<CodePoint> first_code_point(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const int ones = std::countl_one(static_cast<unsigned char>(byte(0)));
  if (text.empty() || ones == 1 || ones > 4) return {};  // 0: ASCII; 1: no first byte; else the length
  const size_t length = ones == 0 ? 1 : static_cast<size_t>(ones);
  uint32_t code = byte(0) & (0x7Fu >> ones);
  for (size_t k = 1; k < length; ++k) {
    if ((byte(k) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(k) & 0x3F);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};  // of a length; below it is overlong
  if (code < kSmallest[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return {};
  return CodePoint{.code = code, .bytes = length};
}

size_t utf8_prefix(std::string_view text) {
  size_t end = 0;
  while (true) {
    uint64_t eight = 0;
    for (; end + sizeof eight <= text.size(); end += sizeof eight) {  // as long as all are ASCII
      std::memcpy(&eight, text.data() + end, sizeof eight);
      if (eight & 0x8080808080808080) break;
    }
    const std::optional<CodePoint> next = first_code_point(text.substr(end));
    if (!next) return end;
    end += next->bytes;
  }
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;  // bytes after the first
  out += static_cast<char>((0xFF00u >> (more + 1) & 0xFF) | code >> (6 * more));
  for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | (code >> (6 * i) & 0x3F));
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::optional<CodePoint> next = first_code_point(text);
    const bool shown = next && (next->code >= 0x20 || next->code == '\n' || next->code == '\t') &&
                       (next->code < 0x7F || next->code >= 0xA0);
    const size_t bytes = next ? next->bytes : 1;
    const bool is_return = next && next->code == '\r';  // which would go back to the begin of the line
    out += shown ? text.substr(0, bytes) : is_return ? "\u240D" : "\uFFFD";
    text.remove_prefix(bytes);
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const std::string_view two = text.substr(i, 2), three = text.substr(i, 3);
    if (c == '"' || c == '\\') {
      out += {'\\', text[i]};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", c);
    } else if (two >= "\u0080" && two < "\u00A0") {  // more control characters
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
    } else if (three == "\u2028" || three == "\u2029" || three == "\uFEFF") {
      // Line breaks to YAML 1.1, and the byte order mark.
      out += three == "\u2028" ? "\\u2028" : three == "\u2029" ? "\\u2029" : "\\ufeff";
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out + '"';
}

std::string join_words(const std::vector<std::string_view>& words, std::string_view last) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? last : ", ";
    out += words[i];
  }
  return out;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // of the table whose rows are prefixes of `a`
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::vector<std::string_view> nearest(std::span<const std::string_view> candidates, size_t length,
                                      const std::function<size_t(std::string_view)>& distance) {
  std::vector<std::string_view> found;
  size_t least = std::max<size_t>(2, length / 3);
  for (const std::string_view candidate : candidates) {
    const size_t d = distance(candidate);
    if (d < least) found.clear();
    if (d <= least) found.push_back(candidate);
    least = std::min(least, d);
  }
  return found;
}

std::vector<std::string_view> nearest(std::span<const std::string_view> candidates, std::string_view word) {
  return nearest(candidates, word.size(),
                 [&](std::string_view candidate) { return edit_distance(word, candidate); });
}

std::string unknown_word(std::string_view what, std::string_view word,
                         const std::vector<std::string_view>& near,
                         const std::vector<std::string_view>& known) {
  if (near.empty())
    return fmt::format("unknown {} {}; known: {}", what, in_quotes(word), join_words(known, ", "));
  std::vector<std::string> quoted;
  for (const std::string_view candidate : near) quoted.push_back(in_quotes(candidate));
  return fmt::format("unknown {} {}; {}", what, in_quotes(word), did_you_mean(quoted));
}

std::string unknown_word(std::string_view what, std::string_view word,
                         const std::vector<std::string_view>& known) {
  return unknown_word(what, word, nearest(known, word), known);
}

std::string utc_time() {
  using namespace std::chrono;
  const auto now = floor<milliseconds>(system_clock::now());
  const std::time_t seconds = system_clock::to_time_t(now);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     now.time_since_epoch().count() % 1000);
}

std::string format_ranks(int64_t ranks) { return ranks > 1 ? fmt::format("{} ranks x ", ranks) : ""; }

std::string format_count(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3)
    digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

std::string format_bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::abs(value) >= 1024 && unit < 4) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{:.{}f} {}", value, value < 100 ? 1 : 0, kUnits[unit]);
}

}  // namespace tessera
