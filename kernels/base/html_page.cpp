#include "kernels/base/html_page.h"

#include "kernels/base/check.h"

namespace tessera {

std::string page_with_data(std::string page, std::string_view mark, const std::string& json) {
  const size_t at = page.find(mark);
  check(at != std::string::npos, "the page's template has no place for its data: \"{}\" is not in it", mark);
  std::string data;
  data.reserve(json.size() + json.size() / 16);
  for (const char c : json) c == '<' ? data += "\\u003c" : data += c;  // "</script>" would end the data
  return page.replace(at, mark.size(), data);
}

}  // namespace tessera
