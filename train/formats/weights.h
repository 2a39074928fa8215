// The weights of a folder: model.safetensors with Hugging Face's GPT-2 names and layouts, beside config.json.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include "train/formats/positions.h"
#include "train/safetensors.h"
#include "train/train_state.h"

namespace tessera {

// What the names of its tensors begin with in the file
const char* prefix_of(Kept kept);

// Visits the parameters bucket by bucket, with their values on the device.
template <class Visit>
void for_each_value(TrainState& state, Kept kept, Visit&& visit) {
  const ParamLayout& layout = state.optimizer().layout();
  for (size_t b = 0; b < layout.buckets.size(); ++b)
    state.with_whole(kept, b, [&](const Tensor& bucket) {
      for (const ParamPlace& place : layout.places)
        if (place.bucket == b) visit(place.info, bucket.rows(place.first, place.info.shape.numel()));
    });
}

// Every parameter's values of each kind, in the order of the buckets. Error: a value that is not finite.
FileChecksum write_params(TrainState& state, const std::filesystem::path& path, std::initializer_list<Kept> all);

void read_param(const SafetensorsReader& file, const ParamPlace& place, const std::string& name,
                const ParamSink& sink);

// Whether `folder` holds the weights of `model`: config.json, and in model.safetensors (or the files that an
// index names) exactly the tensors of such a GPT-2, with or without the leading "transformer.". Only headers
// are read. It may have fewer positions where they are to be extended. Returns what a run should say: see
// FoundModel. Error: anything missing, malformed, left over, or of another model.
std::vector<std::string> check_weights(const std::filesystem::path& folder, const ModelConfig& model,
                                       PositionExtension extension);

// Takes the weights of a folder: one of our checkpoints, or what transformers' save_pretrained() wrote for a
// GPT-2. Error: as check_weights.
void load_weights(const std::filesystem::path& folder, TrainState& state,
                  PositionExtension extension = PositionExtension::kNone);

}  // namespace tessera
