#include "data/shard.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/present.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little,
              "shards are mapped in place, so the host must be little-endian");

using ShardHeader = std::array<int32_t, 256>;
constexpr size_t kFlushBytes = 1 << 21;

struct Format {
  TokenBits bits;
  int32_t magic, version;
  const char* of;  // for messages
};
constexpr Format kFormats[] = {{TokenBits::k16, 20240520, 1, "16-bit tokens, GPT-2's"},
                               {TokenBits::k32, 20240801, 7, "32-bit tokens, Llama 3's"}};

const Format& format_of(TokenBits bits) { return kFormats[bits == TokenBits::k32]; }
size_t bytes_of(TokenBits bits) { return static_cast<size_t>(bits) / 8; }

ShardHeader header_of(TokenBits bits, int64_t tokens) {
  return {format_of(bits).magic, format_of(bits).version, static_cast<int32_t>(tokens)};
}

TokenBits bits_of(const ShardHeader& header, const std::string& path) {
  const auto& [magic, version] = std::pair(header[0], header[1]);
  std::string known;
  for (const Format& format : kFormats) {
    known += fmt::format("{}{} ({})", known.empty() ? "" : " or ", format.magic, format.of);
    if (magic != format.magic) continue;
    check(version == format.version, "the token shard {} has version {}, expected {} with {}", path, version,
          format.version, format.of);
    return format.bits;
  }
  fail(
      "{} is not a token shard: its magic number is {}, expected {}: llm.c's formats, as prepare writes them",
      path, magic, known);
}

}  // namespace

TokenBits bits_for(int64_t vocab_size) { return vocab_size <= 1 << 16 ? TokenBits::k16 : TokenBits::k32; }

ShardTokens shard_tokens(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  const std::string path = file.path().string();
  check(!bytes.empty(), "the token shard {} is empty (0 bytes): prepare it again", path);
  check(bytes.size() >= sizeof(ShardHeader),
        "{} is not a token shard: the header takes {} bytes, found {} bytes", path, sizeof(ShardHeader),
        bytes.size());
  ShardHeader header;
  std::memcpy(header.data(), bytes.data(), sizeof(ShardHeader));
  const TokenBits bits = bits_of(header, path);
  check(header[2] > 0, "the token shard {} says that it holds {} tokens: prepare it again", path, header[2]);
  const auto count = static_cast<size_t>(header[2]);
  const size_t expected_bytes = sizeof(ShardHeader) + count * bytes_of(bits);
  check(bytes.size() >= expected_bytes,
        "the token shard {} is truncated: expected {} tokens ({} bytes), found {} bytes: copy or prepare it "
        "again",
        path, count, expected_bytes, bytes.size());
  check(bytes.size() == expected_bytes,
        "the token shard {} is longer than its header says: expected {} tokens ({} bytes), found {} bytes: "
        "prepare it again",
        path, count, expected_bytes, bytes.size());
  // Aligned: a mapping begins on a page, and the header is a multiple of four bytes.
  const std::byte* tokens = bytes.data() + sizeof(ShardHeader);
  if (bits == TokenBits::k16) return std::span(reinterpret_cast<const uint16_t*>(tokens), count);
  return std::span(reinterpret_cast<const uint32_t*>(tokens), count);
}

std::vector<std::filesystem::path> shards_in(const std::filesystem::path& folder,
                                             const std::string& pattern) {
  std::vector<std::filesystem::path> shards;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) == 0) shards.push_back(entry->path());
  }
  check(!error, "cannot read the folder {}: {}", folder.string(), error.message());
  check(!shards.empty(),
        "the folder {} holds no token shards named {}: prepare some with ./prepare, or name a text file",
        folder.string(), pattern);
  std::ranges::sort(shards);
  return shards;
}

std::string shard_name(const std::string& prefix, int64_t number) {
  return fmt::format("{}_{:06}.bin", prefix, number);
}

ShardWriter::ShardWriter(ShardWriterOptions options) : options_(std::move(options)) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // the header counts in an int32
  check(1 <= options_.tokens_per_shard && options_.tokens_per_shard <= kMost,
        "a shard must hold 1 to {} tokens, asked for {}", kMost, options_.tokens_per_shard);
}

void ShardWriter::append(std::span<const int32_t> tokens) {
  while (!tokens.empty()) {
    if (!file_) begin_shard();
    const size_t room_in_shard = static_cast<size_t>(options_.tokens_per_shard - shard_token_count_);
    const size_t room_in_buffer = (kFlushBytes - buffer_.size()) / bytes_of(options_.bits);
    const size_t count = std::min({tokens.size(), room_in_shard, room_in_buffer});
    if (options_.bits == TokenBits::k16) {
      store<uint16_t>(tokens.first(count));
    } else {
      store<uint32_t>(tokens.first(count));
    }
    shard_token_count_ += static_cast<int64_t>(count);
    token_count_ += static_cast<int64_t>(count);
    tokens = tokens.subspan(count);
    if (buffer_.size() == kFlushBytes) flush();
    if (shard_token_count_ == options_.tokens_per_shard) finish_shard();
  }
}

template <class Stored>
void ShardWriter::store(std::span<const int32_t> tokens) {
  size_t at = buffer_.size();
  buffer_.resize(at + tokens.size() * sizeof(Stored));
  for (const int32_t token : tokens) {
    check(token >= 0, "token {} is negative: a shard holds tokens from 0", token);
    check(static_cast<uint32_t>(token) <= std::numeric_limits<Stored>::max(),
          "token {} does not fit into a shard's {} bits", token, 8 * sizeof(Stored));
    const auto stored = static_cast<Stored>(token);
    std::memcpy(buffer_.data() + at, &stored, sizeof(Stored));
    at += sizeof(Stored);
  }
}

void ShardWriter::finish() {
  if (file_) finish_shard();
}

void ShardWriter::begin_shard() {
  name_ = shard_name(options_.prefix, shard_count_);
  file_.emplace(options_.folder / name_);
  ++shard_count_;
  // Right for all shards but the last, whose count is known at the end.
  const ShardHeader header = header_of(options_.bits, options_.tokens_per_shard);
  file_->write(std::as_bytes(std::span(header)));
}

void ShardWriter::flush() {
  present(file_).write(buffer_);
  buffer_.clear();
}

void ShardWriter::finish_shard() {
  flush();
  const ShardHeader header = header_of(options_.bits, shard_token_count_);
  if (shard_token_count_ != options_.tokens_per_shard)
    present(file_).overwrite_start(std::as_bytes(std::span(header)));
  checksums_[name_] = present(file_).commit();
  shard_token_count_ = 0;
  file_.reset();
}

}  // namespace tessera
