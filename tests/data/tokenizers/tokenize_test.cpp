// The program tokenize, and prepare with a tokenizer of its own, run as their users run them.
#include <nlohmann/json.hpp>

#include "data/manifest.h"
#include "tests/data/prepare_process.h"
#include "tests/data/tokenizers/support.h"

namespace tessera {
namespace {

class Tokenize : public Prepare {
 protected:
  Result tokenize(const std::vector<std::string>& arguments) const {
    return testing::run_process(TOKENIZE_BINARY, arguments, {.folder = folder_});
  }
  void refused(const std::vector<std::string>& arguments,
               std::initializer_list<std::string_view> words) const {
    const Result result = tokenize(arguments);
    EXPECT_EQ(result.status, 1);
    EXPECT_TRUE(result.error.starts_with("tokenize: error: ")) << result.error;
    for (const std::string_view word : words)
      EXPECT_NE(result.error.find(word), std::string::npos)
          << "wanted: " << word << "\nfound:  " << result.error;
  }
  std::string output_of(const std::vector<std::string>& arguments) const {
    const Result result = tokenize(arguments);
    EXPECT_EQ(result.status, 0) << result.error;
    return result.out;
  }
  std::string fixture_ = tokenizer_fixture("llama3.json").string();
};

TEST_F(Tokenize, EncodesAndDecodes) {
  write("tokenizer.json", small_tokenizer());
  write("a.txt", "abcd ab");
  EXPECT_EQ(output_of({"encode", "--tokenizer", ".", "a.txt"}), "7 4 5\n");
  EXPECT_EQ(output_of({"encode", "--tokenizer", ".", "--text", "ab"}), "5\n");
  EXPECT_EQ(output_of({"encode", "--tokenizer", ".", "--text", ""}), "\n");
  EXPECT_EQ(output_of({"encode", "--tokenizer", ".", "--text", "abcd ab", "--json"}), "[7, 4, 5]\n");
  EXPECT_EQ(output_of({"encode", "--tokenizer", ".", "--text", "abcd a", "--pieces"}),
            "7\t\"abcd\"\n4\t\" \"\n0\t\"a\"\n");
  EXPECT_EQ(output_of({"encode", "--tokenizer", ".", "--text", "a<|endoftext|>", "--special"}), "0 9\n");
  EXPECT_EQ(
      output_of({"encode", "--tokenizer", fixture_, "--text", "<|im_start|>", "--special", "--template"}),
      "700 700\n");
  EXPECT_EQ(output_of({"decode", "--tokenizer", ".", "7", "4", "5", "9"}), "abcd ab");
  EXPECT_EQ(output_of({"decode", "--tokenizer", ".", "5", "9", "--special"}), "ab<|endoftext|>");
  write("ids.txt", "[7, 4,\n5]");
  EXPECT_EQ(output_of({"decode", "--tokenizer", ".", "--file", "ids.txt"}), "abcd ab");
}

TEST_F(Tokenize, SaysWhatATokenizerIsMadeOf) {
  write("a.txt", "the text of a file");
  const std::string info = output_of({"info", "--tokenizer", fixture_, "a.txt"});
  for (const char* part :
       {"name:                  bpe-", "vocabulary:            704", "end of text:           0",
        "merges:", "\\p{N}{1,3}", "template before:       700 \"<|im_start|>\"",
        "special token:         0 \"<|endoftext|>\"", "18 bytes", "bytes per token:", "MB/s"})
    EXPECT_NE(info.find(part), std::string::npos) << part << "\n" << info;
  EXPECT_NE(output_of({"info", "--tokenizer", "bytes"}).find("vocabulary:            257"),
            std::string::npos);
}

TEST_F(Tokenize, TrainsTheSameFileAgain) {
  std::string text;
  for (int64_t i = 0; text.size() < 3'000'000; ++i)
    text += fmt::format("the number {} and {}\n", i % 1000, i * i % 977);
  write("a.txt", text);  // more than one piece
  write("b.jsonl", "{\"text\": \"the last words\"}\n");
  const std::vector<std::string> command{"train", "a.txt",           "b.jsonl", "--vocab-size",
                                         "400",   "--pre-tokenizer", "llama3"};
  const auto to = [&](const std::string& folder) {
    std::vector<std::string> with = command;
    with.insert(with.end(), {"--output", folder});
    return with;
  };
  EXPECT_NE(output_of(to("x")).find("wrote x/tokenizer.json: tokens 400, merges 143"), std::string::npos);
  output_of(to("deep/y"));
  EXPECT_EQ(read_file(folder_ / "x/tokenizer.json"), read_file(folder_ / "deep/y/tokenizer.json"));
  EXPECT_EQ(load_tokenizer((folder_ / "x").string())->end_of_text(), 0);
  refused(to("x"), {"x/tokenizer.json exists", "--force"});
  std::vector<std::string> forced = to("x");
  forced.push_back("--force");
  output_of(forced);
  const Result few = tokenize({"train", "b.jsonl", "--vocab-size", "9000", "--output", "few"});
  EXPECT_EQ(few.status, 0);
  EXPECT_NE(few.error.find("tokens instead of 9000"), std::string::npos) << few.error;
}

TEST_F(Tokenize, RefusesWhatItCannotDo) {
  write("tokenizer.json", small_tokenizer());
  refused({}, {"./tokenize encode, ./tokenize decode"});
  refused({"encod"}, {"command \"encod\"", "encode?"});
  refused({"encode", "--text", "a"}, {"--tokenizer is required"});
  refused({"encode", "--tokenizer", "none", "--text", "a"}, {"tokenizer 'none'"});
  refused({"encode", "--tokenizer", ".", "none.txt"}, {"cannot read none.txt"});
  refused({"encode", "--tokenizer", ".", "--text", "abz"}, {"the byte 0x7a"});
  refused({"encode", "--tokenizer", ".", "x", "--text", "abz"}, {"--text", "cannot be combined"});
  refused({"decode", "--tokenizer", ".", "10"}, {"id 10"});
  refused({"decode", "--tokenizer", ".", "-1"}, {"-1"});
  write("ids.txt", "1 2 x");
  refused({"decode", "--tokenizer", ".", "--file", "ids.txt"}, {"ids.txt: ", "\"x\" at byte 4"});
  refused({"train", "none.txt", "--vocab-size", "300", "--output", "x"}, {"none.txt does not exist"});
  refused({"train", "ids.txt", "--vocab-size", "5", "--output", "x"}, {"--vocab-size "});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x"));
}

TEST_F(Tokenize, PrepareEncodesDocumentsInTheirOrder) {
  std::string lines, text;
  std::vector<int32_t> wanted;
  const auto tokenizer = load_tokenizer(fixture_);
  const auto expect = [&](const std::string& document) {
    wanted.push_back(700);  // the template's
    tokenizer->encode(document, SpecialTokens::kAsText, wanted);
    wanted.push_back(tokenizer->end_of_text());
  };
  for (int i = 0; text.size() < 2'500'000; ++i)
    text += fmt::format("{} letters think  {}", i, i % 11 == 0 ? "\n" : "");
  for (int i = 0; i < 20'000; ++i) {
    const std::string document = fmt::format("Document {} <|endoftext|> it's {}", i, i * i);
    lines += nlohmann::json{{"text", document}}.dump() + "\n";
    expect(document);
  }
  expect(text);
  expect("");
  lines += "";
  write("a.jsonl", lines);
  write("b.txt", text);
  write("c.jsonl", "{\"text\": \"\"}\n");
  const Result result = run({"a.jsonl", "b.txt", "c.jsonl", "--tokenizer", fixture_, "--output", "d"});
  ASSERT_EQ(result.status, 0) << result.error;
  const TokenStream stream = TokenStream::open(folder_ / "d");
  std::vector<int32_t> found(static_cast<size_t>(stream.size()));
  stream.read(0, found);
  EXPECT_TRUE(found == wanted) << found.size() << ", wanted " << wanted.size();

  EXPECT_EQ(stream.tokenizer(), tokenizer->name());
  const auto copied = stream.load_tokenizer();
  EXPECT_EQ(copied->name(), tokenizer->name());
  EXPECT_EQ(copied->end_of_text(), 0);
  EXPECT_EQ(read_file(folder_ / "d/tokenizer.json"), tokenizer->json());
  const auto manifest = read_manifest(folder_ / "d");
  EXPECT_EQ(manifest->tokenizer_from, fixture_);
  EXPECT_EQ(manifest->vocab_size, 704);
  // Replaced, and with another end of text
  ASSERT_EQ(
      run({"c.jsonl", "--tokenizer", fixture_, "--end-of-text", "<|im_end|>", "--output", "d", "--force"})
          .status,
      0);
  EXPECT_EQ(TokenStream::open(folder_ / "d").load_tokenizer()->end_of_text(), 701);
}

TEST_F(Tokenize, ADatasetKeepsItsTokenizer) {
  write("a.txt", "some text");
  ASSERT_EQ(run({"a.txt", "--tokenizer", fixture_, "--output", "d"}).status, 0);
  const auto load = [&] { TokenStream::open(folder_ / "d").load_tokenizer(); };
  load();
  std::filesystem::copy_file(tokenizer_fixture("gpt2.json"), folder_ / "d/tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  expect_error(load, {"d/tokenizer.json is the tokenizer bpe-", "dataset.json names bpe-", "./prepare"});
  std::filesystem::remove(folder_ / "d/tokenizer.json");
  expect_error(load, {"dataset.json names the tokenizer bpe-", "beside"});
  write("none.json", small_tokenizer(R"([{"op": "replace", "path": "/added_tokens", "value": []}])"));
  expect_refusal({"a.txt", "--tokenizer", "none.json", "--output", "e"}, {"none.json", "--end-of-text"});
  write("end.json", small_tokenizer());
  expect_refusal({"a.txt", "--tokenizer", "end.json", "--output", "e"}, {"the byte 0x73", "no token"});
}

}  // namespace
}  // namespace tessera
