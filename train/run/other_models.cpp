#include "train/run/other_models.h"

#include "model/formats/weights.h"
#include "train/run/nf4_base.h"
#include "train/run/run_checks.h"
#include "train/session/from_config.h"

namespace tessera {

// The configuration is checked without the folder that a resumed run need not have.
std::vector<std::string> OtherModels::check_folders() const {
  std::vector<std::string> notices;
  const auto add = [&](const std::vector<std::string>& more) {
    notices.insert(notices.end(), more.begin(), more.end());
  };
  const Config::Train& train = config_.train;
  const bool reads_teacher = train.runs_teacher() || resumed_.empty();
  if (!train.teacher.empty() && reads_teacher)
    add(check_weights(train.teacher, read_model_config(train.teacher, train.ignore_fields).model,
                      folder_options(config_)));
  if (train.runs_teacher())
    add(compare_with_nf4({.folder = train.teacher, .key = "train.teacher_base", .form = train.teacher_base}));
  if (!train.needs_reference() || train.reference_without_adapters()) return notices;
  if (train.stored_reference && !resumed_.empty()) return notices;
  const std::string& reference = train.reference_folder();
  check(!reference.empty(),
        "train.loss={} compares with a reference: name its folder with --set train.reference=FOLDER, or "
        "with train.init_from",
        name_of(train.loss));
  ModelConfig model = model_config(config_);
  model.lora = {};
  add(check_weights(reference, model, folder_options(config_)));
  if (train.lora)
    add(compare_with_nf4({.folder = reference, .key = "train.lora.base", .form = train.lora_base.form}));
  return notices;
}

void OtherModels::load(RunPhase& phase, const RunState& was, RunState& now, bool at_start) const {
  TrainState& state = phase.state();
  const auto load = [&](const std::string& folder, Session& to) {
    return load_fixed(folder, to, folder_options(config_));
  };
  if (state.has_teacher())
    now.teacher = same_as_before("train.teacher", was.teacher, load(config_.train.teacher, state.teacher()));
  if (state.has_reference())
    now.reference = same_as_before("the reference", was.reference,
                                   load(config_.train.reference_folder(), state.reference()));
  if (config_.train.stored_reference)
    now.reference = same_as_before("the reference", was.reference, stored_reference(phase.data(), at_start));
  if (config_.train.teacher_logits > 0)
    now.teacher = same_as_before("the teacher", was.teacher, stored_teacher(phase.data(), at_start));
}

void OtherModels::check_base(const RunData& data, const std::string& base) const {
  if (config_.train.stored_reference && reference_is_base()) check_stored_reference(data, base);
}

bool OtherModels::reference_is_base() const {
  return config_.train.lora && config_.train.reference_folder() == config_.train.init_from;
}

// The checksum of weights that do not change in a run; those of a resumed run are the checkpoint's. `was` is
// "" if it is not known.
std::string OtherModels::same_as_before(const char* what, const std::string& was,
                                        const std::string& now) const {
  check(
      was.empty() || was == now,
      "{}, from which this run goes on, was trained with other weights of {}: their checksum was {}, and is "
      "{}. Restore them, or start a new run from the checkpoint's weights with train.init_from={}",
      resumed_.string(), what, was, now, resumed_.string());
  return now;
}

// `found`: the checksum of the reference's weights
void OtherModels::check_stored_reference(const RunData& data, const std::string& found) const {
  const std::string& folder = config_.train.reference_folder();
  const LogProbs& first = *data.log_probs().front();
  check(
      found == first.weights,
      "the log-probabilities beside the data were computed by {}, whose weights had the checksum {}, and the "
      "reference {} has {}: compute them again with ./evaluate {} --data {} --log-probs, or name that model "
      "with --set train.reference=FOLDER",
      first.model, first.weights, folder, found, folder, text_of(config_.data.train));
}

// The checksum of the reference of the log-probabilities beside the data
std::string OtherModels::stored_reference(const RunData& data, bool at_start) const {
  const std::vector<const LogProbs*> files = data.log_probs();
  const LogProbs& first = *files.front();
  for (const LogProbs* file : files)
    check(file->weights == first.weights,
          "the data has log-probabilities of two references, {} and {}: compute them again with one, "
          "./evaluate REFERENCE --data PATH --log-probs",
          first.model, file->model);
  if (!at_start || !ranks_.is_rank_0() || reference_is_base()) return first.weights;
  ModelConfig model = model_config(config_);
  model.lora = {};
  check_stored_reference(
      data, checksum_of_weights(config_.train.reference_folder(), model, folder_options(config_)));
  return first.weights;
}

// The checksum of the teacher of the logits beside the data
std::string OtherModels::stored_teacher(const RunData& data, bool at_start) const {
  const std::vector<const TeacherLogits*> files = data.teacher_logits();
  const TeacherLogitsFacts& first = files.front()->facts();
  for (const TeacherLogits* file : files)
    check(file->facts().weights == first.weights,
          "the data has logits of two teachers, {} and {}: compute them again with one, ./evaluate "
          "TEACHER --data PATH --teacher-logits {}",
          first.model, file->facts().model, first.largest);
  const std::string& folder = config_.train.teacher;
  if (!at_start || folder.empty() || !ranks_.is_rank_0()) return first.weights;
  const std::string found = checksum_of_weights(
      folder, read_model_config(folder, config_.train.ignore_fields).model, folder_options(config_));
  check(
      found == first.weights,
      "the logits beside the data were computed by {}, whose weights had the checksum {}, and train.teacher, "
      "{}, has {}: compute them again with ./evaluate {} --data {} --teacher-logits {}, or set "
      "train.teacher=",
      first.model, first.weights, folder, found, folder, text_of(config_.data.train), first.largest);
  return first.weights;
}

}  // namespace tessera
