#include "data/fingerprint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/checksum.h"
#include "kernels/base/json_text.h"

namespace tessera {
namespace {

constexpr int64_t kBlock = 4096;  // bytes
constexpr int64_t kBlocks = 66;   // of the sample

// At most one block of `bytes`, from `first` on
std::span<const std::byte> block_at(std::span<const std::byte> bytes, int64_t first) {
  const int64_t count = std::min(kBlock, std::ssize(bytes) - first);
  return bytes.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
}

// Block i of the sample begins (total - kBlock) i / (kBlocks - 1) bytes into the files taken as one, and ends
// with the file in which it begins.
std::string sample_of(const std::vector<std::span<const std::byte>>& files) {
  int64_t total = 0;
  for (const auto& bytes : files) total += std::ssize(bytes);
  const int64_t last = std::max<int64_t>(0, total - kBlock);
  Checksum checksum;
  size_t file = 0;
  int64_t file_starts = 0;
  for (int64_t i = 0; i < kBlocks; ++i) {
    // Without the product of `last` and i, which may not fit
    const int64_t first = last / (kBlocks - 1) * i + last % (kBlocks - 1) * i / (kBlocks - 1);
    while (first >= file_starts + std::ssize(files[file])) file_starts += std::ssize(files[file++]);
    checksum.update(block_at(files[file], first - file_starts));
  }
  return checksum.digits();
}

}  // namespace

StreamFingerprint fingerprint_of(const TokenStream& stream) {
  StreamFingerprint found{
      .tokens = stream.size(), .tokenizer = stream.tokenizer(), .sources = {}, .sample = {}};
  std::vector<std::span<const std::byte>> files;
  for (const MappedFile* file : stream.files()) {
    files.push_back(file->bytes());
    found.sources.push_back({.file = file->path().filename().string(),
                             .bytes = std::ssize(file->bytes()),
                             .start = checksum_of(block_at(file->bytes(), 0))});
  }
  found.sample = sample_of(files);
  if (const DocumentIndex* documents = stream.documents()) {
    files.clear();
    for (const MappedFile* file : documents->files()) files.push_back(file->bytes());
    found.documents = sample_of(files);
  }
  return found;
}

nlohmann::json json_of(const StreamFingerprint& f) {
  nlohmann::json sources = nlohmann::json::array();
  for (const auto& s : f.sources)
    sources.push_back({{"file", s.file}, {"bytes", s.bytes}, {"start", s.start}});
  nlohmann::json json = {
      {"tokens", f.tokens}, {"tokenizer", f.tokenizer}, {"sources", sources}, {"sample", f.sample}};
  if (!f.documents.empty()) json["documents"] = f.documents;
  return json;
}

StreamFingerprint read_fingerprint(const nlohmann::json& json, const std::string& name) {
  StreamFingerprint f{.tokens = whole_number(json, "tokens", name, 1),
                      .tokenizer = text_value(json, "tokenizer", name),
                      .sources = {},
                      .sample = text_value(json, "sample", name),
                      .documents = json.contains("documents") ? text_value(json, "documents", name) : ""};
  const auto sources = json.find("sources");
  check(sources != json.end() && sources->is_array() && !sources->empty(),
        "{}: a fingerprint of data has a list of \"sources\"", name);
  for (const auto& s : *sources)
    f.sources.push_back({.file = text_value(s, "file", name),
                         .bytes = whole_number(s, "bytes", name, 1),
                         .start = text_value(s, "start", name)});
  return f;
}

std::optional<std::string> difference(const StreamFingerprint& before, const StreamFingerprint& now) {
  if (before.tokens != now.tokens) return fmt::format("it had {} tokens, now {}", before.tokens, now.tokens);
  if (before.tokenizer != now.tokenizer)
    return fmt::format("its tokenizer was '{}', now '{}'", before.tokenizer, now.tokenizer);
  if (before.sources.size() != now.sources.size())
    return fmt::format("it was made of {} files, now of {}", before.sources.size(), now.sources.size());
  for (size_t i = 0; i < now.sources.size(); ++i) {
    const auto &old = before.sources[i], &source = now.sources[i];
    if (old.bytes != source.bytes)
      return fmt::format("file {} of {}, {}, had {} bytes, now {} ({})", i + 1, now.sources.size(), old.file,
                         old.bytes, source.bytes, source.file);
    if (old.start != source.start)
      return fmt::format("file {} of {}, {}, has other contents ({})", i + 1, now.sources.size(), old.file,
                         source.file);
  }
  if (before.sample != now.sample) return "blocks sampled from it have other contents";
  // The same shards may be prepared again by a version that writes where documents begin.
  if (!before.documents.empty() && !now.documents.empty() && before.documents != now.documents)
    return "its documents begin, or count, at other tokens";
  return std::nullopt;
}

}  // namespace tessera
