#include "train/session/sampler.h"

#include <algorithm>

#include "train/session/decoder.h"

namespace tessera {

std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, const Config::Sampling& config) {
  const auto before = tokenizer.before_text();
  std::vector<int32_t> tokens(before.begin(), before.end());
  tokenizer.encode(config.prompt, config.special_tokens, tokens);
  return tokens;
}

std::optional<std::string> sample_text(Session& session, const Tokenizer& tokenizer,
                                       const Config::Sampling& config, uint64_t seed, int64_t step,
                                       const std::function<bool(bool)>& goes_on) {
  const int64_t capacity = session.shape().longest_sample();
  const int64_t known = std::min<int64_t>(session.shape().model.vocab_size, tokenizer.vocab_size());
  const SamplingRule rule{.temperature = static_cast<float>(config.temperature),
                          .top_k = static_cast<int32_t>(std::min(config.top_k, known))};
  std::vector<int32_t> tokens = prompt_tokens(tokenizer, config);
  if (tokens.empty())
    tokens.push_back(std::min<int32_t>(tokenizer.end_of_text(), static_cast<int32_t>(known) - 1));
  const size_t prompt = tokens.size();
  const auto last = [&](int64_t count) {
    return std::span(tokens).last(std::min(tokens.size(), static_cast<size_t>(count)));
  };
  Decoder decoder(session, {.capacity = capacity, .known = known, .cache = session.shape().sample_cache});
  decoder.start(0, last(capacity), step);
  std::optional<size_t> end;  // of the text, once it is done
  for (int64_t i = 0;; ++i) {
    if (!end && i == config.tokens) end = tokens.size();
    if (!goes_on(end.has_value())) break;
    if (decoder.is_idle(0)) decoder.start(0, last(std::max<int64_t>(capacity / 2, 1)), step, i);
    const int32_t token = decoder.next(rule, seed)[0];
    check(token != kBadLogits, "the logits of a sample are not finite numbers, after {} tokens of it", i);
    if (!end && token == tokenizer.end_of_text()) end = tokens.size();
    tokens.push_back(token);
  }
  if (!end) return {};
  std::string text;
  for (const int32_t token : std::span(tokens).first(*end).subspan(prompt))
    text += tokenizer.token_text(token);
  return text;
}

}  // namespace tessera
