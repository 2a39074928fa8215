#include "data/manifest.h"

#include <nlohmann/json.hpp>
#include <span>

#include "data/file.h"
#include "kernels/base/check.h"

namespace tessera {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Manifest, format, tokenizer, vocab_size, tokens, documents, shards)

void write_manifest(const std::filesystem::path& folder, const Manifest& manifest) {
  const std::string text = nlohmann::json(manifest).dump(2) + "\n";
  write_file(folder / kManifestName, text);
}

std::optional<Manifest> read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestName;
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return std::nullopt;
  const MappedFile file(path);
  const auto* text = reinterpret_cast<const char*>(file.bytes().data());
  Manifest manifest;
  try {
    manifest = nlohmann::json::parse(text, text + file.bytes().size()).get<Manifest>();
  } catch (const nlohmann::json::exception& e) {
    fail("{} is not the manifest of a prepared dataset: {}; make the dataset again with prepare",
         path.string(), e.what());
  }
  check(manifest.format == kManifestFormat,
        "{} has the format '{}', wanted '{}'; make the dataset again with prepare", path.string(),
        manifest.format, kManifestFormat);
  return manifest;
}

}  // namespace tessera
