#include "train/metrics.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "kernels/base/check.h"

namespace tessera {

StatusLine::StatusLine(bool speaks) : speaks_(speaks), in_place_(speaks && isatty(STDOUT_FILENO) != 0) {}

StatusLine::~StatusLine() {
  if (open_) fmt::print("\n");
  std::fflush(stdout);
}

void StatusLine::status(const std::string& line) {
  if (!speaks_) return;
  if (in_place_) {
    fmt::print("\r\x1b[K{}", line);
    open_ = true;
  } else {
    fmt::print("{}\n", line);
  }
  std::fflush(stdout);
}

void StatusLine::print(const std::string& text) {
  if (!speaks_) return;
  fmt::print("{}{}\n", open_ ? "\n" : "", text);
  open_ = false;
  std::fflush(stdout);
}

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t keep_to_step)
    : path_(path), file_(nullptr, std::fclose) {
  std::string kept;
  std::ifstream earlier(path);
  for (std::string line; keep_to_step >= 0 && std::getline(earlier, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.value("step", int64_t{0}) <= keep_to_step) kept += line + "\n";
  }
  write_file(path, kept);
  file_.reset(std::fopen(path.c_str(), "a"));
  check(file_ != nullptr, "cannot append to {}: {}", path.string(), std::strerror(errno));
}

void MetricsFile::write(const nlohmann::ordered_json& line) {
  const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() && std::fflush(file_.get()) == 0;
  check(written, "cannot append to {}: {}", path_.string(), std::strerror(errno));
}

std::string format_duration(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string format_ranks(int64_t ranks) { return ranks > 1 ? fmt::format("{} ranks x ", ranks) : ""; }

std::string format_count(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3)
    digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

}  // namespace tessera
