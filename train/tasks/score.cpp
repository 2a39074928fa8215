#include "train/tasks/score.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/base/check.h"
#include "kernels/base/nan.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

// Sequences of a batch are padded to a multiple of this, so that batches have few different shapes.
constexpr int64_t kLengthStep = 16;
constexpr int64_t kShortest = 64;                // padded to it: bounds the sequences of a batch
constexpr double kNormal95 = 1.959963984540054;  // the normal distribution's quantile of 97.5%

// The length of an input that has not lost the beginning of its context: the last token is a target alone.
int64_t whole_length(const TaskItem& item, const Choice& choice) {
  return std::ssize(item.context) + std::ssize(choice.tokens) - 1;
}

// The sum of a row's losses, all but those of the choice being 0
double sum_of_row(std::span<const float> losses, size_t row, int64_t T) {
  const auto of_row = losses.subspan(row * static_cast<size_t>(T), static_cast<size_t>(T));
  return std::accumulate(of_row.begin(), of_row.end(), 0.0);
}

double finite(double score, const Task& task, const TaskItem& item) {
  check(std::isfinite(score),
        "{}: the log-probability of a choice is {}: the model's weights are damaged, or its training has "
        "diverged",
        task.place_of(item), without_sign_if_nan(score));
  return score;
}

}  // namespace

TaskBatches::TaskBatches(const Task& task, const SessionShape& shape) : task_(task) {
  const int64_t most = shape.sequence_length, rows = shape.batch * most;
  for (const TaskItem& item : task.items)
    for (const Choice& choice : item.choices)
      all_.push_back({&item, &choice, all_.size(), std::min(whole_length(item, choice), most)});
  // The longest first: memory reaches its peak in the first batch.
  std::ranges::stable_sort(all_, std::ranges::greater{}, &Scored::length);
  for (size_t first = 0; first < all_.size(); first += batches_.back().size) {
    const int64_t longest = std::max(all_[first].length, kShortest);
    const int64_t T = std::min((longest + kLengthStep - 1) / kLengthStep * kLengthStep, most);
    batches_.push_back(
        {.first = first, .size = std::min(static_cast<size_t>(rows / T), all_.size() - first), .T = T});
  }
}

int64_t TaskBatches::choices_before(int64_t batch) const {
  return static_cast<int64_t>(batches_[static_cast<size_t>(batch)].first);
}

// Row `row` of a batch of sequences of T tokens
void TaskBatches::fill_row(const Scored& scored, size_t row, int64_t T, Sequences& out) {
  std::vector<int32_t> ids = scored.item->context;
  ids.insert(ids.end(), scored.choice->tokens.begin(), scored.choice->tokens.end());
  const std::span<const int32_t> kept = std::span(ids).last(static_cast<size_t>(scored.length) + 1);
  const auto at = static_cast<std::ptrdiff_t>(row) * T;
  std::copy(kept.begin(), kept.end() - 1, out.tokens.begin() + at);
  const auto& choice = scored.choice->tokens;
  std::copy(choice.begin(), choice.end(), out.targets.begin() + at + scored.length - std::ssize(choice));
}

void TaskBatches::score(Session& session, int64_t batch, std::span<double> scores) const {
  const auto& [first, size, T] = batches_[static_cast<size_t>(batch)];
  const std::span<const Scored> of_batch = std::span(all_).subspan(first, size);
  Sequences sequences;
  sequences.tokens.assign(size * static_cast<size_t>(T), 0);
  sequences.targets.assign(sequences.tokens.size(), kNoTarget);
  for (size_t row = 0; row < size; ++row) fill_row(of_batch[row], row, T, sequences);
  const std::vector<float> losses = session.losses(sequences, static_cast<int64_t>(size), T);
  for (size_t row = 0; row < size; ++row)
    scores[of_batch[row].place] = finite(-sum_of_row(losses, row, T), task_, *of_batch[row].item);
}

int64_t cut_contexts(const Task& task, int64_t sequence_length) {
  int64_t cut = 0;
  for (const TaskItem& item : task.items)
    cut += std::ranges::count_if(
        item.choices, [&](const Choice& choice) { return whole_length(item, choice) > sequence_length; });
  return cut;
}

std::string notice_of_items_apart(const Task& task) {
  const auto apart = std::ranges::find(task.items, true, &TaskItem::apart);
  if (apart == task.items.end()) return "";
  return fmt::format(
      "{}: in {} of {} items, the first at {}, a choice adds no token to its context: it is encoded by "
      "itself",
      task.name, std::ranges::count(task.items, true, &TaskItem::apart), task.items.size(),
      task.place_of(*apart));
}

double Accuracy::center() const {
  const double n = static_cast<double>(items), z2 = kNormal95 * kNormal95;
  return (share() + z2 / (2 * n)) / (1 + z2 / n);
}

double Accuracy::margin() const {
  const double n = static_cast<double>(items), p = share(), z2 = kNormal95 * kNormal95;
  return kNormal95 * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n);
}

TaskResult task_result(const Task& task, const std::vector<double>& scores) {
  TaskResult result{.name = task.name,
                    .path = task.path.string(),
                    .format = task.format,
                    .items = std::ssize(task.items),
                    .sum = {.items = std::ssize(task.items)},
                    .by_token = {.items = std::ssize(task.items)}};
  if (task.has_bytes()) result.by_byte = Accuracy{.items = result.items};
  const double* score = scores.data();
  for (const TaskItem& item : task.items) {
    // The choice with the largest score, each divided by length(choice)
    const auto is_right = [&](const auto& length) {
      size_t best = 0;
      const auto scaled = [&](size_t c) { return score[c] / static_cast<double>(length(item.choices[c])); };
      for (size_t c = 1; c < item.choices.size(); ++c)
        if (scaled(c) > scaled(best)) best = c;
      return static_cast<int64_t>(best) == item.answer;
    };
    result.sum.right += is_right([](const Choice&) { return 1; });
    result.by_token.right += is_right([](const Choice& choice) { return choice.tokens.size(); });
    if (result.by_byte) result.by_byte->right += is_right([](const Choice& choice) { return choice.bytes; });
    result.choices += std::ssize(item.choices);
    result.apart += item.apart;
    result.chance += 1 / static_cast<double>(item.choices.size());
    score += item.choices.size();
  }
  result.chance /= static_cast<double>(result.items);
  check(score == scores.data() + scores.size(), "{} has {} choices, and there are {} scores", result.path,
        result.choices, scores.size());
  return result;
}

namespace {

std::string with_bounds(const Accuracy& accuracy) {
  return fmt::format("{:.1f}% ({:.1f} to {:.1f})", 100 * accuracy.share(), 100 * accuracy.low(),
                     100 * accuracy.high());
}

}  // namespace

std::string task_table(const std::vector<TaskResult>& results) {
  size_t width = 4;
  for (const TaskResult& result : results) width = std::max(width, result.name.size());
  std::string text = fmt::format("{:<{}}  {:>7}  {:>6}  {:<22}  {:<22}  {}", "task", width, "items", "chance",
                                 "accuracy", "by token", "by byte");
  for (const TaskResult& result : results)
    text += fmt::format("\n{:<{}}  {:>7}  {:>5.1f}%  {:<22}  {:<22}  {}", result.name, width,
                        format_count(static_cast<double>(result.items)), 100 * result.chance,
                        with_bounds(result.sum), with_bounds(result.by_token),
                        result.by_byte ? with_bounds(*result.by_byte) : "not known");
  return text + "\naccuracy in percent, with its 95% confidence interval (Wilson)";
}

std::string task_line(const TaskResult& result) {
  return fmt::format("{} {}, by token {:.1f}%{}, on {} items", result.name, with_bounds(result.sum),
                     100 * result.by_token.share(),
                     result.by_byte ? fmt::format(", by byte {:.1f}%", 100 * result.by_byte->share()) : "",
                     result.items);
}

nlohmann::ordered_json accuracies_json(const TaskResult& result) {
  nlohmann::ordered_json json{{"items", result.items}};
  const auto add = [&](const std::string& key, const Accuracy& accuracy) {
    json[key] = accuracy.share();
    json[key + "_interval"] = {accuracy.low(), accuracy.high()};
  };
  add("accuracy", result.sum);
  add("accuracy_by_token", result.by_token);
  if (result.by_byte) add("accuracy_by_byte", *result.by_byte);
  return json;
}

nlohmann::ordered_json to_json(const TaskResult& result) {
  nlohmann::ordered_json json{
      {"name", result.name},       {"file", result.path},         {"format", name_of(result.format)},
      {"choices", result.choices}, {"items_apart", result.apart}, {"chance", result.chance}};
  json.update(accuracies_json(result));
  return json;
}

}  // namespace tessera
