// How sequences of unequal documents are shared out to the ranks of the data axis: every sequence once, as
// many for each, and equal work.
#include "train/session/equal_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "data/loader.h"
#include "data/packing.h"
#include "data/sequences.h"
#include "tests/documents.h"

namespace tessera::testing {
namespace {

using Lengths = std::vector<int64_t>;

constexpr ModelConfig kGpt2{.vocab_size = 50257, .context = 8192, .layers = 12, .heads = 12, .channels = 768};

RunShape documents_shape(int64_t ranks, int64_t micro_steps, int64_t micro_batch) {
  return {.model = kGpt2,
          .micro_batch = micro_batch,
          .micro_steps = micro_steps,
          .sequence_length = 8192,
          .documents = true,
          .mesh = {.data = ranks}};
}

std::vector<int64_t> places_of_all(const RunShape& shape, const std::vector<double>& work) {
  std::vector<int64_t> all;
  for (int64_t rank = 0; rank < shape.mesh.data; ++rank) {
    const std::vector<int64_t> own = places_of_rank(shape, {.rank = rank, .size = shape.mesh.data}, work);
    EXPECT_EQ(std::ssize(own), shape.sequences_per_rank());
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

// As texts of the web are: many of some hundred tokens, some of thousands, and a few books. Packed best fit,
// in a random order
std::vector<Lengths> mixed_sequences() {
  std::mt19937_64 random(7);
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  Lengths documents(20000);
  for (int64_t& length : documents) {
    const double normal = std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform());
    length = uniform() < 0.02 ? 8000 + static_cast<int64_t>(50000 * uniform())
                              : 20 + static_cast<int64_t>(std::exp(6.5 + 1.3 * normal));
  }
  const auto inputs = [&](int64_t i) { return documents[static_cast<size_t>(i)]; };
  const int64_t T = 8192;
  const Packing packing({.documents = std::ssize(documents), .inputs = inputs, .sequence_length = T});
  const SequenceOrder order(packing.sequences(), 1, true);
  std::vector<Lengths> sequences;
  for (int64_t i = 0; i < packing.sequences(); ++i) {
    Lengths lengths;
    packing.visit(order.at(i), inputs, [&](const Packing::Piece& piece) { lengths.push_back(piece.count); });
    const int64_t padding = T - std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    if (padding > 0) lengths.push_back(padding);
    sequences.push_back(lengths);
  }
  return sequences;
}

TEST(EqualWork, EverySequenceIsTakenOnce) {
  std::mt19937_64 random(1);
  for (const int64_t ranks : {2, 3, 8})
    for (const int64_t micro_steps : {1, 4})
      for (const int64_t micro_batch : {1, 3}) {
        const RunShape shape = documents_shape(ranks, micro_steps, micro_batch);
        std::vector<double> work(static_cast<size_t>(shape.sequences_per_step()));
        for (double& each : work) each = static_cast<double>(random() % 5);
        std::vector<int64_t> all = places_of_all(shape, work);
        EXPECT_EQ(all, places_of_all(shape, work)) << "the same twice";
        std::ranges::sort(all);
        for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<int64_t>(i));
      }
}

TEST(EqualWork, SequencesKeepTheirPlacesWithoutDocumentsOrWithDropout) {
  RunShape one = documents_shape(1, 4, 1), joined = documents_shape(4, 1, 1), dropped = joined;
  joined.documents = false;
  dropped.model.dropout.residual = 0.1;
  for (const RunShape& shape : {one, joined, dropped})
    EXPECT_EQ(places_of_all(shape, {}), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(places_of_all(documents_shape(2, 2, 1), {1, 2, 3, 4}), (std::vector<int64_t>{3, 0, 2, 1}));
}

// What the ranks wait for the slowest one of each micro-batch, or of the step: its work over the mean
struct Wait {
  double of_micro_batches = 0, of_steps = 0;
};

Wait wait_of(const RunShape& shape, const std::vector<Lengths>& sequences, bool by_work) {
  const int64_t n = shape.sequences_per_step(), steps = std::ssize(sequences) / n;
  double all = 0, slowest_of_steps = 0, slowest_of_micro_batches = 0;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<double> spans, flops;
    for (int64_t i = step * n; i < (step + 1) * n; ++i) {
      spans.push_back(attention_spans(shape.model, sequences[static_cast<size_t>(i)]));
      const auto T = static_cast<double>(shape.sequence_length);
      flops.push_back(T * shape.flops_of_span(spans.back() / T));
    }
    std::vector<int64_t> places(static_cast<size_t>(n));
    std::iota(places.begin(), places.end(), 0);
    if (by_work) places = places_of_all(shape, spans);
    std::vector<double> of_ranks(static_cast<size_t>(shape.mesh.data));
    for (int64_t m = 0; m < shape.micro_steps; ++m) {
      double slowest = 0;
      for (int64_t rank = 0; rank < shape.mesh.data; ++rank) {
        double own = 0;
        for (int64_t b = 0; b < shape.micro_batch; ++b)
          own += flops[static_cast<size_t>(
              places[static_cast<size_t>((rank * shape.micro_steps + m) * shape.micro_batch + b)])];
        of_ranks[static_cast<size_t>(rank)] += own;
        slowest = std::max(slowest, own);
      }
      slowest_of_micro_batches += slowest;
    }
    slowest_of_steps += *std::ranges::max_element(of_ranks);
    all += std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0);
  }
  const double mean = all / static_cast<double>(shape.mesh.data);
  return {slowest_of_micro_batches / mean - 1, slowest_of_steps / mean - 1};
}

// GPT-2 small on sequences of 8,192 tokens: half of its work is attention.
TEST(EqualWork, RanksWaitLittleForTheSlowestOnMixedDocuments) {
  const std::vector<Lengths> sequences = mixed_sequences();
  ASSERT_GT(sequences.size(), 3000u);
  for (const int64_t ranks : {2, 4, 8})
    for (const auto& [micro_steps, micro_batch] : {std::pair{1, 4}, {1, 8}, {4, 1}, {4, 2}, {8, 4}}) {
      const RunShape shape = documents_shape(ranks, micro_steps, micro_batch);
      const Wait before = wait_of(shape, sequences, false), now = wait_of(shape, sequences, true);
      const std::string text = fmt::format(
          "{} ranks x {} x {}: {:.1f}% of a micro-batch, before {:.1f}%; of a step {:.2f}%, "
          "before {:.1f}%",
          ranks, micro_steps, micro_batch, 100 * now.of_micro_batches, 100 * before.of_micro_batches,
          100 * now.of_steps, 100 * before.of_steps);
      fmt::print("{}\n", text);
      EXPECT_LT(now.of_micro_batches, 0.05) << text;
      EXPECT_LT(now.of_steps, 0.02) << text;
      EXPECT_LT(now.of_steps, 0.4 * before.of_steps) << text;
    }
}

TEST(EqualWork, TheLengthsOfDocumentsAreThoseOfTheirTable) {
  const DocumentLengths lengths{{3, 1, 8}, {12}, {1, 1, 10}};
  const std::vector<int32_t> table = documents_of(lengths);
  for (size_t i = 0; i < lengths.size(); ++i)
    EXPECT_EQ(document_lengths(std::span(table).subspan(24 * i, 24)),
              Lengths(lengths[i].begin(), lengths[i].end()));
  EXPECT_TRUE(document_lengths({}).empty());
  ModelConfig model = kGpt2;
  EXPECT_EQ(attention_spans(model, Lengths{3, 1, 8}), 9 + 1 + 64);
}

}  // namespace
}  // namespace tessera::testing
