// HTML pages that contain their data: one file, which opens from disk and needs no network.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// `page` with `json` in place of `mark`, which is in a script element. No text in the data can end that
// element.
std::string page_with_data(std::string page, std::string_view mark, const std::string& json);

}  // namespace tessera
