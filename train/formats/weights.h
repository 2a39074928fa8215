// The weights of a folder: model.safetensors with Hugging Face's GPT-2 names and layouts, beside config.json.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>

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

// Takes the weights of a folder with model.safetensors and config.json: one of our checkpoints, or what
// transformers' save_pretrained() wrote for a GPT-2. With `interpolate_positions` the model may have more
// positions than the file: its table is stretched over them; where it need not be, nothing changes. Error:
// anything missing or malformed, or another model, with both sizes.
void load_weights(const std::filesystem::path& folder, TrainState& state, bool interpolate_positions = false);

}  // namespace tessera
