// What holds of every SVG file.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace tessera::testing {

inline void expect_sound_svg(const std::string& svg) {
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg;
  for (const char* wrong : {"nan", "inf", "<script", "href"})
    EXPECT_EQ(svg.find(wrong), std::string::npos) << wrong << "\n" << svg;
  int open = 0;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    if (svg[at + 1] == '/') {
      ASSERT_GT(open--, 0) << svg.substr(at);
    } else if (svg[svg.find('>', at) - 1] != '/') {
      ++open;
    }
  }
  EXPECT_EQ(open, 0) << "tags that are not closed";
}

}  // namespace tessera::testing
