// A step on disk: what ./prove --record writes, and --against reads. A safetensors file with
//
//   mean_loss         [1]          nats
//   loss              [N]          of each token
//   attention.3.y     [rows H D]   attention's output in block 3; of long steps every n-th row
//   attention.3.lse   [N H]        its log-sum-exp, of attention that keeps one
//   gradient.NAME     as the parameter
//
// in fp32, and in its header what was computed: the texts of StepSubject.
#pragma once

#include <filesystem>
#include <string>

#include "train/prove/step_record.h"

namespace tessera {

// What a step was computed from, and how. Steps are compared where configuration, sequences, weights and
// dtype are the same.
struct StepSubject {
  std::string build;          // as version_text()
  std::string configuration;  // of model and adapters, one line a key: "model.layers: 12"
  std::string data;           // for a person; and by their checksums:
  std::string sequences;      // tokens, targets, documents
  std::string model;          // for a person; and by their checksum:
  std::string weights;
  std::string dtype, attention, device;
  int64_t micro_batch = 0;  // where it differs, sums have another order
};

struct RecordedStep {
  StepSubject subject;
  StepRecord step;
};

// The file appears when it is complete. Error: it cannot be written.
void write_record(const std::filesystem::path& path, const RecordedStep& recorded);
// Gradients lie in the file, which stays mapped as long as they live: it may be removed. Error: no such file,
// no record.
RecordedStep read_record(const std::filesystem::path& path);

// "model.layers is 12, and was 4 there" for each key that differs; keys that one alone has are left out, as
// another build may know more of them.
std::vector<std::string> differing_keys(const std::string& here, const std::string& there);

// Error: what differs, so that the steps cannot be compared; `there` is named `name`.
void check_comparable(const StepSubject& here, const StepSubject& there, const std::string& name);

}  // namespace tessera
