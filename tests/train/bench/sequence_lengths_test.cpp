// Sequence lengths as users write them.
#include "train/bench/sequence_lengths.h"

#include <gtest/gtest.h>

#include "kernels/base/check.h"

namespace tessera {
namespace {

TEST(SequenceLengths, AreListsAndDoublings) {
  using Lengths = std::vector<int64_t>;
  const std::pair<const char*, Lengths> good[] = {
      {"1024", {1024}},
      {"2048,512,512", {512, 2048}},
      {"512..4096", {512, 1024, 2048, 4096}},
      {"512..3000", {512, 1024, 2048, 3000}},
      {"7..7", {7}},
      {"3000,512..1024,100..150", {100, 150, 512, 1024, 3000}},
      {"1..10000000",
       {1,    2,     4,     8,     16,     32,     64,     128,     256,     512,     1024,    2048,    4096,
        8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152, 4194304, 8388608, 10000000}}};
  for (const auto& [text, lengths] : good) EXPECT_EQ(parse_sequence_lengths(text), lengths) << text;
}

TEST(SequenceLengths, AnythingElseIsRefusedAndQuoted) {
  for (const char* text : {"",
                           ",",
                           "512,",
                           ",512",
                           "512,,1024",
                           "0",
                           "0..512",
                           "-512",
                           "+512",
                           " 512",
                           "512 ",
                           "5e2",
                           "1k",
                           "long",
                           "512..",
                           "..512",
                           "..",
                           "512...1024",
                           "512..1024..2048",
                           "1024..512",
                           "10000001",
                           "1..10000001",
                           "99999999999999999999",
                           "1..99999999999999999999",
                           "512.0"}) {
    try {
      parse_sequence_lengths(text);
      ADD_FAILURE() << "\"" << text << "\" was taken for lengths";
    } catch (const Error& error) {
      for (const char* part : {"--seq-lens", "512..65536", text})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace tessera
