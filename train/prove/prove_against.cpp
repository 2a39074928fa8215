// --against and --record: the step beside that of other weights, of another build, or of a record.
#include <algorithm>
#include <set>
#include <sstream>

#include "kernels/base/present.h"
#include "model/params.h"
#include "train/config/find_config.h"
#include "train/config/print_config.h"
#include "train/prove/allowed.h"
#include "train/prove/other_build.h"
#include "train/prove/prove.h"
#include "train/prove/prover.h"
#include "train/run/run_data.h"

namespace tessera {
namespace {

constexpr const char* kAgainst = "against";

// The keys that decide what a step computes from its weights and sequences, one a line
std::string step_keys(const Config& config) {
  Config of;
  of.model = Config::Model(config.model.resolved());
  of.model.dropout = {};
  of.train.lora = config.train.lora;
  std::istringstream lines(config_lines(of));
  std::string text;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("model.") || line.starts_with("train.lora.")) text += line + "\n";
  return text;
}

template <class T>
std::string checksum_of_all(const std::vector<T>& values) {
  return checksum_of(std::as_bytes(std::span(values)));
}

// Error: a parameter that one alone has, or of another shape
void check_same_parameters(const ProvedModel& here, const ProvedModel& there) {
  const auto shapes = [](const ProvedModel& of) {
    std::map<std::string, Shape> all;
    for (const ParamPlace& place : ParamLayout(of.config.model.resolved().base(), 1).places)
      all[place.info.name] = place.info.shape;
    return all;
  };
  const auto mine = shapes(here), theirs = shapes(there);
  const std::string this_model = here.weights.empty() ? "this model" : here.weights.string(),
                    other = there.weights.string();
  for (const auto& [name, shape] : mine) {
    const auto found = theirs.find(name);
    check(found != theirs.end(),
          "{} has no parameter {}, which is {} in {}: two checkpoints of one model "
          "can be compared",
          other, name, shape.to_string(), this_model);
    check(found->second == shape,
          "parameter {} is {} in {} and {} in {}: two checkpoints of one model can be compared", name,
          shape.to_string(), this_model, found->second.to_string(), other);
  }
  for (const auto& [name, shape] : theirs)
    check(mine.contains(name),
          "{} has the parameter {}, {}, which {} has not: two checkpoints of one model "
          "can be compared",
          other, name, shape.to_string(), this_model);
  const LoraConfig &adapters = here.config.train.lora, &others = there.config.train.lora;
  check(!adapters || !there.checkpoint || !others || adapters == others,
        "the adapters of {} have rank {}, and those of {} rank {}, or other train.lora.parts or "
        "train.lora.alpha: two checkpoints of one run can be compared",
        this_model, adapters.rank, other, others.rank);
}

int64_t count_differing(const std::vector<Measure>& measures) {
  return std::ranges::count_if(measures, [](const Measure& m) { return m.difference != 0; });
}

std::string losses_text(const StepRecord& here, const StepRecord& there) {
  return here.loss == there.loss ? fmt::format("loss {:.4f}", here.loss)
                                 : fmt::format("loss {:.4f} against {:.4f}: {:+.2g}", here.loss, there.loss,
                                               here.loss - there.loss);
}

// "124 of 148 weights differ"
std::string differing_text(const std::vector<Measure>& measures, const char* what) {
  return fmt::format("{} of {} {} differ", count_differing(measures), measures.size(), what);
}

// "; the largest change is 1.2e-02, of blocks.3.mlp.expand.weight"
std::string largest_change(const std::vector<Measure>& weights) {
  const Measure& most = *std::ranges::max_element(weights, {}, &Measure::largest);
  return fmt::format("; the largest change is {:.1e}, of {}", most.largest, most.where);
}

// " (commit 0123456789)" of a text as version_text(); "" where it has none
std::string commit_of(const std::string& build) {
  std::istringstream words(build);
  for (std::string word; words >> word;)
    if (word == "commit" && words >> word) return fmt::format(" (commit {})", word.substr(0, 10));
  return "";
}

void check_sizes(const StepRecord& here, const StepRecord& there, const std::string& name) {
  const auto same = [&](const std::string& what, size_t mine, size_t theirs) {
    check(mine == theirs, "{}: {} has {} values, here {}: these builds cut a step into other tensors", name,
          what, theirs, mine);
  };
  same("loss", here.losses.size(), there.losses.size());
  same("the list of attention outputs", here.attention.size(), there.attention.size());
  for (size_t l = 0; l < here.attention.size(); ++l) {
    same(fmt::format("the attention output of block {}", l), here.attention[l].size(),
         there.attention[l].size());
    if (!here.lse[l].empty() && !there.lse[l].empty())
      same(fmt::format("the log-sum-exp of block {}", l), here.lse[l].size(), there.lse[l].size());
  }
  same("the list of gradients", here.gradients.size(), there.gradients.size());
  for (const ParamValues& each : here.gradients) {
    const auto other = std::ranges::find(there.gradients, each.name, &ParamValues::name);
    check(other != there.gradients.end(), "{} has no gradient of {}", name, each.name);
    same("the gradient of " + each.name, each.values.size(), other->values.size());
  }
}

}  // namespace

StepSubject Prover::subject_of(const RunShape& shape) const {
  const Sequences& s = data_.sequences;
  return {.build = options_.build,
          .configuration = step_keys(config_),
          .data = fmt::format("{}: {} sequences of {} tokens", data_.text, S_, T_),
          .sequences = checksum_of_all(s.tokens) + checksum_of_all(s.targets) + checksum_of_all(s.documents),
          .model = model_.weights.empty() ? fmt::format("random weights of seed {}", config_.train.seed)
                                          : model_.weights.string(),
          .weights = "",
          .dtype = name_of(shape.dtype),
          .attention = name_of(shape.attention),
          .device = device_.name,
          .micro_batch = shape.micro_batch};
}

StepRecord Prover::step_from(const ProvedModel& from, const RunShape& shape, const Loaded& loaded) {
  const std::unique_ptr<Backend> be = make_(device_);
  StepRunner runner(*be, shape);
  const std::string base = load(runner.state(), from);
  loaded(runner.state(), base);
  StepJob job = job_of(shape, data_.sequences);
  job.sees_attention = true;
  return runner.step(job);
}

RecordedStep Prover::recorded(int64_t micro_batch) {
  RunShape shape = base_shape();
  std::string ignored;
  Way same = way();
  same.micro_batch = micro_batch;
  if (micro_batch > 0 && S_ % micro_batch == 0)
    if (const auto fits = shape_that_fits(same, device_, ignored)) shape = *fits;
  show("the step as the run has it");
  RecordedStep found{.subject = subject_of(shape), .step = {}};
  found.step = step_from(model_, shape, [&](TrainState& state, const std::string& base) {
    found.subject.weights = base + checksum_of_weights(state, memory_);
  });
  found.step.loss = static_cast<float>(found.step.loss);  // as a file has it
  return found;
}

// The same model, data and step, by names that mean the same to another build
std::vector<std::string> Prover::arguments_of_build() const {
  const ProveOptions& o = options_;
  std::vector<std::string> all = o.config.empty()
                                     ? std::vector<std::string>{model_.weights.string()}
                                     : std::vector<std::string>{"--config", find_config(o.config).string()};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) all.insert(all.end(), {option, value});
  };
  for (const std::string& setting : o.settings) add("--set", setting);
  add("--data", o.data == kBuiltinData ? builtin_corpus().string() : o.data);
  add("--tokenizer", o.tokenizer);
  add("--sequences", std::to_string(S_));
  add("--sequence-length", std::to_string(T_));
  add("--device", name_of(o.device));
  if (o.precision) add("--precision", name_of(*o.precision));
  if (o.attention) add("--attention", name_of(*o.attention));
  // The built-in text is made of the sources of a build.
  const std::vector<DataSource>& sources = config_.data.train;
  const auto is_builtin = [](const DataSource& source) { return source.path == kBuiltinData; };
  if (o.data.empty() && std::ranges::any_of(sources, is_builtin)) {
    std::string text;
    for (const DataSource& source : sources)
      text += fmt::format("{}{}{}", text.empty() ? "" : ", ",
                          is_builtin(source) ? builtin_corpus().string() : source.path,
                          sources.size() > 1 ? fmt::format(" {}", source.weight) : "");
    add("--set", "data.train=" + text);
  }
  return all;
}

Proof Prover::prove_record(const RecordedStep& found, const RecordedStep& other, const std::string& name) {
  check_comparable(found.subject, other.subject, name);
  check_sizes(found.step, other.step, name);
  const double allowed = allowed::of_model(base_shape().dtype, base_shape().model.layers);
  const StepSubject &a = found.subject, &b = other.subject;
  Proof proof{.name = kAgainst,
              .compared = fmt::format("{} in {} on {}, against {}{}: {} on {}", a.attention, a.dtype,
                                      a.device, name, commit_of(b.build), b.attention, b.device),
              .tokens = S_ * T_,
              .measures = compare_attention(found.step, other.step, allowed),
              .reason = allowed::kModelReason};
  for (Measure& each : compare_records(found.step, other.step, allowed))
    proof.measures.push_back(std::move(each));
  proof.summary = count_differing(proof.measures) == 0
                      ? fmt::format("same bits: {} tensors, ", proof.measures.size())
                      : differing_text(proof.measures, "tensors") + "; ";
  if (a.micro_batch != b.micro_batch)
    proof.summary += fmt::format("micro-batches of {} against {}; ", a.micro_batch, b.micro_batch);
  proof.summary += losses_text(found.step, other.step);
  return proof;
}

Proof Prover::prove_checkpoint(const ProvedModel& other) {
  check_same_parameters(model_, other);
  for (const std::string& key : differing_keys(step_keys(config_), step_keys(other.config)))
    if (key.starts_with("model.")) line_.notice(fmt::format("{}: both are computed as here", key));
  std::vector<ParamValues> weights;
  std::string base;
  show("the step with these weights");
  const StepRecord found =
      step_from(model_, base_shape(), [&](TrainState& state, const std::string& checksum) {
        weights = weights_of(state, memory_), base = checksum;
      });
  Proof proof{.name = kAgainst,
              .compared = fmt::format("{} against {}",
                                      model_.weights.empty() ? "random weights" : model_.weights.string(),
                                      other.weights.string()),
              .tokens = S_ * T_};
  show("the step with the other weights");
  const StepRecord expected =
      step_from(other, base_shape(), [&](TrainState& state, const std::string& checksum) {
        check(checksum == base, "the weights in {} are not those that the adapters of {} belong to",
              other.weights.string(), model_.weights.string());
        const std::vector<ParamValues> others = weights_of(state, memory_);
        for (size_t i = 0; i < weights.size(); ++i) {
          Difference own;
          own.add(weights[i].values, weights[i].values);  // relative to the larger of both
          proof.measures.push_back(
              compare_values("weight", weights[i].name, weights[i].values, others[i].values, 0, own.norm()));
        }
        weights.clear();
      });
  const bool same = count_differing(proof.measures) == 0;
  proof.summary =
      same ? "same weights" : differing_text(proof.measures, "weights") + largest_change(proof.measures);
  std::vector<Measure> of_step = compare_records(found, expected, 0);
  if (same) {
    proof.reason = "nothing: of the same weights the bits of a step must be equal";
    proof.summary += count_differing(of_step) == 0 ? ", same bits" : ", other bits";
  } else {
    proof.judged = false;
  }
  proof.summary += "; " + losses_text(found, expected);
  for (Measure& each : of_step) proof.measures.push_back(std::move(each));
  return proof;
}

void Prover::prove_against() {
  std::optional<Against> against;
  if (!options_.against.empty()) against = find_against(options_.against);
  if (against && against->kind == AgainstKind::kCheckpoint)
    add(prove_checkpoint(read_other(options_.against, options_.ignored_fields)));
  const bool with_record = against && against->kind != AgainstKind::kCheckpoint;
  if (!with_record && options_.record.empty()) return;
  std::optional<RecordedStep> other;
  if (with_record) {
    const std::string path = against->path.string();
    other = against->kind == AgainstKind::kRecord
                ? read_record(path)
                : run_build(path, arguments_of_build(),
                            [&](const std::string& line) { show(fmt::format("{}: {}", path, line)); });
  }
  const RecordedStep found = recorded(other ? other->subject.micro_batch : 0);
  if (other) add(prove_record(found, *other, present(against).path.string()));
  if (options_.record.empty()) return;
  write_record(options_.record, found);
  line_.print_labelled("record", fmt::format("{}: the step's losses, attention and gradients; {}",
                                             options_.record, losses_text(found.step, found.step)));
}

}  // namespace tessera
