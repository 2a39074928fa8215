#include "kernels/base/lfs_pointer.h"

#include <charconv>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

constexpr std::string_view kFirstLine = "version https://git-lfs.github.com/spec/v1\n";
constexpr size_t kMostBytes = 1024;  // the format says: less than this

// What follows `key` and a blank at the beginning of a line; nothing: no such line
std::optional<std::string_view> line_of(std::string_view text, std::string_view key) {
  const std::string begin = "\n" + std::string(key) + " ";
  const size_t at = text.find(begin);
  if (at == text.npos) return {};
  const std::string_view rest = text.substr(at + begin.size());
  return rest.substr(0, rest.find('\n'));
}

}  // namespace

std::optional<int64_t> lfs_pointer_size(std::string_view bytes) {
  if (bytes.size() >= kMostBytes || !bytes.starts_with(kFirstLine)) return {};
  const auto digits = line_of(bytes, "size");
  if (!digits || !line_of(bytes, "oid")) return {};
  int64_t size = 0;
  const auto [end, error] = std::from_chars(digits->data(), digits->data() + digits->size(), size);
  if (error != std::errc() || end != digits->data() + digits->size() || size < 0) return {};
  return size;
}

void refuse_lfs_pointer(std::string_view bytes, const std::filesystem::path& path) {
  const std::optional<int64_t> size = lfs_pointer_size(bytes);
  if (!size) return;
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  fail(
      "{} is a Git LFS pointer of {} bytes, not the file that it stands for, which has {} bytes ({}) and was "
      "not fetched. Fetch it: git -C {} lfs pull; or download the folder anew: hf download OWNER/NAME "
      "--local-dir FOLDER",
      path.string(), bytes.size(), *size, format_bytes(*size), folder);
}

}  // namespace tessera
