#include "data/manifest.h"

#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"

namespace tessera {

void write_manifest(const std::filesystem::path& folder, const Manifest& manifest) {
  nlohmann::json json = {{"format", manifest.format},         {"tokenizer", manifest.tokenizer},
                         {"vocab_size", manifest.vocab_size}, {"tokens", manifest.tokens},
                         {"documents", manifest.documents},   {"shards", manifest.shards},
                         {"files", json_of(manifest.files)}};
  if (manifest.largest_token) json["largest_token"] = *manifest.largest_token;
  if (manifest.format == kManifestFormat) {
    json["counted_tokens"] = manifest.counted_tokens;
    json["dropped_samples"] = manifest.dropped_samples;
    if (manifest.skipped_bytes > 0) json["skipped_bytes"] = manifest.skipped_bytes;
    if (!manifest.chat_template.empty()) {
      json["chat_template"] = manifest.chat_template;
      if (manifest.turn_ends) json["turn_ends"] = *manifest.turn_ends;
    }
  }
  if (!manifest.tokenizer_from.empty()) {
    json["tokenizer_from"] = manifest.tokenizer_from;
    json["end_of_text"] = manifest.end_of_text;
  }
  write_json(folder / kManifestName, json);
}

std::optional<Manifest> read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestName;
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return std::nullopt;
  const MappedFile file(path);
  const std::string_view text{reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  Manifest manifest;
  try {
    const nlohmann::json json = parse_json(text, kManifestName);
    const bool has_files = json.is_object() && json.contains("tokenizer_from");
    manifest = {.format = text_value(json, "format", kManifestName),
                .tokenizer = text_value(json, "tokenizer", kManifestName),
                .tokenizer_from = has_files ? text_value(json, "tokenizer_from", kManifestName) : "",
                .end_of_text = has_files ? whole_number(json, "end_of_text", kManifestName) : 0,
                .vocab_size = whole_number(json, "vocab_size", kManifestName),
                .tokens = whole_number(json, "tokens", kManifestName),
                .documents = whole_number(json, "documents", kManifestName),
                .shards = whole_number(json, "shards", kManifestName)};
    if (json.contains("largest_token"))
      manifest.largest_token = whole_number(json, "largest_token", kManifestName);
    const bool has_documents = manifest.format == kManifestFormat;
    if (has_documents) {
      manifest.counted_tokens = whole_number(json, "counted_tokens", kManifestName);
      manifest.dropped_samples = whole_number(json, "dropped_samples", kManifestName);
      if (json.contains("skipped_bytes"))
        manifest.skipped_bytes = whole_number(json, "skipped_bytes", kManifestName);
      if (json.contains("chat_template"))
        manifest.chat_template = text_value(json, "chat_template", kManifestName);
      if (json.contains("turn_ends")) {
        check(json["turn_ends"].is_array(), "{}: \"turn_ends\" must be a list of ids, found {}",
              kManifestName, brief(json["turn_ends"]));
        manifest.turn_ends.emplace();
        for (size_t i = 0; i < json["turn_ends"].size(); ++i)
          manifest.turn_ends->push_back(static_cast<int32_t>(whole_number(
              {{"id", json["turn_ends"][i]}}, "id", kManifestName, 0, std::numeric_limits<int32_t>::max())));
      }
    }
    if (has_documents || manifest.format == kManifestWithoutDocuments) {
      check(json.contains("files"), "{} lacks the checksums of its \"files\"", kManifestName);
      manifest.files = read_checksums(json["files"], kManifestName);
      check(std::ssize(manifest.files) == manifest.shards * (has_documents ? 2 : 1),
            "{} has {} shards and {} checksums{}", kManifestName, manifest.shards, manifest.files.size(),
            has_documents ? "; expected one for each shard and one for its index of documents" : "");
    }
  } catch (const Error& e) {
    fail("{} is not the manifest of a prepared dataset: {}; prepare the dataset again with ./prepare",
         path.string(), e.what());
  }
  check(manifest.format == kManifestFormat || manifest.format == kManifestWithoutDocuments ||
            manifest.format == kManifestWithoutChecksums,
        "{} has the format '{}', expected '{}', '{}' or '{}'; prepare the dataset again with ./prepare",
        path.string(), manifest.format, kManifestFormat, kManifestWithoutDocuments,
        kManifestWithoutChecksums);
  return manifest;
}

}  // namespace tessera
