// The options of ./prove, and the model that it checks
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/run/run_state.h"

namespace tessera {

// What --only takes
enum class ProofKind : uint8_t { kAttention, kRows, kDocuments, kMicroBatch, kResume, kRanks, kDevice, kFp8 };
constexpr auto words_of(ProofKind) {
  return std::array{Word{"attention", ProofKind::kAttention}, Word{"rows", ProofKind::kRows},
                    Word{"documents", ProofKind::kDocuments}, Word{"micro_batch", ProofKind::kMicroBatch},
                    Word{"resume", ProofKind::kResume},       Word{"ranks", ProofKind::kRanks},
                    Word{"device", ProofKind::kDevice},       Word{"fp8", ProofKind::kFp8}};
}

struct ProveOptions {
  std::string model;                             // as find_model_folder(); if empty:
  std::string config;                            // a configuration file
  std::vector<std::string> settings;             // "key=value", of the configuration
  std::vector<std::string> ignored_fields = {};  // of the folder, as read_model_config() takes them
  std::string data;                              // as data.train; empty: the run's
  std::string tokenizer;                         // of a text, as load_tokenizer() takes it; empty: the
                                                 // model's
  int64_t sequences = 0;                         // 0: kProvedSequences, or fewer if they are long
  int64_t sequence_length = 0;                   // 0: the run's
  DeviceRequest device = DeviceRequest::kAuto;
  std::optional<Precision> precision;      // nothing: the run's
  std::optional<AttentionKind> attention;  // the attention that the run uses; nothing: its own choice
  std::vector<std::string> only;           // words of ProofKind; empty: all, or none if `against` or `record`
                                           // is given
  std::string against;     // a checkpoint, as find_model_folder(); another build; or a file that `record`
                           // wrote
  std::string record;      // the file to which the step's record is written
  double ratio = 1.1;      // how large an error may be, relative to naive's
  std::string json, html;  // files to write; empty: none
  std::string build;       // the version of this program, as version_text(): for records
};
inline constexpr int64_t kProvedSequences = 8;

struct ProvedModel {
  Config config;                  // the run's, changed by the options
  std::filesystem::path weights;  // a folder; empty: random ones
  bool checkpoint = false;        // with adapters: the weights are loaded together with the checkpoint's
                                  // adapters
  std::optional<RunState> state;  // if the model is one of our checkpoints
};

}  // namespace tessera
