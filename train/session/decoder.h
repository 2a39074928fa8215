// Decoder: continues texts token by token. A cache holds the keys and values of earlier tokens, so that a new
// token costs one row of every GEMM instead of a forward over the whole text: model/decode.h.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/sampling.h"
#include "model/decode.h"
#include "train/session/session.h"

namespace tessera {

class Decoder {
 public:
  struct Settings {
    int64_t slots = 1;       // texts that are continued together
    int64_t capacity;        // the most tokens of a text that the cache holds; at most model.context
    int64_t prefill = 2048;  // the most tokens of a prompt in one forward
    int64_t known = 0;       // only ids below it are drawn: those that a tokenizer has; 0: model.vocab_size
    // longrope: true uses the factors for the length that the text has so far; false uses those for the
    // session's sequences. With true, a text that grows beyond the original context is read anew.
    bool factors_by_length = false;
    CacheDtype cache = CacheDtype::kAuto;  // see checked_cache()
    bool separate_kernels = false;         // also where the device can compute a step as one kernel: see
                                           // prepare_decode()
  };
  // Allocates from the session's arena until it is destroyed; the session must outlive it. All slots are
  // idle.
  Decoder(Session& session, const Settings& settings);
  Decoder(const Decoder&) = delete;

  // Puts a text of 1 to capacity tokens into a slot, and computes the logits after it. What is drawn depends
  // only on the text, the rule, the seed, `sequence` (0 to 2^31 - 1) and the number of draws before it. For a
  // text that is started again, `drawn` is the number of draws that it already has. Error: an id outside the
  // vocabulary; another number of tokens. The slot is then idle.
  void start(int64_t slot, std::span<const int32_t> tokens, int64_t sequence, int64_t drawn = 0);
  // As start() with the text of the last start(), but without computing it again: its keys, values and logits
  // are copied. Both texts draw as if each had been read. `slot` may be the one that holds the text, even if
  // that has ended or gone on. Error: as start(); no start() has succeeded.
  void start_copy(int64_t slot, int64_t sequence, int64_t drawn = 0);
  // Adds tokens to the text of a slot, such as the next turn of a conversation. The count of its draws goes
  // on. Error: as start(); an idle slot.
  void append(int64_t slot, std::span<const int32_t> tokens);
  void stop(int64_t slot);  // the slot is idle until the next start()

  // Reads a text from its beginning into slot 0, settings().prefill tokens at a time. Tokens see those of
  // earlier parts as the cache holds them. Calls visit(first, logits) for each part: `logits`, [count, V] in
  // fp32, are those after the tokens from `first` on. The slot is idle before and after. Error: as start().
  using VisitLogits = std::function<void(int64_t first, std::span<const float> logits)>;
  void read_through(std::span<const int32_t> tokens, const VisitLogits& visit);

  // Draws the next token of every slot, kIdleToken for an idle one, and computes the logits after it. A slot
  // stops if its cache was full, so that the token drawn is its last one, or if it drew kBadLogits. On a GPU
  // this waits for the tokens, not for the logits.
  std::span<const int32_t> next(const SamplingRule& rule, uint64_t seed);

  bool is_idle(int64_t slot) const { return length(slot) == 0; }
  int64_t length(int64_t slot) const;             // tokens in the cache; 0: idle
  std::vector<float> logits(int64_t slot) const;  // after the last token, [V] in fp32. Error: an idle slot

  int64_t vocab_size() const { return model_.config.vocab_size; }
  const Settings& settings() const { return settings_; }
  bool is_one_kernel() const {
    return static_cast<bool>(step_.memory);
  }  // whether a step of decoding is one
     // kernel
  // "one kernel a token", or "separate kernels a token: head dim 160: more than 128"
  std::string kernels_text() const;

 private:
  // The text of the last start(). It stays in its slot until another start() there, whatever is drawn after
  // it.
  struct LastRead {
    int64_t slot = -1, tokens = 0;
    std::vector<int32_t> seen = {};  // bits, as in SampleTokens
    std::vector<int32_t> text = {};  // kept if short_context_ needs it
    bool was_read_anew = false;      // its slot now holds other keys
  };

  void read_tokens();
  void record_sample(const SamplingRule& rule, uint64_t seed);
  void read(int64_t slot, std::span<const int32_t> tokens, std::vector<int32_t>& seen);
  void read_anew(int64_t slot);
  bool outgrows(int64_t before, int64_t after) const {
    return short_context_ > 0 && before <= short_context_ && after > short_context_;
  }
  void copy_prompt_to(int64_t slot);
  void set_draws(int64_t slot, int64_t sequence, int64_t drawn);

  Session& session_;
  Settings settings_;
  Arena::Scope scope_;
  // All that a step reads and writes keeps its address from step to step; what changes is in tensors.
  KvCache cache_;  // starts: of the last token read
  Model model_;
  Tensor logits_;         // [slots, padded V]
  Tensor prompt_logits_;  // [1, padded V], after last_read_
  // A copy of the rings of last_read_ in the cache, of one slot, because later tokens overwrite the slot's
  // own; else empty
  std::vector<KvCache::Layer> prompt_rings_;
  Tensor tokens_;        // [slots] int32: the tokens drawn last
  Tensor seen_, draws_;  // see SampleTokens
  DecodeStep step_;
  std::vector<int64_t> lengths_;
  // For longrope by length: the number of tokens up to which a text has the short factors, else 0; the texts;
  // and the angles of tokens that are read one at a time. Longer texts are read with the session's angles.
  int64_t short_context_ = 0;
  std::vector<std::vector<int32_t>> texts_;
  Tensor angles_;
  LastRead last_read_;
  Arena host_;
  Tensor drawn_;  // tokens_, copied to the host
  // A step is two graphs: full slots stop between them.
  SamplingRule rule_;  // the rule that sample_ applies
  uint64_t seed_ = 0;
  std::unique_ptr<OpGraph> sample_, read_;
  std::unique_ptr<Transfer> fetch_;
};

}  // namespace tessera
