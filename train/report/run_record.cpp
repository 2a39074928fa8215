#include "train/report/run_record.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "train/report/line_tail.h"
#include "train/report/metrics.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kDeepest = 4;        // nested lists and objects: a line has two
constexpr size_t kLongest = 16 << 20;  // bytes of a line
constexpr size_t kMostName = 100;      // bytes of a task, or a figure

double number(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : kNone;
}

std::string text(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

// At most `most` bytes, cut between two characters of UTF-8
std::string cut(std::string text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return text.substr(0, most) + "…";
}

}  // namespace

void visit_inside(const Json& line,
                  const std::function<void(const std::string& name, const std::vector<double>&)>& visit) {
  constexpr std::array kOfEveryLine = {"type", "step", "tokens", "epoch", "elapsed", "time"};
  const auto list = [&](const std::string& name, const Json& json) {
    std::vector<double> values;
    const auto take = [&](const Json& one) { values.push_back(one.is_number() ? one.get<double>() : kNone); };
    if (json.is_array())
      for (const Json& one : json) take(one);
    else if (json.is_number())
      take(json);
    if (!values.empty()) visit(name, values);
  };
  for (const auto& [key, figure] : line.items()) {
    if (std::ranges::find(kOfEveryLine, key) != kOfEveryLine.end()) continue;
    if (!figure.is_object())
      list(key, figure);
    else
      for (const auto& [part, values] : figure.items()) list(key + "/" + part, values);
  }
}

Json parse_metrics_line(std::string_view line) {
  try {
    Json json = parse_json(line, "", {.bytes = kLongest, .depth = kDeepest, .repeated_keys = true});
    if (!json.is_object()) return nullptr;
    const double step = number(json, "step");
    if (!(step >= 0 && step <= 0x1p53)) return nullptr;
    json["type"] = type_of_metrics(json);
    return json;
  } catch (const Error&) {
    return nullptr;
  }
}

void RunRecord::add(std::string_view line) {
  const Json json = parse_metrics_line(line);
  if (json.is_null()) {
    unreadable_ += !line.empty();
    return;
  }
  const std::string type = text(json, "type");
  take_place(json, type);
  if (type == "step") {
    add_step(json);
  } else if (type == "evaluation") {
    add_evaluation(json);
  } else if (type == "inside") {
    add_inside(json);
  } else if (type == "sample") {
    add_sample(json);
  } else if (type == "memory") {
    if (const auto tags = json.find("bytes_by_tag"); tags != json.end() && tags->is_object()) {
      memory_.clear();
      for (const auto& [tag, bytes] : tags->items())
        if (bytes.is_number() && bytes.get<double>() > 0) memory_[tag] = bytes.get<double>();
    }
  } else {
    add_event(json, type);
  }
}

// The place of this line on the three axes
void RunRecord::take_place(const Json& line, const std::string& type) {
  last_.step = static_cast<int64_t>(number(line, "step"));
  double elapsed = number(line, "elapsed");
  if (!std::isfinite(elapsed)) {  // a line of an older version: only the time of the steps is known
    const double seconds = number(line, "seconds");
    elapsed = elapsed_ + (type == "step" && std::isfinite(seconds) ? seconds : 0);
  }
  if (type == "start" || type == "resume" || elapsed < elapsed_)
    base_seconds_ += elapsed_;  // another process
  elapsed_ = elapsed;
  last_.seconds = base_seconds_ + elapsed_;
  if (const double tokens = number(line, "tokens"); std::isfinite(tokens)) {
    last_.tokens = tokens;
  } else if (type == "step") {
    const double in_step = std::round(number(line, "tokens_per_second") * number(line, "seconds"));
    if (std::isfinite(in_step)) last_.tokens = in_step * static_cast<double>(last_.step);
  }
  if (const std::string time = text(line, "time"); !time.empty()) {
    if (started_.empty()) started_ = time;
    updated_ = time;
  }
}

void RunRecord::add_step(const Json& line) {
  std::array<double, kStepCurves.size()> values;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = number(line, kStepCurves[i]);
    not_finite_ += line.contains(kStepCurves[i]) && !std::isfinite(values[i]);
  }
  steps_.add(last_, values);
  add_pairs(line, pairs_);
  const double seconds = number(line, "seconds"), tokens = number(line, "tokens_per_second") * seconds;
  if (!std::isfinite(tokens)) return;
  step_seconds_ += seconds;
  step_tokens_ += tokens;
}

void RunRecord::add_evaluation(const Json& line) {
  const double loss = number(line, "validation_loss");
  not_finite_ += !std::isfinite(loss);
  if (!std::isfinite(loss)) return;
  add_positions(line);
  add_tasks(line);
  add_pairs(line, pair_evaluations_);
  evaluations_.add(last_, std::span(&loss, 1));
  last_validation_ = {.value = loss, .step = last_.step};
  if (!best_validation_ || loss < best_validation_->value) best_validation_ = last_validation_;
}

void RunRecord::add_pairs(const Json& line, std::optional<ThinnedCurves>& to) {
  if (!line.contains(kPairCurves[0])) return;
  std::array<double, kPairCurves.size()> values;
  std::ranges::transform(kPairCurves, values.begin(), [&](const char* key) { return number(line, key); });
  if (!to) to.emplace(kPairCurves.size());
  to->add(last_, values);
}

void RunRecord::add_positions(const Json& line) {
  const auto numbers = [&](const char* key) {
    std::vector<double> values;
    const auto found = line.find(key);
    if (found == line.end() || !found->is_array() || found->size() > kMostPositions) return values;
    for (const Json& one : *found) values.push_back(one.is_number() ? one.get<double>() : kNone);
    return values;
  };
  Positions found{.ends = numbers("position_ends"), .losses = numbers("position_losses"), .step = last_.step};
  const bool fits = found.ends.size() == found.losses.size() &&
                    std::ranges::all_of(found.ends, [](double end) { return end >= 1; });
  if (found.ends.empty() || !fits) return;
  // The first of a sequence length stays.
  const size_t count = positions_.size();
  const bool repeats = count >= 2 && positions_[count - 1].ends == positions_[count - 2].ends;
  if (repeats || count == kMostPositionCurves) positions_.pop_back();
  positions_.push_back(std::move(found));
}

void RunRecord::add_tasks(const Json& line) {
  const auto found = line.find("tasks");
  if (found == line.end() || !found->is_object()) return;
  for (const auto& [name, figures] : found->items()) {
    const std::string task = cut(name, kMostName);
    const double accuracy = figures.is_object() ? number(figures, "accuracy") : kNone;
    if (!std::isfinite(accuracy) || (!tasks_.contains(task) && tasks_.size() == kMostTasks)) continue;
    tasks_.try_emplace(task, 1).first->second.add(last_, std::span(&accuracy, 1));
  }
}

void RunRecord::add_inside(const Json& line) {
  visit_inside(line, [&](const std::string& name, const std::vector<double>& values) {
    const size_t layers = std::min(values.size(), kMostLayers);
    const std::string figure = cut(name, kMostName);
    if (layers == 0 || (!inside_.contains(figure) && inside_.size() == kMostInside)) return;
    ThinnedCurves& curves = inside_.try_emplace(figure, layers, kMostColumns).first->second;
    if (curves.curves() == layers) curves.add(last_, std::span(values).first(layers));
  });
}

void RunRecord::add_sample(const Json& line) {
  samples_.push_back({.prompt = cut(text(line, "prompt"), kMostSampleBytes),
                      .text = cut(text(line, "sample"), kMostSampleBytes),
                      .at = last_});
  if (samples_.size() <= kMostSamples) return;
  std::deque<Sample> kept;  // the newer half, and every second one of the older half with the first
  for (size_t i = 0; i < samples_.size(); ++i)
    if (i >= samples_.size() / 2 || i % 2 == 0) kept.push_back(std::move(samples_[i]));
  samples_ = std::move(kept);
}

void RunRecord::add_event(const Json& line, const std::string& type) {
  Event event{.kind = type, .text = "", .at = last_};
  if (type == "start" || type == "resume") {
    facts_ = line;
    state_ = "running";
    message_.clear();
    if (const std::string named = text(line, "name"); !named.empty()) name = named;
    event.text = type == "start" ? text(line, "device") : text(line, "checkpoint");
  } else if (type == "checkpoint") {
    if (line.contains("best") && line["best"].is_boolean() && line["best"].get<bool>()) event.kind = "best";
    event.text = text(line, "path");
  } else if (begins_phase(type)) {
    event.kind = "phase";
    event.text = fmt::format("sequences of {:.0f} tokens", number(line, "sequence_length"));
  } else if (type == kRewind) {
    event.text = fmt::format("from step {:.0f}: {}", number(line, "bad_step"), text(line, "reason"));
  } else if (type == "signal") {
    event.text = text(line, "signal");
  } else if (type == "stop") {
    state_ = text(line, "reason").empty() ? "finished" : text(line, "reason");
    message_ = cut(text(line, "message"), kMostSampleBytes);
    event.text = state_ == "error" || state_ == "patience" ? state_ + ": " + message_ : state_;
  } else {
    return;  // a type of a later version: ignored
  }
  events_.push_back(std::move(event));
  if (events_.size() <= kMostEvents) return;
  bool even = false;  // drops half of the checkpoints; other events are few
  std::erase_if(events_, [&](const Event& e) { return e.kind == "checkpoint" && (even = !even); });
  if (events_.size() > kMostEvents) events_.erase(events_.begin(), events_.end() - kMostEvents / 2);
}

double RunRecord::tokens_per_second() const {
  return step_seconds_ > 0 ? step_tokens_ / step_seconds_ : kNone;
}

RunRecord read_run(const fs::path& folder_or_file) {
  const bool is_folder = fs::is_directory(folder_or_file);
  const fs::path file = is_folder ? folder_or_file / "metrics.jsonl" : folder_or_file;
  check(fs::exists(file),
        "{} does not exist. Name the folder of a run, which holds metrics.jsonl, as in runs/quickstart",
        file.string());
  RunRecord record;
  record.folder = file.parent_path().string();
  record.name = fs::absolute(file).lexically_normal().parent_path().filename().string();
  LineTail(file).read([&](std::string_view line, int64_t) { record.add(line); });
  check(!record.steps().buckets().empty(),
        "{} has no training step ({} lines in it could not be read). Name the folder of a run that has "
        "trained",
        file.string(), record.unreadable_lines());
  return record;
}

}  // namespace tessera
