// Reads documents from text files and JSON lines, as a stream: a file may be larger than memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace tessera {

struct DocumentSink {
  // The next piece of the current document, at least one byte. A JSON document is one piece; a text file has
  // pieces of a MiB or more, which end where `cut` says.
  std::function<void(std::string_view)> on_text;
  std::function<void()> on_end;               // the document is complete
  std::function<void(int64_t)> on_read = {};  // the number of further bytes of the input that were processed
  // The last place where a text that goes on may be cut; 0: nowhere yet. By default anywhere.
  std::function<size_t(std::string_view)> cut = {};
};

// Error: `input` does not exist, is a folder, is not readable, or is a .json file. Reads nothing: a
// program with many inputs can reject the last one before it processes the first.
void check_input(const std::filesystem::path& input);

// *.jsonl: one JSON object a line, whose string field `text_field` is a document; blank lines are skipped.
// Any other file (or pipe) is plain text and one document.
// Error: what check_input throws, a read error, a file without any document, a text file with a zero byte
// near its beginning (it is not text); for JSON lines, naming file and line: a line that is not JSON, not an
// object, without the field, or whose field is not a string.
void read_documents(const std::filesystem::path& input, const std::string& text_field,
                    const DocumentSink& sink);

}  // namespace tessera
