#include "train/generate/sample_output.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/present.h"
#include "kernels/base/status_line.h"
#include "kernels/base/text.h"

namespace tessera {

TextOutput::TextOutput() : is_terminal_(isatty(STDOUT_FILENO) != 0) {}

void TextOutput::write(std::string_view text) {
  if (gone_ || text.empty()) return;
  gone_ = !print_stdout(is_terminal_ ? printable(text) : std::string(text));
}

SampleOutput::SampleOutput(TextOutput& out, std::vector<Sample> samples, Form form)
    : out_(out), samples_(std::move(samples)), states_(samples_.size()), form_(form) {}

// What has come of the sample whose turn it is, after its prompt
void SampleOutput::print_new() {
  State& state = states_[turn_];
  if (!turn_has_begun_) {
    const Sample& sample = samples_[turn_];
    if (!sample.name.empty()) out_.write(fmt::format("--- {} ---\n", sample.name));
    out_.write(sample.prompt);
  }
  turn_has_begun_ = true;
  out_.write(state.text);
  state.text.clear();
}

void SampleOutput::add(size_t sample, const std::string& text) {
  states_[sample].text += text;
  if (form_ == Form::kText && sample == turn_) print_new();
}

void SampleOutput::end(size_t sample, const SampleResult& result) {
  states_[sample].result = result;
  for (; turn_ < samples_.size() && states_[turn_].result; ++turn_) {
    if (form_ == Form::kJsonLines) {
      print_json(turn_);
    } else {
      print_new();
      out_.write("\n");
    }
    turn_has_begun_ = false;
  }
  if (form_ == Form::kText && turn_ < samples_.size() && !states_[turn_].text.empty()) print_new();
}

void SampleOutput::print_json(size_t at) {
  const Sample& sample = samples_[at];
  const State& state = states_[at];
  const auto& result = present(state.result);
  const nlohmann::ordered_json line{{"prompt", sample.prompt},
                                    {"text", state.text},
                                    {"prompt_number", sample.prompt_number},
                                    {"sample", sample.sample_number},
                                    {"prompt_tokens", sample.prompt_tokens},
                                    {"tokens", result.tokens},
                                    {"ended", name_of(result.ended)},
                                    {"seconds", result.seconds}};
  out_.write(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace tessera
