// Messages are checked by their facts: keys, values, numbers, names, places in files, commands. Their English
// is frozen in tests/wording.txt alone.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <initializer_list>
#include <span>
#include <string_view>

namespace tessera {

// Whether `message` has all `facts` in this order, each as whole words: "1" is not in "10" or "x1".
inline ::testing::AssertionResult says(std::string_view message, std::span<const std::string_view> facts) {
  const auto in_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  const auto is_whole = [&](size_t at, std::string_view fact) {
    const size_t end = at + fact.size();
    return !(at > 0 && in_word(message[at - 1]) && in_word(fact.front())) &&
           !(end < message.size() && in_word(message[end]) && in_word(fact.back()));
  };
  size_t from = 0;
  for (const std::string_view fact : facts) {
    size_t at = message.find(fact, from);
    while (at != message.npos && !is_whole(at, fact)) at = message.find(fact, at + 1);
    if (at == message.npos)
      return ::testing::AssertionFailure()
             << "\"" << fact << "\" is not in the message, or not after the facts before it:\n  " << message;
    from = at + fact.size();
  }
  return ::testing::AssertionSuccess();
}
inline ::testing::AssertionResult says(std::string_view message,
                                       std::initializer_list<std::string_view> facts) {
  return says(message, std::span<const std::string_view>(facts.begin(), facts.size()));
}

}  // namespace tessera
