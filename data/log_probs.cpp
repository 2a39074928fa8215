#include "data/log_probs.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/checksum.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLogProbsMagic = "tesslogp";
constexpr uint32_t kLogProbsVersion = 1;
constexpr int64_t kLogProbsHeader = 16;  // bytes

std::string checksum_of_numbers(std::span<const std::byte> sums, std::span<const std::byte> tokens) {
  Checksum checksum;
  checksum.update(sums);
  checksum.update(tokens);
  return checksum.digits();
}

// Where the parts of a file begin
struct LogProbsLayout {
  int64_t json, numbers;
};
LogProbsLayout log_probs_layout(const MappedFile& file, const std::string& again) {
  const std::string path = file.path().string();
  const auto bytes = std::ssize(file.bytes());
  uint32_t header[2] = {};
  check(bytes >= kLogProbsHeader &&
            std::memcmp(file.bytes().data(), kLogProbsMagic.data(), kLogProbsMagic.size()) == 0,
        "{} has no log-probabilities: it does not begin with \"{}\"; {}", path, kLogProbsMagic, again);
  std::memcpy(header, file.bytes().data() + kLogProbsMagic.size(), sizeof header);
  check(header[0] == kLogProbsVersion, "{} has version {}, expected {}; {}", path, header[0],
        kLogProbsVersion, again);
  check(header[1] % 8 == 0 && kLogProbsHeader + int64_t{header[1]} <= bytes, "{} is truncated; {}", path,
        again);
  return {kLogProbsHeader, kLogProbsHeader + int64_t{header[1]}};
}

}  // namespace

fs::path log_probs_file(const TokenStream& stream) {
  const fs::path& path = stream.path();
  return (fs::is_directory(path) ? path : path.parent_path()) / kLogProbsName;
}

int64_t log_probs_of(const TokenStream& stream) {
  const DocumentIndex* documents = stream.documents();
  return documents ? documents->count() * (documents->has_labels() ? 2 : 1) : 0;
}

size_t log_prob_place(const TokenStream& stream, int64_t document, DocumentKind kind) {
  if (!stream.documents()->has_labels()) return static_cast<size_t>(document);
  return static_cast<size_t>(2 * document + (kind == DocumentKind::kMismatched ? 1 : 0));
}

void write_log_probs(const fs::path& path, const LogProbs& found) {
  const auto sums = std::as_bytes(std::span(found.sums)), tokens = std::as_bytes(std::span(found.tokens));
  std::string text = nlohmann::json{{"data", json_of(found.data)},
                                    {"model", found.model},
                                    {"weights", found.weights},
                                    {"precision", found.precision},
                                    {"sequence_length", found.sequence_length},
                                    {"documents", found.sums.size()},
                                    {"numbers", checksum_of_numbers(sums, tokens)}}
                         .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint32_t header[] = {kLogProbsVersion, static_cast<uint32_t>(text.size())};
  OutputFile file(path);
  file.write(std::as_bytes(std::span(kLogProbsMagic)));
  file.write(std::as_bytes(std::span(header)));
  file.write(std::as_bytes(std::span(text)));
  file.write(sums);
  file.write(tokens);
  file.commit();
}

LogProbs read_log_probs(const TokenStream& stream) {
  const fs::path path = log_probs_file(stream);
  const std::string again =
      fmt::format("compute them with ./evaluate MODEL --data {} --log-probs, where MODEL is the reference",
                  stream.path().string());
  check(fs::exists(path), "{} does not exist, which has the reference's log-probabilities: {}", path.string(),
        again);
  const MappedFile file(path);
  const LogProbsLayout at = log_probs_layout(file, again);
  const auto bytes = file.bytes();
  const auto text = bytes.subspan(static_cast<size_t>(at.json), static_cast<size_t>(at.numbers - at.json));
  const std::string name = path.string();
  const nlohmann::json json =
      parse_json({reinterpret_cast<const char*>(text.data()), text.size()}, name);  // blanks end it
  check(json.is_object() && json.contains("data"), "{}: there is no \"data\"; {}", name, again);
  LogProbs found{.data = read_fingerprint(json["data"], name),
                 .model = text_value(json, "model", name),
                 .weights = text_value(json, "weights", name),
                 .precision = text_value(json, "precision", name),
                 .sequence_length = whole_number(json, "sequence_length", name, 1)};
  if (const auto differs = difference(found.data, fingerprint_of(stream)))
    fail("{} was computed on other data than {} now holds: {}; {}", name, stream.path().string(), *differs,
         again);
  const int64_t N = whole_number(json, "documents", name), wanted = at.numbers + 12 * N;
  check(N == log_probs_of(stream) && std::ssize(bytes) == wanted,
        "{} is damaged: it says {} documents, and has {} bytes, expected {}; {}", name, N, bytes.size(),
        wanted, again);
  const auto numbers = bytes.subspan(static_cast<size_t>(at.numbers));
  const auto sums = numbers.first(static_cast<size_t>(8 * N)), tokens = numbers.subspan(sums.size());
  check(checksum_of_numbers(sums, tokens) == text_value(json, "numbers", name),
        "{} is damaged: its numbers have another checksum than when it was written; {}", name, again);
  found.sums.resize(static_cast<size_t>(N)), found.tokens.resize(found.sums.size());
  std::memcpy(found.sums.data(), sums.data(), sums.size());
  std::memcpy(found.tokens.data(), tokens.data(), tokens.size());
  return found;
}

}  // namespace tessera
