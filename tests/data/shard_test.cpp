#include "data/shard.h"

#include <sys/resource.h>

#include <csignal>
#include <numeric>

#include "tests/data/support.h"
#include "tests/root_rights.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Shard = InTempFolder;
using Writer = InTempFolder;

std::vector<uint32_t> load(const fs::path& path) {
  const MappedFile file(path);
  return std::visit([](auto tokens) { return std::vector<uint32_t>(tokens.begin(), tokens.end()); },
                    shard_tokens(file));
}
size_t bits_of(const fs::path& path) {
  const MappedFile file(path);
  return shard_tokens(file).index() == 0 ? 16 : 32;
}

void write_tokens(const ShardWriterOptions& options, const std::vector<int32_t>& tokens) {
  ShardWriter writer(options);
  writer.append(tokens);
  writer.finish();
}

TEST_F(Shard, ReadsTheBytesOfLlmC) {
  EXPECT_EQ(load(write("a.bin", shard_bytes({0, 1, 50256, 65535}))),
            (std::vector<uint32_t>{0, 1, 50256, 65535}));
  EXPECT_EQ(bits_of(folder_ / "a.bin"), 16u);
  const std::vector<uint32_t> wide{0, 65536, 128255, 0xffffffff};
  EXPECT_EQ(load(write("b.bin", wide_shard_bytes(wide))), wide);
  EXPECT_EQ(bits_of(folder_ / "b.bin"), 32u);
}

TEST_F(Shard, EveryFaultHasItsOwnMessage) {
  const std::string good = shard_bytes({1, 2, 3});
  const auto expect = [&](const std::string& content, std::initializer_list<std::string_view> words) {
    const fs::path path = write("x.bin", content);
    expect_error([&] { load(path); }, {path.native()});
    expect_error([&] { load(path); }, words);
  };
  expect("", {"empty"});
  expect("hello", {"not a token shard", "1024 bytes", "5 bytes"});
  expect(shard_bytes({1}, 20240521), {"magic", "20240521", "20240520 (16-bit tokens", "or 20240801 (32-bit"});
  expect(shard_bytes({1}, 20240520, 7), {"version 7", "1 with 16-bit tokens"});
  expect(wide_shard_bytes({1}, 1), {"version 1", "7 with 32-bit tokens"});
  // 16-bit tokens below a header of 32-bit tokens, and the reverse
  expect(shard_bytes({1, 2, 3}, 20240801, 7), {"truncated", "3 tokens (1036 bytes)", "found 1030 bytes"});
  expect(shard_of({1, 2, 3}, 4, 20240520, 1), {"longer", "3 tokens (1030 bytes)", "found 1036 bytes"});
  const std::string wide = wide_shard_bytes({1, 2, 3});
  expect(wide.substr(0, wide.size() - 1), {"truncated", "3 tokens (1036 bytes)", "found 1035 bytes"});
  expect(wide + "\n", {"longer", "3 tokens (1036 bytes)", "found 1037 bytes"});
  expect(wide_shard_bytes({}), {"0 tokens"});
  expect(good.substr(0, good.size() - 1), {"truncated", "3 tokens (1030 bytes)", "found 1029 bytes"});
  expect(good.substr(0, 1024), {"truncated", "found 1024 bytes"});
  expect(good + "\n", {"longer", "3 tokens (1030 bytes)", "found 1031 bytes"});
  expect(shard_bytes({}), {"0 tokens"});
  expect_error([&] { load(folder_ / "missing.bin"); }, {"missing.bin", "does not exist"});
  expect_error([&] { load(folder_); }, {"not a regular file"});
}

TEST_F(Shard, UnreadableFile) {
  const testing::WithoutRightsOverFiles nobody;
  const fs::path path = write("x.bin", shard_bytes({1}));
  fs::permissions(path, fs::perms::none);
  expect_error([&] { load(path); }, {"cannot read", path.native(), "Permission denied"});
}

TEST_F(Writer, WritesTheBytesOfLlmC) {
  write_tokens({.folder = folder_, .prefix = "t", .tokens_per_shard = 10}, {0, 7, 65535});
  EXPECT_EQ(names(), std::set<std::string>{"t_000000.bin"});
  EXPECT_EQ(read_file(folder_ / "t_000000.bin"), shard_bytes({0, 7, 65535}));
}

TEST_F(Writer, WritesWideTokensAsLlmC) {
  write_tokens({.folder = folder_, .tokens_per_shard = 2, .bits = TokenBits::k32}, {0, 65536, 2147483647});
  EXPECT_EQ(names(), (std::set<std::string>{"train_000000.bin", "train_000001.bin"}));
  EXPECT_EQ(read_file(folder_ / "train_000000.bin"), wide_shard_bytes({0, 65536}));
  EXPECT_EQ(read_file(folder_ / "train_000001.bin"), wide_shard_bytes({2147483647}));
}

TEST(TokenBits, AreTheFewestThatHoldTheVocabulary) {
  for (const int64_t vocab_size : {1, 257, 50257, 65536}) EXPECT_EQ(bits_for(vocab_size), TokenBits::k16);
  for (const int64_t vocab_size : {65537, 128256, 151936}) EXPECT_EQ(bits_for(vocab_size), TokenBits::k32);
}

struct WriterOf : InTempFolder, ::testing::WithParamInterface<TokenBits> {};
INSTANTIATE_TEST_SUITE_P(Bits, WriterOf, ::testing::Values(TokenBits::k16, TokenBits::k32),
                         [](const auto& info) { return fmt::format("{}", static_cast<int>(info.param)); });

TEST_P(WriterOf, SplitsAtTheAskedCount) {
  const uint32_t vocab_size = GetParam() == TokenBits::k16 ? 65536 : 151936;
  std::vector<int32_t> tokens(3'000'000);  // more than the writer keeps in memory
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i % vocab_size);
  ShardWriter writer({.folder = folder_, .tokens_per_shard = 1'200'000, .bits = GetParam()});
  writer.append(std::span(tokens).first(5));
  writer.append(std::span(tokens).subspan(5));
  writer.finish();
  EXPECT_EQ(writer.token_count(), 3'000'000);
  EXPECT_EQ(writer.shard_count(), 3);
  EXPECT_EQ(names(), (std::set<std::string>{"train_000000.bin", "train_000001.bin", "train_000002.bin"}));
  std::vector<int32_t> read;
  for (const std::string& name : names()) {
    const auto shard = load(folder_ / name);
    EXPECT_EQ(shard.size(), name == "train_000002.bin" ? 600'000u : 1'200'000u);
    read.insert(read.end(), shard.begin(), shard.end());
  }
  EXPECT_EQ(read, tokens);
}

TEST_F(Writer, AFullLastShardIsNotFollowedByAnEmptyOne) {
  write_tokens({.folder = folder_, .tokens_per_shard = 2}, {1, 2, 3, 4});
  EXPECT_EQ(names().size(), 2u);
}

TEST_F(Writer, NoTokensMakeNoShard) {
  write_tokens({.folder = folder_}, {});
  EXPECT_TRUE(names().empty());
}

TEST_F(Writer, AnAbandonedShardLeavesNothing) {
  {
    ShardWriter writer({.folder = folder_});
    writer.append(std::vector<int32_t>{1, 2});
    EXPECT_EQ(names(), std::set<std::string>{"train_000000.bin.tmp"});
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(Writer, RefusesWhatCannotBeWritten) {
  expect_error([&] { write_tokens({.folder = folder_}, {1, 65536}); }, {"token 65536", "16 bits"});
  for (const TokenBits bits : {TokenBits::k16, TokenBits::k32})
    expect_error([&] { write_tokens({.folder = folder_, .bits = bits}, {1, -1}); }, {"token -1 is negative"});
  for (const int64_t count : {int64_t{0}, int64_t{1} << 31}) {
    expect_error([&] { ShardWriter({.folder = folder_, .tokens_per_shard = count}); },
                 {"2147483647", fmt::format("asked for {}", count)});
  }
  expect_error([&] { write_tokens({.folder = folder_ / "nowhere"}, {1}); },
               {"cannot write", "nowhere/train_000000.bin", "No such file"});
  EXPECT_TRUE(names().empty());
}

TEST_F(Writer, AWriteErrorLeavesNothing) {
  struct rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const struct rlimit small = {.rlim_cur = 2000, .rlim_max = before.rlim_max};  // bytes
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  expect_error([&] { write_tokens({.folder = folder_}, std::vector<int32_t>(1000)); },
               {"cannot write", (folder_ / "train_000000.bin").native(), "File too large"});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(names().empty());
}

}  // namespace
}  // namespace tessera
