#include "data/tokenizers/byte_tokenizer.h"

#include "data/tokenizers/bpe_tokenizer.h"
#include "data/tokenizers/load_tokenizer.h"
#include "data/tokenizers/tokenizer_json.h"
#include "tests/data/support.h"

namespace tessera {
namespace {

TEST(ByteTokenizer, NamesItself) {
  const auto bytes = load_tokenizer("bytes");
  EXPECT_EQ(bytes->name(), "bytes");
  EXPECT_EQ(bytes->vocab_size(), 257);
  EXPECT_EQ(bytes->end_of_text(), 256);
}

TEST(ByteTokenizer, EveryByteIsItsOwnId) {
  std::string all;
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
    ids.push_back(byte);
  }
  const auto bytes = load_tokenizer("bytes");
  EXPECT_EQ(bytes->encode(all), ids);
  EXPECT_EQ(bytes->decode(ids), all);
  EXPECT_TRUE(bytes->encode("").empty());
}

// As other programs read it: with the same ids, through a tokenizer.json as well
TEST(ByteTokenizer, IsAlsoByteLevelBpe) {
  std::string all;
  for (int round = 0; round < 3; ++round)
    for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte * (2 * round + 1));
  all += "two words, \r\n\t 1234 caf\u00e9 \u4e16 isn't";
  const auto bytes = load_tokenizer("bytes");
  const auto bpe =
      make_bpe_tokenizer(read_tokenizer_json(tokenizer_json(bytes_as_bpe()), "made"), 256, "", "");
  EXPECT_EQ(bpe->encode(all), bytes->encode(all));
  EXPECT_EQ(bpe->decode(bpe->encode(all)), all);
  EXPECT_EQ(bpe->vocab_size(), bytes->vocab_size());
  EXPECT_EQ(bpe->special_token("<|endoftext|>"), bytes->end_of_text());
}

TEST(ByteTokenizer, EndOfTextIsInvisible) {
  EXPECT_EQ(load_tokenizer("bytes")->decode(std::vector<int32_t>{'a', 256, 'b', 256}), "ab");
}

TEST(ByteTokenizer, RefusesForeignIds) {
  const auto bytes = load_tokenizer("bytes");
  for (const int32_t id : {257, -1, 50256}) {
    expect_error([&] { bytes->decode({&id, 1}); }, {fmt::format("token {}", id), "257", "bytes"});
  }
}

}  // namespace
}  // namespace tessera
