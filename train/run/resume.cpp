#include "train/run/resume.h"

#include <fmt/ranges.h>

#include <string_view>

#include "kernels/base/check.h"
#include "kernels/base/present.h"
#include "train/config/load_config.h"
#include "train/config/print_config.h"
#include "train/run/checkpoint.h"
#include "train/run/checkpoint_files.h"
#include "train/run/checkpoint_folder.h"
#include "train/run/epochs.h"
#include "train/run/schedule.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

struct Meaning {
  std::string_view key;  // or how several begin
  std::string_view text;
};

// The first match applies. Keys that only change what is printed or kept are not listed; keys that change the
// learning rate have an empty text, since the learning rate has a line of its own.
constexpr Meaning kMeanings[] = {
    {"device", "the losses agree to rounding only"},
    {"model.preset", "no effect: the model is the checkpoint's"},
    {"model.attention", "the losses agree to rounding only"},
    {"model.position_extension", "no effect: the weights are the checkpoint's"},
    {"model.dropout.", "from the next step on"},
    {"data.train", "the same tokens under another name"},
    {"data.shift", "no effect: the sequences are cut as before"},
    {"data.validation", "validation losses before and after may not be comparable"},
    {"train.init_from", "no effect: the weights are the checkpoint's, or with train.lora have its checksum"},
    {"train.steps", "where the run ends"},
    {"train.epochs", "where the run ends"},
    {"train.patience", "when the run ends early"},
    {"train.sequence_length", "as train.context_schedule has it"},
    {"train.loss", "from the next step on; losses before and after are not comparable"},
    {"train.preference.", "from the next step on; losses before and after are not comparable"},
    {"train.distillation.", "from the next step on; losses before and after are not comparable"},
    {"train.reference", "the same weights under another name"},
    {"train.stored_reference", "the losses agree to rounding only"},
    {"train.teacher_logits", "from the next step on; losses before and after are not comparable"},
    {"train.teacher_base", "from the next step on, by probabilities that are rounded otherwise"},
    {"train.teacher", "the same weights under another name"},
    {"train.on_bad_step.", "from the next step on"},
    {"train.context_schedule", "the lengths from the next step on"},
    {"train.tokens_per_step", "the data continues where it stopped, in steps of another size"},
    {"train.micro_batch", "the losses agree to rounding only"},
    {"train.precision", "the losses agree to that precision only"},
    {"train.gemm_dtype", "the losses agree to that precision only"},
    {"train.fp8.", "from the next step on"},
    {"train.lora.base", "the adapters go on over weights that are rounded otherwise"},
    {"train.lora.base_parts", "the adapters go on over weights that are rounded otherwise"},
    {"train.tune", "the losses agree to rounding only"},
    {"train.gemm_backend", "the losses agree to rounding only"},
    {"train.reduce", "the losses agree to that precision only"},
    {"train.classifier_chunk", "the losses agree to rounding only"},
    {"train.mlp_chunk", "the losses agree to rounding only"},
    {"train.deterministic", "whether a run can be repeated bit for bit from here on"},
    {"optimizer.learning_rate", ""},
    {"optimizer.min_learning_rate", ""},
    {"optimizer.schedule", ""},
    {"optimizer.warmup", ""},
    {"optimizer.decay_fraction", ""},
    {"optimizer.moments", "the moments are rounded differently from here on"},
    {"optimizer.", "from the next step on"},
    {"evaluation.sequences", "validation losses before and after are not comparable"},
};

std::string_view meaning_of(std::string_view key) {
  for (const Meaning& meaning : kMeanings)
    if (key == meaning.key || (meaning.key.ends_with('.') && key.starts_with(meaning.key)))
      return meaning.text;
  return "";
}

struct Line {
  std::string_view key, value;
};
// Takes the next "key: value" off config_lines().
Line next_line(std::string_view& lines) {
  const std::string_view line = lines.substr(0, lines.find('\n'));
  lines.remove_prefix(line.size() + 1);
  const size_t colon = line.find(": ");
  return {line.substr(0, colon), line.substr(colon + 2)};
}

// `step` optimizer steps are done.
std::string learning_rate_change(const Config& was, const Config& now, int64_t step,
                                 const std::vector<std::string_view>& keys) {
  const double before = learning_rate_at(step - 1, was.steps(), was.optimizer);
  const double next = learning_rate_at(step, now.steps(), now.optimizer);
  if (next == learning_rate_at(step, was.steps(), was.optimizer)) return "";
  return fmt::format("the learning rate of step {} is {:.3g}; it was {:.3g} at step {}, before {} changed",
                     step + 1, next, before, step, fmt::join(keys, ", "));
}

void refuse(const fs::path& checkpoint, const std::string& what) {
  fail(
      "{} {}: the order of the data would change. Set it back, or start a new run from these weights with "
      "train.init_from",
      checkpoint.string(), what);
}

void check_same_source(const fs::path& checkpoint, const DataFingerprint::Source& old,
                       const DataFingerprint::Source& data, const std::string& name, bool built_in,
                       bool same_length) {
  if (const auto differs = difference(old.stream, data.stream)) {
    check(!built_in,
          "{} was trained on the built-in corpus of another build of Tessera, which is that build's sources: "
          "{}. Resume with that build, or train on a file of your own with data.train",
          checkpoint.string(), *differs);
    fail(
        "{} was trained on other data than data.train={} now holds: {}. Restore the data, or start a new run "
        "from these weights with train.init_from",
        checkpoint.string(), name, *differs);
  }
  check(old.range == data.range,
        "{} was trained on {} tokens of {}, this run would train on {}: text that was held out would become "
        "training text, or the reverse. Restore data.validation_fraction and data.validation, or start a new "
        "run from these weights with train.init_from",
        checkpoint.string(), old.range.token_count, name, data.range.token_count);
  // Documents are packed for the length of the sequences, which train.context_schedule may have changed.
  if (same_length && old.packing != data.packing)
    refuse(checkpoint, fmt::format("was trained on documents of {} that were packed in another way", name));
}

// Both have fingerprints.
void check_same_tokens(const fs::path& checkpoint, const RunState& was, const RunState& now,
                       const std::vector<DataSource>& sources) {
  const auto &old = present(was.fingerprint).train, &data = present(now.fingerprint).train;
  if (old.size() != data.size())
    refuse(checkpoint, fmt::format("was trained on {} sources, {}, this run has {}, {}", old.size(), was.data,
                                   data.size(), now.data));
  const bool built_in = was.data == kBuiltinData && now.data == kBuiltinData;
  for (size_t i = 0; i < data.size(); ++i) {
    if (old[i].weight != data[i].weight)
      refuse(checkpoint, fmt::format("was made with the weight {} of {}, this run has {}", old[i].weight,
                                     sources[i].path, data[i].weight));
    check_same_source(checkpoint, old[i], data[i], sources[i].path, built_in,
                      was.sequence_length == now.sequence_length);
  }
}

// The sequences of a checkpoint have the length of the step that it follows. One that an evaluation at the
// begin of a phase wrote has the length of that phase.
void check_length(const fs::path& checkpoint, const RunState& was, const RunState& now,
                  const Config& config) {
  const auto length_after = [&](int64_t step) {
    return config.of_phase(config.phase_after(step)).sequence_length();
  };
  if (was.sequence_length == length_after(was.step - 1) || was.sequence_length == now.sequence_length) return;
  fail(
      "{} was made with sequences of {} tokens, and this run has {} at its step. Restore "
      "train.sequence_length or train.context_schedule; to change the length from this step on, set "
      "train.sequence_length=auto and train.context_schedule=0:{},{}:{}; or start a new run from these "
      "weights with train.init_from",
      checkpoint.string(), was.sequence_length, now.sequence_length, was.sequence_length, was.step,
      now.sequence_length);
}

// Whether both evaluate on the same tokens, in sequences of the same length, so that their losses compare.
bool same_validation(const RunState& was, const RunState& now) {
  if (was.sequence_length != now.sequence_length) return false;
  if (!was.fingerprint || !now.fingerprint) return true;
  const auto &old = was.fingerprint->validation, &data = now.fingerprint->validation;
  // Held-out training data was compared with the training data; a run that does not evaluate has none.
  return !old || !data || !difference(*old, *data);
}

std::vector<std::string> check_same_data(const fs::path& checkpoint, const RunState& was, const RunState& now,
                                         const std::optional<Config>& was_config, const Config& config) {
  const auto same = [&](const char* key, const auto& before, const auto& present) {
    if (before != present)
      refuse(checkpoint, fmt::format("was made with {} {}, this run has {}", key, before, present));
  };
  same("train.seed", was.seed, now.seed);
  check_length(checkpoint, was, now, config);
  if (was_config) same("data.shuffle", was_config->data.shuffle, config.data.shuffle);
  same("data.documents", name_of(was.documents), name_of(now.documents));
  same("data.shift", was.shift, now.shift);
  std::vector<std::string> notices;
  if (config.data.shift == Shift::kAuto && !was.shift && config.data.shifts())
    notices.push_back(
        "the checkpoint's run cuts its training sequences at the same places in every epoch, and "
        "so does this one: data.shift is false");
  if (!was.fingerprint) {
    same("data.train", was.data, now.data);
    notices.push_back(
        fmt::format("{} keeps no fingerprint of its data: only the name of data.train was compared",
                    checkpoint.filename().string()));
  } else if (now.fingerprint) {
    check_same_tokens(checkpoint, was, now, config.data.train);
    if (was.sequence_length == now.sequence_length && !same_validation(was, now))
      notices.push_back(
          "the validation data is not the checkpoint's: validation losses before and after cannot be "
          "compared, and the search for the best step starts again");
  }
  return notices;
}

// The configuration that a checkpoint holds; nothing if it has none, or one that this version cannot read:
// `notice` then says why.
std::optional<Config> config_of(const fs::path& checkpoint, std::string& notice) {
  const fs::path path = checkpoint / kConfigFile;
  if (!fs::exists(path)) return std::nullopt;
  try {
    return load_config(path, {}, true);  // the folder of train.init_from may be gone
  } catch (const Error& error) {
    notice = fmt::format("keys that changed since the checkpoint are not listed: {}", error.what());
    return std::nullopt;
  }
}

// A line for every key that changed; one for the learning rate, if they change it. `step` is the
// checkpoint's.
std::vector<std::string> changes(const Config& was, const Config& now, int64_t step) {
  const std::string old_lines = config_lines(was), new_lines = config_lines(now);
  std::string_view old_rest = old_lines, new_rest = new_lines;
  std::vector<std::string> found;
  std::vector<std::string_view> of_learning_rate;
  while (!new_rest.empty()) {
    const Line old = next_line(old_rest), line = next_line(new_rest);
    if (old.value == line.value) continue;
    const std::string_view meaning = meaning_of(line.key);
    found.push_back(fmt::format("{}: {}, now {}{}{}", line.key, old.value, line.value,
                                meaning.empty() ? "" : "; ", meaning));
    const bool of_schedule = line.key.starts_with("optimizer.") && meaning.empty();
    if (of_schedule || line.key == "train.steps" || line.key == "train.epochs")
      of_learning_rate.push_back(line.key);
  }
  const std::string rate = learning_rate_change(was, now, step, of_learning_rate);
  if (!rate.empty()) found.push_back(rate);
  return found;
}

void check_same_moments(const fs::path& checkpoint, const Config::Optimizer& was,
                        const Config::Optimizer& now) {
  const auto check_key = [&](const char* key, std::string_view before, std::string_view after) {
    check(
        before == after,
        "{} was made with {}={}, this run has {}, which keeps other moments. Set it back, or start a new run "
        "from these weights with train.init_from",
        checkpoint.string(), key, before, after);
  };
  check_key("optimizer.rule", name_of(was.rule), name_of(now.rule));
  const auto word = [](bool on) { return on ? "true" : "false"; };
  check_key("optimizer.muon.variance", word(was.muon.variance), word(now.muon.variance));
}

}  // namespace

std::vector<std::string> compare_with_checkpoint(const fs::path& checkpoint, const RunState& was,
                                                 const RunState& now, const Config& config,
                                                 const RunData& data) {
  std::string unread;
  std::optional<Config> was_config = config_of(checkpoint, unread);
  check(was.freeze == now.freeze,
        "{} was made with train.freeze={}, this run has {}: what it did not train has no "
        "moments. Set it back, or start a new run from these weights with train.init_from",
        checkpoint.string(), was.freeze, now.freeze);
  check(was.lora == now.lora,
        "{} was made with train.lora of {}, this run has {}. Restore train.lora, or start a new run from "
        "these weights, which have the adapters in them, with train.init_from",
        checkpoint.string(), was.lora, now.lora);
  if (was_config) check_same_moments(checkpoint, was_config->optimizer, config.optimizer);
  std::vector<std::string> notices = check_same_data(checkpoint, was, now, was_config, config);
  if (written_checksums(checkpoint).empty())
    notices.push_back(
        fmt::format("{} has no checksums, since an earlier version of Tessera wrote it: damage to its files "
                    "cannot be detected",
                    checkpoint.filename().string()));
  if (!unread.empty()) notices.push_back(unread);
  if (!was_config) return notices;
  if (was_config->train.epochs > 0)
    was_config->epoch_steps = steps_of_epochs(*was_config, data.train().sequences_per_epoch(), was);
  for (const std::string& change : changes(*was_config, config, was.step))
    notices.push_back("changed: " + change);
  return notices;
}

void take_best(const fs::path& checkpoint, const RunState& was, RunState& now, const Config& config) {
  // At the begin of a phase the search for the best step starts again.
  if (!same_validation(was, now) || config.begins_phase(was.step)) return;
  const bool there = was.best && fs::exists(checkpoint.parent_path() / checkpoint_name(was.best->step));
  if (was.best && config.checkpoint.keep_best && !there) return;
  now.best = was.best;
  now.evaluations_since_best = was.evaluations_since_best;
}

}  // namespace tessera
