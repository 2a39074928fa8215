// Samples: continues several prompts several times, as many texts at once as the decoder has slots.
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
  // With the rule, this decides its draws. Other samples and its slot have no influence
  int64_t sequence = 0;
};

struct SampleResult {
  Ended ended;
  int64_t tokens = 0;  // of the continuation
  double seconds = 0;  // since its prompt began to be read
};

struct SampleSink {
  std::function<void(size_t job, const std::string& text)> on_text;  // gets each further piece of text
  std::function<void(size_t job, const SampleResult& result)> on_end;
  std::function<bool()> stop;  // called before each token: true ends all samples that have begun, and no
                               // other begins
};

struct Throughput {
  int64_t prompt_tokens = 0, tokens = 0;  // tokens that were read, and that were drawn
  double prompt_seconds = 0, seconds = 0;

  void print() const;  // on stderr
};

// Successive jobs with the same prompt read it only once. Every prompt fits the decoder. Error: as
// Continuation::add().
Throughput generate_samples(Session& session, Decoder& decoder, const Tokenizer& tokenizer,
                            const GenerationRule& rule, std::span<const SampleJob> jobs,
                            const SampleSink& sink);

}  // namespace tessera
