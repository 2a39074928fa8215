#include "train/plot/svg_text.h"

#include <fmt/core.h>

namespace tessera {

std::string svg_escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else {
      result += c;
    }
  }
  return result;
}

std::string svg_text(double x, double y, const char* anchor, const std::string& what,
                     const std::string& more) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     svg_escaped(what));
}

std::string svg_head(const std::string& title, double width, double height) {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
             "height=\"{1:.0f}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n"
             "<title>{2}</title>\n"
             "<style>text{{fill:#333}}.t{{font-weight:bold}}.g{{stroke:#888;stroke-opacity:.3;fill:none}}"
             ".v{{stroke:#888;stroke-dasharray:6 4;fill:none}}.b{{fill:#fff}}\n"
             "@media(prefers-color-scheme:dark){{text{{fill:#ddd}}.b{{fill:#0d1117}}}}</style>\n"
             "<rect class=\"b\" width=\"100%\" height=\"100%\"/>\n",
             width, height, svg_escaped(title)) +
         svg_text(width / 2, 22, "middle", title, " class=\"t\" font-size=\"15\"");
}

}  // namespace tessera
