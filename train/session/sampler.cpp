#include "train/session/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/random.h"

namespace tessera {
namespace {
constexpr uint64_t kSamplingStream = uint64_t{1} << 32;  // not a stream of the initial weights
}

int32_t draw_token(std::span<const float> logits, double temperature, int64_t top_k, double uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const size_t count = top_k > 0 ? std::min(static_cast<size_t>(top_k), order.size()) : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(count), order.end(), before);
  if (temperature == 0) return order[0];
  std::vector<double> cumulative(count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i)
    cumulative[i] = sum += std::exp((logits[order[i]] - logits[order[0]]) / temperature);
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * sum);
  return order[std::min(static_cast<size_t>(chosen - cumulative.begin()), count - 1)];
}

std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, const Config::Sampling& config) {
  const auto before = tokenizer.before_text();
  std::vector<int32_t> tokens(before.begin(), before.end());
  tokenizer.encode(config.prompt, SpecialTokens::kMatched, tokens);
  return tokens;
}

std::optional<std::string> sample_text(Session& session, const Tokenizer& tokenizer,
                                       const Config::Sampling& config, uint64_t seed, int64_t step,
                                       const std::function<bool()>& stop) {
  const Philox random(seed, kSamplingStream + static_cast<uint64_t>(step));
  const ModelConfig& model = session.shape().model;
  const size_t known = static_cast<size_t>(std::min<int64_t>(model.vocab_size, tokenizer.vocab_size()));
  std::vector<int32_t> tokens = prompt_tokens(tokenizer, config);
  if (tokens.empty())
    tokens.push_back(std::min<int32_t>(tokenizer.end_of_text(), static_cast<int32_t>(known) - 1));
  const size_t prompt = tokens.size();
  for (int64_t i = 0; i < config.tokens; ++i) {
    if (stop && stop()) return {};
    const size_t window = std::min(tokens.size(), static_cast<size_t>(model.context));
    const std::vector<float> logits = session.next_token_logits(std::span(tokens).last(window));
    const int32_t token = draw_token(std::span(logits).first(known), config.temperature, config.top_k,
                                     random.uniform(static_cast<uint64_t>(i)));
    if (token == tokenizer.end_of_text()) break;
    tokens.push_back(token);
  }
  return tokenizer.decode(std::span(tokens).subspan(prompt));
}

}  // namespace tessera
