// Decoder: continues texts token by token. The keys and values of earlier tokens are kept in a cache, so that
// a new token costs one row of every GEMM and not a forward over the whole text: model/decode.h.
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
    int64_t capacity;        // tokens of a text that the cache can hold; at most model.context
    int64_t prefill = 2048;  // the most tokens of a prompt in one forward
    int64_t known = 0;       // only ids below it are drawn, those of a tokenizer; 0: model.vocab_size
    // longrope: the factors are those of the text so far; false: those of the session's sequences. A text
    // that grows beyond the original context is then read anew.
    bool factors_by_length = false;
    CacheDtype cache = CacheDtype::kAuto;  // see checked_cache()
    bool separate_kernels = false;  // also where the device has a step as one kernel: see prepare_decode()
  };
  // Allocates from the session's arena until it is destroyed; the session must outlive it. All slots are
  // idle.
  Decoder(Session& session, const Settings& settings);
  Decoder(const Decoder&) = delete;

  // Puts a text of 1 to capacity tokens into a slot, and computes the logits after it. What is drawn depends
  // on the text, the rule, the seed, `sequence` (0 to 2^31 - 1) and the number of draws before it alone; of
  // these a text that is started again has `drawn` already. Error: an id outside the vocabulary; another
  // number of tokens. The slot is then idle.
  void start(int64_t slot, std::span<const int32_t> tokens, int64_t sequence, int64_t drawn = 0);
  // start() with the text of the last start(), which is not computed again: its keys, values and logits are
  // copied, so that both draw as if each had been read. The slot may be the one that has it, which may have
  // ended or gone on meanwhile. Error: as start(); there was no start() that succeeded.
  void start_copy(int64_t slot, int64_t sequence, int64_t drawn = 0);
  // Adds tokens to the text of a slot, such as the next turn of a conversation. The count of its draws
  // continues. Error: as start(); an idle slot.
  void append(int64_t slot, std::span<const int32_t> tokens);
  void stop(int64_t slot);  // idle until the next start()

  // Reads a text from its beginning into slot 0, settings().prefill tokens at a time, each of which see the
  // tokens before these as the cache has them: calls visit(first, [count, V] logits in fp32 after the tokens
  // from `first` on). The slot is idle before and after. Error: as start().
  using VisitLogits = std::function<void(int64_t first, std::span<const float> logits)>;
  void read_through(std::span<const int32_t> tokens, const VisitLogits& visit);

  // Draws the next token of every slot, kIdleToken where it is idle, and computes the logits after it. A slot
  // whose cache was full stops, as the token drawn is its last, and so does one that drew kBadLogits. On a
  // GPU this waits for the tokens, not for the logits.
  std::span<const int32_t> next(const SamplingRule& rule, uint64_t seed);

  bool is_idle(int64_t slot) const { return length(slot) == 0; }
  int64_t length(int64_t slot) const;             // tokens in the cache; 0: idle
  std::vector<float> logits(int64_t slot) const;  // after them, [V] in fp32. Error: an idle slot

  int64_t vocab_size() const { return model_.config.vocab_size; }
  const Settings& settings() const { return settings_; }
  bool is_one_kernel() const { return static_cast<bool>(step_.memory); }  // a step, of those that decode
  // "one kernel a token", or "separate kernels a token: head dim 160: more than 128"
  std::string kernels_text() const;

 private:
  // The text of the last start(): in its slot until another start() there, whatever was drawn after it
  struct LastRead {
    int64_t slot = -1, tokens = 0;
    std::vector<int32_t> seen = {};  // bits, as in SampleTokens
    std::vector<int32_t> text = {};  // where short_context_ needs it
    bool was_read_anew = false;      // its slot has other keys now
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
  // All that a step reads and writes lies where it lay in the step before, and what changes is in tensors.
  KvCache cache_;  // starts: of the last token read
  Model model_;
  Tensor logits_;         // [slots, padded V]
  Tensor prompt_logits_;  // [1, padded V], after last_read_
  // The rings of last_read_ in the cache, of one slot, since later tokens replace its own; else nothing
  std::vector<KvCache::Layer> prompt_rings_;
  Tensor tokens_;        // [slots] int32, drawn last
  Tensor seen_, draws_;  // see SampleTokens
  DecodeStep step_;
  std::vector<int64_t> lengths_;
  // Of longrope by length: the tokens up to which a text has the short factors, else 0; the texts, and the
  // angles of tokens read one at a time. Longer texts are read with the session's angles.
  int64_t short_context_ = 0;
  std::vector<std::vector<int32_t>> texts_;
  Tensor angles_;
  LastRead last_read_;
  Arena host_;
  Tensor drawn_;  // tokens_ on the host
  // A step is two graphs: between them, full slots stop.
  SamplingRule rule_;  // of sample_
  uint64_t seed_ = 0;
  std::unique_ptr<OpGraph> sample_, read_;
  std::unique_ptr<Transfer> fetch_;
};

}  // namespace tessera
