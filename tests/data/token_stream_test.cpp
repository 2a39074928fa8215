#include "data/token_stream.h"

#include <sys/stat.h>

#include <numeric>

#include "data/manifest.h"
#include "tests/data/support.h"
#include "tests/root_rights.h"
#include "tests/shared_data.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Stream = InTempFolder;

std::vector<int32_t> read(const TokenStream& stream, int64_t first, size_t count) {
  std::vector<int32_t> tokens(count);
  stream.read(first, tokens);
  return tokens;
}

constexpr const char* kManifestOf5 =
    R"({"format": "tessera-dataset-1", "tokenizer": "bytes", "vocab_size": 257, "tokens": 5, "documents": 1, "shards": 2})";

TEST_F(Stream, ATextFileIsItsBytes) {
  const auto stream = TokenStream::open(write("a.txt", "h\xc3\xa9!"));
  EXPECT_EQ(stream.size(), 4);
  EXPECT_EQ(read(stream, 0, 4), (std::vector<int32_t>{'h', 0xc3, 0xa9, '!'}));
  EXPECT_EQ(stream.tokenizer(), "bytes");
  EXPECT_NE(stream.describe().find("a.txt: 4 tokens, plain text, tokenizer bytes"), std::string::npos);
}

TEST_F(Stream, AShardIsItsTokens) {
  const auto stream = TokenStream::open(write("a.bin", shard_bytes({5, 50256})));
  EXPECT_EQ(read(stream, 0, 2), (std::vector<int32_t>{5, 50256}));
  EXPECT_EQ(stream.tokenizer(), "");
  EXPECT_NE(stream.describe().find("a.bin: 2 tokens, 1 shard, tokenizer unknown"), std::string::npos);
}

TEST_F(Stream, ReadsAcrossShardBorders) {
  write("t_2.bin", shard_bytes({7, 8, 9}));  // written in another order than that of the names
  write("t_0.bin", shard_bytes({0, 1, 2, 3}));
  write("t_1.bin", shard_bytes({4, 5, 6}));
  write("notes.txt", "no shard");
  const auto stream = TokenStream::open(folder_);
  EXPECT_EQ(stream.size(), 10);
  EXPECT_EQ(stream.tokenizer(), "");
  for (int64_t first = 0; first <= 10; ++first) {
    for (int64_t count = 0; first + count <= 10; ++count) {
      std::vector<int32_t> wanted(static_cast<size_t>(count));
      std::iota(wanted.begin(), wanted.end(), static_cast<int32_t>(first));
      EXPECT_EQ(read(stream, first, wanted.size()), wanted);
    }
  }
}

TEST_F(Stream, RefusesRangesOutside) {
  const auto stream = TokenStream::open(write("a.txt", "abc"));
  expect_error([&] { read(stream, 2, 2); }, {"2 tokens from token 2", "a.txt has 3 tokens"});
  expect_error([&] { read(stream, -1, 1); }, {"from token -1"});
  expect_error([&] { read(stream, 4, 0); }, {"from token 4"});
}

TEST_F(Stream, APatternChoosesShards) {
  write("x_train_0.bin", shard_bytes({1, 2}));
  write("x_train_1.bin", shard_bytes({3}));
  write("x_val_0.bin", shard_bytes({4}));
  EXPECT_EQ(TokenStream::open(folder_ / "x_train_*.bin").size(), 3);
  expect_error([&] { TokenStream::open(folder_); }, {"mixes", "x_train_0.bin", "x_val_0.bin", "*train*.bin"});
  expect_error([&] { TokenStream::open(folder_ / "y_*.bin"); }, {"no token shards", "y_*.bin"});
  expect_error([&] { TokenStream::open(folder_ / "*.txt"); }, {"no file", "must end in .bin"});
}

TEST_F(Stream, TheManifestNamesTheTokenizerAndMustAgree) {
  write("train_000000.bin", shard_bytes({1, 2, 3}));
  write("train_000001.bin", shard_bytes({4, 5}));
  const fs::path manifest = write("dataset.json", kManifestOf5);
  EXPECT_EQ(TokenStream::open(folder_).tokenizer(), "bytes");

  fs::remove(folder_ / "train_000001.bin");
  expect_error([&] { TokenStream::open(folder_); }, {manifest.native(), "5 tokens", "found 3 tokens"});
  const auto expect = [&](const std::string& content, std::initializer_list<std::string_view> words) {
    write("dataset.json", content);
    expect_error([&] { TokenStream::open(folder_); }, {manifest.native()});
    expect_error([&] { TokenStream::open(folder_); }, words);
  };
  expect("{", {"not the manifest", "dataset.json:1:2: not JSON"});
  expect("", {"not the manifest"});
  expect("[]", {"not the manifest"});
  expect(R"({"format": "tessera-dataset-1"})", {"not the manifest", "tokenizer"});
  for (const char* number : {"1e+30", "1.5", "-1", "\"5\"", "null", "9223372036854775808"})
    expect(
        fmt::format(R"({{"format": "tessera-dataset-1", "tokenizer": "bytes", "vocab_size": {}}})", number),
        {"not the manifest", "\"vocab_size\"", "whole", number});
  expect(std::string(200'000, '['), {"dataset.json:1:65", "nested more than 64 deep"});
  expect(
      R"({"format": "v9", "tokenizer": "bytes", "vocab_size": 257, "tokens": 3, "documents": 1, "shards": 1})",
      {"format 'v9'", "tessera-dataset-1"});
}

TEST_F(Stream, ATokenBeyondTheVocabularyNamesFileAndIndex) {
  write("a_0.bin", shard_bytes({1, 2, 3}));
  const fs::path second = write("a_1.bin", shard_bytes({4, 300, 301}));
  auto stream = TokenStream::open(folder_);
  EXPECT_EQ(read(stream, 0, 6).back(), 301);  // no limit yet
  stream.require_tokens_below(301);
  EXPECT_EQ(read(stream, 0, 5).back(), 300);
  stream.require_tokens_below(300);
  expect_error([&] { read(stream, 2, 4); },
               {second.native(), "token 1 ", " is 300", "0 to 299", "model.vocab_size"});
  EXPECT_EQ(read(stream, 0, 4).back(), 4);
  expect_error([&] { stream.require_tokens_below(0); }, {"vocabulary of 0"});

  auto text = TokenStream::open(write("a.txt", "az"));
  text.require_tokens_below('z');
  expect_error([&] { read(text, 0, 2); }, {"a.txt", "token 1 ", " is 122"});
}

TEST_F(Stream, WideTokens) {
  write("a_0.bin", wide_shard_bytes({1, 70000, 3}));
  const fs::path second = write("a_1.bin", wide_shard_bytes({151935, 5, 0x80000000}));
  auto stream = TokenStream::open(folder_);
  EXPECT_EQ(stream.size(), 6);
  EXPECT_EQ(read(stream, 1, 4), (std::vector<int32_t>{70000, 3, 151935, 5}));
  EXPECT_NE(stream.describe().find("6 tokens, 2 shards of 32-bit tokens"), std::string::npos);
  // An id that no int32 holds is refused at every limit.
  expect_error([&] { read(stream, 4, 2); }, {second.native(), "token 2 ", " is 2147483648"});
  stream.require_tokens_below(151936);
  EXPECT_EQ(read(stream, 3, 1).front(), 151935);
  expect_error([&] { read(stream, 5, 1); }, {"token 2 ", " is 2147483648", "151936 tokens"});
  stream.require_tokens_below(151935);
  expect_error([&] { read(stream, 0, 4); }, {second.native(), "token 0 ", " is 151935"});
  expect_error([&] { stream.require_tokens_below((int64_t{1} << 31) + 1); }, {"vocabulary of 2147483649"});
}

TEST_F(Stream, WidthsAreNotMixed) {
  write("a.bin", shard_bytes({1, 2}));
  const fs::path wide = write("b.bin", wide_shard_bytes({1, 2}));
  expect_error([&] { TokenStream::open(folder_); }, {"a.bin", "b.bin", "16 and of 32 bits"});
  EXPECT_EQ(TokenStream::open(wide).size(), 2);
}

TEST_F(Stream, AVocabularyThatTheShardsCannotHoldIsRefused) {
  const auto manifest = [&](int64_t vocab_size) {
    write(kManifestName,
          fmt::format(R"({{"format": "tessera-dataset-1", "tokenizer": "other", "vocab_size": {},)"
                      R"("tokens": 2, "documents": 1, "shards": 1}})",
                      vocab_size));
  };
  write("a.bin", shard_bytes({1, 2}));
  manifest(65537);
  expect_error([&] { TokenStream::open(folder_); },
               {"dataset.json does not agree", "65537 tokens", "32 bits", "found 16"});
  manifest(65536);
  EXPECT_EQ(TokenStream::open(folder_).tokenizer(), "other");
  write("a.bin", wide_shard_bytes({1, 2}));  // wider than necessary
  EXPECT_EQ(TokenStream::open(folder_).size(), 2);
}

TEST_F(Stream, TellsWhatIsWrongWithAPath) {
  expect_error([&] { TokenStream::open(folder_ / "none.txt"); }, {"none.txt does not exist", "text file"});
  expect_error([&] { TokenStream::open(""); }, {"path ''"});
  expect_error([&] { TokenStream::open(folder_); }, {folder_.native(), "no token shards", "prepare"});
  expect_error([&] { TokenStream::open(write("e.txt", "")); }, {"the text file", "e.txt is empty"});
  expect_error([&] { TokenStream::open(write("e.bin", "")); }, {"shard", "e.bin is empty"});
  expect_error([&] { TokenStream::open(write("d.jsonl", "{}")); },
               {"d.jsonl", "JSON lines", "./prepare --input"});
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_error([&] { TokenStream::open(pipe); }, {"not a regular file"});  // and does not wait for a writer
}

TEST_F(Stream, APointerOfGitLfsIsNamed) {
  for (const char* name : {"a_train_000000.bin", "book.txt"})
    expect_error([&] { TokenStream::open(write(name, kLfsPointer)); }, {name, "Git LFS pointer", "lfs pull"});
}

TEST_F(Stream, UnreadablePaths) {
  const testing::WithoutRightsOverFiles nobody;
  const fs::path file = write("a.txt", "abc"), inner = folder_ / "inner";
  fs::permissions(file, fs::perms::none);
  expect_error([&] { TokenStream::open(file); }, {"cannot read", "a.txt", "Permission denied"});
  fs::create_directory(inner);
  fs::permissions(inner, fs::perms::none);
  expect_error([&] { TokenStream::open(inner); }, {"cannot read", "folder", "inner", "Permission denied"});
  expect_error([&] { TokenStream::open(inner / "a.txt"); }, {"cannot read", "a.txt", "Permission denied"});
  fs::permissions(inner, fs::perms::owner_all);  // or it could not be removed
}

TEST(TinyShakespeare, IsReadInPlace) {
  const auto [path, missing] = testing::shared_data("tinyshakespeare.txt");
  if (!missing.empty()) GTEST_SKIP() << missing;
  auto stream = TokenStream::open(path);
  stream.require_tokens_below(257);
  EXPECT_EQ(stream.size(), 1'115'394);
  const auto tokens = read(stream, 0, 1'115'394);
  EXPECT_EQ(std::string(tokens.begin(), tokens.end()), read_file(path));
}

}  // namespace
}  // namespace tessera
