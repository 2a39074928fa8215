// A step on disk: what ./prove --record writes, and --against reads. A safetensors file with
//
//   mean_loss         [1]          nats
//   loss              [N]          of each token
//   attention.3.y     [rows H D]   attention's output in block 3; of long steps every n-th row
//   attention.3.lse   [N H]        its log-sum-exp, of attention that keeps one
//   gradient.NAME     as the parameter
//
// All are in fp32, and the header has the texts of StepSubject: what was computed.
#pragma once

#include <filesystem>
#include <string>

#include "train/prove/step_record.h"

namespace tessera {

// What a step was computed from, and how. Two steps can be compared if configuration, sequences, weights and
// dtype are the same.
struct StepSubject {
  std::string build;          // as version_text()
  std::string configuration;  // of model and adapters, one line for each key: "model.layers: 12"
  std::string data;           // for a person; the next field has the checksums of these:
  std::string sequences;      // tokens, targets, documents
  std::string model;          // for a person; the next field has its checksum:
  std::string weights;
  std::string dtype, attention, device;
  int64_t micro_batch = 0;  // with another one, sums have another order
};

struct RecordedStep {
  StepSubject subject;
  StepRecord step;
};

// The file appears only when it is complete. Error: it cannot be written.
void write_record(const std::filesystem::path& path, const RecordedStep& recorded);
// The gradients point into the file, which stays mapped as long as they exist, so it may be removed. Error:
// there is no such file, or it is not a record.
RecordedStep read_record(const std::filesystem::path& path);

// "model.layers is 12, and was 4 there" for each key that differs. Keys that only one of them has are left
// out, because another build may know more keys.
std::vector<std::string> differing_keys(const std::string& here, const std::string& there);

// Error: the steps cannot be compared; the message says what differs. `there` is named `name`.
void check_comparable(const StepSubject& here, const StepSubject& there, const std::string& name);

}  // namespace tessera
