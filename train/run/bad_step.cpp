#include "train/run/bad_step.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/base/nan.h"
#include "train/session/bad_value.h"

namespace tessera {
namespace {

constexpr size_t kMostSequences = 4;  // that are told

// Where the sequences of a micro-batch of this rank lie in the data
class Origins {
 public:
  Origins(const StepInputs& inputs, int64_t micro_batch)
      : inputs_(inputs), first_(micro_batch * inputs.state.shape().micro_batch) {}
  std::string of(int64_t sequence, std::optional<int64_t> token = {}) const {
    return inputs_.origin(position(sequence), token);
  }
  int64_t position(int64_t sequence) const {
    return inputs_.own_positions[static_cast<size_t>(first_ + sequence)];
  }

 private:
  const StepInputs& inputs_;
  int64_t first_;  // of this rank's
};

std::string sequences_text(const StepInputs& inputs, const BadValue& bad) {
  if (bad.place.micro_batch == OpPlace::kOutside) return "";
  const RunShape& shape = inputs.state.shape();
  const Origins origins(inputs, bad.place.micro_batch);
  std::vector<int64_t> sequences = bad.sequences;
  std::string text;
  if (sequences.empty()) {
    for (int64_t b = 0; b < shape.micro_batch; ++b) sequences.push_back(b);
    text = "\n  the sequences of this micro-batch:";
  } else if (bad.token) {
    const int64_t T = shape.sequence_length;
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

std::string value_text(const StepInputs& inputs, const BadValue& bad) {
  const RankGroup& ranks = inputs.ranks;
  const std::string rank = ranks.size() > 1 ? fmt::format(", rank {}", ranks.rank()) : "";
  std::string text = place_of(bad, inputs.state.shape().micro_steps) + rank;
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
  return text + sequences_text(inputs, bad);
}

// Which ranks' own losses were bad
std::string suspects(RankGroup& group, double own_loss) {
  std::string ranks;
  const std::vector<double> losses = group.gather(own_loss);
  if (losses.size() == 1) return "";
  for (size_t rank = 0; rank < losses.size(); ++rank)
    if (!std::isfinite(losses[rank])) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  if (ranks.empty())
    return " Which of the ranks it was is not known: the loss of each was finite, and their gradients are "
           "summed.";
  return fmt::format(" It was rank {}, by its loss.", ranks);
}

// The loss of all ranks, and the norm; without an update
TrainState::StepResult result_again(const StepInputs& inputs, const BadStep& bad) {
  TrainState& state = inputs.state;
  state.take_back_step();
  state.set_limits(StepLimits::nothing());
  state.step(inputs.own, bad.counted_tokens, inputs.optimizer, bad.learning_rate, bad.step);
  TrainState::StepResult again = state.finish_step();
  state.take_back_step();
  again.loss =
      without_sign_if_nan(inputs.ranks.sum({again.loss})[0] / static_cast<double>(inputs.ranks.size()));
  return again;
}

std::string hardware_text(const TrainState::StepResult& again, const std::string& suspected) {
  return fmt::format(
      "Computed once more from the same weights and sequences, the loss is {} and the gradient norm {}: "
      "the same computation had another result, so the hardware is suspect.{} Test the device before it "
      "trains on",
      again.loss, again.grad_norm, suspected);
}

std::string spike_text(const StepInputs& inputs, const BadStep& bad, const TrainState::StepResult& again) {
  if (!bad.is_bad(again)) return hardware_text(again, "");
  const std::string text = "Computed once more from the same weights and sequences, ";
  if (again.loss == bad.loss && again.grad_norm == bad.grad_norm)
    return text + "they are the same: it is the data, or what training has made of the weights";
  return text + fmt::format("the loss is {} and the gradient norm {}: a spike again, of other bits.{}",
                            again.loss, again.grad_norm,
                            inputs.state.shape().deterministic
                                ? " On the same device and by as many ranks they would be the same"
                                : "");
}

}  // namespace

bool BadStep::is_bad(const TrainState::StepResult& result) const {
  return judge_step(result.loss, result.grad_norm, limits.loss, limits.grad_norm) != StepVerdict::kUpdate;
}

std::string BadStep::figures() const {
  const std::string text = fmt::format("the loss is {:.6g} and the gradient norm {:.6g}", loss, grad_norm);
  return is_spike() ? text + fmt::format(", with scores of {:.1f} and {:.1f}", scores.loss, scores.grad_norm)
                    : text;
}

std::vector<std::string> worst_sequences(const StepInputs& inputs) {
  TrainState& state = inputs.state;
  const RunShape& shape = state.shape();
  const int64_t T = shape.sequence_length, mine = shape.sequences_per_rank(),
                all = shape.sequences_per_step();
  const bool counts = inputs.ranks.place(Axis::kContext).rank == 0;
  std::vector<double> sums(static_cast<size_t>(2 * all));  // of the losses of each sequence; loss tokens
  const std::vector<double> losses = state.sequence_losses();
  for (int64_t i = 0; i < mine; ++i) {
    const std::span targets = inputs.own.tokens_from(i * T, T).targets;
    const int64_t place = inputs.own_positions[static_cast<size_t>(i)] - inputs.position;
    sums[static_cast<size_t>(place)] = losses[static_cast<size_t>(i)];
    if (counts) sums[static_cast<size_t>(all + place)] = static_cast<double>(counted(targets));
  }
  sums = inputs.ranks.sum(sums);
  struct One {
    int64_t sequence;
    double loss;
    double rank() const { return std::isfinite(loss) ? loss : std::numeric_limits<double>::infinity(); }
  };
  std::vector<One> found;
  for (int64_t i = 0; i < all; ++i)
    if (const double tokens = sums[static_cast<size_t>(all + i)]; tokens > 0)
      found.push_back({i, without_sign_if_nan(sums[static_cast<size_t>(i)] / tokens)});
  std::ranges::stable_sort(found, std::greater(), &One::rank);
  found.resize(std::min(found.size(), kMostSequences));
  std::vector<std::string> texts;
  for (const One& one : found)
    texts.push_back(fmt::format("sequence {}, at position {} of the data, loss {:.6g}: {}", one.sequence,
                                inputs.position + one.sequence, one.loss,
                                inputs.origin(inputs.position + one.sequence, {})));
  return texts;
}

ComputedAgain compute_again(const StepInputs& inputs, const BadStep& bad) {
  constexpr double kNothing = std::numeric_limits<double>::max();
  RankGroup& ranks = inputs.ranks;
  ranks.enter_phase(fmt::format("step {} once more, operation by operation", bad.step), Timeout::kNone);
  TrainState::StepResult again{};
  std::optional<BadValue> found;
  {
    BadValueSearch search(inputs.state);
    again = result_again(inputs, bad);
    found = search.found();
  }
  const std::vector<double> numbers = ranks.gather(found ? static_cast<double>(found->number) : kNothing);
  const auto first = std::ranges::min_element(numbers);
  const std::string suspected = bad.is_spike() ? "" : suspects(ranks, bad.own_loss);
  if (*first < kNothing) {
    const bool mine = found && first - numbers.begin() == ranks.rank();
    std::string text;
    for (const std::string& one : ranks.exchange(mine ? value_text(inputs, *found) : "")) text += one;
    return {again, "Computed once more from the same weights and sequences, " + text};
  }
  if (!std::isfinite(again.loss) || !std::isfinite(again.grad_norm))
    return {
        again,
        "Computed once more, every operation of every rank had finite results: a sum over the ranks is too "
        "large for its dtype"};
  return {again, bad.is_spike() ? spike_text(inputs, bad, again) : hardware_text(again, suspected)};
}

}  // namespace tessera
