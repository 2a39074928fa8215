// Git LFS keeps large files outside of a repository. Where they were not fetched, each is a pointer: a small
// text with the checksum and the size of the file that it stands for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace tessera {

// The size in bytes of the file that a pointer stands for; nothing if `bytes`, a whole file, are no pointer.
std::optional<int64_t> lfs_pointer_size(std::string_view bytes);

// Error: `bytes`, the whole file `path` or its beginning, are a pointer. The message has the commands that
// fetch the file.
void refuse_lfs_pointer(std::string_view bytes, const std::filesystem::path& path);

}  // namespace tessera
