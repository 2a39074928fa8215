#include "train/checkpoint.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/file.h"
#include "train/safetensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kPrefix = "step_";
constexpr const char* kUnfinished = ".unfinished";

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

// What the names of its tensors begin with in the file
const char* prefix_of(Kept kept) {
  return kept == Kept::kFirstMoment ? "first_moment." : kept == Kept::kSecondMoment ? "second_moment." : "";
}

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

void write_params(TrainState& state, const fs::path& path, std::initializer_list<Kept> all) {
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
  file.commit();
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

void write_json(const fs::path& path, const ordered_json& value) { write_file(path, value.dump(2) + "\n"); }

ordered_json read_json(const fs::path& path) {
  std::ifstream file(path);
  check(file.good(),
        "{} cannot be read; a checkpoint has model.safetensors, config.json, optimizer.safetensors and "
        "state.json",
        path.string());
  try {
    return ordered_json::parse(file);
  } catch (const nlohmann::json::exception& error) {
    fail("{} is not valid JSON: {}", path.string(), error.what());
  }
}

// The fields of Hugging Face's GPT2Config; transformers' defaults serve for the rest.
ordered_json hugging_face_config(const ModelConfig& model) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", 1e-5},
          {"tie_word_embeddings", true},
          {"vocab_size", model.vocab_size},
          {"n_positions", model.context},
          {"n_ctx", model.context},
          {"n_embd", model.channels},
          {"n_layer", model.layers},
          {"n_head", model.heads},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0},
          // GPT-2's default ids lie beyond a small vocabulary
          {"bos_token_id", model.vocab_size - 1},
          {"eos_token_id", model.vocab_size - 1},
          {"torch_dtype", "float32"}};
}

// Returns the model's number of positions: wanted.context, or fewer if `may_be_shorter`.
int64_t check_same_model(const fs::path& folder, const ModelConfig& wanted, bool may_be_shorter = false) {
  const fs::path path = folder / "config.json";
  const ordered_json found = read_json(path);
  const auto number = [&](const char* key) {
    check(found.contains(key) && found[key].is_number_integer(),
          "{} has no whole number \"{}\": this is not a GPT-2", path.string(), key);
    return found[key].get<int64_t>();
  };
  const auto compare = [&](const char* key, int64_t want) {
    check(number(key) == want,
          "{} is of another model: its {} is {}, this configuration wants {}. Use the configuration it was "
          "made with, "
          "or start anew in another train.folder",
          folder.string(), key, number(key), want);
  };
  compare("vocab_size", wanted.vocab_size);
  const int64_t positions = number("n_positions");
  if (!may_be_shorter || positions > wanted.context || positions < 1) compare("n_positions", wanted.context);
  compare("n_layer", wanted.layers);
  compare("n_head", wanted.heads);
  compare("n_embd", wanted.channels);
  return positions;
}

std::vector<fs::path> checkpoints_in(const fs::path& folder) {  // oldest first: the names sort by step
  std::vector<fs::path> found;
  if (!fs::is_directory(folder)) return found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && name.starts_with(kPrefix) && !name.ends_with(kUnfinished))
      found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Also what runs left that were killed while they wrote.
void remove_unfinished(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().ends_with(kUnfinished)) found.push_back(entry.path());
  for (const fs::path& path : found) fs::remove_all(path);
}

}  // namespace

fs::path save_checkpoint(const fs::path& folder, TrainState& state, const RunState& s) {
  const fs::path final_path = folder / fmt::format("{}{:08}", kPrefix, s.step);
  const fs::path pending = final_path.string() + kUnfinished;
  if (state.rank() != 0) {  // its parts are wanted, in the order in which they are written
    for (const Kept kept : kAllKept) for_each_value(state, kept, [](const ParamInfo&, const Tensor&) {});
    return final_path;
  }
  try {
    fs::create_directories(folder);
    fs::remove_all(pending);
    fs::create_directory(pending);
    write_params(state, pending / "model.safetensors", {Kept::kMaster});
    write_params(state, pending / "optimizer.safetensors", {Kept::kFirstMoment, Kept::kSecondMoment});
    write_json(pending / "config.json", hugging_face_config(state.shape().model));
    write_json(pending / "state.json", {{"format", "tessera checkpoint 1"},
                                        {"step", s.step},
                                        {"data_position", s.data_position},
                                        {"seed", s.seed},
                                        {"micro_batch", s.micro_batch},
                                        {"sequence_length", s.sequence_length},
                                        {"ranks", s.ranks},
                                        {"device", s.device},
                                        {"data", s.data}});
    sync_folder(pending);
    // A run that was resumed may write the same step again; the old one goes only when the new one is in its
    // place.
    const fs::path replaced = final_path.string() + ".replaced" + kUnfinished;
    if (fs::exists(final_path)) fs::rename(final_path, replaced);
    fs::rename(pending, final_path);
    sync_folder(folder);
    remove_unfinished(folder);
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove_all(pending, ignored);
    fail("the checkpoint of step {} was not written: {}. Earlier checkpoints in {} are whole", s.step,
         error.what(), folder.string());
  }
  return final_path;
}

std::optional<fs::path> latest_checkpoint(const fs::path& folder) {
  const std::vector<fs::path> all = checkpoints_in(folder);
  if (all.empty()) return std::nullopt;
  return all.back();
}

void prune_checkpoints(const fs::path& folder, int64_t keep) {
  if (keep == 0) return;
  std::vector<fs::path> all = checkpoints_in(folder);
  for (size_t i = 0; i + static_cast<size_t>(keep) < all.size(); ++i) fs::remove_all(all[i]);
}

RunState read_state(const fs::path& checkpoint, const ModelConfig& model) {
  check_same_model(checkpoint, model);
  const fs::path path = checkpoint / "state.json";
  const ordered_json j = read_json(path);
  try {
    return {.step = j.at("step"),
            .data_position = j.at("data_position"),
            .seed = j.at("seed"),
            .micro_batch = j.at("micro_batch"),
            .sequence_length = j.at("sequence_length"),
            .ranks = j.value("ranks", int64_t{1}),
            .device = j.at("device"),
            .data = j.at("data")};
  } catch (const nlohmann::json::exception& error) {
    fail("{} is not the state of a run: {}", path.string(), error.what());
  }
}

void load_checkpoint(const fs::path& checkpoint, TrainState& state) {
  state.optimizer().clear(state.backend());  // what lies between parameters is in no file
  load_weights(checkpoint, state);
  const SafetensorsReader file(checkpoint / "optimizer.safetensors");
  for (const Kept kept : {Kept::kFirstMoment, Kept::kSecondMoment})
    for (const ParamPlace& place : state.optimizer().layout().places)
      read_param(file, place, prefix_of(kept) + place.info.name, state.writer(kept));
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
