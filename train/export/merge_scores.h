// Scores that make llama.cpp merge characters in the order that a tokenizer's list of merges gives.
//
// A tokenizer.json has an ordered list of merges: of the pairs in a text, the one whose merge comes first in
// the list is merged. llama.cpp has a score for each token: of the pairs that make a token, the one with the
// highest score is merged; if scores are equal, the leftmost pair. So all merges that make one token must be
// neighbours in the order, and tokens whose merges are interleaved must share a score. transformers writes
// such lists where SentencePiece gave several tokens one score, as it does to runs of blanks.
#pragma once

#include <cstdint>
#include <vector>

#include "data/tokenizers/definition.h"

namespace tessera {

// A score for each id below vocab_size; 0 for a token that no merge makes. Error: no scores make llama.cpp
// merge in the order of the list
std::vector<float> llama_cpp_scores(const TokenizerDefinition& definition, int64_t vocab_size);

}  // namespace tessera
