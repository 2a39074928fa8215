// Checksums, the shards and manifests that have them, and fingerprints of token streams.
#include "kernels/base/checksum.h"

#include <nlohmann/json.hpp>

#include "data/dataset_check.h"
#include "data/document_index.h"
#include "data/fingerprint.h"
#include "data/manifest.h"
#include "data/shard.h"
#include "tests/data/support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ChecksumTest = InTempFolder;
using Dataset = InTempFolder;
using Fingerprint = InTempFolder;

std::string flip(std::string bytes, size_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  return bytes;
}

TEST_F(ChecksumTest, IsXxh3With128BitsAndDoesNotDependOnTheParts) {
  EXPECT_EQ(checksum_of({}), "99aa06d3014798d86001c324468d497f");  // xxhsum -H2 of an empty file
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * i % 251);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  Checksum parts;
  for (size_t at = 0, count = 1; at < bytes.size(); at += count, count = count * 2 % 999 + 1)
    parts.update(bytes.subspan(at, std::min(count, bytes.size() - at)));
  EXPECT_EQ(parts.digits(), checksum_of(bytes));
  EXPECT_EQ(checksum_of_file(write("a", text)), (FileChecksum{5000, checksum_of(bytes)}));
  expect_error([&] { checksum_of_file(folder_ / "none"); }, {"cannot read", "none", "No such file"});
}

TEST_F(ChecksumTest, AFileIsHashedWhileItIsWritten) {
  const fs::path path = folder_ / "file";
  OutputFile file(path);
  file.write(std::as_bytes(std::span("hello, ", 7)));
  file.write(std::as_bytes(std::span("world", 5)));
  const FileChecksum written = file.commit();
  EXPECT_EQ(written, checksum_of_file(path));
  OutputFile changed(path);
  changed.write(std::as_bytes(std::span("hello, world", 12)));
  changed.overwrite_start(std::as_bytes(std::span("H", 1)));
  const FileChecksum overwritten = changed.commit();
  EXPECT_EQ(overwritten, checksum_of_file(path));
  EXPECT_EQ(read_file(path), "Hello, world");
}

struct Prepared {
  explicit Prepared(const fs::path& folder, int64_t vocab_size = 257) {
    ShardWriter writer({.folder = folder, .tokens_per_shard = 300, .bits = bits_for(vocab_size)});
    std::vector<int32_t> tokens(700);  // two full shards, and one whose header is written twice
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
    writer.append(tokens);
    writer.finish();
    DocumentIndexWriter index({.folder = folder, .tokens_per_shard = 300});
    index.append(700, {.starts = {0, 350}, .uncounted = {{10, 300}}});
    index.finish();
    FileChecksums files = writer.checksums();
    files.insert(index.checksums().begin(), index.checksums().end());
    write_manifest(folder, {.tokenizer = "bytes",
                            .vocab_size = vocab_size,
                            .tokens = 700,
                            .documents = 2,
                            .counted_tokens = 400,
                            .shards = 3,
                            .files = files});
  }
};

struct DatasetOf : InTempFolder, ::testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Vocabulary, DatasetOf, ::testing::Values(257, 151936),
                         [](const auto& info) { return fmt::format("{}", info.param); });

TEST_P(DatasetOf, EveryFlippedBitOfAShardIsFound) {
  const Prepared prepared(folder_, GetParam());
  EXPECT_EQ(verify_at_start(TokenStream::open(folder_)), "");
  for (const FileVerdict& v : verify_dataset(folder_))
    EXPECT_TRUE(v.fault.empty() && v.has_checksum) << v.fault;
  for (const char* name : {"train_000001.bin", "train_000002.bin"}) {
    const std::string whole = read_file(folder_ / name);
    for (size_t bit = 7; bit < whole.size() * 8; bit += 97) {  // in the header, too
      write(name, flip(whole, bit));
      int damaged = 0;
      for (const FileVerdict& v : verify_dataset(folder_)) damaged += !v.fault.empty();
      ASSERT_EQ(damaged, 1) << name << " bit " << bit;
    }
    write(name, flip(whole, 9000));
    expect_error([&] { verify_at_start(TokenStream::open(folder_)); },
                 {name, "is damaged", "its checksum is", "prepare"});
    write(name, whole);
  }
  const std::string notice = verify_at_start(TokenStream::open(folder_), 1000);
  EXPECT_NE(notice.find("./train --verify"), std::string::npos) << notice;
}

TEST_F(Dataset, OfTheFirstFormatIsReadWithoutChecksums) {
  write("a.bin", shard_bytes({1, 2, 3}));
  write(kManifestName,
        R"({"format": "tessera-dataset-1", "tokenizer": "bytes", "vocab_size": 257, "tokens": 3,
                           "documents": 1, "shards": 1})");
  EXPECT_EQ(verify_at_start(TokenStream::open(folder_)), "");
  const std::vector<FileVerdict> verdicts = verify_dataset(folder_);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_TRUE(verdicts[0].fault.empty() && !verdicts[0].has_checksum);
}

TEST_F(Dataset, AManifestWithBadChecksumsIsRefused) {
  const Prepared prepared(folder_);
  nlohmann::json json = nlohmann::json::parse(read_file(folder_ / kManifestName));
  const auto refused = [&](const nlohmann::json& files, std::initializer_list<std::string_view> words) {
    json["files"] = files;
    write(kManifestName, json.dump());
    expect_error([&] { read_manifest(folder_); }, words);
  };
  const nlohmann::json good = json["files"];
  nlohmann::json files = good;
  files.erase("train_000001.bin");
  refused(files, {"3 shards and 5 checksums"});
  files = good;
  files["train_000001.bin"]["xxh3_128"] = "12";
  refused(files, {"32 hexadecimal digits", "train_000001.bin"});
  files = good;
  files["../x"] = files["train_000001.bin"];
  files.erase("train_000001.bin");
  refused(files, {"same folder", "../x"});
  refused(7, {"an object", "7"});
}

TEST_F(Fingerprint, IsOfTheContentsAndNotOfThePath) {
  std::string text;
  for (int64_t i = 0; i < 100'000; ++i) text += static_cast<char>('a' + i * i % 26);
  const auto of = [&](const char* name, const std::string& content) {
    return fingerprint_of(TokenStream::open(write(name, content)));
  };
  const StreamFingerprint before = of("a.txt", text);
  EXPECT_EQ(difference(before, of("b.txt", text)), std::nullopt);
  EXPECT_EQ(difference(before, read_fingerprint(json_of(before), "x")), std::nullopt);
  const auto differs = [&](const std::string& content) {
    return difference(before, of("a.txt", content)).value_or("no difference");
  };
  EXPECT_NE(differs(text + "x").find("100000 tokens, now 100001"), std::string::npos);
  EXPECT_NE(differs(flip(text, 100)).find("a.txt"), std::string::npos);
  EXPECT_NE(differs(flip(text, 799'990)).find("sampled"), std::string::npos);  // the last block
  EXPECT_NE(differs(flip(text, 400'000)).find("sampled"),
            std::string::npos);  // so small a file is sampled whole
}

TEST_F(Fingerprint, KnowsTheWidthOfTokens) {
  const auto of = [&](const std::string& content) {
    return fingerprint_of(TokenStream::open(write("a.bin", content)));
  };
  const StreamFingerprint wide = of(wide_shard_bytes({1, 2, 70000}));
  EXPECT_EQ(wide.tokens, 3);
  EXPECT_EQ(difference(wide, of(wide_shard_bytes({1, 2, 70000}))), std::nullopt);
  EXPECT_TRUE(difference(wide, of(wide_shard_bytes({1, 2, 70001}))));
  const StreamFingerprint narrow = of(shard_bytes({1, 2, 3}));
  EXPECT_NE(difference(narrow, of(wide_shard_bytes({1, 2, 3}))).value_or("").find("had 1030 bytes, now 1036"),
            std::string::npos);
}

TEST_F(Fingerprint, OfShardsSpansAllOfThem) {
  const Prepared prepared(folder_);
  const StreamFingerprint before = fingerprint_of(TokenStream::open(folder_));
  EXPECT_EQ(before.sources.size(), 3u);
  const std::string last = read_file(folder_ / "train_000002.bin");
  write("train_000002.bin", flip(last, last.size() * 8 - 1));
  EXPECT_TRUE(difference(before, fingerprint_of(TokenStream::open(folder_))));
  for (const char* bad :
       {R"({"tokens": 0})", R"({"tokens": 1, "tokenizer": "", "sample": "", "sources": 3})"})
    expect_error([&] { read_fingerprint(nlohmann::json::parse(bad), "state.json"); }, {"state.json"});
}

}  // namespace
}  // namespace tessera
