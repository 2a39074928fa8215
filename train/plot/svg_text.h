// The beginning of an SVG file, and texts in it.
#pragma once

#include <string>

namespace tessera {

// Opens the file and writes its title at the top, centred. Lengths are SVG user units: pixels at the natural
// size. Close the file with "</svg>\n".
std::string svg_head(const std::string& title, double width, double height);

// `anchor`: start, middle or end. `more`: further attributes, after a space
std::string svg_text(double x, double y, const char* anchor, const std::string& what,
                     const std::string& more = "");

std::string svg_escaped(const std::string& text);

}  // namespace tessera
