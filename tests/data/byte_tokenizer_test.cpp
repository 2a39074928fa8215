#include "data/tokenizers/load_tokenizer.h"

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
