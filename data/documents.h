// Reads texts and JSON lines as streams, so an input may be larger than memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "kernels/base/words.h"

namespace tessera {

enum class InputFormat : uint8_t { kByName, kText, kJsonLines };
constexpr auto words_of(InputFormat) {
  return std::array{Word{"name", InputFormat::kByName}, Word{"text", InputFormat::kText},
                    Word{"jsonl", InputFormat::kJsonLines}};
}

inline constexpr size_t kMostLineBytes = size_t{1} << 30;  // of a JSON line: it is parsed in memory

// About a MiB of an input: whole lines of JSON, or a part of a text. A text is one document; its last part
// may be empty.
struct Piece {
  std::string bytes;
  std::string input;  // its name, for messages
  bool is_lines = false;
  int64_t first_line = 1;             // the line of the input in which the piece begins
  bool begins = false, ends = false;  // whether the text begins or ends with this piece
};

struct PieceSink {
  std::function<bool(Piece)> on_piece;        // false: stop reading
  std::function<void(int64_t)> on_read = {};  // the number of further bytes of the input that were read
  size_t most_line_bytes = kMostLineBytes;
  // Returns the last place where a text that goes on may be cut; 0: none is known yet. By default a text may
  // be cut anywhere.
  std::function<size_t(std::string_view)> cut = {};
};

// Error: `input` does not exist, is a folder or is not readable, or it is a .json file or standard input and
// no format is given. Reads nothing: so a program with many inputs can reject the last one before it
// processes the first.
void check_input(const std::filesystem::path& input, InputFormat format = InputFormat::kByName);

// With kByName, *.jsonl is JSON lines, and any other file or pipe is plain text, which is one document; .gz
// and .zst may follow the name. "-" is standard input. Error: as check_input; a read error; compressed bytes
// that are damaged or cut; an input without a document; a line of more than most_line_bytes; a text with a
// zero byte near its beginning, which is no text.
void read_pieces(const std::filesystem::path& input, InputFormat format, const PieceSink& sink);

}  // namespace tessera
