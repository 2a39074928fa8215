// What ./evaluate is asked for, and the model that it evaluates.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/run/model_folder.h"
#include "train/run/run_state.h"

namespace tessera {

inline constexpr const char* kRunData = "run";  // as `data`: the validation data of the model's run

struct EvaluateOptions {
  std::string model;                // as find_model_folder()
  std::optional<std::string> data;  // kRunData or as data.train; none: kRunData, unless there are tasks
  std::vector<std::string> tasks;   // as read_task()
  int64_t task_items = 0;           // of each, at most; 0: all
  std::vector<std::string> ignored_fields = {};  // of the folder, as read_model_config() takes them
  std::string tokenizer;                         // as load_tokenizer(); empty: the model's
  int64_t sequences = 0;        // of the data, at most; 0: all, or those of the run's evaluations
  int64_t sequence_length = 0;  // 0: the run's; of another program at most kSequenceLength
  int64_t batch = 0;            // sequences; 0: the run's micro-batch, or what suits the device
  bool by_position = false;
  CacheDtype cache = CacheDtype::kAuto;  // small: see LossJob
  bool log_probs = false;      // in place of the loss: of each document of the data, into log_probs_file()
  int64_t teacher_logits = 0;  // likewise: so many after each token, into teacher_logits_file(); 0: none
  double temperature = 1;      // of these
  DeviceRequest device = DeviceRequest::kAuto;
  std::optional<Precision> precision;  // none: the run's
  std::optional<AttentionKind> attention;
  std::optional<Documents> documents;
  std::string json;  // file to write; empty: none
};

inline constexpr int64_t kSequenceLength = 1024;  // tokens

struct EvaluatedModel {
  ModelFolder folder;
  Config config;                  // the run's, with what the options change; without a run the defaults
  std::optional<RunState> state;  // of a checkpoint of ours
};
// All ranks compute the same. Error: as find_model_folder(), read_model_config() and load_config().
EvaluatedModel open_evaluated(const EvaluateOptions& options);

}  // namespace tessera
