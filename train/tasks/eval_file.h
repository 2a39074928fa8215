// llm.c's file of a multiple-choice task, a .bin of tokens: a header of 256 int32 (magic number 20240522,
// version 1, the number of items, the bytes of the longest), then the items, each a series of uint16:
//   65535, the bytes of the item, its number, the right choice, the number of choices,
//   the number of tokens of the context, these, and for each choice the number of its tokens, and these
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/file.h"
#include "train/tasks/task.h"

namespace tessera {

bool begins_as_eval_file(std::span<const std::byte> bytes);

// The first `most` items; 0: all. All are checked. Error: a header or an item that is not as above; names the
// item and its byte in the file.
std::vector<TaskItem> read_eval_file(const MappedFile& file, int64_t most);

}  // namespace tessera
