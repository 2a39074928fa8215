#include "data/documents.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kPieceBytes = 1 << 20;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

void check_read(const fs::path& input, std::FILE* file) {
  check(std::ferror(file) == 0, "cannot read {}: {}", input.string(), std::strerror(errno));
}

void read_text(const fs::path& input, std::FILE* file, const DocumentSink& sink) {
  std::string piece;  // begins with what the last one left
  size_t read_bytes = kPieceBytes;
  bool is_first = true;
  while (true) {
    const size_t left = piece.size();
    piece.resize(left + read_bytes);
    piece.resize(left + std::fread(piece.data() + left, 1, read_bytes, file));
    check_read(input, file);
    if (piece.size() == left) break;
    if (std::exchange(is_first, false)) {
      const size_t zero = piece.find('\0');
      check(zero == std::string::npos,
            "{} is not plain text: its byte {} is 0; is it compressed, UTF-16 or binary? Wanted UTF-8 text "
            "or .jsonl",
            input.string(), zero);
    }
    const size_t cut = sink.cut ? sink.cut(piece) : piece.size();
    // Twice as much before the next look for a cut: the time stays linear.
    read_bytes = cut > 0 ? kPieceBytes : piece.size();
    if (cut == 0) continue;
    sink.on_text(std::string_view(piece).substr(0, cut));
    if (sink.on_read) sink.on_read(static_cast<int64_t>(cut));
    piece.erase(0, cut);
  }
  check(!is_first, "{} is empty", input.string());
  if (!piece.empty()) {
    sink.on_text(piece);
    if (sink.on_read) sink.on_read(std::ssize(piece));
  }
  sink.on_end();
}

std::string text_of_line(std::string_view line, const fs::path& input, int64_t line_number,
                         const std::string& text_field) {
  // A document may be as long as memory allows, and have any fields beside its text.
  json object = parse_json(line, input.string(),
                           {.bytes = line.size(), .repeated_keys = true, .first_line = line_number});
  const std::string where = fmt::format("{}:{}", input.string(), line_number);
  check(object.is_object(), "{}: wanted a JSON object with the text in its field '{}', found a JSON {}",
        where, text_field, object.type_name());
  const auto field = object.find(text_field);
  if (field == object.end()) {
    std::string found;
    for (const auto& [name, value] : object.items())
      found += fmt::format("{}'{}'", found.empty() ? "" : ", ", name);
    fail("{}: wanted the field '{}', found {}; choose the field with --text-field", where, text_field,
         found.empty() ? "no fields" : found);
  }
  check(field->is_string(), "{}: wanted a string in the field '{}', found a JSON {}", where, text_field,
        field->type_name());
  return std::move(field->get_ref<std::string&>());
}

void read_json_lines(const fs::path& input, const std::string& text_field, std::FILE* file,
                     const DocumentSink& sink) {
  struct Line {
    char* data = nullptr;
    size_t capacity = 0;
    ~Line() { std::free(data); }
  } line;
  int64_t line_number = 0, documents = 0;
  ssize_t length;
  while ((length = getline(&line.data, &line.capacity, file)) >= 0) {
    ++line_number;
    if (sink.on_read) sink.on_read(length);
    const std::string_view content(line.data, static_cast<size_t>(length));
    if (content.find_first_not_of(" \t\r\n") == std::string_view::npos) continue;
    const std::string text = text_of_line(content, input, line_number, text_field);
    if (!text.empty()) sink.on_text(text);
    sink.on_end();
    ++documents;
  }
  check_read(input, file);
  check(documents > 0, "{} holds no documents", input.string());
}

}  // namespace

void check_input(const fs::path& input) {
  std::error_code error;
  const fs::file_status status = fs::status(input, error);
  check(status.type() != fs::file_type::not_found, "the input {} does not exist",
        input.empty() ? "''" : input.string());
  check(!fs::is_directory(status), "the input {} is a folder: name its files, for example --input {}",
        input.string(), (input / "*.txt").string());
  check(access(input.c_str(), R_OK) == 0, "cannot read {}: {}", input.string(), std::strerror(errno));
  check(input.extension() != ".json",
        "the input {} is JSON: wanted plain text, or JSON lines (one object a line) in a file named .jsonl",
        input.string());
}

void read_documents(const fs::path& input, const std::string& text_field, const DocumentSink& sink) {
  check_input(input);
  const File file(std::fopen(input.c_str(), "rb"));
  check(file != nullptr, "cannot read {}: {}", input.string(), std::strerror(errno));
  if (input.extension() == ".jsonl") {
    read_json_lines(input, text_field, file.get(), sink);
  } else {
    read_text(input, file.get(), sink);
  }
}

}  // namespace tessera
