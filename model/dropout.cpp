#include "model/dropout.h"

#include <cmath>
#include <map>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

constexpr uint64_t kDropoutStream = uint64_t{2} << 32;  // no stream of the initial weights or the samples
constexpr uint32_t kKinds = 4;
static_assert(kMostDropoutLayers * kKinds * Dropout::kHeads == uint64_t{1} << 32);

double probability_of(DropoutKind kind, const DropoutConfig& config) {
  switch (kind) {
    case DropoutKind::kEmbedding:
      return config.embedding;
    case DropoutKind::kAttention:
      return config.attention;
    case DropoutKind::kAttentionBranch:
    case DropoutKind::kMlpBranch:
      return config.residual;
  }
  fail("unknown kind of dropout, {}", static_cast<int>(kind));
}

}  // namespace

int dropout_threshold(double probability) {
  constexpr int kAll = Dropout::kResolution;
  check(probability >= 0 && probability < 1, "a dropout probability must be at least 0 and below 1, found {}",
        probability);
  const int threshold = static_cast<int>(std::lround(probability * kAll));
  check(
      probability == 0 || (threshold > 0 && threshold < kAll),
      "a dropout probability is rounded to a multiple of 1/{}, and {} would be {}: set 0 for none, or {} to "
      "{}",
      kAll, probability, threshold > 0 ? 1 : 0, 1.0 / kAll, (kAll - 1.0) / kAll);
  return threshold;
}

uint32_t place_of(DropoutKind kind, int64_t layer) {
  check(layer >= 0 && layer < kMostDropoutLayers, "dropout serves up to {} layers, found layer {}",
        kMostDropoutLayers, layer);
  return (static_cast<uint32_t>(layer) * kKinds + static_cast<uint32_t>(kind)) * Dropout::kHeads;
}

uint64_t dropout_key(uint64_t seed, int64_t step) {
  const Philox::Words words = Philox(seed, kDropoutStream).bits(static_cast<uint64_t>(step));
  return uint64_t{words[1]} << 32 | words[0];
}

Dropout ActiveDropout::at(DropoutKind kind, size_t layer) const {
  const int threshold = dropout_threshold(probability_of(kind, probabilities));
  if (threshold == 0) return {};
  return {.threshold = threshold,
          .key = key,
          .place = place_of(kind, static_cast<int64_t>(layer)),
          .first_sequence = first_sequence};
}

std::string text_of(const DropoutConfig& config) {
  const std::pair<const char*, double> all[] = {{"embeddings", config.embedding},
                                                {"residual branches", config.residual},
                                                {"attention", config.attention}};
  std::map<int, std::vector<std::string_view>, std::greater<>> by_threshold;
  for (const auto& [name, probability] : all)
    if (const int threshold = dropout_threshold(probability)) by_threshold[threshold].push_back(name);
  std::string text;
  for (const auto& [threshold, names] : by_threshold)
    text += fmt::format("{}{:.4g} ({}/{}) on {}", text.empty() ? "" : ", ",
                        static_cast<double>(threshold) / Dropout::kResolution, threshold,
                        Dropout::kResolution, join_words(names, " and "));
  return text;
}

}  // namespace tessera
