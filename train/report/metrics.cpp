#include "train/report/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"
#include "kernels/base/status_line.h"
#include "kernels/base/system_error.h"

namespace tessera {
namespace {

constexpr double kMomentSeconds = 2;  // that lines wait for a file that was removed

// Nothing if the line is not JSON: a crash may have cut it.
std::optional<nlohmann::json> parse_line(const std::string& line) {
  try {
    return parse_json(line, "metrics.jsonl");
  } catch (const Error&) {
    return {};
  }
}

// Those up to a step, until visit(line, its step, its type) returns false
void each_line(const std::filesystem::path& path, int64_t up_to,
               const std::function<bool(const std::string&, int64_t, const std::string&)>& visit) {
  std::ifstream file(path);
  for (std::string line; up_to >= 0 && std::getline(file, line);) {
    const std::optional<nlohmann::json> json = parse_line(line);
    if (!json || !json->is_object() || !json->contains("step") || !(*json)["step"].is_number_integer())
      continue;
    const int64_t step = (*json)["step"];
    if (step <= up_to && !visit(line, step, type_of_metrics(*json))) return;
  }
}

}  // namespace

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t keep_to_step) : path_(path) {
  std::string kept;
  each_line(path, keep_to_step, [&](const std::string& line, int64_t step, const std::string& type) {
    // The run that resumes begins the phase again, and goes back again.
    if (step == keep_to_step && (begins_phase(type) || type == kRewind)) return false;
    kept += line + "\n";
    if (step == keep_to_step) types_at_end_.insert(type);
    return true;
  });
  replace(kept);
}

void MetricsFile::drop_after(int64_t step) {
  finish();
  std::string kept;
  each_line(path_, step, [&](const std::string& line, int64_t, const std::string&) {
    kept += line + "\n";
    return true;
  });
  replace(kept);
}

void MetricsFile::replace(const std::string& kept) {
  write_file(path_, kept);
  open();
}

void MetricsFile::open() {
  file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  check_system(file_.is_open(), "cannot append to {}: {}", path_.string());
  bytes_ = lseek(file_.get(), 0, SEEK_END);
}

// Whether there is a file to write to
bool MetricsFile::follow_name(double patience) {
  struct stat opened = {}, named = {};
  const bool is_there = stat(path_.c_str(), &named) == 0;
  if (!is_there && !missing_since_) missing_since_ = Clock::now();
  if (!is_there && seconds_since(*missing_since_) < patience) return false;
  missing_since_.reset();
  const bool same = is_there && fstat(file_.get(), &opened) == 0 && opened.st_dev == named.st_dev &&
                    opened.st_ino == named.st_ino;
  if (same && opened.st_size >= bytes_) return true;
  notice_ =
      fmt::format("{} was {} while the run wrote to it: lines of earlier steps may be lost. Later ones go {}",
                  path_.string(),
                  !is_there ? "removed"
                  : same    ? "cut"
                            : "replaced",
                  !is_there ? "to a new file" : "to what is there");
  open();
  return true;
}

std::string MetricsFile::write(const nlohmann::ordered_json& line) {
  const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  waiting_ += text;
  if (follow_name(kMomentSeconds)) append(std::exchange(waiting_, ""));
  return text;
}

void MetricsFile::finish() {
  if (waiting_.empty()) return;
  follow_name(/*patience=*/0);
  append(std::exchange(waiting_, ""));
}

void MetricsFile::append(const std::string& text) {
  const off_t end = lseek(file_.get(), 0, SEEK_END);
  const SystemCall written = write_all(file_.get(), text);
  // A partial line would corrupt the next one. If it cannot be removed here, a resume drops it.
  if (!written.worked && end >= 0) std::ignore = ftruncate(file_.get(), end);
  check_system(written, "cannot append to {}: {}", path_.string());
  bytes_ = end + std::ssize(text);
}

void MetricsFile::sync() {
  finish();
  // EINVAL: a pipe, or another file that cannot be synced
  check_system(fsync(file_.get()) == 0 || errno == EINVAL, "cannot write {} to the disk: {}", path_.string());
}

std::string type_of_metrics(const nlohmann::json& line) {
  if (line.contains("type") && line["type"].is_string()) return line["type"];
  return line.contains("validation_loss") ? "evaluation" : line.contains("sample") ? "sample" : "step";
}

}  // namespace tessera
