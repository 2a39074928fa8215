#include "kernels/base/text.h"

#include <gtest/gtest.h>

#include "kernels/base/split.h"

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

// It reads eight ASCII bytes at a time.
TEST(Text, Utf8PrefixFindsTheFirstBadByteAnywhere) {
  for (size_t length = 0; length < 40; ++length)
    for (size_t bad = 0; bad < length; ++bad) {
      std::string text(length, 'a');
      text[bad] = '\xff';
      EXPECT_EQ(utf8_prefix(text), bad);
    }
}

TEST(Text, SplitKeepsEmptyParts) {
  using Parts = std::vector<std::string_view>;
  EXPECT_EQ(split("a,bc", ','), Parts({"a", "bc"}));
  EXPECT_EQ(split("a+bc", ','), Parts({"a+bc"}));
  EXPECT_EQ(split(",a,,", ','), Parts({"", "a", "", ""}));
  EXPECT_EQ(split("", ','), Parts({""}));
}

TEST(Text, EveryCodePointIsWrittenAndRead) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_utf8(text, code);
    const auto read = first_code_point(text);
    ASSERT_TRUE(read && read->code == code && read->bytes == text.size()) << code;
  }
}

TEST(Text, FirstCodePoint) {
  EXPECT_FALSE(first_code_point(""));
  EXPECT_EQ(first_code_point("\u4e16x")->code, 0x4E16u);
  EXPECT_EQ(first_code_point("\u4e16x")->bytes, 3u);
}

TEST(Text, PrintableKeepsTextAndReplacesWhatTerminalsWouldObey) {
  EXPECT_EQ(printable("a\tb\n"), "a\tb\n");
  EXPECT_EQ(printable("h\u00e9 \u4e16"), "h\u00e9 \u4e16");
  EXPECT_EQ(printable("a\r\nb"), "a\u240D\nb");
  EXPECT_EQ(printable("\x1b[2J"), "\uFFFD[2J");
  EXPECT_EQ(printable("\u009b2J"), "\uFFFD2J");
  EXPECT_EQ(printable(std::string("\xff\xc3", 2)), "\uFFFD\uFFFD");
}

}  // namespace
}  // namespace tessera
