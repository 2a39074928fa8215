// What ./prove is asked, and the model that it is asked of.
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
  std::string model;                             // as find_model_folder(); or
  std::string config;                            // a configuration file
  std::vector<std::string> settings;             // "key=value", of the configuration
  std::vector<std::string> ignored_fields = {};  // of the folder, as read_model_config() takes them
  std::string data;                              // as data.train; empty: the run's
  std::string tokenizer;                         // of a text, as load_tokenizer(); empty: the model's
  int64_t sequences = 0;                         // 0: kProvedSequences, or fewer of long ones
  int64_t sequence_length = 0;                   // 0: the run's
  DeviceRequest device = DeviceRequest::kAuto;
  std::optional<Precision> precision;      // none: the run's
  std::optional<AttentionKind> attention;  // of the run; none: its own
  std::vector<std::string> only;           // words of ProofKind; empty: all, or none beside what follows
  std::string against;     // a checkpoint, as find_model_folder(); another build; a file of `record`
  std::string record;      // a file for the step's record
  double ratio = 1.1;      // of an error to naive's
  std::string json, html;  // files to write; empty: none
  std::string build;       // of this program, as version_text(): for records
};
inline constexpr int64_t kProvedSequences = 8;

struct ProvedModel {
  Config config;                  // the run's, with what the options change
  std::filesystem::path weights;  // a folder; empty: random ones
  bool checkpoint = false;        // of adapters: they are loaded with it
  std::optional<RunState> state;  // of a checkpoint of ours
};

}  // namespace tessera
