#include "train/formats/weights.h"

#include <algorithm>
#include <vector>

#include "train/formats/gpt2.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The shape in the file: without padding, and transposed where Hugging Face keeps the matrix as [in, out].
Shape file_shape(const ParamInfo& info) {
  if (info.conv1d) return {info.shape[1], info.shape[0]};
  return info.shape.rank() == 2 ? Shape{info.shape[0] - info.padding, info.shape[1]} : info.shape;
}

void transpose(const float* from, int64_t rows, int64_t columns, float* to) {
#pragma omp parallel for
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) to[c * rows + r] = from[r * columns + c];
}

// Stretches a table of `found` positions over those of `table`: ends meet ends, and what falls between two
// rows is their weighted mean. (Position interpolation, Chen et al., arXiv:2306.15595, for a table that was
// learned.)
void read_stretched_positions(const SafetensorsReader& file, const ParamPlace& place, const std::string& name,
                              int64_t found, const ParamSink& sink) {
  const int64_t wanted = place.info.shape[0], C = place.info.shape[1];
  Arena staging = Arena::host();
  const Tensor old = staging.alloc(MemoryTag::kData, "positions found", DType::kF32, {found, C});
  const Tensor stretched = staging.alloc(MemoryTag::kData, "positions stretched", DType::kF32, {wanted, C});
  file.read(name, old.shape, {old.as<float>(), static_cast<size_t>(old.numel())});
  const double step = static_cast<double>(found - 1) / static_cast<double>(wanted - 1);
  for (int64_t i = 0; i < wanted; ++i) {
    const double at = static_cast<double>(i) * step;
    const int64_t below = std::min(static_cast<int64_t>(at), found - 1),
                  above = std::min(below + 1, found - 1);
    const double share = at - static_cast<double>(below);
    for (int64_t c = 0; c < C; ++c)
      stretched.as<float>()[i * C + c] = static_cast<float>((1 - share) * old.as<float>()[below * C + c] +
                                                            share * old.as<float>()[above * C + c]);
  }
  sink(place, stretched);
}

}  // namespace

const char* prefix_of(Kept kept) {
  return kept == Kept::kFirstMoment ? "first_moment." : kept == Kept::kSecondMoment ? "second_moment." : "";
}

FileChecksum write_params(TrainState& state, const fs::path& path, std::initializer_list<Kept> all) {
  std::vector<SafetensorsWriter::Entry> entries;
  const ParamLayout& layout = state.optimizer().layout();
  for (const Kept kept : all)
    for (size_t b = 0; b < layout.buckets.size(); ++b)
      for (const ParamPlace& place : layout.places)
        if (place.bucket == b) entries.push_back({prefix_of(kept) + place.info.name, file_shape(place.info)});
  SafetensorsWriter file(path, std::move(entries));
  for (const Kept kept : all)
    for_each_value(state, kept, [&](const ParamInfo& info, const Tensor& tensor) {
      Arena staging = Arena::host();
      const Tensor host = staging.alloc(MemoryTag::kData, info.name, DType::kF32, info.shape);
      state.backend().copy(tensor, host);
      state.backend().synchronize();
      const float* values = host.as<float>();
      if (info.conv1d) {
        const Tensor turned = staging.alloc(MemoryTag::kData, info.name, DType::kF32, info.shape);
        transpose(values, info.shape[0], info.shape[1], turned.as<float>());
        values = turned.as<float>();
      }
      file.write({values, static_cast<size_t>(file_shape(info).numel())});
    });
  return file.commit();
}

void read_param(const SafetensorsReader& file, const ParamPlace& place, const std::string& name,
                const ParamSink& sink) {
  const ParamInfo& info = place.info;
  Arena staging = Arena::host();
  const Tensor host = staging.alloc(MemoryTag::kData, info.name, DType::kF32, info.shape);
  const Shape shape = file_shape(info);
  float* values = host.as<float>();
  if (info.conv1d) {
    const Tensor turned = staging.alloc(MemoryTag::kData, info.name, DType::kF32, info.shape);
    file.read(name, shape, {turned.as<float>(), static_cast<size_t>(shape.numel())});
    transpose(turned.as<float>(), shape[0], shape[1], values);
  } else {
    file.read(name, shape, {values, static_cast<size_t>(shape.numel())});
    std::fill(values + shape.numel(), values + info.shape.numel(), 0.0f);
  }
  sink(place, host);
}

void load_weights(const fs::path& folder, TrainState& state, bool interpolate_positions) {
  const ModelConfig& model = state.shape().model;
  check(fs::is_directory(folder), "{} is not a folder; wanted one with model.safetensors and config.json",
        folder.string());
  const int64_t positions = check_same_model(folder, model, true);
  check(
      positions == model.context || interpolate_positions,
      "{} has {} positions, this configuration wants {}. Set model.position_extension=interpolate to stretch "
      "its table, or model.context={}",
      folder.string(), positions, model.context, positions);
  const SafetensorsReader file(folder / "model.safetensors");
  // Files of the bare GPT2Model lack the leading "transformer."
  const std::string lead = "transformer.";
  const bool bare = !file.contains(lead + "wte.weight");
  for (const ParamPlace& place : state.optimizer().layout().places) {
    const std::string name = bare ? place.info.name.substr(lead.size()) : place.info.name;
    if (positions < model.context && place.info.name == kPositionTable) {
      read_stretched_positions(file, place, name, positions, state.writer(Kept::kMaster));
    } else {
      read_param(file, place, name, state.writer(Kept::kMaster));
    }
  }
}

}  // namespace tessera
