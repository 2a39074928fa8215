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

// The ids of config.prompt: what the tokenizer's template puts before a text, then the text. Names of special
// tokens in the text become these tokens.
std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, const Config::Sampling& config);

// The continuation of config.prompt, without the prompt. It ends at the end-of-text token. The draws depend
// only on (seed, step), and only tokens that the tokenizer knows are drawn. If the prompt has no tokens, the
// text starts from the end-of-text token. A text that grows longer than the session's longest sample
// continues from its second half. `goes_on` is called before each token and returns whether to compute one.
// Its argument is whether the text is done, because it has ended or has its full length. If `goes_on` returns
// false for a text that is not done, there is no result. Ranks that sample together use it to make equally
// many forwards: a rank whose text is done before that of rank 0 goes on drawing.
std::optional<std::string> sample_text(
    Session& session, const Tokenizer& tokenizer, const Config::Sampling& config, uint64_t seed, int64_t step,
    const std::function<bool(bool done)>& goes_on = [](bool done) { return !done; });

}  // namespace tessera
