// metrics.jsonl: the events and figures of a run, for programs.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/descriptor.h"

namespace tessera {

inline constexpr const char* kMetricsFile = "metrics.jsonl";

inline constexpr const char* kRewind = "rewind";  // the type of a line: the run went back to its step
// Whether a line of this type begins a phase of train.context_schedule. Older files name it "stage".
inline bool begins_phase(const std::string& type) { return type == "phase" || type == "stage"; }

// One JSON object a line. Every line has its "type" and its "step"; docs/training.md lists the types.
class MetricsFile {
 public:
  // Keeps the lines of an earlier run up to `keep_to_step` and drops later ones (-1: keeps all), so that the
  // file of a resumed run reads as if the run had never stopped. Of the lines at that step it also drops
  // those after a line of type "phase" or "rewind". Incomplete lines are dropped. Error: the file cannot be
  // written.
  MetricsFile(const std::filesystem::path& path, int64_t keep_to_step);

  // Appends a line, whole or not at all. Returns its text, with the line break. If the file was replaced or
  // cut, the line goes to the file that has its name now. If it was removed, lines wait a moment before they
  // go to a new file: the whole folder may be about to be removed, and then check_held() stops the run.
  // Error: the disk is full.
  std::string write(const nlohmann::ordered_json& line);
  std::string take_notice() { return std::exchange(notice_, ""); }  // about such a change; "": there was none
  void finish();                                                    // writes the lines that wait
  void sync();  // after this the lines written so far survive a loss of power. Error: the disk failed

  // Drops the lines of later steps, because the run has gone back to this step. What it has done at this step
  // stays. Error: as above.
  void drop_after(int64_t step);

  // Whether a line of this type at `keep_to_step` was kept
  bool kept(const std::string& type) const { return types_at_end_.contains(type); }

 private:
  void replace(const std::string& kept);
  void open();
  bool follow_name(double patience);
  void append(const std::string& text);

  std::filesystem::path path_;
  Descriptor file_;
  int64_t bytes_ = 0;  // the size of the file, after the last line
  std::string notice_, waiting_;
  std::optional<Clock::time_point> missing_since_;
  std::set<std::string> types_at_end_;
};

// The type of a line. Lines of earlier versions have no "type"; their keys show it.
std::string type_of_metrics(const nlohmann::json& line);

}  // namespace tessera
