#include "train/prove/record_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <sstream>

#include "kernels/base/check.h"
#include "model/formats/safetensors.h"

namespace tessera {
namespace {

// In the header: that it is a record, of this form
constexpr const char *kForm = "tessera.record", *kForm1 = "1";
constexpr const char *kMeanLoss = "mean_loss", *kLosses = "loss", *kGradients = "gradient.";

std::string attention_name(size_t block, const char* what) {
  return fmt::format("attention.{}.{}", block, what);
}

// Calls visit(key, text) for each text of a subject.
template <class Subject, class Visit>
void each_text(Subject& subject, Visit&& visit) {
  visit("build", subject.build);
  visit("configuration", subject.configuration);
  visit("data", subject.data);
  visit("sequences", subject.sequences);
  visit("model", subject.model);
  visit("weights", subject.weights);
  visit("dtype", subject.dtype);
  visit("attention", subject.attention);
  visit("device", subject.device);
}

// The tensors of a record with their values, in the order of the file
struct TensorOfRecord {
  FileTensor tensor;
  std::span<const float> values;
};
std::vector<TensorOfRecord> tensors_of(const StepRecord& step, const float& mean_loss) {
  std::vector<TensorOfRecord> all{{{kMeanLoss, {1}}, {&mean_loss, 1}},
                                  {{kLosses, {std::ssize(step.losses)}}, step.losses}};
  for (size_t l = 0; l < step.attention.size(); ++l) {
    all.push_back({{attention_name(l, "y"), {std::ssize(step.attention[l])}}, step.attention[l]});
    if (!step.lse[l].empty())
      all.push_back({{attention_name(l, "lse"), {std::ssize(step.lse[l])}}, step.lse[l]});
  }
  for (const ParamValues& each : step.gradients)
    all.push_back({{kGradients + each.name, each.shape}, each.values});
  return all;
}

std::map<std::string, std::string> keys_of(const std::string& lines) {
  std::map<std::string, std::string> all;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);)
    if (const size_t end = line.find(": "); end != std::string::npos)
      all[line.substr(0, end)] = line.substr(end + 2);
  return all;
}

}  // namespace

void write_record(const std::filesystem::path& path, const RecordedStep& recorded) {
  const auto mean_loss = static_cast<float>(recorded.step.loss);
  const std::vector<TensorOfRecord> tensors = tensors_of(recorded.step, mean_loss);
  std::vector<FileTensor> entries;
  for (const TensorOfRecord& each : tensors) entries.push_back(each.tensor);
  Metadata metadata{{kForm, kForm1}, {"micro_batch", std::to_string(recorded.subject.micro_batch)}};
  each_text(recorded.subject, [&](const char* key, const std::string& text) { metadata[key] = text; });
  SafetensorsWriter file(path, std::move(entries), Values::kAny, metadata);
  for (const TensorOfRecord& each : tensors) file.write(each.values);
  file.commit();
}

RecordedStep read_record(const std::filesystem::path& path) {
  const auto file = std::make_shared<SafetensorsReader>(path);
  const Metadata& metadata = file->metadata();
  const auto text = [&](const std::string& key) {
    const auto found = metadata.find(key);
    check(found != metadata.end(), "{} is no record of ./prove --record: its header has no {}", path.string(),
          key);
    return found->second;
  };
  check(text(kForm) == kForm1, "{} is a record of form {}, expected {}: make it again with this build's form",
        path.string(), text(kForm), kForm1);
  RecordedStep recorded;
  each_text(recorded.subject, [&](const char* key, std::string& to) { to = text(key); });
  const std::string batch = text("micro_batch");
  std::from_chars(batch.data(), batch.data() + batch.size(), recorded.subject.micro_batch);
  const auto values = [&](const std::string& name) -> std::span<const float> {
    const auto found = file->entries().find(name);
    check(found != file->entries().end(), "{} is no record of ./prove --record: it has no tensor {}",
          path.string(), name);
    const std::span<const std::byte> bytes = found->second.bytes;
    check(found->second.dtype == "F32" && reinterpret_cast<uintptr_t>(bytes.data()) % alignof(float) == 0,
          "{} is no record of ./prove --record: its tensor {} is no fp32", path.string(), name);
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  };
  const auto copied = [&](const std::string& name) {
    const std::span<const float> found = values(name);
    return std::vector<float>(found.begin(), found.end());
  };
  StepRecord& step = recorded.step;
  check(values(kMeanLoss).size() == 1, "{} is no record of ./prove --record: {} has {} values", path.string(),
        kMeanLoss, values(kMeanLoss).size());
  step.loss = static_cast<double>(values(kMeanLoss)[0]);
  step.losses = copied(kLosses);
  for (size_t l = 0; file->contains(attention_name(l, "y")); ++l) {
    step.attention.push_back(copied(attention_name(l, "y")));
    const std::string lse = attention_name(l, "lse");
    step.lse.push_back(file->contains(lse) ? copied(lse) : std::vector<float>{});
  }
  for (const auto& [name, entry] : file->entries()) {
    if (!name.starts_with(kGradients)) continue;
    const std::span<const float> gradient = values(name);
    step.gradients.push_back({.name = name.substr(std::string_view(kGradients).size()),
                              .block = 0,
                              .first = 0,
                              .shape = {std::ssize(gradient)},
                              .memory = {file, gradient.data()},
                              .values = gradient});
  }
  return recorded;
}

std::vector<std::string> differing_keys(const std::string& here, const std::string& there) {
  const std::map<std::string, std::string> mine = keys_of(here), theirs = keys_of(there);
  std::vector<std::string> all;
  for (const auto& [key, value] : mine) {
    const auto other = theirs.find(key);
    if (other != theirs.end() && other->second != value)
      all.push_back(fmt::format("{} is {}, and {} there", key, value, other->second));
  }
  return all;
}

void check_comparable(const StepSubject& here, const StepSubject& there, const std::string& name) {
  const std::vector<std::string> keys = differing_keys(here.configuration, there.configuration);
  check(keys.empty(), "{} is of another configuration: {}. Name the model that it was made of", name,
        fmt::join(keys, "; "));
  check(here.sequences == there.sequences,
        "{} is of other sequences: here {}, there {}. Name the same with --data, --sequences and "
        "--sequence-length",
        name, here.data, there.data);
  check(here.dtype == there.dtype, "{} was computed in {}, and this step in {}: name --precision {}", name,
        there.dtype, here.dtype, there.dtype);
  check(here.weights == there.weights,
        "{} is of other weights: here {}, there {}. Compare checkpoints with --against CHECKPOINT", name,
        here.model, there.model);
}

}  // namespace tessera
