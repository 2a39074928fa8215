#include "data/chat/letters.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "data/chat/budget.h"
#include "data/chat/unicode_tables.h"
#include "kernels/base/text.h"

namespace tessera::jinja {
namespace {

constexpr uint8_t kOddLower = 32, kOddUpper = 64, kTitleCase = 128;

uint8_t flags_of(uint32_t code) {
  const auto* const next = std::ranges::upper_bound(kProperties, code, {}, &Property::code);
  return (next - 1)->flags;
}

struct Case {
  std::span<const CaseRange> ranges;
  std::span<const LongCase> longs;
};
const Case kUpperCase{kUpper, kLongUpper}, kLowerCase{kLower, kLongLower}, kTitled{kTitle, kLongTitle},
    kFolded{kFold, kLongFold};

uint32_t changed(uint32_t code, const Case& to) {
  if (code < 0x80 && !(code >= 'A' && code <= 'Z') && !(code >= 'a' && code <= 'z')) return code;
  const auto range = std::ranges::lower_bound(to.ranges, code, {}, &CaseRange::last);
  if (range == to.ranges.end() || code < range->first || (code - range->first) % range->step != 0)
    return code;
  return static_cast<uint32_t>(static_cast<int64_t>(code) + range->delta);
}
bool changes(uint32_t code, const Case& to) {
  const auto found = std::ranges::lower_bound(to.longs, code, {}, &LongCase::code);
  return changed(code, to) != code || (found != to.longs.end() && found->code == code);
}
void append_changed(std::string& out, uint32_t code, const Case& to) {
  if (code >= 0x80)
    if (const auto found = std::ranges::lower_bound(to.longs, code, {}, &LongCase::code);
        found != to.longs.end() && found->code == code) {
      out += found->text;
      return;
    }
  append_utf8(out, changed(code, to));
}

bool has_case(uint32_t code) { return is_lower(code) || is_upper(code) || is_title(code); }

std::vector<uint32_t, Counted<uint32_t>> characters_of(std::string_view bytes) {
  std::vector<uint32_t, Counted<uint32_t>> codes;
  Budget::spend(static_cast<int64_t>(bytes.size() / 4));
  for (size_t at = 0; at < bytes.size();) {
    const auto point = first_code_point(bytes.substr(at, 4)).value_or(CodePoint{.code = 0xFFFD, .bytes = 1});
    codes.push_back(point.code);
    at += point.bytes;
  }
  return codes;
}

// Greek's sigma at the end of a word has a form of its own.
bool is_final_sigma(const auto& codes, size_t at) {
  constexpr uint32_t kSigma = 0x3A3;
  const auto is_ignored = [](uint32_t code) {
    return code == '\'' || code == '.' || code == ':' || code == 0x2019;
  };
  if (codes[at] != kSigma) return false;
  size_t before = at, after = at + 1;
  while (before > 0 && is_ignored(codes[before - 1])) --before;
  while (after < codes.size() && is_ignored(codes[after])) ++after;
  return before > 0 && has_case(codes[before - 1]) && !(after < codes.size() && has_case(codes[after]));
}

// Each character in the case that `choose` says for its place
using Choose = std::function<const Case*(const std::vector<uint32_t, Counted<uint32_t>>& codes, size_t at)>;
Text recased(const Text& text, const Choose& choose) {
  Text out;
  const auto codes = characters_of(text.bytes());
  auto run = text.runs().begin();
  std::string piece;
  size_t place = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    if (place >= run->end) {
      out.append(std::exchange(piece, {}), run->origin);
      ++run;
    }
    const Case* to = choose(codes, i);
    if (to == &kLowerCase && is_final_sigma(codes, i))
      append_utf8(piece, 0x3C2);
    else if (to)
      append_changed(piece, codes[i], *to);
    else
      append_utf8(piece, codes[i]);
    place += first_code_point(std::string_view(text.bytes()).substr(place, 4))
                 .value_or(CodePoint{.code = 0, .bytes = 1})
                 .bytes;
  }
  if (!piece.empty()) out.append(piece, run->origin);
  return out;
}

// Whether a letter with a case is there, and no letter is of the `other` case
bool all_of_case(const Text& text, bool (*is)(uint32_t), bool (*is_other)(uint32_t)) {
  bool found = false;
  for (const uint32_t code : characters_of(text.bytes())) {
    if (is_other(code) || is_title(code)) return false;
    found = found || is(code);
  }
  return found;
}

}  // namespace

bool has_property(uint32_t code, uint8_t any_of) { return (flags_of(code) & any_of) != 0; }
// The digits of a script follow each other from its 0 on.
int decimal_of(uint32_t code) {
  const auto* const next = std::ranges::upper_bound(kProperties, code, {}, &Property::code) - 1;
  return next->flags & kDecimal ? static_cast<int>((code - next->code) % 10) : -1;
}
bool is_lower(uint32_t code) { return changes(code, kUpperCase) != ((flags_of(code) & kOddLower) != 0); }
bool is_upper(uint32_t code) { return changes(code, kLowerCase) != ((flags_of(code) & kOddUpper) != 0); }
bool is_title(uint32_t code) { return (flags_of(code) & kTitleCase) != 0; }

bool is_blank(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

bool has_only(const Text& text, uint8_t any_of) {
  const auto codes = characters_of(text.bytes());
  return !codes.empty() &&
         std::ranges::all_of(codes, [&](uint32_t code) { return has_property(code, any_of); });
}
bool all_lower(const Text& text) { return all_of_case(text, is_lower, is_upper); }
bool all_upper(const Text& text) { return all_of_case(text, is_upper, is_lower); }
bool all_titled(const Text& text) {
  bool found = false, in_word = false;
  for (const uint32_t code : characters_of(text.bytes())) {
    const bool begins = is_upper(code) || is_title(code);
    if ((begins && in_word) || (is_lower(code) && !in_word)) return false;
    in_word = begins || is_lower(code);
    found = found || in_word;
  }
  return found;
}

Text in_upper_case(const Text& text) {
  return recased(text, [](const auto&, size_t) { return &kUpperCase; });
}
Text in_lower_case(const Text& text) {
  return recased(text, [](const auto&, size_t) { return &kLowerCase; });
}
Text in_folded_case(const Text& text) {
  return recased(text, [](const auto&, size_t) { return &kFolded; });
}
Text capitalized(const Text& text) {
  return recased(text, [](const auto&, size_t at) { return at == 0 ? &kTitled : &kLowerCase; });
}
Text titled(const Text& text) {
  return recased(text, [](const auto& codes, size_t at) {
    return at > 0 && has_case(codes[at - 1]) ? &kLowerCase : &kTitled;
  });
}
Text titled_by_filter(const Text& text) {
  return recased(text, [](const auto& codes, size_t at) {
    static constexpr std::string_view kBegin = "-({[<";
    const auto begins = [&](uint32_t code) {
      return is_blank(code) || (code < 0x80 && kBegin.find(static_cast<char>(code)) != kBegin.npos);
    };
    return at == 0 || begins(codes[at - 1]) || begins(codes[at]) ? &kUpperCase : &kLowerCase;
  });
}
Text with_swapped_case(const Text& text) {
  return recased(text, [](const auto& codes, size_t at) -> const Case* {
    return is_upper(codes[at]) ? &kLowerCase : is_lower(codes[at]) ? &kUpperCase : nullptr;
  });
}

}  // namespace tessera::jinja
