// Pairs of a chosen and a rejected answer: how prepare reads and writes them, and how they are packed.
#include <algorithm>
#include <map>

#include "data/packed_loader.h"
#include "data/shard.h"
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

// Tools are given to the template with both answers; what counts is what it marks.
TEST_F(Prepare, ReadsPairsOfConversationsWithTools) {
  write("with_tools.jinja",
        "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}!{{ c.function.name }}{% endfor %};{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}");
  const std::string line =
      R"({"tools":[{"type":"function","function":{"name":"sum","parameters":{}}}],)"
      R"("prompt":[{"role":"user","content":"2+2"}],)"
      R"("chosen":[{"role":"assistant","content":"","tool_calls":[{"type":"function","function":)"
      R"({"name":"sum","arguments":{}}}]}],"rejected":[{"role":"assistant","content":"5"}]})";
  write("a.jsonl", line + "\n");
  const Result result = run({"a.jsonl", "--output", "d", "--chat-template", "with_tools.jinja"});
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_NE(result.out.find("documents 2, pairs 1, "), std::string::npos) << result.out;
  EXPECT_EQ(text_of("d"), "[sum]<user>2+2<assistant>!sum;|[sum]<user>2+2<assistant>5;|");
  std::vector<int32_t> targets(56);
  TokenStream::open(folder_ / "d").documents()->drop_uncounted(0, targets);
  std::string counts;
  for (const int32_t target : targets) counts += target == kNoTarget ? '.' : '#';
  EXPECT_EQ(counts.substr(0, 31), std::string(25, '.') + "#####" + "#") << counts;
  // A template that has no place for tools would lose them.
  expect_refusal({"a.jsonl", "--output", "e", "--chat-template", "chatml"}, {"a.jsonl:1", "tools"});
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

TEST_F(Prepare, ReadsAnswersWithLabels) {
  write("a.jsonl",
        "{\"prompt\":\"2+2=\",\"completion\":\"4\",\"label\":true}\n"
        "{\"prompt\":\"2+2=\",\"completion\":\"\",\"label\":true}\n"  // dropped
        "{\"prompt\":\"2+2=\",\"completion\":\"5!\",\"label\":false}\n"
        "{\"prompt\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
        "\"completion\":[{\"role\":\"assistant\",\"content\":\"Yo\"}],\"label\":true}\n");
  const Result result = run({"a.jsonl", "--output", "d", "--chat-template", "chatml"});
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_NE(result.out.find("documents 3, desirable 2, undesirable 1, "), std::string::npos) << result.out;
  const TokenStream stream = TokenStream::open(folder_ / "d");
  const DocumentIndex& documents = *stream.documents();
  ASSERT_TRUE(documents.has_labels());
  EXPECT_FALSE(documents.has_pairs());
  EXPECT_EQ(documents.label(0), DocumentLabel::kDesirable);
  EXPECT_EQ(documents.label(1), DocumentLabel::kUndesirable);
  EXPECT_EQ(documents.label(2), DocumentLabel::kDesirable);
  EXPECT_EQ(documents.uncounted_from(0), 4);
  EXPECT_EQ(documents.uncounted_from(4), 0);
  EXPECT_EQ(documents.uncounted_from(6), 4);
  // Another "label" is metadata, and a file without labels is as it was
  write("b.jsonl", "{\"prompt\":\"p\",\"completion\":\"c\",\"label\":\"good\"}\n");
  ASSERT_EQ(run({"b.jsonl", "--output", "e"}).status, 0);
  EXPECT_FALSE(TokenStream::open(folder_ / "e").documents()->has_labels());
  write("c.jsonl",
        "{\"prompt\":\"p\",\"completion\":\"c\",\"label\":true}\n{\"prompt\":\"p\",\"completion\":\"c\"}\n");
  ASSERT_EQ(run({"c.jsonl", "--output", "f"}).status, 0);
  const TokenStream mixed = TokenStream::open(folder_ / "f");
  expect_error(
      [&] { PackedLoader({.stream = &mixed, .document_count = 2, .sequence_length = 8, .answers = true}); },
      {"document 1 of", "has no label"});
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

// An answer and its prompt with the answer before; a document's tokens are 10 times its number and on.
TEST_F(PackedPairs, AnswersHaveMismatchedOnes) {
  ShardWriter shards({.folder = folder_, .tokens_per_shard = 7});
  DocumentIndexWriter index({.folder = folder_, .tokens_per_shard = 7});
  // 2 + 3 tokens, 3 + 2, 1 + 5
  const std::vector<int32_t> ids = {10, 11, 12, 13, 14, 20, 21, 22, 23, 24, 30, 31, 32, 33, 34, 35};
  using enum DocumentLabel;
  shards.append(ids);
  index.append(std::ssize(ids), {.starts = {0, 5, 10},
                                 .uncounted = {{0, 2}, {5, 3}, {10, 1}},
                                 .labels = {kDesirable, kUndesirable, kDesirable}});
  shards.finish();
  index.finish();
  const TokenStream stream = TokenStream::open(folder_);
  constexpr int64_t T = 24;
  const PackedLoader loader({.stream = &stream, .document_count = 3, .sequence_length = T, .answers = true});
  Sequences all;
  loader.fetch(0, loader.sequences_per_epoch(), all);
  EXPECT_EQ(count_pairs(all, T), 3);
  std::map<int32_t, std::vector<std::vector<int32_t>>> found;  // inputs and targets by kind
  for (size_t i = 0; i < all.tokens.size();) {
    const auto length = all.documents[2 * i + 1] - all.documents[2 * i];
    if (all.kinds[i] != 0) {
      found[all.kinds[i]].push_back({all.tokens.begin() + static_cast<int64_t>(i),
                                     all.tokens.begin() + static_cast<int64_t>(i) + length});
      found[all.kinds[i]].push_back({all.targets.begin() + static_cast<int64_t>(i),
                                     all.targets.begin() + static_cast<int64_t>(i) + length});
    }
    i += static_cast<size_t>(length);
  }
  const auto of = [&](DocumentKind kind) {
    auto rows = found[static_cast<int32_t>(kind)];
    std::ranges::sort(rows);
    return rows;
  };
  using Rows = std::vector<std::vector<int32_t>>;
  constexpr int32_t kNo = kNoTarget;
  EXPECT_EQ(of(DocumentKind::kDesirable),
            (Rows{{kNo, 12, 13, 14}, {10, 11, 12, 13}, {30, 31, 32, 33, 34}, {31, 32, 33, 34, 35}}));
  EXPECT_EQ(of(DocumentKind::kUndesirable), (Rows{{kNo, kNo, 23, 24}, {20, 21, 22, 23}}));
  EXPECT_EQ(of(DocumentKind::kMismatched), (Rows{{kNo, kNo, 12, 13, 14},
                                                 {kNo, 31, 32, 33, 34, 35},
                                                 {10, 11, 31, 32, 33, 34},
                                                 {20, 21, 22, 12, 13},
                                                 {23, 24},
                                                 {30, 23}}));
  int64_t tokens = 0;
  for (int64_t i = 0; i < loader.sequences_per_epoch(); ++i)
    for (const SequencePiece& piece : loader.pieces(i)) tokens += piece.count;
  EXPECT_EQ(tokens, 4 + 4 + 5 + 6 + 5 + 2);
  // An answer that is cut at half a sequence
  const PackedLoader cut({.stream = &stream, .document_count = 3, .sequence_length = 8, .answers = true});
  EXPECT_EQ(cut.cut_pairs(), 2);
}

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
