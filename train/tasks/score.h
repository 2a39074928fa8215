// The log-probabilities of a task's choices, and the accuracy that they give.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/session/session.h"
#include "train/tasks/task.h"

namespace tessera {

// The choices of a task in batches. Each choice is scored by itself: its sequence is the context and the
// choice, and only the tokens of the choice count. Sequences of about the same length share a batch. Padding
// at their end does not matter, because attention is causal. The batches depend only on the task and the
// session's shape.
class TaskBatches {
 public:
  // `task` must outlive the batches. read_tasks() has read it for this vocabulary and sequence length.
  TaskBatches(const Task& task, const SessionShape& shape);

  int64_t count() const { return std::ssize(batches_); }
  int64_t choices() const { return std::ssize(all_); }
  int64_t choices_before(int64_t batch) const;

  // Writes the scores of a batch: for each choice, the sum of the log-probabilities (nats) of its tokens.
  // `scores` has a place for every choice of the task, item by item.
  void score(Session& session, int64_t batch, std::span<double> scores) const;

 private:
  // A choice with its context as the input of a model
  struct Scored {
    const TaskItem* item;
    const Choice* choice;
    size_t place;    // of its score in `scores`
    int64_t length;  // tokens of the input; at most those of a sequence
  };
  struct Batch {
    size_t first, size;  // a range of all_
    int64_t T;           // tokens of a sequence
  };
  static void fill_row(const Scored& scored, size_t row, int64_t T, Sequences& out);

  const Task& task_;
  std::vector<Scored> all_;
  std::vector<Batch> batches_;
};

// How many choices have a context whose beginning was left out, because with the choice it was longer than a
// sequence
int64_t cut_contexts(const Task& task, int64_t sequence_length);

// A text with the items that have a choice encoded by itself; "": there are none
std::string notice_of_items_apart(const Task& task);

// How many items were answered right
struct Accuracy {
  int64_t right = 0, items = 0;

  double share() const { return static_cast<double>(right) / static_cast<double>(items); }
  // The bounds of the 95% confidence interval of the share of right answers, by Wilson's score (E. B. Wilson,
  // 1927). It lies within 0 to 1, and is valid also for few items and for shares near 0 and 1.
  double low() const { return center() - margin(); }
  double high() const { return center() + margin(); }

 private:
  double center() const;
  double margin() const;
};

struct TaskResult {
  std::string name, path;
  TaskFormat format = TaskFormat::kChoices;
  int64_t items = 0, choices = 0;  // over all items
  int64_t apart = 0;               // items with a choice that is encoded by itself
  double chance = 0;               // the accuracy of guessing
  // Three ways to take the answer: the choice with the largest log-probability; with the largest
  // log-probability divided by the choice's tokens (llm.c's acc_norm); or divided by the bytes of its text
  // (as lm-evaluation-harness does), where texts are known. Of equal choices the first is the answer.
  Accuracy sum, by_token;
  std::optional<Accuracy> by_byte = {};
};
// `scores`: of all choices, as TaskBatches::score() writes them
TaskResult task_result(const Task& task, const std::vector<double>& scores);

std::string task_table(const std::vector<TaskResult>& results);
std::string task_line(const TaskResult& result);  // the result in one line
nlohmann::ordered_json accuracies_json(const TaskResult& result);
nlohmann::ordered_json to_json(const TaskResult& result);  // with the name and the format of the task

}  // namespace tessera
