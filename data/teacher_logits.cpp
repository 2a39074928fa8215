#include "data/teacher_logits.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/base/bf16.h"
#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/no_target.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTeacherMagic = "tesslogi";
constexpr uint32_t kTeacherVersion = 1;
constexpr int64_t kTeacherHeader = 16;  // bytes

std::string teacher_command(const TokenStream& stream) {
  return fmt::format("compute it with ./evaluate TEACHER --data {} --teacher-logits K",
                     stream.path().string());
}

// The byte where the records begin
int64_t records_begin(const MappedFile& file, const std::string& again) {
  const std::string path = file.path().string();
  const auto bytes = std::ssize(file.bytes());
  uint32_t header[2] = {};
  check(bytes >= kTeacherHeader &&
            std::memcmp(file.bytes().data(), kTeacherMagic.data(), kTeacherMagic.size()) == 0,
        "{} has no logits of a teacher: it does not begin with \"{}\"; {}", path, kTeacherMagic, again);
  std::memcpy(header, file.bytes().data() + kTeacherMagic.size(), sizeof header);
  check(header[0] == kTeacherVersion, "{} has version {}, expected {}; {}", path, header[0], kTeacherVersion,
        again);
  check(header[1] % 8 == 0 && kTeacherHeader + int64_t{header[1]} <= bytes, "{} is truncated; {}", path,
        again);
  return kTeacherHeader + int64_t{header[1]};
}

nlohmann::json facts_in(const MappedFile& file, int64_t end) {
  const auto text = file.bytes().subspan(kTeacherHeader, static_cast<size_t>(end - kTeacherHeader));
  return parse_json({reinterpret_cast<const char*>(text.data()), text.size()}, file.path().string());
}

TeacherLogitsFacts read_facts(const nlohmann::json& json, const std::string& name, const std::string& again) {
  check(json.is_object() && json.contains("data"), "{}: there is no \"data\"; {}", name, again);
  const std::string precision = text_value(json, "precision", name);
  check(precision == "fp32" || precision == "bf16", "{}: \"precision\" is {}, expected fp32 or bf16; {}",
        name, precision, again);
  check(json.contains("temperature") && json["temperature"].is_number() && json["temperature"] > 0.0,
        "{}: \"temperature\" must be a number above 0; {}", name, again);
  return {.data = read_fingerprint(json["data"], name),
          .model = text_value(json, "model", name),
          .weights = text_value(json, "weights", name),
          .precision = precision,
          .sequence_length = whole_number(json, "sequence_length", name, 1),
          .vocab_size = whole_number(json, "vocab_size", name, 1),
          .largest = whole_number(json, "largest", name, 1, int64_t{1} << 31),
          .temperature = json["temperature"].get<double>()};
}

template <class T>
T read_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

const DocumentIndex& documents_in(const TokenStream& stream) {
  check(stream.documents() != nullptr,
        "{} does not say where its documents begin, and logits of a teacher are those of documents: prepare "
        "the data again from its text, ./prepare FILES --output FOLDER",
        stream.path().string());
  return *stream.documents();
}

const fs::path& existing(const fs::path& path, const std::string& again) {
  check(fs::exists(path), "{} does not exist, which has the teacher's largest logits: {}", path.string(),
        again);
  return path;
}

}  // namespace

fs::path teacher_logits_file(const TokenStream& stream) {
  const fs::path& path = stream.path();
  return (fs::is_directory(path) ? path : path.parent_path()) / kTeacherLogitsName;
}

CountedTargets::CountedTargets(const TokenStream& stream) : documents_(documents_in(stream)) {
  before_.push_back(0);
  std::vector<int32_t> targets;
  for (int64_t i = 0; i < documents_.count(); ++i) {
    const TokenRange tokens = documents_.document(i);
    targets.assign(static_cast<size_t>(tokens.token_count - 1), 0);
    documents_.drop_uncounted(tokens.first_token + 1, targets);
    before_.push_back(before_.back() + counted(targets));
  }
}

int64_t CountedTargets::first_after(int64_t document, int64_t input) const {
  const int64_t first = documents_.document(document).first_token;
  std::vector<int32_t> targets(static_cast<size_t>(input - first));
  documents_.drop_uncounted(first + 1, targets);
  return before_[static_cast<size_t>(document)] + counted(targets);
}

TeacherLogits::TeacherLogits(const TokenStream& stream, int64_t most_bytes)
    : stream_(stream),
      file_(existing(teacher_logits_file(stream), teacher_command(stream))),
      targets_(stream),
      numbers_(records_begin(file_, teacher_command(stream))) {
  const std::string name = file_.path().string(), command = teacher_command(stream);
  const nlohmann::json json = facts_in(file_, numbers_);
  facts_ = read_facts(json, name, command);
  if (const auto differs = difference(facts_.data, fingerprint_of(stream)))
    fail("{} was computed on other data than {} now holds: {}; {}", name, stream.path().string(), *differs,
         command);
  const int64_t records = whole_number(json, "records", name),
                wanted = numbers_ + records * facts_.record_bytes(), bytes = std::ssize(file_.bytes());
  check(records == targets_.count() && bytes == wanted,
        "{} is damaged: it says {} records, and has {} bytes, expected {}; {}", name, records, bytes, wanted,
        command);
  is_verified_ = bytes <= most_bytes;
  check(!is_verified_ || checksum_of(file_.bytes().subspan(static_cast<size_t>(numbers_))) ==
                             text_value(json, "numbers", name),
        "{} is damaged: its numbers have another checksum than when it was written; {}", name, command);
}

std::string TeacherLogits::again(const std::string& model, int64_t largest, double temperature,
                                 int64_t sequence_length) const {
  return fmt::format(
      "compute it again with ./evaluate {} --data {} --teacher-logits {} --temperature {} --sequence-length "
      "{}",
      model, stream_.path().string(), largest, temperature, sequence_length);
}

// Pieces of a document begin at multiples of the length.
void TeacherLogits::check_sequences(int64_t sequence_length) const {
  if (sequence_length == facts_.sequence_length) return;
  const DocumentIndex& documents = *stream_.documents();
  const int64_t least = std::min(sequence_length, facts_.sequence_length);
  for (int64_t i = 0; i < documents.count(); ++i) {
    const int64_t inputs = documents.document(i).token_count - 1;
    check(inputs <= least,
          "document {} of {} has {} tokens, and {} is of sequences of {}, which cut it elsewhere than those "
          "of {}: {}",
          i, stream_.path().string(), inputs, file_.path().string(), facts_.sequence_length, sequence_length,
          again(facts_.model, facts_.largest, facts_.temperature, sequence_length));
  }
}

void TeacherLogits::take(int64_t document, int64_t first, std::span<const int32_t> targets,
                         const TeacherRecords& to) const {
  const auto K = static_cast<size_t>(facts_.largest), each = facts_.logit_bytes();
  const std::byte* at =
      file_.bytes().data() + numbers_ + targets_.first_after(document, first) * facts_.record_bytes();
  std::ranges::fill(to.ids, 0);
  std::ranges::fill(to.values, 0.0f);
  for (size_t n = 0; n < targets.size(); ++n) {
    if (targets[n] == kNoTarget) continue;
    float* values = &to.values[n * (K + 1)];
    values[K] = read_as<float>(at);
    std::memcpy(&to.ids[n * K], at + 4, 4 * K);
    const std::byte* logits = at + 4 + 4 * K;
    for (size_t k = 0; k < K; ++k)
      values[k] = each == 4 ? read_as<float>(logits + each * k)
                            : float_from_bf16(read_as<uint16_t>(logits + each * k));
    at += facts_.record_bytes();
  }
}

TeacherLogitsWriter::TeacherLogitsWriter(const TokenStream& stream, const TeacherLogitsFacts& facts)
    : path_(teacher_logits_file(stream)),
      temporary_(path_.string() + ".tmp"),
      facts_(facts),
      targets_(stream),
      numbers_(std::ssize(header(""))) {}

TeacherLogitsWriter::~TeacherLogitsWriter() {
  if (created_ && !committed_) unlink(temporary_.c_str());
}

// Its size does not depend on the checksum.
std::string TeacherLogitsWriter::header(const std::string& checksum) const {
  constexpr size_t kDigits = 32;
  std::string text =
      nlohmann::json{{"data", json_of(facts_.data)},
                     {"model", facts_.model},
                     {"weights", facts_.weights},
                     {"precision", facts_.precision},
                     {"sequence_length", facts_.sequence_length},
                     {"vocab_size", facts_.vocab_size},
                     {"largest", facts_.largest},
                     {"temperature", facts_.temperature},
                     {"records", targets_.count()},
                     {"numbers", checksum + std::string(kDigits - std::min(checksum.size(), kDigits), '-')}}
          .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint32_t numbers[] = {kTeacherVersion, static_cast<uint32_t>(text.size())};
  std::string all(kTeacherMagic);
  all.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
  return all + text;
}

void TeacherLogitsWriter::create() {
  file_ = Descriptor(::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  check_system(file_.is_open(), "cannot write {}: {}", path_.string());
  created_ = true;
  // Takes the room on the disk at once, so that a full one is known before the work.
  const int error = posix_fallocate(file_.get(), 0, bytes());
  check(error == 0, "cannot write {}, which takes {}: {}", path_.string(), format_bytes(bytes()),
        system_reason(error));
  write_header("");
}

void TeacherLogitsWriter::write_header(const std::string& checksum) {
  const std::string text = header(checksum);
  write_at(0, std::as_bytes(std::span(text)));
}

void TeacherLogitsWriter::open() {
  if (file_.is_open()) return;
  file_ = Descriptor(::open(temporary_.c_str(), O_RDWR | O_CLOEXEC));
  check_system(file_.is_open(), "cannot write {}, which another process created: {}", temporary_.string());
}

void TeacherLogitsWriter::write_at(int64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(file_.get(), bytes.data(), bytes.size(), at);
    if (written < 0 && errno == EINTR) continue;
    check_system(written >= 0, "cannot write {}: {}", path_.string());
    bytes = bytes.subspan(static_cast<size_t>(written));
    at += written;
  }
}

void TeacherLogitsWriter::write(int64_t document, int64_t first, std::span<const int32_t> targets,
                                const TeacherRecords& records) {
  const auto K = static_cast<size_t>(facts_.largest);
  std::vector<std::byte> bytes;
  const auto add = [&](const auto& value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof value);
  };
  for (size_t n = 0; n < targets.size(); ++n) {
    if (targets[n] == kNoTarget) continue;
    const std::span<const float> values = records.values.subspan(n * (K + 1), K + 1);
    check(
        std::isfinite(values[0]) && std::isfinite(values[K - 1]) && values[K] < INFINITY,
        "a logit is not finite: the weights of {} are damaged, or too large for this precision. Try another "
        "checkpoint, or --precision fp32",
        facts_.model);
    add(values[K]);
    for (size_t k = 0; k < K; ++k) add(records.ids[n * K + k]);
    for (size_t k = 0; k < K; ++k)
      facts_.logit_bytes() == 4 ? add(values[k]) : add(bf16_from_float(values[k]));
  }
  write_at(numbers_ + targets_.first_after(document, first) * facts_.record_bytes(), bytes);
}

void TeacherLogitsWriter::commit() {
  {
    const MappedFile written(temporary_);
    write_header(checksum_of(written.bytes().subspan(static_cast<size_t>(numbers_))));
  }
  check_system(fsync(file_.get()) == 0, "cannot write {}: {}", path_.string());
  check_system(std::rename(temporary_.c_str(), path_.c_str()) == 0, "cannot write {}: {}", path_.string());
  committed_ = true;
  sync_folder(path_.has_parent_path() ? path_.parent_path() : ".");
}

}  // namespace tessera
