#include "data/documents.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "data/input_file.h"
#include "kernels/base/check.h"
#include "kernels/base/system_error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = 1 << 20;

// Reads on until `text` has `bytes` more, or the input ends.
void read_more(InputFile& file, size_t bytes, std::string& text, const PieceSink& sink) {
  const int64_t before = file.bytes_read();
  size_t size = text.size();
  text.resize(size + bytes);
  while (size < text.size()) {
    const size_t count = file.read(std::span(text).subspan(size));
    if (count == 0) break;
    size += count;
  }
  text.resize(size);
  if (sink.on_read) sink.on_read(file.bytes_read() - before);
}

std::string shown(const fs::path& input) {
  return input == kStandardInput ? "standard input" : input.string();
}

void read_text(const fs::path& input, const PieceSink& sink) {
  InputFile file(input);
  std::string text;  // begins with what the last piece left
  size_t count = kPieceBytes;
  bool begins = true;
  int64_t line = 1;
  while (true) {
    const size_t left = text.size();
    read_more(file, count, text, sink);
    const bool ends = text.size() < left + count;
    if (left == 0 && begins) {
      check(!text.empty(), "{} is empty", shown(input));
      const size_t zero = text.find('\0');
      check(zero == std::string::npos,
            "{} is not plain text: its byte {} is 0; is it compressed, UTF-16 or binary? Expected UTF-8 text "
            "or .jsonl, or either of them with .gz or .zst",
            shown(input), zero);
    }
    const size_t cut = ends || !sink.cut ? text.size() : sink.cut(text);
    // Twice as much before the next look for a cut: the time stays linear.
    count = cut > 0 ? kPieceBytes : text.size();
    if (cut == 0 && !ends) continue;  // the last piece is empty where the one before it was the whole rest
    std::string rest = text.substr(cut);
    text.resize(cut);
    const int64_t lines = std::ranges::count(text, '\n');
    if (!sink.on_piece({.bytes = std::exchange(text, std::move(rest)),
                        .input = shown(input),
                        .first_line = line,
                        .begins = std::exchange(begins, false),
                        .ends = ends}))
      return;
    if (ends) return;
    line += lines;
  }
}

void read_json_lines(const fs::path& input, const PieceSink& sink) {
  InputFile file(input);
  std::string text;  // begins with what the last piece left: the beginning of a line
  int64_t line = 1;
  bool has_documents = false;
  for (bool ends = false; !ends;) {
    const size_t left = text.size(), room = sink.most_line_bytes + 1 - left;
    const size_t count = std::min(std::max(kPieceBytes, left), room);  // linear in the longest line
    read_more(file, count, text, sink);
    ends = text.size() < left + count;
    const size_t newline = text.rfind('\n');
    const size_t whole = newline == std::string::npos ? 0 : newline + 1;
    check(text.size() - whole <= sink.most_line_bytes,
          "{}:{}: the line has more than {} bytes, the most that one may have", shown(input),
          line + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(whole), '\n'),
          sink.most_line_bytes);
    const size_t cut = ends ? text.size() : whole;
    if (cut == 0) continue;
    std::string rest = text.substr(cut);
    text.resize(cut);
    has_documents = has_documents || text.find_first_not_of(" \t\r\n") != std::string::npos;
    const int64_t lines = std::ranges::count(text, '\n');
    if (!sink.on_piece({.bytes = std::exchange(text, std::move(rest)),
                        .input = shown(input),
                        .is_lines = true,
                        .first_line = line}))
      return;
    line += lines;
  }
  check(has_documents, "{} holds no documents", shown(input));
}

bool is_json_lines(const fs::path& input, InputFormat format) {
  if (format == InputFormat::kByName) return uncompressed_name(input).extension() == ".jsonl";
  return format == InputFormat::kJsonLines;
}

}  // namespace

void check_input(const fs::path& input, InputFormat format) {
  const bool by_name = format == InputFormat::kByName;
  if (input == kStandardInput) {
    check(!by_name, "standard input has no name that tells its format: add --format text or --format jsonl");
    return;
  }
  std::error_code error;
  const fs::file_status status = fs::status(input, error);
  check(status.type() != fs::file_type::not_found, "the input {} does not exist",
        input.empty() ? "''" : input.string());
  check(!fs::is_directory(status), "the input {} is a folder: name its files, for example {}", input.string(),
        (input / "*.txt").string());
  check_system(access(input.c_str(), R_OK) == 0, "cannot read {}: {}", input.string());
  check(!by_name || uncompressed_name(input).extension() != ".json",
        "the input {} is JSON: expected plain text, or JSON lines (one object a line) in a file named .jsonl",
        input.string());
}

void read_pieces(const fs::path& input, InputFormat format, const PieceSink& sink) {
  check_input(input, format);
  if (is_json_lines(input, format)) {
    read_json_lines(input, sink);
  } else {
    read_text(input, sink);
  }
}

}  // namespace tessera
