#include "data/manifest.h"

#include "data/file.h"
#include "data/json_text.h"
#include "kernels/base/check.h"

namespace tessera {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Manifest, format, tokenizer, vocab_size, tokens, documents, shards)

void write_manifest(const std::filesystem::path& folder, const Manifest& manifest) {
  write_json(folder / kManifestName, nlohmann::json(manifest));
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
    manifest = {.format = text_value(json, "format", kManifestName),
                .tokenizer = text_value(json, "tokenizer", kManifestName),
                .vocab_size = whole_number(json, "vocab_size", kManifestName),
                .tokens = whole_number(json, "tokens", kManifestName),
                .documents = whole_number(json, "documents", kManifestName),
                .shards = whole_number(json, "shards", kManifestName)};
  } catch (const Error& e) {
    fail("{} is not the manifest of a prepared dataset: {}; make the dataset again with prepare",
         path.string(), e.what());
  }
  check(manifest.format == kManifestFormat,
        "{} has the format '{}', wanted '{}'; make the dataset again with prepare", path.string(),
        manifest.format, kManifestFormat);
  return manifest;
}

}  // namespace tessera
