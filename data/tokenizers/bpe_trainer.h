// Learns the merges of byte-level BPE from texts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizers/definition.h"
#include "data/tokenizers/pre_tokenizer.h"

namespace tessera {

// The pieces that texts are split into, and how often each occurs
class PieceCounts {
 public:
  explicit PieceCounts(PreTokenizerKind kind);
  void add(std::string_view text);
  void add(const PieceCounts& other);
  const std::unordered_map<std::string, int64_t>& counts() const { return counts_; }

 private:
  NormalForm form_;
  PreTokenizer pre_tokenizer_;
  Regex::Scratch scratch_;
  std::unordered_map<std::string, int64_t> counts_;
};

struct BpeTrainerOptions {
  PreTokenizerKind kind = PreTokenizerKind::kGpt2;
  int64_t vocab_size = 0;                      // of everything: special tokens, 256 bytes, merges
  int64_t min_count = 2;                       // pairs that occur more seldom are not merged
  std::vector<std::string> special = {};       // the first ids, in this order
  std::function<void(int64_t)> on_merge = {};  // called with the number of tokens there are
};

// Repeatedly merges the pair of neighbours that occurs most often; of several the one with the smallest ids.
// The result depends on the counts alone. There may be fewer tokens than asked for, if no pair is left.
// Method: Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with Subword Units" (2016),
// with counts that are changed only where a merge changes a piece.
// Error: vocab_size has no room for the special tokens and the bytes.
TokenizerDefinition train_bpe(const std::unordered_map<std::string, int64_t>& counts,
                              const BpeTrainerOptions& options);

}  // namespace tessera
