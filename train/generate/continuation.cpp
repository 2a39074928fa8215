#include "train/generate/continuation.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {

Continuation::Continuation(const Tokenizer& tokenizer, const GenerationRule& rule)
    : rule_(rule), stream_(tokenizer, rule.text) {}

std::string Continuation::end(Ended why) {
  ended_ = why;
  return stream_.finish();
}

std::string Continuation::add(int32_t token, bool full) {
  check(
      token != kBadLogits,
      "the model's logits after {} tokens are not finite numbers, so no token can be drawn: its weights are "
      "damaged, or too large for this precision. Try --precision fp32, or another checkpoint",
      tokens_);
  last_ = token;
  if (std::ranges::find(rule_.ends, token) != rule_.ends.end()) {
    const std::string shown = rule_.text.show_special ? stream_.add(token) : "";
    return shown + end(Ended::kEndOfText);
  }
  ++tokens_;
  std::string text = stream_.add(token);
  if (stream_.stopped()) {
    ended_ = Ended::kStopString;
  } else if (tokens_ >= rule_.tokens) {
    text += end(Ended::kLength);
  } else if (full) {
    text += end(Ended::kContext);
  }
  return text;
}

std::string Continuation::interrupt() { return ended_ ? "" : end(Ended::kInterrupted); }

}  // namespace tessera
