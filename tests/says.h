// What a test asks of a message: its keys, numbers and names, and not the English around them.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace tessera::testing {

// Whether `message` has all of the parts, in this order.
inline ::testing::AssertionResult says(std::string_view message, std::span<const std::string_view> parts) {
  size_t at = 0;
  for (const std::string_view part : parts) {
    const size_t found = message.find(part, at);
    if (found == std::string_view::npos)
      return ::testing::AssertionFailure() << "expected: " << part << "\nfound:    " << message;
    at = found + part.size();
  }
  return ::testing::AssertionSuccess();
}
inline ::testing::AssertionResult says(std::string_view message,
                                       std::initializer_list<std::string_view> parts) {
  return says(message, std::span<const std::string_view>(parts.begin(), parts.size()));
}

}  // namespace tessera::testing
