// RunRecord: the contents of metrics.jsonl, thinned out, so that a run of 10^6 steps takes no more memory
// than one of 10^3. Lines are added one by one, and the size of a record is bounded.
#pragma once

#include <array>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/report/thinned_curves.h"

namespace tessera {

// Calls visit(name, values) for each figure of a line of type "inside": "attention_logit",
// "update_ratio/mlp.expand". The values are by layer; those that are absent are NaN.
void visit_inside(const nlohmann::json& line,
                  const std::function<void(const std::string& name, const std::vector<double>&)>& visit);

// A line of metrics.jsonl as an object with a "step", at least 0, and a "type"; null for any other line.
// Lines of older versions have no type; their keys show it.
nlohmann::json parse_metrics_line(std::string_view line);

class RunRecord {
 public:
  // The values of a "step" line that are drawn, by the names of their keys.
  static constexpr std::array kStepCurves = {"loss", "grad_norm",   "learning_rate", "tokens_per_second",
                                             "mfu",  "memory_bytes"};
  // The same for a loss of pairs, and for its evaluations
  static constexpr std::array kPairCurves = {"reward_accuracy", "reward_margin", "reward_chosen",
                                             "reward_rejected", "logp_chosen",   "logp_rejected"};
  static constexpr size_t kMostSamples = 100, kMostEvents = 1000;
  static constexpr size_t kMostSampleBytes = 20'000;  // of one sample; longer ones are cut

  struct Loss {
    double value;
    int64_t step;
  };
  struct Positions {  // the loss by position of an evaluation; ranges of positions end at `ends`
    std::vector<double> ends, losses;
    int64_t step;
  };
  static constexpr size_t kMostPositions = 64, kMostPositionCurves = 16;
  static constexpr size_t kMostTasks = 32;  // the first tasks of evaluation.tasks are drawn, at most so many
  // The most figures that are drawn, and the most layers or experts of each
  static constexpr size_t kMostInside = 256, kMostLayers = 256;
  static constexpr size_t kMostColumns = 120;  // of a heat map
  struct Event {  // start, resume, phase, rewind, checkpoint, best, signal or stop
    std::string kind, text;
    RunPlace at;
  };
  struct Sample {
    std::string prompt, text;
    RunPlace at;
  };

  // A line of metrics.jsonl. Lines of older versions have no "tokens", "elapsed" or "time": these are
  // computed from other figures. Any other line is counted and skipped.
  void add(std::string_view line);

  std::string name;    // of the run: its folder's name, unless its metrics.jsonl has a name
  std::string folder;  // as the user wrote it
  const RunPlace& last() const { return last_; }
  const ThinnedCurves& steps() const { return steps_; }              // kStepCurves
  const ThinnedCurves& evaluations() const { return evaluations_; }  // one curve
  // kPairCurves; nothing if no line has them
  const std::optional<ThinnedCurves>& pairs() const { return pairs_; }
  const std::optional<ThinnedCurves>& pair_evaluations() const { return pair_evaluations_; }
  // The accuracy of each task of evaluation.tasks, by the task's name: one curve each
  const std::map<std::string, ThinnedCurves>& tasks() const { return tasks_; }
  const std::optional<Loss>& last_validation() const { return last_validation_; }
  const std::optional<Loss>& best_validation() const { return best_validation_; }
  // What goes on inside, by the names of visit_inside(): a curve for each layer
  const std::map<std::string, ThinnedCurves>& inside() const { return inside_; }
  // The losses by position of the first evaluation with each sequence length, and of the newest evaluation
  const std::vector<Positions>& positions() const { return positions_; }
  const std::vector<Event>& events() const { return events_; }
  const std::deque<Sample>& samples() const { return samples_; }
  const std::map<std::string, double>& memory() const { return memory_; }  // bytes of each tag, at the peak
  double tokens_per_second() const;                       // only in steps, over the whole run; NaN: unknown
  const nlohmann::json& facts() const { return facts_; }  // the line of the newest start or resume
  // "running" if no end is recorded, else "finished", "patience", "signal" or "error"
  const std::string& state() const { return state_; }
  const std::string& message() const { return message_; }
  const std::string& started() const { return started_; }  // UTC, as in the file; "": unknown
  const std::string& updated() const { return updated_; }
  int64_t unreadable_lines() const { return unreadable_; }
  int64_t values_not_finite() const { return not_finite_; }

 private:
  void take_place(const nlohmann::json& line, const std::string& type);
  void add_step(const nlohmann::json& line);
  void add_evaluation(const nlohmann::json& line);
  void add_positions(const nlohmann::json& line);
  void add_tasks(const nlohmann::json& line);
  void add_inside(const nlohmann::json& line);
  void add_pairs(const nlohmann::json& line, std::optional<ThinnedCurves>& to);
  void add_sample(const nlohmann::json& line);
  void add_event(const nlohmann::json& line, const std::string& type);

  RunPlace last_;
  ThinnedCurves steps_{kStepCurves.size()}, evaluations_{1};
  std::optional<ThinnedCurves> pairs_, pair_evaluations_;
  std::map<std::string, ThinnedCurves> tasks_, inside_;
  std::optional<Loss> last_validation_, best_validation_;
  std::vector<Positions> positions_;
  std::vector<Event> events_;
  std::deque<Sample> samples_;
  std::map<std::string, double> memory_;
  nlohmann::json facts_ = nlohmann::json::object();
  std::string state_ = "running", message_, started_, updated_;
  double base_seconds_ = 0;  // of the processes before the present one
  double elapsed_ = 0;       // of the present process
  double step_seconds_ = 0;  // sum
  double step_tokens_ = 0;   // sum
  int64_t unreadable_ = 0, not_finite_ = 0;
};

// Reads the folder of a run, or the metrics.jsonl in it. Error: it does not exist, or has no training step.
RunRecord read_run(const std::filesystem::path& folder_or_file);

}  // namespace tessera
