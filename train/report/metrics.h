// metrics.jsonl: what a run leaves for programs to read.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "kernels/base/descriptor.h"

namespace tessera {

inline constexpr const char* kMetricsFile = "metrics.jsonl";

// One JSON object a line. Every line has its "type" and its "step"; docs/training.md lists the types.
class MetricsFile {
 public:
  // Keeps the lines of an earlier run up to `keep_to_step` and drops the rest (-1: all of them), so that the
  // file of a resumed run reads as if it had never stopped. What a crash left of a line is dropped too.
  // Error: the file cannot be written.
  MetricsFile(const std::filesystem::path& path, int64_t keep_to_step);

  // Appended at once, whole or not at all. Error: disk full.
  void write(const nlohmann::ordered_json& line);
  void sync();  // what was written survives a loss of power. Error: the disk failed

  // Whether the lines that were kept have one of this type at `keep_to_step`.
  bool kept(const std::string& type) const { return types_at_end_.contains(type); }

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::set<std::string> types_at_end_;
};

// Of a line; lines of earlier versions have no "type", and are told by what else they have.
std::string type_of_metrics(const nlohmann::json& line);

}  // namespace tessera
