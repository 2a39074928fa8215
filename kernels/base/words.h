// Enums and their words: how a configuration, a message, a file or the command line names each value.
//
// An enum with words has one list of them beside it, found by its type:
//
//   constexpr auto words_of(Activation) {
//     return std::array{Word{"gelu", Activation::kGelu}, Word{"relu", Activation::kRelu}};
//   }
//
// Everything else is here, and walks that list. A word is parsed where it is read; all other code has the
// enum.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tessera {

// Kernels read this header, so the functions that build messages are elsewhere: a change there recompiles no
// kernel.
[[noreturn]] void fail_without_word(int value);
[[noreturn]] void fail_unknown_word(std::string_view what, std::string_view word,
                                    const std::vector<std::string_view>& known);

template <class E>
struct Word {
  const char* word;
  E value;
};
template <class E>
Word(const char*, E) -> Word<E>;

template <class E>
concept HasWords = std::is_enum_v<E> && requires { words_of(E{}); };

// Every value that has a word, in the order of the list
template <HasWords E>
constexpr auto values_with_words() {
  constexpr auto words = words_of(E{});
  std::array<E, words.size()> values{};
  for (size_t i = 0; i < words.size(); ++i) values[i] = words[i].value;
  return values;
}

template <HasWords E>
const char* name_of(E value) {
  for (const auto& [word, named] : words_of(E{}))
    if (named == value) return word;
  fail_without_word(static_cast<int>(value));
}

template <HasWords E>
std::vector<std::string_view> names_of(std::span<const E> values) {
  std::vector<std::string_view> names;
  for (const E value : values) names.push_back(name_of(value));
  return names;
}

// nullopt if no value has this word
template <HasWords E>
std::optional<E> from_word(std::string_view text) {
  for (const auto& [word, value] : words_of(E{}))
    if (text == word) return value;
  return std::nullopt;
}

// Error: `unknown attention "flsh"; did you mean "flash"?`, where `what` is "attention".
template <HasWords E>
E parse_word(std::string_view what, std::string_view text) {
  if (const std::optional<E> value = from_word<E>(text)) return *value;
  constexpr auto values = values_with_words<E>();
  fail_unknown_word(what, text, names_of<E>(values));
}

}  // namespace tessera
