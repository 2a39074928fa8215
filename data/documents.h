// Reads texts and JSON lines, as a stream: an input may be larger than memory.
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

// About a MiB of an input: lines of JSON, each of them whole, or a part of a text, which is one document.
// The last part of a text may be empty.
struct Piece {
  std::string bytes;
  std::string input;  // its name, for messages
  bool is_lines = false;
  int64_t first_line = 1;             // the line of the input that the piece begins in
  bool begins = false, ends = false;  // the document that is a text
};

struct PieceSink {
  std::function<bool(Piece)> on_piece;        // false: stop reading
  std::function<void(int64_t)> on_read = {};  // the number of further bytes of the input that were read
  size_t most_line_bytes = kMostLineBytes;
  // The last place where a text that goes on may be cut; 0: nowhere yet. By default anywhere.
  std::function<size_t(std::string_view)> cut = {};
};

// Error: `input` does not exist, is a folder, is not readable, is a .json file or standard input without a
// format. Reads nothing: a program with many inputs can reject the last one before it processes the first.
void check_input(const std::filesystem::path& input, InputFormat format = InputFormat::kByName);

// By name *.jsonl is JSON lines, any other file or pipe plain text and one document; .gz and .zst may
// follow. "-" is standard input.
// Error: what check_input throws, a read error, compressed bytes that are damaged or cut, an input without
// any document, a line of more than most_line_bytes, a text with a zero byte near its beginning (it is not
// text).
void read_pieces(const std::filesystem::path& input, InputFormat format, const PieceSink& sink);

}  // namespace tessera
