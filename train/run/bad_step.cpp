#include "train/run/bad_step.h"

#include <cmath>
#include <limits>

#include "train/session/bad_value.h"
#include "train/session/from_config.h"

namespace tessera {
namespace {

constexpr size_t kMostSequences = 4;  // that are told

// Where the sequences of a micro-batch lie in the data
class Origins {
 public:
  Origins(OpenRun& run, int64_t micro_batch) : run_(run) {
    const RunShape& shape = run.shape();
    first_ = run.now.data_position + run.ranks.place(Axis::kData).rank * shape.sequences_per_rank() +
             micro_batch * shape.micro_batch;
  }
  std::string of(int64_t sequence, std::optional<int64_t> token = {}) const {
    return run_.phase->data().origin(first_ + sequence, token);
  }
  int64_t position(int64_t sequence) const { return first_ + sequence; }

 private:
  OpenRun& run_;
  int64_t first_;
};

std::string sequences_text(OpenRun& run, const BadValue& bad) {
  if (bad.place.micro_batch == OpPlace::kOutside) return "";
  const Origins origins(run, bad.place.micro_batch);
  std::vector<int64_t> sequences = bad.sequences;
  std::string text;
  if (sequences.empty()) {
    for (int64_t b = 0; b < run.shape().micro_batch; ++b) sequences.push_back(b);
    text = "\n  the sequences of this micro-batch:";
  } else if (bad.token) {
    const int64_t T = run.shape().sequence_length;
    text =
        fmt::format("\n  the first bad value is of token {} of sequence {}: {}\n  sequences with bad values:",
                    *bad.token % T, *bad.token / T, origins.of(*bad.token / T, *bad.token % T));
  } else {
    text = "\n  sequences with bad values:";
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (i == kMostSequences) return text + fmt::format("\n    and {} more", sequences.size() - i);
    text += fmt::format("\n    sequence {}, at position {} of the data: {}", sequences[i],
                        origins.position(sequences[i]), origins.of(sequences[i]));
  }
  return text;
}

std::string value_text(OpenRun& run, const BadValue& bad) {
  const std::string rank = run.ranks.size() > 1 ? fmt::format(", rank {}", run.ranks.rank()) : "";
  std::string text = place_of(bad, run.shape().micro_steps) + rank;
  if (bad.was_read) {
    text = fmt::format(
        "the first operation with a bad value is {}. It reads {}, of which {}. No operation of this step has "
        "computed that: it is a weight or a table, or has come from the host or from another rank.",
        text, bad.found.name(), bad.found.bad());
  } else {
    text = fmt::format(
        "the first bad value is a result of {}. It writes {}, of which {}. All that it reads is "
        "finite.",
        text, bad.found.name(), bad.found.bad());
  }
  for (const LookedAt& read : bad.read) text += fmt::format("\n  it reads {}: {}", read.name(), read.range());
  return text + sequences_text(run, bad);
}

// Which ranks' own losses were bad
std::string suspects(OpenRun& run, double own_loss) {
  std::string ranks;
  const std::vector<double> losses = run.ranks.gather(own_loss);
  if (losses.size() == 1) return "";
  for (size_t rank = 0; rank < losses.size(); ++rank)
    if (!std::isfinite(losses[rank])) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  if (ranks.empty())
    return " Which of the ranks it was is not known: the loss of each was finite, and their gradients are "
           "summed.";
  return fmt::format(" It was rank {}, by its loss.", ranks);
}

}  // namespace

std::string explain_bad_step(OpenRun& run, const BadStep& bad) {
  constexpr double kNothing = std::numeric_limits<double>::max();
  run.ranks.enter_phase(fmt::format("step {} once more, operation by operation", bad.step), Timeout::kNone);
  TrainState& state = run.phase->state();
  state.take_back_step();
  run.phase->fetch_step(run.now.data_position, run.ranks.place(Axis::kData));
  TrainState::StepResult again{};
  std::optional<BadValue> found;
  {
    BadValueSearch search(state);
    state.step(run.phase->next(), bad.counted_tokens, optimizer_config(run.config), bad.learning_rate,
               bad.step);
    again = state.finish_step();
    found = search.found();
  }
  const std::vector<double> numbers = run.ranks.gather(found ? static_cast<double>(found->number) : kNothing);
  const auto first = std::ranges::min_element(numbers);
  const double loss = run.ranks.sum({again.loss})[0];
  const std::string suspected = suspects(run, bad.own_loss);
  if (*first < kNothing) {
    const bool mine = found && first - numbers.begin() == run.ranks.rank();
    std::string text;
    for (const std::string& one : run.ranks.exchange(mine ? value_text(run, *found) : "")) text += one;
    return "Computed once more from the same weights and sequences, " + text;
  }
  if (std::isfinite(loss) && std::isfinite(again.grad_norm))
    return fmt::format(
        "Computed once more from the same weights and sequences, the loss is {} and the gradient norm {}: "
        "the same computation had another result, so the hardware is suspect.{} Test the device before it "
        "trains on",
        loss / static_cast<double>(run.ranks.size()), again.grad_norm, suspected);
  return "Computed once more, every operation of every rank had finite results: a sum over the ranks is too "
         "large for its dtype";
}

}  // namespace tessera
