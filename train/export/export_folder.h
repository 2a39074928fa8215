// Writes a model in the formats of other programs: Hugging Face's transformers and PEFT, llama.cpp, llm.c.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/formats/number_format.h"

namespace tessera {

enum class ExportFormat : uint8_t { kHuggingFace, kGguf, kLlmC, kPeft };
constexpr auto words_of(ExportFormat) {
  return std::array{Word{"hf", ExportFormat::kHuggingFace}, Word{"gguf", ExportFormat::kGguf},
                    Word{"llm.c", ExportFormat::kLlmC}, Word{"peft", ExportFormat::kPeft}};
}

struct ExportOptions {
  std::string folder;  // as find_model_folder()
  ExportFormat format;
  std::filesystem::path output;                  // hf, peft: a folder; other formats: a file
  std::optional<NumberFormat> numbers;           // nothing: as in `folder`
  int64_t shard_bytes = 5'000'000'000;           // hf: the most bytes of tensors in a file
  std::string tokenizer = "";                    // as load_tokenizer() takes it; "": that of `folder`
  // All formats but peft: adds the adapter to the weights of this folder; "": to those that it was trained on
  std::string base = "";
  std::vector<std::string> ignored_fields = {};  // of `folder`, as read_model_config() takes them
  bool force = false;                            // replaces an earlier export
};

// Writes the export under a temporary name, reads it back and compares every tensor, and then gives it its
// name. Prints progress and notices on stderr, and what was written on stdout. Error: something that this
// model or the format does not allow, a full disk, or a signal; then nothing is left under the name of the
// output.
void export_folder(const ExportOptions& options);

}  // namespace tessera
