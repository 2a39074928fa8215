// dataset.json: the description of a folder of shards, written by `prepare`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/file_checksums.h"

namespace tessera {

inline constexpr const char* kManifestName = "dataset.json";
inline constexpr const char* kManifestFormat = "tessera-dataset-3";
inline constexpr const char* kManifestWithoutDocuments = "tessera-dataset-2";  // these are read as well
inline constexpr const char* kManifestWithoutChecksums = "tessera-dataset-1";

struct Manifest {
  std::string format = kManifestFormat;
  std::string tokenizer;            // its name: see Tokenizer::name()
  std::string tokenizer_from = "";  // where its files were; "" for `bytes`, which has no files
  int64_t end_of_text = 0;          // the id that follows every document
  int64_t vocab_size = 0;           // of that tokenizer
  // The largest id in the shards, so that a model with fewer rows can be refused at once. None: it is not
  // known
  std::optional<int64_t> largest_token = {};
  int64_t tokens = 0;  // in all shards, the end-of-text tokens included
  int64_t documents = 0;
  int64_t counted_tokens = 0;      // tokens that count as targets
  int64_t dropped_samples = 0;     // samples in which no token would have counted
  int64_t skipped_bytes = 0;       // bytes for which the tokenizer has no token
  std::string chat_template = "";  // of the conversations: chatml, llama3 or a file; "" if there are none
  // The special tokens that have a loss when they end an assistant's turn; none: it is not known
  std::optional<std::vector<int32_t>> turn_ends = {};
  int64_t shards = 0;
  FileChecksums files = {};  // of every shard and its index of documents
};

// Error: the file cannot be written.
void write_manifest(const std::filesystem::path& folder, const Manifest& manifest);

// nullopt if the folder has no dataset.json. Error: the file is unreadable or not JSON, a field is missing or
// has another type, or the format is another one; the message names the file.
std::optional<Manifest> read_manifest(const std::filesystem::path& folder);

}  // namespace tessera
