// Weights of samples and messages: from lines of JSON to those of a sequence's targets.
#include <algorithm>
#include <fstream>
#include <numeric>

#include "data/chat/chat_request.h"
#include "data/mixture.h"
#include "data/packed_loader.h"
#include "data/sample_encoder.h"
#include "data/shard.h"
#include "tests/data/support.h"
#include "tests/data/tokenizers/support.h"

namespace tessera {
namespace {

using Weights = std::vector<double>;

class SampleWeights : public InTempFolder {
 protected:
  EncodedPiece encode(const std::string& lines, CountedLoss loss = CountedLoss::kCompletions,
                      bool strict = false) const {
    const auto tokenizer = load_tokenizer("bytes");
    const auto form = choose_chat_template({.named = "chatml"}, {}, *tokenizer);
    return SampleEncoder({.tokenizer = tokenizer.get(), .chat = form.get(), .loss = loss, .strict = strict})
        .encode({.bytes = lines, .input = "a.jsonl", .is_lines = true});
  }
  // Of each token, 0 where it does not count
  static Weights weights_of(const EncodedPiece& encoded) {
    Weights found(encoded.ids.size(), 1);
    for (const auto& [first, count, weight] : encoded.marks.weights)
      std::fill_n(found.begin() + first, count, weight);
    for (const auto& [first, count] : encoded.marks.uncounted) std::fill_n(found.begin() + first, count, 0);
    return found;
  }
  // Without repetitions
  static Weights changes(const EncodedPiece& encoded) {
    Weights found = weights_of(encoded);
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }
  void refused(const std::string& line, std::initializer_list<std::string_view> words,
               CountedLoss loss = CountedLoss::kCompletions) const {
    expect_error([&] { encode(line, loss); }, words);
  }
};

TEST_F(SampleWeights, AreOfAllThatCounts) {
  EXPECT_EQ(weights_of(encode(R"({"text":"ab","weight":0.5})")), (Weights{0.5, 0.5, 0.5}));
  EXPECT_EQ(weights_of(encode(R"({"prompt":"ab","completion":"c","weight":3})")), (Weights{0, 0, 3, 3}));
  EXPECT_EQ(changes(encode(R"({"text":"ab","weight":1})"
                           "\n"
                           R"({"text":"ab","weight":null})"
                           "\n"
                           R"({"text":"ab","weight":1.25e-1})"
                           "\n"
                           R"({"text":"ab"})")),
            (Weights{1, 0.125, 1}));
  const EncodedPiece pair = encode(R"({"prompt":"a","chosen":"b","rejected":"cc","weight":2.5})");
  EXPECT_EQ(weights_of(pair), (Weights{0, 2.5, 2.5, 0, 2.5, 2.5, 2.5}));
  EXPECT_EQ(pair.pairs, 1);
  EXPECT_EQ(weights_of(encode(R"({"prompt":"a","completion":"b","label":false,"weight":0.25})")),
            (Weights{0, 0.25, 0.25}));
}

// With --strict too: it is said, not found
TEST_F(SampleWeights, AnyWeightOf0LeavesTheSampleOut) {
  const std::string lines = R"({"text":"ab","weight":0})"
                            "\n"
                            R"({"prompt":"a","chosen":"b","rejected":"c","weight":0.0})";
  const EncodedPiece encoded = encode(lines, CountedLoss::kAll, /*strict=*/true);
  EXPECT_EQ(encoded.dropped, (std::vector<std::string>{"a.jsonl:1", "a.jsonl:2"}));
  EXPECT_TRUE(encoded.ids.empty());
}

TEST_F(SampleWeights, OfMessagesAreOfTheirTurns) {
  const auto talk = [](const std::string& first, const std::string& second, const std::string& line = "") {
    return R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello")" + first +
           R"(},{"role":"user","content":"Bye"},{"role":"assistant","content":"Ciao")" + second + "}]" +
           line + "}";
  };
  const EncodedPiece plain = encode(talk("", ""));
  const EncodedPiece chosen = encode(talk(R"(,"weight":0)", ""));
  EXPECT_EQ(chosen.ids, plain.ids);
  EXPECT_EQ(changes(plain), (Weights{0, 1, 0, 1, 0}));
  EXPECT_EQ(changes(chosen), (Weights{0, 1, 0}));
  EXPECT_EQ(changes(encode(talk("", R"(,"weight":0)"))), (Weights{0, 1, 0}));
  EXPECT_EQ(changes(encode(talk(R"(,"weight":0.5)", R"(,"weight":2)"))), (Weights{0, 0.5, 0, 2, 0}));
  EXPECT_EQ(changes(encode(talk(R"(,"weight":0.5)", "", R"(,"weight":4)"))), (Weights{0, 2, 0, 4, 0}));
  EXPECT_EQ(encode(talk(R"(,"weight":0)", R"(,"weight":0)")).dropped, std::vector<std::string>{"a.jsonl:1"});
  // Whole, since all counts
  EXPECT_EQ(changes(encode(talk("", "", R"(,"weight":4)"), CountedLoss::kAll)), Weights{4});
}

TEST_F(SampleWeights, WhatIsNoneIsRefused) {
  refused(R"({"text":"x","weight":-1})", {"a.jsonl:1", "'weight'", "at least 0", "found -1"});
  refused(R"({"text":"x","weight":"1"})", {"a.jsonl:1", "found \"1\"", "another name"});
  refused(R"({"text":"x","weight":true})", {"a.jsonl:1", "found true"});
  refused(R"({"text":"x","weight":1e300})", {"a.jsonl:1", "found 1e+300"});
  const std::string asked = R"({"messages":[{"role":"user","content":"x","weight":1},)",
                    said = R"({"role":"assistant","content":"y"}]})";
  refused(asked + said, {"a.jsonl:1: message 1", "its weight is 1", "only what an assistant says counts"});
  EXPECT_EQ(encode(R"({"messages":[{"role":"user","content":"x","weight":0},)" + said).documents, 1);
  const std::string weighted = R"({"messages":[{"role":"assistant","content":"y","weight":2}]})";
  EXPECT_EQ(changes(encode(weighted)), (Weights{0, 2, 0}));
  refused(weighted, {"a.jsonl:1", "message 1", "--loss all"}, CountedLoss::kAll);
  refused(R"({"chosen":[{"role":"user","content":"x"},{"role":"assistant","content":"y","weight":0.5}],)"
          R"("rejected":[{"role":"user","content":"x"},{"role":"assistant","content":"z"}]})",
          {"a.jsonl:1", "message 2", "its weight is 0.5", "0 or 1"});
}

class StoredWeights : public InTempFolder {
 protected:
  static constexpr int64_t kTokens = 20;
  const DocumentMarks marks{.starts = {0, 4, 13},
                            .uncounted = {{1, 1}, {5, 2}},
                            .weights = {{2, 2, 0.5}, {7, 3, 2.0}, {10, 3, 0.25}}};

  TokenStream stream(const char* name, int64_t shard, const DocumentMarks& of) const {
    const auto at = folder_ / name;
    std::filesystem::create_directory(at);
    ShardWriter shards({.folder = at, .tokens_per_shard = shard});
    DocumentIndexWriter index({.folder = at, .tokens_per_shard = shard});
    std::vector<int32_t> ids(kTokens);
    std::iota(ids.begin(), ids.end(), 0);
    shards.append(ids);
    index.append(kTokens, of);
    shards.finish(), index.finish();
    return TokenStream::open(at);
  }
};

TEST_F(StoredWeights, AreReadAsTheyWereWrittenAcrossShards) {
  std::vector<float> want(kTokens, 1.0f);
  for (const auto& [first, count, weight] : marks.weights)
    std::fill_n(want.begin() + first, count, static_cast<float>(weight));
  for (const int64_t shard : {int64_t{3}, int64_t{8}, int64_t{100}}) {
    const TokenStream stream = this->stream(fmt::format("shards_of_{}", shard).c_str(), shard, marks);
    const DocumentIndex& documents = *stream.documents();
    EXPECT_TRUE(documents.has_weights());
    for (int64_t first = 0; first <= kTokens; ++first)
      for (int64_t count = 0; first + count <= kTokens; ++count) {
        std::vector<float> found(static_cast<size_t>(count), -1.0f);
        documents.take_weights(first, found);
        EXPECT_TRUE(std::equal(found.begin(), found.end(), want.begin() + first)) << first << ", " << count;
      }
  }
  EXPECT_FALSE(stream("none", 8, {.starts = {0}, .uncounted = {}}).documents()->has_weights());
}

TEST_F(StoredWeights, ADamagedFileIsRefused) {
  stream("a", 100, marks);
  const auto path = folder_ / "a/train_000000.documents";
  const std::string bytes = read_file(path);
  const auto refused = [&](const std::string& changed, std::initializer_list<std::string_view> words) {
    std::ofstream(path, std::ios::binary) << changed;
    expect_error([&] { TokenStream::open(folder_ / "a"); }, words);
  };
  refused(bytes.substr(0, bytes.size() - 4), {"truncated"});
  refused(bytes + "1234", {"longer than its header says"});
  std::string changed = bytes;
  changed.replace(bytes.size() - 4, 4, std::string(4, '\0'));  // the last weight
  refused(changed, {"damaged", "have the weight 0"});
  changed = bytes;
  changed[12] = 8;
  refused(changed, {"damaged"});
}

TEST_F(StoredWeights, FollowTheirTargetsThroughPackingAndMixtures) {
  const TokenStream weighted = stream("a", 8, marks),
                    plain = stream("b", 8, {.starts = {0, 9}, .uncounted = {}});
  constexpr int64_t T = 7;
  const auto loader = [](const TokenStream& of) {
    return std::make_unique<PackedLoader>(PackedLoaderOptions{
        .stream = &of, .document_count = of.documents()->count(), .sequence_length = T, .shuffle = false});
  };
  std::vector<Mixture::Part> parts;
  parts.push_back({loader(plain), 1});
  parts.push_back({loader(weighted), 1});
  const Mixture mixture(std::move(parts));
  std::vector<float> want(kTokens);
  weighted.documents()->take_weights(0, want);
  double sum = 0;
  for (int64_t position = 0; position < mixture.sequences_per_epoch(); position += 2) {
    Sequences found;
    mixture.fetch(position, 2, found);
    ASSERT_EQ(found.weights.size(), found.targets.size());
    for (size_t i = 0; i < static_cast<size_t>(T); ++i) EXPECT_EQ(found.weights[i], 1);
    for (size_t i = static_cast<size_t>(T); i < found.targets.size(); ++i) {
      const int32_t target = found.targets[i];
      if (target == kNoTarget) continue;
      EXPECT_EQ(found.weights[i], want[static_cast<size_t>(target)]);
      sum += static_cast<double>(found.weights[i]);
    }
    EXPECT_DOUBLE_EQ(weight_of_targets(SequencesView(found).tokens_from(T, T)) +
                         static_cast<double>(counted(SequencesView(found).tokens_from(0, T).targets)),
                     weight_of_targets(found));
  }
  EXPECT_GT(sum, 0);
  Sequences none;
  loader(plain)->fetch(0, 1, none);
  EXPECT_TRUE(none.weights.empty());
}

}  // namespace
}  // namespace tessera
