// Samples text from the model while it trains.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "train/config/config.h"
#include "train/session/session.h"

namespace tessera {

// The ids of config.prompt: what the tokenizer's template puts before a text, then the text, in which names
// of special tokens are these tokens.
std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, const Config::Sampling& config);

// The continuation of config.prompt, without it; ends at the end-of-text token. The draws depend on (seed,
// step) alone. Only tokens that the tokenizer knows are drawn. Without any token in the prompt it starts
// from the end-of-text token. A text that grows longer than the session's longest sample continues from its
// second half.
// `goes_on` is called before each token, and says whether there is one. It gets whether the text is done, by
// its end or by its length; a text that is not done when it returns false is nothing. Ranks that sample
// together make equally many forwards by it: a rank whose text is done before that of rank 0 goes on drawing.
std::optional<std::string> sample_text(
    Session& session, const Tokenizer& tokenizer, const Config::Sampling& config, uint64_t seed, int64_t step,
    const std::function<bool(bool done)>& goes_on = [](bool done) { return !done; });

}  // namespace tessera
