#include "train/generate/samples.h"

#include <algorithm>
#include <optional>

#include "kernels/base/clock.h"
#include "kernels/base/status_line.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

// What a slot works on
struct Active {
  size_t job;
  Continuation text;
  Clock::time_point begun;
};

std::string rate(int64_t tokens, double seconds) {
  if (seconds <= 0) return "";
  const double speed = static_cast<double>(tokens) / seconds;
  return fmt::format(", {} tok/s", speed < 1000 ? fmt::format("{:.4g}", speed) : format_count(speed));
}

}  // namespace

void Throughput::print() const {
  print_stderr(fmt::format(
      "{}\n{}\n",
      labelled("prompt", fmt::format("{} tokens in {:.2f} s{}", prompt_tokens, prompt_seconds,
                                     rate(prompt_tokens, prompt_seconds))),
      labelled("text", fmt::format("{} tokens in {:.2f} s{}", tokens, seconds, rate(tokens, seconds)))));
}

Throughput generate_samples(Session& session, Decoder& decoder, const Tokenizer& tokenizer,
                            const GenerationRule& rule, std::span<const SampleJob> jobs,
                            const SampleSink& sink) {
  Throughput total;
  const int64_t slots = decoder.settings().slots;
  std::vector<std::optional<Active>> active(static_cast<size_t>(slots));
  size_t begun = 0, running = 0;
  const auto end = [&](int64_t slot) {
    std::optional<Active>& its = active[static_cast<size_t>(slot)];
    sink.on_end(
        its->job,
        {.ended = *its->text.ended(), .tokens = its->text.tokens(), .seconds = seconds_since(its->begun)});
    decoder.stop(slot);
    its.reset();
    --running;
  };
  while (begun < jobs.size() || running > 0) {
    const bool stop = sink.stop();
    for (int64_t slot = 0; slot < slots; ++slot) {
      std::optional<Active>& its = active[static_cast<size_t>(slot)];
      if (stop && its) {
        sink.on_text(its->job, its->text.interrupt());
        end(slot);
      } else if (!stop && !its && begun < jobs.size()) {
        const Clock::time_point start = Clock::now();
        its.emplace(Active{begun, Continuation(tokenizer, rule), start});
        ++running;
        const SampleJob& job = jobs[begun];
        const bool copies = begun > 0 && std::ranges::equal(job.prompt, jobs[begun - 1].prompt);
        if (copies) {
          decoder.start_copy(slot, job.sequence);
        } else {
          decoder.start(slot, job.prompt, job.sequence);
          total.prompt_tokens += std::ssize(job.prompt);
        }
        ++begun;
        session.stream().synchronize();
        (copies ? total.seconds : total.prompt_seconds) += seconds_since(start);
      }
    }
    if (stop) break;
    const Clock::time_point start = Clock::now();
    const std::span<const int32_t> tokens = decoder.next(rule.sampling, rule.seed);
    for (int64_t slot = 0; slot < slots; ++slot) {
      std::optional<Active>& its = active[static_cast<size_t>(slot)];
      if (!its) continue;
      const std::string text = its->text.add(tokens[static_cast<size_t>(slot)], decoder.is_idle(slot));
      ++total.tokens;
      sink.on_text(its->job, text);
      if (its->text.ended()) end(slot);
    }
    total.seconds += seconds_since(start);
  }
  return total;
}

}  // namespace tessera
