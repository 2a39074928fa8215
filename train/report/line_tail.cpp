#include "train/report/line_tail.h"

#include <cstring>
#include <fstream>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/system_error.h"

namespace tessera {

bool LineTail::was_replaced() {
  std::error_code error;
  const auto size = std::filesystem::file_size(path_, error);
  if (error || static_cast<int64_t>(size) >= offset_) return false;
  offset_ = 0;
  return true;
}

void LineTail::read(const std::function<void(std::string_view, int64_t)>& visit) {
  constexpr size_t kPart = 1 << 20, kLongestLine = 16 << 20;  // bytes
  std::ifstream file(path_, std::ios::binary);
  check_system(file.is_open(), "cannot read {}: {}", path_.string());
  file.seekg(offset_);
  std::string pending;  // from offset_ on, or nothing of a line that is too long
  bool too_long = false;
  int64_t at = offset_;  // of the next byte of the file
  for (std::string part(kPart, '\0'); file.read(part.data(), kPart), file.gcount() > 0;) {
    std::string_view rest(part.data(), static_cast<size_t>(file.gcount()));
    for (size_t end; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
      at += static_cast<int64_t>(end) + 1;
      if (!too_long) pending += rest.substr(0, end);
      visit(pending, offset_);
      pending.clear();
      too_long = false;
      offset_ = at;
    }
    at += static_cast<int64_t>(rest.size());
    if (!too_long) pending += rest;
    if (pending.size() > kLongestLine) {
      pending.clear();
      too_long = true;
    }
  }
  check_system(!file.bad(), "cannot read {}: {}", path_.string());
}

}  // namespace tessera
