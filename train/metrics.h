// What a run says while it trains: one status line for people, JSON lines for programs.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "data/file.h"

namespace tessera {

// On a terminal the status line is rewritten in place; anywhere else every status is a line of its own.
// All of it goes to standard output.
class StatusLine {
 public:
  explicit StatusLine(bool speaks = true);  // if not, everything is silently dropped
  ~StatusLine();
  bool in_place() const { return in_place_; }
  void status(const std::string& line);  // replaces the line on a terminal
  void print(const std::string& text);   // text that stays, above the status line

 private:
  bool speaks_, in_place_;
  bool open_ = false;  // a status stands at the cursor's line
};

// metrics.jsonl in the run's folder: one JSON object a line, every line with its "step".
class MetricsFile {
 public:
  // Keeps the lines of an earlier run up to `keep_to_step` and drops the rest (-1: all of them), so that the
  // file of a resumed run reads as if it had never stopped. Error: the file cannot be written.
  MetricsFile(const std::filesystem::path& path, int64_t keep_to_step);
  void write(const nlohmann::ordered_json& line);  // appended at once; Error: disk full

 private:
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

std::string format_duration(double seconds);  // "1:02:03", "4:05"
std::string format_count(double value);       // "512,345"
std::string format_ranks(int64_t ranks);      // "4 ranks x ", before a rank's share of a step; of one, ""

}  // namespace tessera
