#include "model/formats/tensor_files.h"

#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Fails with the reason that a folder without safetensors has no weights.
[[noreturn]] void refuse_other_formats(const fs::path& folder, const std::string& expected) {
  const std::string path = folder.string();
  for (const char* other :
       {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack"})
    if (fs::exists(folder / other)) {
      const MappedFile file(folder / other);  // refuses a pointer of Git LFS, which could not be converted
      fail(
          "{0} has its weights in {1}, which is not supported; expected {2}. Convert it with transformers: "
          "python3 -c \"from transformers import AutoModelForCausalLM as M; "
          "M.from_pretrained('{0}').save_pretrained('{0}_safetensors', safe_serialization=True)\" and "
          "name {0}_safetensors in its place",
          path, other, expected);
    }
  fail("{} has no {} and no {}.index.json", path, expected, expected);
}

}  // namespace

TensorFiles::TensorFiles(const fs::path& folder, const std::string& stem) : folder_(folder) {
  const std::string one = stem + ".safetensors", index = one + ".index.json";
  if (fs::exists(folder / one)) {
    files_.push_back(std::make_unique<SafetensorsReader>(folder / one));
    for (const auto& [name, entry] : files_.back()->entries()) tensors_[name] = files_.back().get();
  } else if (fs::exists(folder / index)) {
    read_index(folder / index);
  } else {
    refuse_other_formats(folder, one);
  }
}

void TensorFiles::read_index(const fs::path& path) {
  const std::string index = path.string();
  const nlohmann::json json = read_json(path);
  check(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
        "{} has no object \"weight_map\", which names the file of every tensor", index);
  std::map<std::string, const SafetensorsReader*> files;
  for (const auto& [tensor, value] : json["weight_map"].items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    check(file.ends_with(".safetensors") &&
              file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos,
          "{}: tensor {} must be in a .safetensors file of the same folder, found {}", index, tensor,
          brief(value));
    if (!files.contains(file)) {
      check(fs::exists(folder_ / file), "{} names {}, which is not in the folder: was the download complete?",
            index, file);
      files_.push_back(std::make_unique<SafetensorsReader>(folder_ / file));
      files[file] = files_.back().get();
    }
    check(files[file]->contains(tensor), "{}: tensor {} should be in {}, which does not have it", index,
          tensor, file);
    tensors_[tensor] = files[file];
  }
  for (const auto& [file, reader] : files)
    for (const auto& [tensor, entry] : reader->entries()) {
      const auto listed = tensors_.find(tensor);
      check(listed != tensors_.end() && listed->second == reader, "{} has a tensor {} that {} does not list",
            reader->path().string(), tensor, index);
    }
}

const SafetensorsReader& TensorFiles::file_of(const std::string& name) const {
  const auto found = tensors_.find(name);
  check(found != tensors_.end(), "{} has no tensor {}", folder_.string(), name);
  return *found->second;
}

}  // namespace tessera
