// A text that a stream encodes in memory: the tokens of its shards.
#include "data/loader.h"
#include "data/token_stream.h"
#include "data/tokenizers/load_tokenizer.h"
#include "tests/data/support.h"

namespace tessera {
namespace {

std::vector<int32_t> all_of(const TokenStream& stream) {
  std::vector<int32_t> ids(static_cast<size_t>(stream.size()));
  stream.read(0, ids);
  return ids;
}

struct EncodedText : InTempFolder {
  static std::unique_ptr<Tokenizer> fixture(const std::string& name) {
    return load_tokenizer(std::string(TESSERA_SOURCE_DIR) + "/tests/fixtures/tokenizers/" + name + ".json");
  }
  std::filesystem::path text = write("a.txt", "A text, and a second line\nof it: 12 ä.\n");
};

TEST_F(EncodedText, HasTheTokensOfOneDocument) {
  for (const char* name : {"gpt2", "llama3", "qwen2", "smollm2"}) {
    const std::unique_ptr<Tokenizer> tokenizer = fixture(name);
    std::vector<int32_t> wanted(tokenizer->before_text().begin(), tokenizer->before_text().end());
    tokenizer->encode(read_file(text), SpecialTokens::kAsText, wanted);
    wanted.insert(wanted.end(), tokenizer->after_text().begin(), tokenizer->after_text().end());
    if (wanted.back() != tokenizer->end_of_text()) wanted.push_back(tokenizer->end_of_text());
    TokenStream stream = TokenStream::open(text, *tokenizer);
    EXPECT_EQ(all_of(stream), wanted) << name;
    EXPECT_EQ(stream.tokenizer(), tokenizer->name());
    const TokenStream moved = std::move(stream);  // with its tokens
    EXPECT_EQ(all_of(moved), wanted) << name;
    EXPECT_NE(moved.describe().find("plain text, tokenizer bpe-"), std::string::npos) << moved.describe();
    EXPECT_THROW(moved.load_tokenizer(), Error);
    Sequences sequences;
    const Loader loader(
        {.stream = &moved, .token_count = moved.size(), .sequence_length = 4, .shuffle = false});
    loader.fetch(0, 1, sequences);
    EXPECT_TRUE(std::equal(sequences.targets.begin(), sequences.targets.end(), wanted.begin() + 1));
  }
}

TEST_F(EncodedText, IsTheBytesForTheTokenizerOfBytesAndShardsStayAsTheyAre) {
  const TokenStream bytes = TokenStream::open(text, *load_tokenizer("bytes"));
  EXPECT_EQ(all_of(bytes), all_of(TokenStream::open(text)));
  const auto shard = write("a.bin", shard_bytes({1, 2, 3}));
  EXPECT_EQ(all_of(TokenStream::open(shard, *fixture("gpt2"))), (std::vector<int32_t>{1, 2, 3}));
  TokenStream limited = TokenStream::open(text, *fixture("gpt2"));
  limited.require_tokens_below(10);
  expect_error([&] { all_of(limited); }, {"a.txt", "vocabulary has only 10"});
}

}  // namespace
}  // namespace tessera
