// Pairs of a chosen and a rejected answer: how prepare reads and writes them, and how they are packed.
#include <algorithm>

#include "data/packed_loader.h"
#include "kernels/base/documents.h"
#include "tests/data/prepare_process.h"

namespace tessera {
namespace {

constexpr auto kChosen = static_cast<int32_t>(DocumentKind::kChosen),
               kRejected = static_cast<int32_t>(DocumentKind::kRejected);

TEST_F(Prepare, ReadsPairsOfAnswers) {
  write("a.jsonl",
        "{\"prompt\":\"2+2=\",\"chosen\":\"4\",\"rejected\":\"5!\"}\n"
        "{\"chosen\":\"a b \\u00e4x\",\"rejected\":\"a b \\u00f6\"}\n"  // up to the space before
        "{\"prompt\":\"p\",\"chosen\":\"\",\"rejected\":\"same\"}\n"    // the end of text counts
        "{\"chosen\":\"ab\",\"rejected\":\"ab\"}\n"                     // something is left of each
        "{\"prompt\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
        "\"chosen\":[{\"role\":\"assistant\",\"content\":\"Yo\"}],"
        "\"rejected\":[{\"role\":\"assistant\",\"content\":\"No\"}]}\n"
        "{\"chosen\":[{\"role\":\"user\",\"content\":\"Q\"},{\"role\":\"assistant\",\"content\":\"A\"}],"
        "\"rejected\":[{\"role\":\"user\",\"content\":\"Q\"},{\"role\":\"assistant\",\"content\":\"B\"}]}\n");
  const Result result = run({"a.jsonl", "--output", "d", "--chat-template", "chatml"});
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_NE(result.out.find("documents 12, pairs 6, "), std::string::npos) << result.out;
  const auto chat = [](const std::string& question, const std::string& answer) {
    return "<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n" + answer + "<|im_end|>\n|";
  };
  EXPECT_EQ(text_of("d"), "2+2=4|2+2=5!|a b \xc3\xa4x|a b \xc3\xb6|p|psame|ab|ab|" + chat("Hi", "Yo") +
                              chat("Hi", "No") + chat("Q", "A") + chat("Q", "B"));
  const TokenStream stream = TokenStream::open(folder_ / "d");
  ASSERT_TRUE(stream.documents()->has_pairs());
  std::vector<int32_t> targets(28);
  stream.documents()->drop_uncounted(0, targets);
  std::string counts;
  for (const int32_t target : targets) counts += target == kNoTarget ? '.' : '#';
  // 2+2=4|2+2=5!|, "a b" and " ä" with a space that is the answer's, p|psame|
  EXPECT_EQ(counts, "....##....###...#####...####");
}

TEST_F(Prepare, RefusesWhatIsNoPair) {
  const auto refused = [&](const char* lines, std::initializer_list<std::string_view> words) {
    write("a.jsonl", lines);
    expect_refusal({"a.jsonl", "--output", "d", "--chat-template", "chatml"}, words);
  };
  refused("{\"prompt\":\"p\",\"chosen\":\"c\"}", {"a.jsonl:1", "'chosen' and 'rejected'", "'prompt'"});
  refused("{\"chosen\":\"c\",\"rejected\":7}", {"a.jsonl:1", "'rejected'", "number"});
  refused("{\"chosen\":\"c\",\"rejected\":[]}", {"a.jsonl:1", "all texts, or all lists"});
  refused("{\"chosen\":\"c\",\"rejected\":\"r\"}\n{\"text\":\"t\"}",
          {"a.jsonl:1 is a pair", "a.jsonl:2 is not", "two folders"});
  refused("{\"chosen\":\"c\",\"rejected\":\"r\",\"completion\":\"t\"}", {"a.jsonl:1", "keep one"});
}

class PackedPairs : public InTempFolder {
 protected:
  TokenStream stream_of(const std::vector<int64_t>& lengths, const std::vector<TokenRange>& uncounted = {}) {
    ShardWriter shards({.folder = folder_, .tokens_per_shard = 50});
    DocumentIndexWriter index({.folder = folder_, .tokens_per_shard = 50});
    DocumentMarks marks{.starts = {}, .uncounted = uncounted};
    int64_t tokens = 0;
    for (const int64_t length : lengths) marks.starts.push_back(std::exchange(tokens, tokens + length));
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    shards.append(ids);
    index.append(tokens, marks, /*pairs=*/true);
    shards.finish();
    index.finish();
    return TokenStream::open(folder_);
  }
};

// The two documents of a pair stand side by side in a sequence; what is longer keeps the starts.
TEST_F(PackedPairs, AreWholeOrKeepTheirStarts) {
  constexpr int64_t T = 16;
  //                              7+3 inputs, 2+2    30+4: 12 and 4   20+20: 8 and 8
  const TokenStream stream = stream_of({8, 4, 3, 3, 31, 5, 21, 21});
  const PackedLoader loader({.stream = &stream, .document_count = 8, .sequence_length = T});
  EXPECT_EQ(loader.cut_pairs(), 2);
  EXPECT_EQ(loader.packing().figures().documents, 4);
  const int64_t n = loader.sequences_per_epoch();
  EXPECT_EQ(n, 3);
  Sequences all;
  loader.fetch(0, n, all);
  EXPECT_EQ(count_pairs(all, T), 4);
  std::vector<std::pair<int32_t, int32_t>> found;  // first token and inputs
  for (size_t i = 0; i < all.tokens.size();) {
    const int32_t length = all.documents[2 * i + 1] - all.documents[2 * i];
    if (all.kinds[i] != 0) found.emplace_back(all.tokens[i], length);
    if (all.kinds[i] == kChosen) {
      EXPECT_EQ(all.kinds[i + static_cast<size_t>(length)], kRejected);
    }
    i += static_cast<size_t>(length);
  }
  std::ranges::sort(found);
  const std::vector<std::pair<int32_t, int32_t>> wanted = {{0, 7},   {8, 3},  {12, 2}, {15, 2},
                                                           {18, 12}, {49, 4}, {54, 8}, {75, 8}};
  EXPECT_EQ(found, wanted);
}

TEST_F(PackedPairs, WithoutATargetOfASideAreLeftOut) {
  const TokenStream stream = stream_of({8, 4, 31, 31}, {{12, 20}});  // of the chosen one, 12 to 27 are kept
  const PackedLoader loader({.stream = &stream, .document_count = 4, .sequence_length = 16});
  EXPECT_EQ(loader.packing().figures().uncounted, 1);
  EXPECT_EQ(loader.sequences_per_epoch(), 1);
  EXPECT_EQ(documents_to_train_on(stream, 0.1), 2);
  expect_error(
      [&] {
        PackedLoader({.stream = &stream, .first_document = 1, .document_count = 3, .sequence_length = 16});
      },
      {"are not whole pairs"});
}

}  // namespace
}  // namespace tessera
