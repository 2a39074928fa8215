#include "train/checkpoint.h"

#include <algorithm>
#include <vector>

#include "data/file.h"
#include "data/json_text.h"
#include "train/formats/gpt2.h"
#include "train/formats/weights.h"
#include "train/safetensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step_";
constexpr const char* kUnfinished = ".unfinished";

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
  const nlohmann::json j = read_json(path);
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

}  // namespace tessera
