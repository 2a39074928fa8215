// Decoder: continues texts token by token. The keys and values of earlier tokens are kept in a cache, so that
// a new token costs one row of every product and not a forward over the whole text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/sampling.h"
#include "train/session/session.h"

namespace tessera {

class Decoder {
 public:
  struct Settings {
    int64_t slots = 1;       // texts that are continued together
    int64_t capacity;        // the longest text, in tokens; at most model.context
    int64_t prefill = 2048;  // the most tokens of a prompt in one forward
  };
  // Allocates the cache from the session's arena; the session must outlive it.
  Decoder(Session& session, const Settings& settings);
  Decoder(const Decoder&) = delete;

  // Puts a text of 1 to capacity tokens into a slot, and computes the logits after it. What is drawn depends
  // on the decoder's rule, `seed` and `sequence` alone. Error: an id outside the vocabulary; another number
  // of tokens.
  void start(int64_t slot, std::span<const int32_t> tokens, int64_t sequence);
  void stop(int64_t slot);  // idle until the next start()

  // Draws the next token of every slot, and computes the logits after it unless the slot is then full: full
  // slots stop. The token is -1 where the slot was idle. Only ids below `known` are drawn.
  std::span<const int32_t> next(const SamplingRule& rule, uint64_t seed, int64_t known);

  bool is_idle(int64_t slot) const;
  int64_t length(int64_t slot) const;             // tokens in the cache
  std::vector<float> logits(int64_t slot) const;  // after them, [V] in fp32

 private:
  Session& session_;
  Settings settings_;
};

}  // namespace tessera
