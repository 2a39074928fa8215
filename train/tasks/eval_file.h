// llm.c's file of a multiple-choice task, a .bin of tokens. A header of 256 int32 has the magic number
// 20240522,
// version 1, the number of items, and the bytes of the longest item. Then come the items, each a series of
// uint16:
//   65535, the item's size in bytes, its number, the right choice, the number of choices,
//   the number of tokens of the context and these tokens, and the same for each choice
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/file.h"
#include "train/tasks/task.h"

namespace tessera {

bool begins_as_eval_file(std::span<const std::byte> bytes);

// Reads the first `most` items; 0: all. All items are checked. Error: the header or an item is not as above;
// the message names the item and its byte in the file.
std::vector<TaskItem> read_eval_file(const MappedFile& file, int64_t most);

}  // namespace tessera
