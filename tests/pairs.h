// Pairs of answers to prompts, packed into the sequences of a step.
#pragma once

#include "kernels/base/documents.h"
#include "tests/documents.h"
#include "tests/support.h"

namespace tessera::testing {

inline constexpr int64_t kPairTokens = 32;  // of a packed sequence

struct PairOfTexts {
  std::vector<int32_t> prompt, chosen, rejected;
};

// Answers with labels, each with the answer of the pair before as its mismatched one: those of TRL's fixture
enum class Answers : uint8_t { kPairs, kLabelled };

// Pairs in their order, as many in a sequence as fit, or `most`; and padded sequences up to `count`
inline Sequences packed_pairs(const std::vector<PairOfTexts>& pairs, size_t most, int64_t count,
                              Answers answers = Answers::kPairs) {
  Sequences out;
  DocumentLengths lengths;
  int64_t room = 0;
  size_t in_row = 0;
  const auto pad = [&] {
    if (room > 0 && !lengths.empty()) lengths.back().push_back(room);
    out.tokens.insert(out.tokens.end(), static_cast<size_t>(room), 0);
    out.targets.insert(out.targets.end(), static_cast<size_t>(room), kNoTarget);
    out.kinds.insert(out.kinds.end(), static_cast<size_t>(room), 0);
  };
  const auto begin_row = [&] {
    pad();
    lengths.emplace_back();
    room = kPairTokens, in_row = 0;
  };
  const auto add = [&](const PairOfTexts& pair, const std::vector<int32_t>& answer, DocumentKind kind) {
    std::vector<int32_t> all = pair.prompt;
    all.insert(all.end(), answer.begin(), answer.end());
    const int64_t inputs = std::ssize(all) - 1;
    lengths.back().push_back(inputs);
    room -= inputs;
    out.tokens.insert(out.tokens.end(), all.begin(), all.end() - 1);
    for (size_t t = 1; t < all.size(); ++t)
      out.targets.push_back(t < pair.prompt.size() ? kNoTarget : all[t]);
    out.kinds.insert(out.kinds.end(), static_cast<size_t>(inputs), static_cast<int32_t>(kind));
  };
  const bool labelled = answers == Answers::kLabelled;
  const auto answer_of = [&](size_t i) -> const std::vector<int32_t>& {
    return i % 2 == 0 ? pairs[i].chosen : pairs[i].rejected;
  };
  for (size_t i = 0; i < pairs.size(); ++i) {
    const PairOfTexts& pair = pairs[i];
    const auto &first = labelled ? answer_of(i) : pair.chosen,
               &second = labelled ? answer_of((i + pairs.size() - 1) % pairs.size()) : pair.rejected;
    const int64_t inputs = 2 * std::ssize(pair.prompt) + std::ssize(first) + std::ssize(second) - 2;
    if (inputs > room || in_row == most) begin_row();
    ++in_row;
    add(pair, first,
        !labelled    ? DocumentKind::kChosen
        : i % 2 == 0 ? DocumentKind::kDesirable
                     : DocumentKind::kUndesirable);
    add(pair, second, labelled ? DocumentKind::kMismatched : DocumentKind::kRejected);
  }
  while (std::ssize(lengths) < count) begin_row();
  pad();
  out.documents = documents_of(lengths);
  return out;
}

// Random pairs in sequences of kSharedModel: those of a step are unequal in number and in tokens.
inline std::vector<PairOfTexts> random_pairs(int count) {
  std::vector<PairOfTexts> pairs;
  for (int i = 0; i < count; ++i) {
    const Philox random(99, static_cast<uint64_t>(i));
    const auto draw = [&](uint64_t first, uint32_t most) {
      std::vector<int32_t> tokens(1 + random.bits(first)[0] % most);
      for (size_t t = 0; t < tokens.size(); ++t)
        tokens[t] = static_cast<int32_t>(random.bits(first + 1 + t)[1] % 61);
      return tokens;
    };
    pairs.push_back({draw(0, 4), draw(100, 9), draw(200, 6)});
  }
  return pairs;
}

}  // namespace tessera::testing
