#include "data/shard.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "kernels/base/check.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little,
              "shards are mapped in place, so the host must be little-endian");

constexpr int32_t kMagic = 20240520;
constexpr int32_t kVersion = 1;
using Header = std::array<int32_t, 256>;
constexpr size_t kFlushTokens = 1 << 20;

Header header_of(int64_t tokens) { return {kMagic, kVersion, static_cast<int32_t>(tokens)}; }

}  // namespace

std::span<const uint16_t> shard_tokens(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  const std::string path = file.path().string();
  check(!bytes.empty(), "the token shard {} is empty (0 bytes): prepare it again", path);
  check(bytes.size() >= sizeof(Header), "{} is not a token shard: the header takes {} bytes, found {} bytes",
        path, sizeof(Header), bytes.size());
  Header header;
  std::memcpy(header.data(), bytes.data(), sizeof(Header));
  const auto [magic, version, count] = std::tuple(header[0], header[1], header[2]);
  check(magic == kMagic,
        "{} is not a token shard: its magic number is {}, wanted {} (16-bit tokens in llm.c's format, as "
        "prepare writes)",
        path, magic, kMagic);
  check(version == kVersion, "the token shard {} has version {}, supported is {}", path, version, kVersion);
  check(count > 0, "the token shard {} says that it holds {} tokens: prepare it again", path, count);
  const size_t wanted_bytes = sizeof(Header) + static_cast<size_t>(count) * sizeof(uint16_t);
  check(bytes.size() >= wanted_bytes,
        "the token shard {} is truncated: wanted {} tokens ({} bytes), found {} bytes: copy or prepare it "
        "again",
        path, count, wanted_bytes, bytes.size());
  check(bytes.size() == wanted_bytes,
        "the token shard {} is longer than its header says: wanted {} tokens ({} bytes), found {} bytes: "
        "prepare it again",
        path, count, wanted_bytes, bytes.size());
  // Aligned: a mapping begins on a page, and the header is a multiple of two bytes.
  return {reinterpret_cast<const uint16_t*>(bytes.data() + sizeof(Header)), static_cast<size_t>(count)};
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

ShardWriter::ShardWriter(ShardWriterOptions options) : options_(std::move(options)) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // the header counts in an int32
  check(1 <= options_.tokens_per_shard && options_.tokens_per_shard <= kMost,
        "a shard must hold 1 to {} tokens, asked for {}", kMost, options_.tokens_per_shard);
}

void ShardWriter::append(std::span<const int32_t> tokens) {
  while (!tokens.empty()) {
    if (!file_) begin_shard();
    const size_t room_in_shard = static_cast<size_t>(options_.tokens_per_shard - shard_token_count_);
    const size_t count = std::min({tokens.size(), room_in_shard, kFlushTokens - buffer_.size()});
    for (const int32_t token : tokens.first(count)) {
      check(0 <= token && token <= std::numeric_limits<uint16_t>::max(),
            "token {} does not fit into a shard's 16 bits", token);
      buffer_.push_back(static_cast<uint16_t>(token));
    }
    shard_token_count_ += static_cast<int64_t>(count);
    token_count_ += static_cast<int64_t>(count);
    tokens = tokens.subspan(count);
    if (buffer_.size() == kFlushTokens) flush();
    if (shard_token_count_ == options_.tokens_per_shard) finish_shard();
  }
}

void ShardWriter::finish() {
  if (file_) finish_shard();
}

void ShardWriter::begin_shard() {
  name_ = fmt::format("{}_{:06}.bin", options_.prefix, shard_count_);
  file_.emplace(options_.folder / name_);
  ++shard_count_;
  // Right for all shards but the last, whose count is known at the end.
  const Header header = header_of(options_.tokens_per_shard);
  file_->write(std::as_bytes(std::span(header)));
}

void ShardWriter::flush() {
  file_->write(std::as_bytes(std::span(buffer_)));
  buffer_.clear();
}

void ShardWriter::finish_shard() {
  flush();
  const Header header = header_of(shard_token_count_);
  if (shard_token_count_ != options_.tokens_per_shard)
    file_->overwrite_start(std::as_bytes(std::span(header)));
  checksums_[name_] = file_->commit();
  shard_token_count_ = 0;
  file_.reset();
}

}  // namespace tessera
