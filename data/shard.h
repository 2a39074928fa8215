// Token shards, in the formats of llm.c: a header of 256 little-endian int32 (1024 bytes), then the tokens as
// little-endian uint16 or uint32. Header: [2] number of tokens, and from [3] on 0;
//   16 bits  [0] 20240520, [1] version 1  vocabularies of at most 65,536 tokens: GPT-2
//   32 bits  [0] 20240801, [1] version 7  larger ones: Llama 3, Qwen
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/file_checksums.h"

namespace tessera {

enum class TokenBits : uint8_t { k16 = 16, k32 = 32 };
TokenBits bits_for(int64_t vocab_size);  // the fewest bits that hold every token

using ShardTokens = std::variant<std::span<const uint16_t>, std::span<const uint32_t>>;

// The tokens of a mapped shard: a view that lives as long as `file`.
// Error, each with its own message: the file is empty, has a wrong magic number or an unsupported version,
// has fewer bytes than its header says (it is truncated) or more, or has no tokens.
ShardTokens shard_tokens(const MappedFile& file);

// The files of a folder whose names match `pattern`, in the order of their names.
// Error: a folder that cannot be read, or has none.
std::vector<std::filesystem::path> shards_in(const std::filesystem::path& folder,
                                             const std::string& pattern = "*.bin");

// train_000000.bin for ("train", 0)
std::string shard_name(const std::string& prefix, int64_t number);

struct ShardWriterOptions {
  std::filesystem::path folder;            // exists; shards in it that have the same names are replaced
  std::string prefix = "train";            // names are <prefix>_000000.bin, <prefix>_000001.bin, ...
  int64_t tokens_per_shard = 100'000'000;  // 1 .. 2^31 - 1; only the last shard may hold fewer
  TokenBits bits = TokenBits::k16;
};

// Writes a stream of tokens as consecutive shards. A shard gets its final name when it is complete and on
// disk; the destructor removes an incomplete one. Every call may throw an Error that names the file and the
// system's reason; after an Error only destroy the writer.
class ShardWriter {
 public:
  explicit ShardWriter(ShardWriterOptions options);

  void append(std::span<const int32_t> tokens);  // Error: a token that does not fit
  void finish();                                 // completes the last shard; required

  int64_t token_count() const { return token_count_; }
  int64_t shard_count() const { return shard_count_; }           // begun or complete
  const FileChecksums& checksums() const { return checksums_; }  // of the complete ones

 private:
  void begin_shard();
  template <class Stored>
  void store(std::span<const int32_t> tokens);
  void flush();
  void finish_shard();

  ShardWriterOptions options_;
  std::optional<OutputFile> file_;  // the shard being written
  std::string name_;                // of its file
  std::vector<std::byte> buffer_;   // of tokens that were not yet written to file_
  int64_t shard_token_count_ = 0;   // in the current shard, including those in buffer_
  int64_t token_count_ = 0;         // in all shards
  int64_t shard_count_ = 0;
  FileChecksums checksums_;
};

}  // namespace tessera
