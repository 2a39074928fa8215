#include "model/formats/weights.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <regex>
#include <set>

#include "model/formats/gpt2.h"
#include "model/formats/tensor_files.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTableInFile = "transformer.wte.weight";
constexpr const char* kHeadInFile = "lm_head.weight";

// The shape in the file: without padding, and transposed where Hugging Face keeps the matrix as [in, out].
Shape file_shape(const ParamInfo& info) {
  if (gpt2_transposes(info)) return {info.shape[1], info.shape[0]};
  return info.shape.rank() == 2 ? Shape{info.shape[0] - info.padding, info.shape[1]} : info.shape;
}

void transpose(const float* from, int64_t rows, int64_t columns, float* to) {
#pragma omp parallel for
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) to[c * rows + r] = from[r * columns + c];
}

// A folder with exactly the weights of the wanted GPT-2
class GPT2Weights {
 public:
  GPT2Weights(const fs::path& folder, const ModelConfig& wanted, PositionExtension extension);

  void read(const ParamPlace& place, const ParamSink& sink) const;
  const std::vector<std::string>& notices() const { return found_.notices; }

 private:
  std::string name_in_file(const std::string& name) const;
  void refuse_left_over(const std::set<std::string>& wanted) const;
  void check_tied_head() const;
  void read_extended(const ParamPlace& place, const ParamSink& sink) const;

  fs::path folder_;
  PositionExtension extension_;
  FoundModel found_;
  TensorFiles files_;
  bool bare_;  // files of the bare GPT2Model lack the leading "transformer."
};

GPT2Weights::GPT2Weights(const fs::path& folder, const ModelConfig& wanted, PositionExtension extension)
    : folder_(folder),
      extension_(extension),
      found_(check_same_model(folder, wanted, extension)),
      files_(folder),
      bare_(!files_.contains(kTableInFile)) {
  std::set<std::string> names;
  for (const ParamPlace& place : ParamLayout(found_.model, 1).places) {
    const std::string name = name_in_file(gpt2_name(place.info));
    files_.file_of(name).check_readable(name, file_shape(place.info));
    names.insert(name);
  }
  refuse_left_over(names);
}

std::string GPT2Weights::name_in_file(const std::string& name) const {
  constexpr std::string_view kLead = "transformer.";
  return bare_ && name.starts_with(kLead) ? name.substr(kLead.size()) : name;
}

void GPT2Weights::refuse_left_over(const std::set<std::string>& wanted) const {
  // Older versions of transformers also save the causal mask and the score of masked positions.
  static const std::regex kMask(R"((transformer\.)?h\.\d+\.attn\.(bias|masked_bias))");
  constexpr size_t kNamed = 5;
  std::vector<std::string> left;
  for (const auto& [name, file] : files_.tensors()) {
    if (wanted.contains(name) || std::regex_match(name, kMask)) continue;
    if (name == kHeadInFile) {
      check_tied_head();
    } else {
      left.push_back(name);
    }
  }
  const size_t named = std::min(left.size(), kNamed);
  const std::string more = left.size() > named ? fmt::format(" and {} more", left.size() - named) : "";
  check(left.empty(),
        "{} has tensors that the GPT-2 of its config.json does not have: {}{}. They would be ignored, so the "
        "folder is refused",
        folder_.string(), fmt::join(left.begin(), left.begin() + static_cast<int64_t>(named), ", "), more);
}

// A file may hold both the token table and the matrix of the logits that is tied to it.
void GPT2Weights::check_tied_head() const {
  const std::string table_name = name_in_file(kTableInFile);
  const SafetensorsReader::Entry& head = files_.file_of(kHeadInFile).entries().at(kHeadInFile);
  const SafetensorsReader::Entry& table = files_.file_of(table_name).entries().at(table_name);
  check(head.dtype == table.dtype && head.shape == table.shape &&
            std::equal(head.bytes.begin(), head.bytes.end(), table.bytes.begin(), table.bytes.end()),
        "{}: {} and {} differ, but config.json ties them. If the logits have their own matrix, set "
        "\"tie_word_embeddings\": false in a copy of the folder's config.json",
        folder_.string(), kHeadInFile, table_name);
}

void GPT2Weights::read(const ParamPlace& place, const ParamSink& sink) const {
  if (place.info.name == kPositionTable && place.info.shape[0] > found_.model.context)
    return read_extended(place, sink);
  const std::string name = name_in_file(gpt2_name(place.info));
  read_param(files_.file_of(name), place, name, sink);
}

void GPT2Weights::read_extended(const ParamPlace& place, const ParamSink& sink) const {
  const int64_t rows = found_.model.context, C = place.info.shape[1];
  const std::string name = name_in_file(gpt2_name(place.info));
  Arena staging = Arena::host();
  const Tensor table = staging.alloc(MemoryTag::kData, "positions found", DType::kF32, {rows, C});
  const Tensor extended =
      staging.alloc(MemoryTag::kData, "positions extended", DType::kF32, place.info.shape);
  const std::span<float> values(table.as<float>(), static_cast<size_t>(table.numel()));
  files_.file_of(name).read(name, table.shape, values);
  extend_positions(extension_, values, C, {extended.as<float>(), static_cast<size_t>(extended.numel())});
  sink(place, extended);
}

std::vector<SafetensorsWriter::Entry> entries_of(const ParamLayout& layout,
                                                 const std::vector<std::string>& prefixes) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const std::string& prefix : prefixes)
    for (size_t b = 0; b < layout.buckets.size(); ++b)
      for (const ParamPlace& place : layout.places)
        if (place.bucket == b) entries.push_back({prefix + gpt2_name(place.info), file_shape(place.info)});
  return entries;
}

}  // namespace

WeightsWriter::WeightsWriter(const fs::path& path, const ParamLayout& layout,
                             const std::vector<std::string>& prefixes)
    : file_(path, entries_of(layout, prefixes)) {}

void WeightsWriter::write(const ParamInfo& info, const Tensor& values) {
  const auto count = static_cast<size_t>(file_shape(info).numel());
  if (!gpt2_transposes(info)) return file_.write({values.as<float>(), count});
  Arena staging = Arena::host();
  const Tensor turned = staging.alloc(MemoryTag::kData, info.name, DType::kF32, info.shape);
  transpose(values.as<float>(), info.shape[0], info.shape[1], turned.as<float>());
  file_.write({turned.as<float>(), count});
}

FileChecksum WeightsWriter::commit() { return file_.commit(); }

void read_param(const SafetensorsReader& file, const ParamPlace& place, const std::string& name,
                const ParamSink& sink) {
  const ParamInfo& info = place.info;
  Arena staging = Arena::host();
  const Tensor host = staging.alloc(MemoryTag::kData, info.name, DType::kF32, info.shape);
  const Shape shape = file_shape(info);
  float* values = host.as<float>();
  if (gpt2_transposes(info)) {
    const Tensor turned = staging.alloc(MemoryTag::kData, info.name, DType::kF32, info.shape);
    file.read(name, shape, {turned.as<float>(), static_cast<size_t>(shape.numel())});
    transpose(turned.as<float>(), shape[0], shape[1], values);
  } else {
    file.read(name, shape, {values, static_cast<size_t>(shape.numel())});
    std::fill(values + shape.numel(), values + info.shape.numel(), 0.0f);
  }
  sink(place, host);
}

std::vector<std::string> check_weights(const fs::path& folder, const ModelConfig& model,
                                       PositionExtension extension) {
  return GPT2Weights(folder, model, extension).notices();
}

void load_weights(const fs::path& folder, const ModelConfig& model, const ParamSink& sink,
                  PositionExtension extension) {
  const GPT2Weights weights(folder, model, extension);
  for (const ParamPlace& place : ParamLayout(model, 1).places) weights.read(place, sink);
}

}  // namespace tessera
