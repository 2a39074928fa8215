// The scores with which llama.cpp merges characters as a tokenizer's list of merges says.
//
// A tokenizer.json has an order of merges: of the pairs in a text, the one whose merge comes first is
// merged. llama.cpp has a score for each token: of the pairs that make a token, the one with the highest
// score is merged, and of equal scores the leftmost. So all merges that make a token need one place in the
// order, and tokens whose merges are interleaved need one score. transformers writes such lists where
// SentencePiece gave several tokens one score, as it does to runs of blanks.
#pragma once

#include <cstdint>
#include <vector>

#include "data/tokenizers/definition.h"

namespace tessera {

// A score for each id below vocab_size; 0 without a merge. Error: no scores make llama.cpp merge as the
// list says
std::vector<float> llama_cpp_scores(const TokenizerDefinition& definition, int64_t vocab_size);

}  // namespace tessera
