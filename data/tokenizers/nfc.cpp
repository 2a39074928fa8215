#include "data/tokenizers/nfc.h"

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizers/nfc_tables.h"
#include "kernels/base/present.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

// Hangul syllables are composed by arithmetic: leading consonant, vowel, trailing consonant.
constexpr uint32_t kSyllables = 0xAC00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11A7;
constexpr uint32_t kLeadingCount = 19, kVowelCount = 21, kTrailingCount = 28;  // the first trailing is none
constexpr uint32_t kSyllableCount = kLeadingCount * kVowelCount * kTrailingCount;

// In [first, first + count)? Numbers below `first` wrap around.
constexpr bool within(uint32_t code, uint32_t first, uint32_t count) { return code - first < count; }

constexpr uint64_t pair_key(uint32_t first, uint32_t second) { return uint64_t{first} << 32 | second; }

class Tables {
 public:
  static const Tables& get() {
    static const Tables tables;
    return tables;
  }

  // May change in the form, or change with its neighbours.
  bool is_unsafe(uint32_t code, NormalForm form) const {
    return unsafe_[code] || (form == NormalForm::kNfkc && compatible_.contains(code));
  }

  uint8_t combining_class(uint32_t code) const {
    const auto found = classes_.find(code);
    return found == classes_.end() ? 0 : found->second;
  }

  void decompose(uint32_t code, NormalForm form, std::vector<uint32_t>& out) const {
    if (form == NormalForm::kNfkc)
      if (const auto found = compatible_.find(code); found != compatible_.end()) {
        out.insert(out.end(), found->second.begin(), found->second.end());
        return;
      }
    decompose(code, out);
  }

  void decompose(uint32_t code, std::vector<uint32_t>& out) const {
    if (within(code, kSyllables, kSyllableCount)) {
      const uint32_t index = code - kSyllables, trailing = index % kTrailingCount;
      out.push_back(kLeading + index / (kVowelCount * kTrailingCount));
      out.push_back(kVowels + index / kTrailingCount % kVowelCount);
      if (trailing != 0) out.push_back(kTrailing + trailing);
    } else if (const auto found = decompositions_.find(code); found != decompositions_.end()) {
      for (const uint32_t part : found->second) decompose(part, out);
    } else {
      out.push_back(code);
    }
  }

  // 0: the two stay two.
  uint32_t composite(uint32_t first, uint32_t second) const {
    if (within(first, kLeading, kLeadingCount) && within(second, kVowels, kVowelCount))
      return kSyllables + ((first - kLeading) * kVowelCount + second - kVowels) * kTrailingCount;
    if (within(first, kSyllables, kSyllableCount) && (first - kSyllables) % kTrailingCount == 0 &&
        within(second, kTrailing + 1, kTrailingCount - 1))
      return first + second - kTrailing;
    const auto found = composites_.find(pair_key(first, second));
    return found == composites_.end() ? 0 : found->second;
  }

 private:
  Tables() {
    for_each_replaced(kComposites, [&](uint32_t code, std::u32string_view to) {
      decompositions_[code] = to;
      composites_[pair_key(to[0], to[1])] = code;
      unsafe_[to[1]] = true;
    });
    for_each_replaced(kNeverComposed, [&](uint32_t code, std::u32string_view to) {
      decompositions_[code] = to;
      unsafe_[code] = true;
    });
    for_each_replaced(kCompatible, [&](uint32_t code, std::u32string_view to) { compatible_[code] = to; });
    for (const CombiningClass& range : kCombiningClasses)
      for (uint32_t code = range.first; code <= range.last; ++code) {
        classes_[code] = range.number;
        unsafe_[code] = true;
      }
    for (uint32_t i = 0; i < kVowelCount; ++i) unsafe_[kVowels + i] = true;
    for (uint32_t i = 1; i < kTrailingCount; ++i) unsafe_[kTrailing + i] = true;
  }

  std::unordered_map<uint32_t, std::u32string_view> decompositions_, compatible_;
  std::unordered_map<uint64_t, uint32_t> composites_;
  std::unordered_map<uint32_t, uint8_t> classes_;
  std::bitset<0x110000> unsafe_;
};

// Marks on the same letter in the order of their classes
void sort_marks(std::vector<uint32_t>& codes) {
  const Tables& tables = Tables::get();
  const auto is_mark = [&](uint32_t code) { return tables.combining_class(code) != 0; };
  const auto by_class = [&](uint32_t a, uint32_t b) {
    return tables.combining_class(a) < tables.combining_class(b);
  };
  for (auto at = codes.begin(); at != codes.end();) {
    const auto first = std::find_if(at, codes.end(), is_mark);
    at = std::find_if_not(first, codes.end(), is_mark);
    std::stable_sort(first, at, by_class);
  }
}

// Joins each letter with the marks that follow it, unless a mark between them blocks it. Works in place.
void join(std::vector<uint32_t>& codes) {
  const Tables& tables = Tables::get();
  size_t end = 0;                // of what is done
  size_t letter = codes.size();  // the last character of class 0; none yet
  int last_class = -1;           // of what follows the letter; -1: nothing does
  for (const uint32_t code : codes) {
    const int own_class = tables.combining_class(code);
    if (letter < end && last_class < own_class) {
      if (const uint32_t whole = tables.composite(codes[letter], code)) {
        codes[letter] = whole;
        continue;
      }
    }
    if (own_class == 0) {
      letter = end;
      last_class = -1;
    } else {
      last_class = own_class;
    }
    codes[end++] = code;
  }
  codes.resize(end);
}

}  // namespace

bool looks_composed(std::string_view text, NormalForm form) {
  if (form == NormalForm::kNone) return true;
  // The first byte of U+0300, and of U+00A0
  const unsigned char first_unsafe = form == NormalForm::kNfc ? 0xCC : 0xC2;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const Tables& tables = Tables::get();
  for (size_t at = 0; at < text.size();) {
    if (bytes[at] < first_unsafe) {
      ++at;
      continue;
    }
    const CodePoint next = *first_code_point(text.substr(at));
    if (tables.is_unsafe(next.code, form)) return false;
    at += next.bytes;
  }
  return true;
}

std::string compose(std::string_view text, NormalForm form) {
  std::vector<uint32_t> codes;
  codes.reserve(text.size());
  const Tables& tables = Tables::get();
  for (size_t at = 0; at < text.size();) {
    const CodePoint next = present(first_code_point(text.substr(at)));
    tables.decompose(next.code, form, codes);
    at += next.bytes;
  }
  sort_marks(codes);
  join(codes);
  std::string out;
  out.reserve(text.size());
  for (const uint32_t code : codes) append_utf8(out, code);
  return out;
}

}  // namespace tessera
