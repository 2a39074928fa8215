// The largest logits that a teacher gives after each token of a data set. They are computed once and stored
// in the file teacher.logits
// beside the shards. Little-endian:
//   bytes 0 to 7    the letters "tesslogi"
//   8 to 11         uint32  version 1
//   12 to 15        uint32  H, a multiple of 8
//   16 to 15 + H    JSON, with blanks behind it: "data", a StreamFingerprint; "model", a folder; "weights",
//                   the checksum of its weights; "precision", of the logits, fp32 or bf16; "sequence_length";
//                   "vocab_size"; "largest", K; "temperature"; "records", R; "numbers", the checksum of what
//                   follows
//   then R records  float       the logarithm of the sum of exp(logit / temperature) over all other tokens
//                   uint32 [K]  the ids of the K largest logits, ascending
//                   float or bf16 [K]  these logits
// There is a record for each target that counts, in the order of the stream: the logits that predict this
// target.
#pragma once

#include <filesystem>
#include <vector>

#include "data/dataset_check.h"
#include "data/fingerprint.h"
#include "kernels/base/descriptor.h"

namespace tessera {

inline constexpr const char* kTeacherLogitsName = "teacher.logits";
// data/mine/teacher.logits of data/mine, or of data/mine/*.bin
std::filesystem::path teacher_logits_file(const TokenStream& stream);

// Numbers the targets that count, in the order of a stream that has documents
class CountedTargets {
 public:
  explicit CountedTargets(const TokenStream& stream);
  int64_t count() const { return before_.back(); }
  // The number of the first such target after stream token `input`, which is in this document
  int64_t first_after(int64_t document, int64_t input) const;

 private:
  const DocumentIndex& documents_;
  std::vector<int64_t> before_;  // the number of such targets before each document, and in the whole stream
};

struct TeacherLogitsFacts {
  StreamFingerprint data = {};
  std::string model, weights, precision;
  int64_t sequence_length = 0;  // of the sequences that the documents were packed into
  int64_t vocab_size = 0, largest = 0;
  double temperature = 1;

  size_t logit_bytes() const { return precision == "bf16" ? 2 : 4; }
  int64_t record_bytes() const { return 4 + largest * (4 + static_cast<int64_t>(logit_bytes())); }
};

// Records on the host: ids [n, K], and values [n, K + 1], which are the K logits and then the logarithm of
// the others' sum
struct TeacherRecords {
  std::span<int32_t> ids;
  std::span<float> values;
};

// The file of a stream, mapped. Any number of threads may read it.
class TeacherLogits {
 public:
  // Error, with the command that computes the file: it is missing, damaged, or belongs to other data. If it
  // has more than `most_bytes`, it is not compared with its checksum.
  explicit TeacherLogits(const TokenStream& stream, int64_t most_bytes = kMostVerifiedAtStart);

  const TeacherLogitsFacts& facts() const { return facts_; }
  bool is_verified() const { return is_verified_; }
  // Error: sequences of this length cut some document at another place, so its logits would differ.
  void check_sequences(int64_t sequence_length) const;
  // What users should do about a file that does not fit
  std::string again(const std::string& model, int64_t largest, double temperature,
                    int64_t sequence_length) const;
  // Reads the records of the inputs from stream token `first` on, which are in this document. If a target is
  // kNoTarget, its record is 0
  void take(int64_t document, int64_t first, std::span<const int32_t> targets,
            const TeacherRecords& to) const;

 private:
  const TokenStream& stream_;
  MappedFile file_;
  TeacherLogitsFacts facts_;
  CountedTargets targets_;
  int64_t numbers_;  // the byte where records begin
  bool is_verified_;
};

// Writes the file of a stream, under another name until it is complete. Several processes may share the work:
// one of them creates the file, then all open it, and when all have written, the one commits it. Errors name
// the file.
class TeacherLogitsWriter {
 public:
  TeacherLogitsWriter(const TokenStream& stream, const TeacherLogitsFacts& facts);
  ~TeacherLogitsWriter();
  TeacherLogitsWriter(const TeacherLogitsWriter&) = delete;
  TeacherLogitsWriter& operator=(const TeacherLogitsWriter&) = delete;

  int64_t bytes() const { return numbers_ + targets_.count() * facts_.record_bytes(); }
  const std::filesystem::path& path() const { return path_; }
  void create();
  void open();
  // Writes the records of the inputs from stream token `first` on, which are in this document.
  void write(int64_t document, int64_t first, std::span<const int32_t> targets,
             const TeacherRecords& records);
  void commit();

 private:
  std::string header(const std::string& checksum) const;
  void write_header(const std::string& checksum);
  void write_at(int64_t at, std::span<const std::byte> bytes);

  std::filesystem::path path_, temporary_;
  TeacherLogitsFacts facts_;
  CountedTargets targets_;
  int64_t numbers_;
  Descriptor file_;
  bool created_ = false, committed_ = false;
};

}  // namespace tessera
