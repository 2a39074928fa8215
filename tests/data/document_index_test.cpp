#include "data/document_index.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "data/manifest.h"
#include "data/shard.h"
#include "data/token_stream.h"
#include "kernels/base/no_target.h"
#include "tests/data/support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Index = InTempFolder;

// The bytes of an index, written out by hand
std::string index_bytes(int64_t first_token, int64_t tokens, const std::vector<uint32_t>& starts,
                        const std::vector<uint32_t>& runs = {}) {
  std::string bytes = "tessdocs" + little_endian(1, 4) + little_endian(0, 4);
  for (const auto number : {first_token, tokens, std::ssize(starts), std::ssize(runs) / 2})
    bytes += little_endian(static_cast<uint64_t>(number), 8);
  for (const uint32_t start : starts) bytes += little_endian(start, 4);
  for (const uint32_t run : runs) bytes += little_endian(run, 4);
  return bytes;
}

// Writes `tokens` tokens in pieces of `piece`, in shards of `shard`.
void write_dataset(const fs::path& folder, int64_t tokens, int64_t shard, int64_t piece,
                   const DocumentMarks& marks) {
  ShardWriter shards({.folder = folder, .tokens_per_shard = shard});
  DocumentIndexWriter index({.folder = folder, .tokens_per_shard = shard});
  for (int64_t first = 0; first < tokens; first += piece) {
    const int64_t end = std::min(first + piece, tokens);
    std::vector<int32_t> ids(static_cast<size_t>(end - first));
    std::iota(ids.begin(), ids.end(), static_cast<int32_t>(first));
    DocumentMarks here;
    for (const int64_t start : marks.starts)
      if (start >= first && start < end) here.starts.push_back(start - first);
    for (const auto& [begin, count] : marks.uncounted) {
      const int64_t from = std::max(begin, first), to = std::min(begin + count, end);
      if (from < to) here.uncounted.push_back({from - first, to - from});
    }
    shards.append(ids);
    index.append(end - first, here);
  }
  shards.finish();
  index.finish();
  EXPECT_EQ(shards.checksums().size(), index.checksums().size());
}

TEST_F(Index, HasTheFormatOfItsHeader) {
  write_dataset(folder_, 10, 6, 10, {.starts = {0, 4, 7}, .uncounted = {{1, 1}, {4, 3}}});
  EXPECT_EQ(read_file(folder_ / "train_000000.documents"), index_bytes(0, 6, {0, 4}, {1, 1, 4, 2}));
  EXPECT_EQ(read_file(folder_ / "train_000001.documents"), index_bytes(6, 4, {1}, {0, 1}));
}

TEST_F(Index, DocumentsSpanShardsAndTheSizeOfPiecesDoesNotMatter) {
  const DocumentMarks marks{.starts = {0, 1, 37, 38, 90}, .uncounted = {{0, 1}, {2, 30}, {39, 40}, {99, 1}}};
  const auto counts = [&](int64_t token) {
    return std::ranges::none_of(marks.uncounted, [&](const TokenRange& run) {
      return token >= run.first_token && token < run.first_token + run.token_count;
    });
  };
  for (const int64_t shard : {1, 7, 10, 100, 1000})
    for (const int64_t piece : {1, 3, 100}) {
      const fs::path folder = folder_ / fmt::format("{}_{}", shard, piece);
      fs::create_directory(folder);
      write_dataset(folder, 100, shard, piece, marks);
      const TokenStream stream = TokenStream::open(folder);
      const DocumentIndex* documents = stream.documents();
      ASSERT_NE(documents, nullptr);
      ASSERT_EQ(documents->count(), 5);
      EXPECT_EQ(documents->tokens(), 100);
      EXPECT_EQ(documents->counted_tokens(), 100 - 72);
      const std::vector<TokenRange> wanted = {{0, 1}, {1, 36}, {37, 1}, {38, 52}, {90, 10}};
      for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(documents->document(i), wanted[static_cast<size_t>(i)]);
      for (int64_t first = 0; first <= 100; ++first)
        for (const int64_t count : {int64_t{0}, std::min<int64_t>(3, 100 - first), 100 - first}) {
          std::vector<int32_t> targets(static_cast<size_t>(count), 5), expected = targets;
          documents->drop_uncounted(first, targets);
          for (int64_t i = 0; i < count; ++i)
            if (!counts(first + i)) expected[static_cast<size_t>(i)] = kNoTarget;
          ASSERT_EQ(targets, expected) << "from " << first << ", shards of " << shard;
        }
      std::vector<int32_t> one(1);
      expect_error([&] { documents->drop_uncounted(100, one); }, {"100 to 100", "has 100"});
      expect_error([&] { documents->document(5); }, {"no document 5", "has 5"});
    }
}

TEST_F(Index, AShardByItselfBeginsADocument) {
  write_dataset(folder_, 30, 10, 30, {.starts = {0, 15, 28}, .uncounted = {{14, 2}}});
  const auto documents_of = [&](const char* path) {
    const TokenStream stream = TokenStream::open(folder_ / path);
    std::vector<TokenRange> found;
    for (int64_t i = 0; i < stream.documents()->count(); ++i)
      found.push_back(stream.documents()->document(i));
    return found;
  };
  using Found = std::vector<TokenRange>;
  EXPECT_EQ(documents_of("train_000001.bin"), (Found{{0, 5}, {5, 5}}));
  EXPECT_EQ(documents_of("train_00000[01].bin"), (Found{{0, 15}, {15, 5}}));
  EXPECT_EQ(documents_of("train_00000[02].bin"), (Found{{0, 10}, {10, 8}, {18, 2}}));  // one is left out
}

TEST_F(Index, ShardsWithoutItHaveNoDocuments) {
  write("a.bin", shard_bytes({1, 2, 3}));
  EXPECT_EQ(TokenStream::open(folder_).documents(), nullptr);
  EXPECT_EQ(TokenStream::open(write("b.txt", "text")).documents(), nullptr);
  write("b.bin", shard_bytes({1, 2, 3}));
  write("a.documents", index_bytes(0, 3, {0}));
  expect_error([&] { TokenStream::open(folder_); }, {"b.documents is missing"});
}

TEST_F(Index, DamagedFilesAreRefusedByName) {
  write("a.bin", shard_bytes({1, 2, 3, 4}));
  const std::string good = index_bytes(0, 4, {0, 2}, {1, 1});
  const auto refused = [&](const std::string& bytes, std::string_view why) {
    write("a.documents", bytes);
    expect_error([&] { TokenStream::open(folder_); }, {"a.documents", why});
  };
  refused("", "tessdocs");
  refused("tessdoc", "tessdocs");
  refused("xessdocs" + good.substr(8), "tessdocs");
  refused(good.substr(0, 8) + little_endian(2, 4) + good.substr(12), "version 2, expected 1");
  for (size_t bytes = 12; bytes < good.size(); ++bytes) refused(good.substr(0, bytes), "truncated");
  refused(good + "x", "longer");
  refused(index_bytes(0, 5, {0}), "has 4");
  refused(index_bytes(-1, 4, {0}), "damaged");
  refused(index_bytes(std::numeric_limits<int64_t>::max() - 3, 4, {0}), "damaged");
  refused(index_bytes(0, 4, {0, 1, 2, 3, 3}), "says 5 documents");
  refused(index_bytes(0, 4, {0, 2, 2}), "token 2, after one with token 2");
  refused(index_bytes(0, 4, {3, 1}), "token 1, after one with token 3");
  refused(index_bytes(0, 4, {0, 4}), "token 4");
  refused(index_bytes(0, 4, {0}, {3, 2}), "2 tokens from 3");
  refused(index_bytes(0, 4, {0}, {0, 0}), "0 tokens from 0");
  refused(index_bytes(0, 4, {0}, {0, 2, 1, 1}), "after 2");
  refused(index_bytes(0, 4, {0}, {0, 1, 1, 1}),
          "after 1");  // one run, not two
  std::string huge = good;
  huge.replace(32, 8, little_endian(~uint64_t{0} >> 1, 8));
  refused(huge, "damaged");
  write("a.documents", good);
  EXPECT_EQ(TokenStream::open(folder_).documents()->count(), 2);
}

}  // namespace
}  // namespace tessera
