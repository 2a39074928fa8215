// The prepare program, run as its users run it.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "data/manifest.h"
#include "tests/data/prepare_process.h"
#include "tests/shared_data.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

TEST_F(Prepare, EndsEveryDocument) {
  write("a.txt", "one\ntwo");
  write("b.jsonl",
        "{\"text\":\"three\"}\n\n{\"id\":1,\"text\":\"\\u00e9\"}\r\n{\"text\":\"\"}\n{\"text\":\"last\"}");
  const Result result = run({"--input", "a.txt", "b.jsonl", "--tokenizer", "bytes", "--output", "made/mine"});
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(result.error, "");  // no progress when stderr is no terminal
  EXPECT_NE(result.out.find("documents 5, tokens 23, shards 1, seconds"), std::string::npos) << result.out;
  EXPECT_EQ(text_of("made/mine"), "one\ntwo|three|\xc3\xa9||last|");
  EXPECT_EQ(TokenStream::open(folder_ / "made/mine").tokenizer(), "bytes");
  const FileChecksum shard = checksum_of_file(folder_ / "made/mine/train_000000.bin");
  const FileChecksum index = checksum_of_file(folder_ / "made/mine/train_000000.documents");
  EXPECT_EQ(read_file(folder_ / "made/mine/dataset.json"),
            "{\n  \"counted_tokens\": 23,\n  \"documents\": 5,\n  \"dropped_samples\": 0,\n  \"files\": {\n  "
            "  \"train_000000.bin\": {\n      \"bytes\": 1070,\n"
            "      \"xxh3_128\": \"" +
                shard.checksum +
                "\"\n    },\n    \"train_000000.documents\": {\n      \"bytes\": 68,\n"
                "      \"xxh3_128\": \"" +
                index.checksum +
                "\"\n    }\n  },\n"
                "  \"format\": \"tessera-dataset-3\",\n  \"largest_token\": 256,\n  \"shards\": 1,\n"
                "  \"tokenizer\": \"bytes\",\n  \"tokens\": 23,\n  \"vocab_size\": 257\n}\n");
  EXPECT_EQ(names(), (std::set<std::string>{"a.txt", "b.jsonl", "made"}));
}

TEST_F(Prepare, SplitsIntoShards) {
  write("a.txt", "0123456789");
  EXPECT_EQ(run({"--input", "a.txt", "--output", "d", "--shard-tokens", "4"}).status, 0);
  EXPECT_EQ(read_file(folder_ / "d/train_000001.bin"), shard_bytes({'4', '5', '6', '7'}));
  EXPECT_EQ(text_of("d"), "0123456789|");
  EXPECT_EQ(run({"--input", "a.txt", "--output", "e", "--shard-tokens", "2K"}).status, 0);
  EXPECT_FALSE(fs::exists(folder_ / "e/train_000001.bin"));
}

TEST_F(Prepare, KeepsLargeTextsWhole) {
  std::string text;
  for (int i = 0; text.size() < 5'000'000; ++i) text += fmt::format("{}{}", i, i % 7 == 0 ? '\n' : ' ');
  write("lines.txt", text);
  write("one_line.txt", std::string(3'000'000, 'x'));
  EXPECT_EQ(run({"--input", "lines.txt", "one_line.txt", "--output", "d"}).status, 0);
  EXPECT_EQ(text_of("d"), text + "|" + std::string(3'000'000, 'x') + "|");
}

TEST_F(Prepare, TakesTheFieldThatIsAskedFor) {
  write("a.jsonl", "{\"body\":\"x\"}\n");
  EXPECT_EQ(run({"--input", "a.jsonl", "--output", "d", "--text-field", "body"}).status, 0);
  EXPECT_EQ(text_of("d"), "x|");
}

TEST_F(Prepare, NamesTheLineThatIsWrong) {
  const auto expect = [&](const std::string& content, std::initializer_list<std::string_view> words) {
    write("a.jsonl", content);
    expect_refusal({"--input", "a.jsonl", "--output", "new/d"}, words);
  };
  expect("{\"text\":\"x\"}\n\n{\"text\": nope}\n", {"a.jsonl:3:11: not JSON", "invalid literal"});
  expect("{\"text\":\"\xff\"}\n", {"a.jsonl:1:10: not JSON", "UTF-8"});
  expect("{\"text\":\"cut", {"a.jsonl:1:13: not JSON"});
  expect("{\"text\":\"x\"}\n{\"txt\":\"y\",\"id\":1}\n",
         {"a.jsonl:2", "field 'text'", "found 'id', 'txt'", "--text-field"});
  expect("{\"text\":\"x\"}\n{\"n\":1e999}\n", {"a.jsonl:2:", "not JSON", "1e999"});
  expect("{\"a\":" + std::string(200'000, '[') + "\n", {"a.jsonl:1:69:", "nested", "64"});
  expect("{}\n", {"a.jsonl:1", "found no fields"});
  expect("{\"text\":5}\n", {"a.jsonl:1", "'text'", "found a JSON number"});
  expect("[\"x\"]\n", {"a.jsonl:1", "a JSON object", "found a JSON array"});
  expect("\n \n", {"a.jsonl holds no documents"});
}

TEST_F(Prepare, RefusesWrongInputsBeforeItStarts) {
  write("a.txt", "x");
  write("e.txt", "");
  write("data.json", "[]");
  write("zip.txt", std::string("PK\0\0", 4));
  const auto expect = [&](const std::string& input, std::initializer_list<std::string_view> words) {
    expect_refusal({"--input", "a.txt", input, "--output", "d"}, words);
  };
  expect("missing.txt", {"missing.txt does not exist"});
  expect("", {"--input ", "file", "empty"});
  expect(".", {"is a folder", "for example ./*.txt"});
  expect("e.txt", {"e.txt is empty"});
  expect("data.json", {"data.json is JSON", ".jsonl"});
  expect("zip.txt", {"zip.txt is not plain text", "byte 2 is 0"});
}

TEST_F(Prepare, ReplacesAnOldDatasetOnlyWhenForced) {
  write("a.txt", "old");
  write("b.txt", "new");
  EXPECT_EQ(run({"--input", "a.txt", "--output", "d", "--shard-tokens", "1"}).status, 0);
  expect_refusal({"--input", "b.txt", "--output", "d"}, {"/d exists", "--force"});
  expect_refusal({"--input", "missing.txt", "--output", "d", "--force"}, {"does not exist"});
  EXPECT_EQ(text_of("d"), "old|");
  EXPECT_EQ(run({"--input", "b.txt", "--output", "d/", "--force"}).status, 0);
  EXPECT_EQ(text_of("d"), "new|");
  EXPECT_EQ(names(), (std::set<std::string>{"a.txt", "b.txt", "d"}));
}

TEST_F(Prepare, WillNotReplaceWhatItDidNotMake) {
  write("a.txt", "x");
  expect_refusal({"--input", "a.txt", "--output", ".", "--force"}, {"is not replaced", "a.txt"});
  expect_refusal({"--input", "a.txt", "--output", "a.txt", "--force"}, {"a.txt exists", "folder"});
  EXPECT_EQ(read_file(folder_ / "a.txt"), "x");
}

TEST_F(Prepare, AWriteErrorLeavesNothingAndKeepsTheOldDataset) {
  write("a.txt", "old");
  write("b.txt", std::string(5000, 'x'));
  EXPECT_EQ(run({"--input", "a.txt", "--output", "d"}).status, 0);
  for (const auto& [output, force] :
       {std::pair("new/folders/d", "--text-field=text"), std::pair("d", "--force")}) {
    expect_refusal({"--input", "b.txt", "--output", output, force},
                   {"cannot write", "train_000000.bin", "File too large"}, 4000);
  }
  EXPECT_EQ(text_of("d"), "old|");
}

TEST_F(Prepare, UnwritableOutput) {
  write("a.txt", "x");
  expect_refusal({"--input", "a.txt", "--output", "a.txt/d"}, {"a.txt/d", "Not a directory"});
  expect_refusal({"--input", "a.txt", "--output", ""}, {"--output ", "folder", "empty"});
  fs::create_directory(folder_ / "locked");
  fs::permissions(folder_ / "locked", fs::perms::owner_read | fs::perms::owner_exec);
  const Result result = testing::run_process(PREPARE_BINARY, {"--input", "a.txt", "--output", "locked/d"},
                                             {.folder = folder_, .as_nobody = true});
  EXPECT_EQ(result.status, 1);
  for (const char* words : {"prepare: error: ", "locked/d", "Permission denied"})
    EXPECT_NE(result.error.find(words), std::string::npos) << result.error;
}

TEST_F(Prepare, RefusesWrongOptions) {
  write("a.txt", "x");
  expect_refusal({}, {"--input is required", "--help"});
  expect_refusal({"--input", "a.txt"}, {"--output is required"});
  expect_refusal({"--input", "a.txt", "--output", "d", "--focre"}, {"--focre"});
  expect_refusal({"--input", "a.txt", "--output", "d", "--tokenizer", "word"},
                 {"tokenizer 'word'", "'bytes'"});
  expect_refusal({"--input", "a.txt", "--output", "d", "--shard-tokens", "0"},
                 {"1 to 2147483647", "asked for 0"});
  expect_refusal({"--input", "a.txt", "--output", "d", "--shard-tokens", "many"}, {"--shard-tokens"});
}

TEST_F(Prepare, HelpNamesEveryOption) {
  const Result result = run({"--help"});
  EXPECT_EQ(result.status, 0);
  for (const char* option :
       {"--input", "--output", "--tokenizer", "--end-of-text", "--shard-tokens", "--text-field", "--force",
        "--format", "--chat-template", "--loss", "--strict", "--show"}) {
    EXPECT_NE(result.out.find(option), std::string::npos) << option;
  }
}

TEST_F(Prepare, AnInterruptLeavesNothing) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  Process child = start({"--input", "pipe", "--output", "new/d"});
  // Returns when the program has opened its end: it then waits
  const int writer = open(pipe.c_str(), O_WRONLY);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(names(), (std::set<std::string>{"new", "pipe"}));
  child.signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  close(writer);  // only now: the end of its input would end the program, too
  const Result result = child.finish();
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.error.find("nterrupted"), std::string::npos) << result.error;
  EXPECT_EQ(names(), std::set<std::string>{"pipe"});
}

// A process that was killed leaves its hidden folder, and one that runs has a lock of its own.
TEST_F(Prepare, WhatAKilledProcessLeftIsRemoved) {
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const char* name :
       {".d.preparing-00000001", ".d.preparing-00000002", ".d.replaced-00000003", ".e.preparing-00000004"}) {
    fs::create_directory(folder_ / name);
    write(std::string(name) + "/train_000000.bin", "x");
    fs::last_write_time(folder_ / name, old);
  }
  fs::create_directory(folder_ / ".d.preparing-00000005");  // has just been made
  const int running = open((folder_ / ".d.preparing-00000002").c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(flock(running, LOCK_EX | LOCK_NB), 0);
  write("a.txt", "text");
  const Result result = run({"a.txt", "--output", "d"});
  close(running);
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_NE(result.error.find(".d.preparing-00000001 was removed"), std::string::npos) << result.error;
  EXPECT_EQ(names(), (std::set<std::string>{".d.preparing-00000002", ".d.preparing-00000005",
                                            ".d.replaced-00000003", ".e.preparing-00000004", "a.txt", "d"}));
}

TEST_F(Prepare, ASignalEndsALongConversation) {
  // A template for which each turn is rendered: the number of messages is in its texts
  write("t.jinja",
        "{% for m in messages %}{{ m.role }}{{ loop.index }}{% for k in range(400) %}{% endfor %}{{ "
        "m.content }}\n{% endfor %}");
  std::string line = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}";
  for (int i = 0; i < 4000; ++i) line += ",{\"role\":\"assistant\",\"content\":\"b\"}";
  write("a.jsonl", line + "]}\n");
  Process child = start({"a.jsonl", "--output", "d", "--chat-template", "t.jinja"});
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  child.signal(SIGTERM);
  const Result result = child.finish();
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.error.find("nterrupted"), std::string::npos) << result.error;
  EXPECT_EQ(names(), (std::set<std::string>{"a.jsonl", "t.jinja"}));
}

// Rows beyond the largest token that is used are not needed.
TEST_F(Prepare, ARunLearnsTheLargestTokenBeforeItReads) {
  write("a.txt", "az");
  ASSERT_EQ(run({"a.txt", "--output", "d"}).status, 0);
  EXPECT_EQ(read_manifest(folder_ / "d")->largest_token, 256);
  TokenStream stream = TokenStream::open(folder_ / "d");
  for (const int64_t rows : {257, 300}) {
    stream.require_tokens_below(rows);
    stream.check_largest_token();
  }
  stream.require_tokens_below(256);
  expect_error([&] { stream.check_largest_token(); },
               {"d/dataset.json", "largest token is 256", "--set model.vocab_size=257"});
}

TEST_F(Prepare, TinyShakespeare) {
  const auto [path, missing] = testing::shared_data("tinyshakespeare.txt");
  if (!missing.empty()) GTEST_SKIP() << missing;
  EXPECT_EQ(run({"--input", path.string(), "--output", "d", "--shard-tokens", "500000"}).status, 0);
  EXPECT_TRUE(fs::exists(folder_ / "d/train_000002.bin"));
  EXPECT_EQ(text_of("d"), read_file(path) + "|");
}

}  // namespace
}  // namespace tessera
