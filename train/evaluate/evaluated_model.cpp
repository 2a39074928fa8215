#include "train/evaluate/evaluated_model.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "model/formats/folder.h"
#include "train/config/load_config.h"
#include "train/run/checkpoint_files.h"
#include "train/tasks/read_task.h"

namespace tessera {
namespace {

EvaluatedModel read_evaluated(const ModelFolder& folder, const EvaluateOptions& options) {
  EvaluatedModel model{.folder = folder, .config = {}, .state = {}};
  Config& config = model.config;
  if (std::filesystem::exists(folder.path / kConfigFile) &&
      std::filesystem::exists(folder.path / kStateFile)) {
    // The folder that the run started from may no longer exist; the model is the checkpoint's.
    const std::string alone[] = {"train.init_from="};
    config = load_config(folder.path / kConfigFile, alone);
    config.train.lora = {};  // the weights of a checkpoint have the adapters added
    model.state = read_run_state(folder.path);
  } else {
    config.model = Config::Model(read_model_config(folder.path, options.ignored_fields).model);
  }
  return model;
}

// Before the folder is read
void check_options(const EvaluateOptions& options) {
  const bool has_data = options.data ? !options.data->empty() : options.tasks.empty();
  check(has_data || (!options.by_position && options.sequences == 0),
        "{} is of the loss on data, and there are only tasks: add --data PATH, or --data run for the data of "
        "the run",
        options.by_position ? "--by-position" : "--sequences");
  check(!options.log_probs || (options.data && !options.data->empty() && *options.data != kRunData),
        "--log-probs is of the pairs of a data set: name it with --data PATH");
  check(
      !options.log_probs || (options.sequences == 0 && !options.by_position &&
                             options.documents.value_or(Documents::kMask) == Documents::kMask),
      "--log-probs is of all pairs, packed apart: leave out --sequences, --by-position and --documents join");
  const bool logits = options.teacher_logits > 0;
  check(!logits || !options.log_probs, "--teacher-logits and --log-probs are two commands");
  check(!logits || (options.data && !options.data->empty() && *options.data != kRunData),
        "--teacher-logits is of a data set: name it with --data PATH");
  check(!logits || (options.sequences == 0 && !options.by_position &&
                    options.documents.value_or(Documents::kMask) == Documents::kMask),
        "--teacher-logits is of all tokens, and documents do not see each other: leave out --sequences, "
        "--by-position and --documents join");
  check(std::isfinite(options.temperature) && options.temperature > 0,
        "--temperature must be above 0, found {}", options.temperature);
  check(logits || options.temperature == 1, "--temperature is of --teacher-logits: add --teacher-logits K");
  check(!is_small(options.cache) || (has_data && options.tasks.empty() && !options.log_probs && !logits),
        "--cache-dtype is of the loss on data: leave out --task, --log-probs and --teacher-logits");
  check(!options.tasks.empty() || options.task_items == 0,
        "--items is of tasks, and there is none: add --task FILE; --sequences N takes a part of the data");
  for (const std::string& task : options.tasks) check_task_source(task);
}

}  // namespace

EvaluatedModel open_evaluated(const EvaluateOptions& options) {
  check_options(options);
  EvaluatedModel model = read_model_folder(
      options.model, [&](const ModelFolder& folder) { return read_evaluated(folder, options); });
  Config& config = model.config;
  const int64_t context = config.model.context;
  const int64_t T = options.sequence_length > 0 ? options.sequence_length
                    : model.state               ? model.state->sequence_length
                                                : std::min(context, kSequenceLength);
  check(T <= context, "--sequence-length {}: the model of {} reads at most {} tokens", T,
        model.folder.path.string(), context);
  config.train.context_schedule.clear();
  config.train.sequence_length = T;
  config.ranks = 1;
  config.sampling.every = 0;
  config.device = options.device;
  if (options.precision) config.train.precision = *options.precision;
  if (options.attention) config.model.attention = *options.attention;
  if (options.documents) config.data.documents = *options.documents;
  if (options.log_probs || options.teacher_logits > 0) config.data.documents = Documents::kMask;
  check(!is_small(options.cache) || !config.data.masks(),
        "--cache-dtype {} reads a sequence as one text, and the run masks documents: add --documents join",
        name_of(options.cache));
  return model;
}

}  // namespace tessera
