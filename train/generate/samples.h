// Samples: several continuations of several prompts, as many at a time as the decoder has slots.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "train/generate/continuation.h"
#include "train/session/decoder.h"

namespace tessera {

struct SampleJob {
  std::span<const int32_t> prompt;
  // What decides its draws, beside the rule: not the other samples, and not its slot
  int64_t sequence = 0;
};

struct SampleResult {
  Ended ended;
  int64_t tokens = 0;  // of the continuation
  double seconds = 0;  // from the begin of its prompt
};

struct SampleSink {
  std::function<void(size_t job, const std::string& text)> on_text;  // a further piece
  std::function<void(size_t job, const SampleResult& result)> on_end;
  std::function<bool()> stop;  // asked before each token: true ends all that have begun, and no other begins
};

struct Throughput {
  int64_t prompt_tokens = 0, tokens = 0;  // read, and drawn
  double prompt_seconds = 0, seconds = 0;

  void print() const;  // on stderr
};

// Jobs with the same prompt that follow one another read it once. Every prompt fits the decoder. Error: as
// Continuation::add().
Throughput generate_samples(Session& session, Decoder& decoder, const Tokenizer& tokenizer,
                            const GenerationRule& rule, std::span<const SampleJob> jobs,
                            const SampleSink& sink);

}  // namespace tessera
