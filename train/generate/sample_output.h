// SampleOutput: prints samples on standard output, one after another in their order. The first sample that
// has not ended is printed as it comes; later ones wait until those before them have ended.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/generate/samples.h"

namespace tessera {

// Standard output. On a terminal, control characters from a model are not printed.
class TextOutput {
 public:
  TextOutput();
  // Error: it cannot be written, as on a full disk. If nobody reads it any more, what follows is dropped.
  void write(std::string_view text);
  bool reader_is_gone() const { return gone_; }

 private:
  bool is_terminal_, gone_ = false;
};

class SampleOutput {
 public:
  struct Sample {
    std::string_view prompt;  // must outlive the output; all samples of a prompt share it
    int64_t prompt_tokens = 0;
    std::string name;                              // printed as a headline; "": none
    int64_t prompt_number = 0, sample_number = 0;  // both from 0
  };
  enum class Form : uint8_t { kText, kJsonLines };
  SampleOutput(TextOutput& out, std::vector<Sample> samples, Form form);

  void add(size_t sample, const std::string& text);
  void end(size_t sample, const SampleResult& result);

 private:
  struct State {
    std::string text;  // as text: what is not yet printed; as JSON: everything
    std::optional<SampleResult> result = {};
  };
  void print_new();
  void print_json(size_t sample);

  TextOutput& out_;
  std::vector<Sample> samples_;
  std::vector<State> states_;
  Form form_;
  size_t turn_ = 0;  // the first sample that has not ended
  bool turn_has_begun_ = false;
};

}  // namespace tessera
