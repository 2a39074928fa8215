#include "model/formats/sharded_safetensors.h"

#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"

namespace tessera {
namespace {

std::string name_of_file(size_t file, size_t files) {
  if (files == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", file + 1, files);
}

}  // namespace

ShardedSafetensorsWriter::ShardedSafetensorsWriter(std::filesystem::path folder,
                                                   const std::vector<FileTensor>& tensors, int64_t most_bytes)
    : folder_(std::move(folder)), files_(1) {
  int64_t bytes = 0;
  for (const FileTensor& tensor : tensors) {
    if (bytes + tensor.bytes() > most_bytes && !files_.back().empty()) {
      files_.emplace_back();
      bytes = 0;
    }
    bytes += tensor.bytes();
    files_.back().push_back(tensor);
  }
  open_next();
}

void ShardedSafetensorsWriter::open_next() {
  writer_ = std::make_unique<SafetensorsWriter>(folder_ / name_of_file(file_, files_.size()), files_[file_]);
}

void ShardedSafetensorsWriter::write(std::span<const float> values) {
  if (tensor_ == files_[file_].size() && file_ + 1 < files_.size()) {
    written_[name_of_file(file_, files_.size())] = writer_->commit();
    ++file_;
    tensor_ = 0;
    open_next();
  }
  writer_->write(values);
  ++tensor_;
}

FileChecksums ShardedSafetensorsWriter::commit() {
  check(file_ + 1 == files_.size(), "safetensors: {} of {} files were written", file_, files_.size());
  written_[name_of_file(file_, files_.size())] = writer_->commit();
  if (files_.size() == 1) return written_;
  nlohmann::ordered_json index{{"metadata", {{"total_size", int64_t{0}}}},
                               {"weight_map", nlohmann::ordered_json::object()}};
  int64_t bytes = 0;
  for (size_t file = 0; file < files_.size(); ++file)
    for (const FileTensor& tensor : files_[file]) {
      index["weight_map"][tensor.name] = name_of_file(file, files_.size());
      bytes += tensor.bytes();
    }
  index["metadata"]["total_size"] = bytes;
  const char* const name = "model.safetensors.index.json";
  written_[name] = write_json(folder_ / name, index);
  return written_;
}

}  // namespace tessera
