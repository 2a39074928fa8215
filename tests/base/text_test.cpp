#include "kernels/base/text.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Text, Utf8PrefixEndsBeforeWhatIsNotWellFormed) {
  const std::string good = "a\u00e9\u4e16\U0001F600";
  EXPECT_EQ(utf8_prefix(""), 0u);
  EXPECT_EQ(utf8_prefix(good), good.size());
  for (const std::string_view bad : {"\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                     "\xF8\x88\x80\x80\x80", "\xE4\xB8", "\xFF"})
    EXPECT_EQ(utf8_prefix(good + std::string(bad) + "b"), good.size());
}

TEST(Text, FirstCodePoint) {
  EXPECT_FALSE(first_code_point(""));
  EXPECT_EQ(first_code_point("\u4e16x")->code, 0x4E16u);
  EXPECT_EQ(first_code_point("\u4e16x")->bytes, 3u);
}

TEST(Text, PrintableKeepsTextAndReplacesWhatTerminalsWouldObey) {
  EXPECT_EQ(printable("a\tb\n"), "a\tb\n");
  EXPECT_EQ(printable("h\u00e9 \u4e16"), "h\u00e9 \u4e16");
  EXPECT_EQ(printable("\x1b[2J"), "\uFFFD[2J");
  EXPECT_EQ(printable("\u009b2J"), "\uFFFD2J");
  EXPECT_EQ(printable(std::string("\xff\xc3", 2)), "\uFFFD\uFFFD");
}

}  // namespace
}  // namespace tessera
