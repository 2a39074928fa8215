#include "train/report/report_page.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/html_page.h"

namespace tessera {
namespace {

nlohmann::ordered_json number_or_null(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// A short list of numbers: a page holds some twenty thousand. Six digits are more than a screen can show.
class Numbers {
 public:
  void add(double value, const char* format = "{:.6g}") {
    text_ += text_.size() > 1 ? "," : "";
    if (std::isfinite(value)) {
      fmt::format_to(std::back_inserter(text_), fmt::runtime(format), value);
    } else {
      text_ += "null";
    }
  }
  std::string done() && { return std::move(text_) + "]"; }

 private:
  std::string text_ = "[";
};

// {"width":4,"step":[...],"tokens":[...],"seconds":[...],
//  "loss":{"mean":[...],"least":[...],"greatest":[...]}}
// If a bucket is one step, or with kMeans, only the mean is written.
enum class Written : uint8_t { kAll, kMeans };
template <class Names>
std::string curves_json(const ThinnedCurves& curves, const Names& names, Written written = Written::kAll) {
  Numbers step, tokens, seconds;
  for (const auto& [index, bucket] : curves.buckets()) {
    step.add(static_cast<double>(bucket.last.step), "{:.0f}");
    tokens.add(bucket.last.tokens, "{:.0f}");
    seconds.add(bucket.last.seconds, "{:.1f}");
  }
  std::string json = fmt::format("{{\"width\":{},\"step\":{},\"tokens\":{},\"seconds\":{}", curves.width(),
                                 std::move(step).done(), std::move(tokens).done(), std::move(seconds).done());
  for (size_t i = 0; i < names.size(); ++i) {
    Numbers mean, least, greatest;
    for (const auto& [index, bucket] : curves.buckets()) {
      const ThinnedCurves::Value& value = bucket.values[i];
      mean.add(value.count > 0 ? value.mean() : NAN);
      least.add(value.least);
      greatest.add(value.greatest);
    }
    json += fmt::format(",\n\"{}\":{{\"mean\":{}", names[i], std::move(mean).done());
    if (curves.width() > 1 && written == Written::kAll)
      json +=
          fmt::format(",\"least\":{},\"greatest\":{}", std::move(least).done(), std::move(greatest).done());
    json += "}";
  }
  return json + "}";
}

nlohmann::ordered_json place_json(const RunPlace& at) {
  return {{"step", at.step}, {"tokens", at.tokens}, {"seconds", at.seconds}};
}

nlohmann::ordered_json loss_json(const std::optional<RunRecord::Loss>& loss) {
  return loss ? nlohmann::ordered_json{{"value", loss->value}, {"step", loss->step}}
              : nlohmann::ordered_json(nullptr);
}

std::string run_json(const RunRecord& run) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array(), samples = nlohmann::ordered_json::array();
  for (const RunRecord::Event& event : run.events()) {
    events.push_back({{"kind", event.kind}, {"text", event.text}});
    events.back().update(place_json(event.at));
  }
  for (const RunRecord::Sample& sample : run.samples()) {
    samples.push_back({{"prompt", sample.prompt}, {"text", sample.text}});
    samples.back().update(place_json(sample.at));
  }
  nlohmann::ordered_json positions = nlohmann::ordered_json::array();
  for (const RunRecord::Positions& one : run.positions())
    positions.push_back({{"step", one.step}, {"ends", one.ends}, {"losses", one.losses}});
  nlohmann::ordered_json summary{{"name", run.name},
                                 {"folder", run.folder},
                                 {"state", run.state()},
                                 {"message", run.message()},
                                 {"started", run.started()},
                                 {"updated", run.updated()},
                                 {"facts", run.facts()},
                                 {"last", place_json(run.last())},
                                 {"last_validation", loss_json(run.last_validation())},
                                 {"best_validation", loss_json(run.best_validation())},
                                 {"tokens_per_second", number_or_null(run.tokens_per_second())},
                                 {"unreadable_lines", run.unreadable_lines()},
                                 {"values_not_finite", run.values_not_finite()},
                                 {"memory", nlohmann::ordered_json(run.memory())},
                                 {"positions", std::move(positions)},
                                 {"events", std::move(events)},
                                 {"samples", std::move(samples)}};
  std::string json = text_of(summary), tasks;
  json.pop_back();
  constexpr std::array kAccuracy = {"accuracy"};
  for (const auto& [name, curves] : run.tasks())
    tasks +=
        fmt::format("{}{}:{}", tasks.empty() ? "" : ",\n", text_of(name), curves_json(curves, kAccuracy));
  std::string inside;
  for (const auto& [name, curves] : run.inside()) {
    std::vector<std::string> layers;
    for (size_t layer = 0; layer < curves.curves(); ++layer) layers.push_back(std::to_string(layer));
    inside += fmt::format("{}{}:{}", inside.empty() ? "" : ",\n", text_of(name),
                          curves_json(curves, layers, Written::kMeans));
  }
  std::string pairs;
  for (const auto& [name, curves] :
       {std::pair{"pairs", &run.pairs()}, {"pair_evaluations", &run.pair_evaluations()}})
    if (*curves) pairs += fmt::format(",\n\"{}\":{}", name, curves_json(**curves, RunRecord::kPairCurves));
  constexpr std::array kValidation = {"validation_loss"};
  return json + ",\n\"curves\":" + curves_json(run.steps(), RunRecord::kStepCurves) +
         ",\n\"evaluations\":" + curves_json(run.evaluations(), kValidation) + pairs + ",\n\"tasks\":{" +
         tasks + "},\n\"inside\":{" + inside + "}}";
}

}  // namespace

std::string report_json(const ReportPage& page) {
  std::string runs;
  for (const RunRecord& run : page.runs) runs += (runs.empty() ? "" : ",\n") + run_json(run);
  return fmt::format("{{\"written\":{},\"reload_seconds\":{},\"runs\":[\n{}\n]}}", text_of(page.written),
                     page.reload_seconds, runs);
}

std::string report_page(const ReportPage& page) {
  return page_with_data(report_page_template(), "REPORT_DATA", report_json(page));
}

}  // namespace tessera
