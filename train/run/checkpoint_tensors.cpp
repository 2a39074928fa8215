#include "train/run/checkpoint_tensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/formats/weights.h"
#include "train/run/checkpoint_files.h"

namespace tessera {
namespace {

bool is_adapter(const RunShape&, const ParamInfo& info) { return info.adapter != AdapterMatrix::kNone; }
bool is_weight(const RunShape& shape, const ParamInfo& info) { return !is_adapter(shape, info); }
bool is_trained(const RunShape& shape, const ParamInfo& info) {
  return shape.model.lora ? is_adapter(shape, info) : !shape.freeze.freezes(info);
}
// What has fp32 values beside the weights' file. With adapters the other weights are those of
// train.init_from.
bool has_master(const RunShape& shape, const ParamInfo& info) {
  return !shape.model.lora || is_adapter(shape, info);
}

int64_t bytes_of(TrainState& state, const SectionOfBucket& part, DType dtype) {
  const RunShape& shape = state.shape();
  int64_t bytes = 0;
  for (const ParamPlace& place : state.store().layout().places)
    if (place.bucket == part.bucket && part.section.has(shape, place.info))
      bytes += (place.info.shape.numel() - place.info.padding * shape.model.channels) *
               static_cast<int64_t>(size_of(dtype));
  return bytes;
}

// The files of some sections, none much larger than `most`
std::vector<TensorFile> split(TrainState& state, const std::string& stem, DType dtype,
                              const std::vector<Section>& sections, int64_t most) {
  std::vector<TensorFile> files(1);
  int64_t bytes = 0;
  for (const Section& section : sections)
    for (size_t b = 0; b < state.store().layout().buckets.size(); ++b) {
      const SectionOfBucket part{section, b};
      const int64_t own = bytes_of(state, part, dtype);
      if (own == 0) continue;
      if (bytes > 0 && bytes + own > most) files.emplace_back(), bytes = 0;
      files.back().parts.push_back(part);
      bytes += own;
    }
  for (size_t i = 0; i < files.size(); ++i)
    files[i].name = tensor_file_name(stem, i, files.size()), files[i].dtype = dtype;
  return files;
}

}  // namespace

std::vector<std::string> TensorFile::prefixes() const {
  std::vector<std::string> all;
  for (const auto& [section, bucket] : parts)
    if (all.empty() || all.back() != section.prefix) all.push_back(section.prefix);
  return all;
}

bool TensorFile::has(const RunShape& shape, const std::string& prefix, const ParamPlace& place) const {
  return std::ranges::any_of(parts, [&](const SectionOfBucket& part) {
    return part.section.prefix == prefix && part.bucket == place.bucket &&
           part.section.has(shape, place.info);
  });
}

std::vector<Section> optimizer_sections(const RunShape& shape, DType weights) {
  std::vector<Section> sections;
  if (weights != DType::kF32 || shape.model.lora) sections.push_back({kMasters, kMaster, has_master});
  for (const StateTensor& one : shape.rule.state())
    sections.push_back(
        {one.name + ".", one.name, [name = one.name](const RunShape& of, const ParamInfo& info) {
           return is_trained(of, info) && of.rule.keeps(name, info);
         }});
  return sections;
}

std::vector<TensorFile> tensor_files(TrainState& state, const CheckpointOptions& options) {
  const RunShape& shape = state.shape();
  // bf16 weights are already rounded, but for adapters to be added to them.
  const bool rounded =
      options.dtype == DType::kBF16 && state.store().dtype() == DType::kBF16 && !shape.model.lora;
  std::vector<TensorFile> files =
      split(state, kWeightsStem, options.dtype,
            {{.prefix = "", .values = rounded ? kWeight : kMaster, .has = is_weight}}, options.file_bytes);
  for (TensorFile& file : split(state, kOptimizerStem, DType::kF32, optimizer_sections(shape, options.dtype),
                                options.file_bytes))
    files.push_back(std::move(file));
  if (shape.model.lora && !options.any_values) {
    TensorFile adapter{.name = kAdapterFolder, .dtype = DType::kF32};
    for (size_t b = 0; b < state.store().layout().buckets.size(); ++b)
      adapter.parts.push_back({{.prefix = "", .values = kMaster, .has = is_adapter}, b});
    files.push_back(std::move(adapter));
  }
  const std::vector<int64_t> writers = options.disks.writers(shape.ranks());
  for (size_t i = 0; i < files.size(); ++i) files[i].rank = writers[i % writers.size()];
  return files;
}

int64_t bytes_of(TrainState& state, const std::vector<TensorFile>& files) {
  int64_t bytes = 0;
  for (const TensorFile& file : files)
    for (const SectionOfBucket& part : file.parts) bytes += bytes_of(state, part, file.dtype);
  return bytes;
}

nlohmann::ordered_json index_of(TrainState& state, const std::vector<TensorFile>& files, const char* stem) {
  nlohmann::ordered_json names = nlohmann::ordered_json::object();
  int64_t bytes = 0;
  for (const TensorFile& file : files) {
    if (!is_tensor_file(file.name, stem)) continue;
    for (const std::string& name : tensor_names(state.shape().model, file.prefixes(),
                                                [&](const std::string&prefix, const ParamPlace&place) {
                                                  return file.has(state.shape(), prefix, place);
                                                }))
      names[name] = file.name;
    for (const SectionOfBucket& part : file.parts) bytes += bytes_of(state, part, file.dtype);
  }
  return {{"metadata", {{"total_size", bytes}}}, {"weight_map", names}};
}

}  // namespace tessera
