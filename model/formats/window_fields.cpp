#include "model/formats/window_fields.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr const char *kWindow = "sliding_window", *kUsed = "use_sliding_window",
                     *kFirst = "max_window_layers", *kTypes = "layer_types";
// Gemma 3's: all but every so many-th layer have a window
constexpr const char *kPattern = "sliding_window_pattern", *kOldPattern = "_sliding_window_pattern";
constexpr int64_t kPatternOfGemma3 = 6;
constexpr const char *kFullLayer = "full_attention", *kWindowLayer = "sliding_attention";

// What transformers has where Qwen's fields are absent
constexpr int64_t kWindowOfQwen = 4096, kFirstOfQwen = 28;

// Which layers have a window, as layer_types says
std::vector<bool> read_types(const Fields& config, const json& types, int64_t layers) {
  check(types.is_array() && std::ssize(types) == layers,
        "{}: \"{}\" must be a list of {} layers, as many as the model has, found {}", config.file, kTypes,
        layers, types.is_array() ? fmt::format("{}", types.size()) : brief(types));
  std::vector<bool> have(static_cast<size_t>(layers));
  for (size_t l = 0; l < have.size(); ++l) {
    have[l] = types[l] == json(kWindowLayer);
    check(have[l] || types[l] == json(kFullLayer),
          "{}: \"{}\" of layer {} must be \"{}\" or \"{}\", found {}", config.file, kTypes, l, kFullLayer,
          kWindowLayer, brief(types[l]));
  }
  return have;
}

int64_t read_or(const Fields& config, const char* field, int64_t absent, int64_t null) {
  const json* value = config.find(field);
  if (!value) return absent;
  if (value->is_null()) return null;
  int64_t number = 0;
  if (*value == json(0)) return number;  // read() takes numbers from 1 on
  config.read(field, *value, number);
  return number;
}

int64_t read_window(const Fields& config, int64_t absent) {
  const int64_t window = read_or(config, kWindow, absent, Windows::kFull);
  const json* value = config.find(kWindow);
  check(window > 0 || !value || value->is_null(),
        "{}: \"{}\" is 0; expected the number of tokens that a token sees, or null for all", config.file,
        kWindow);
  return window;
}

// As transformers: without use_sliding_window there is no window.
Windows windows_by_layer(const Fields& config, int64_t layers) {
  bool used = false;
  if (const json* value = config.find_value(kUsed)) config.read(kUsed, *value, used);
  const int64_t window = used ? read_window(config, kWindowOfQwen) : Windows::kFull;
  check(window == Windows::kFull || layers <= Windows::kMostBlocks,
        "{}: a model with windows must have at most {} layers, found {}", config.file, Windows::kMostBlocks,
        layers);
  const json* types = config.find_value(kTypes);
  if (!types) {
    const int64_t first = read_or(config, kFirst, kFirstOfQwen, kFirstOfQwen);
    if (window == Windows::kFull || first >= layers) return {};
    if (first == 0) return Windows(window);
    return Windows(
        {{.window = Windows::kFull, .blocks = first}, {.window = window, .blocks = layers - first}});
  }
  std::vector<int64_t> windows;
  for (const bool has : read_types(config, *types, layers)) {
    check(
        !has || window != Windows::kFull,
        "{}: \"{}\" has layers of \"{}\", and \"{}\" with \"{}\": true, which says how many tokens they see, "
        "is missing",
        config.file, kTypes, kWindowLayer, kWindow, kUsed);
    windows.push_back(has ? window : Windows::kFull);
  }
  return Windows::of_blocks(windows);
}

Windows windows_by_pattern(const Family& family, const Fields& config, int64_t layers) {
  const int64_t window = read_window(config, family.default_window);
  std::vector<int64_t> windows;
  if (const json* types = config.find_value(kTypes)) {
    for (const bool has : read_types(config, *types, layers))
      windows.push_back(has ? window : Windows::kFull);
    return Windows::of_blocks(windows);
  }
  const bool in_turn = family.windows == WindowFields::kInTurn;
  int64_t every = in_turn ? 2 : kPatternOfGemma3;
  const json* value = in_turn ? nullptr : config.find_value(kPattern, kOldPattern);
  if (value) config.read(kPattern, *value, every);
  if (every == 1) return {};
  if (every > layers) return Windows(window);  // the pattern ends with the model
  return Windows({{.window = window, .blocks = every - 1}, {.window = Windows::kFull}});
}

}  // namespace

bool is_window_field(const Family& family, std::string_view field) {
  switch (family.windows) {
    case WindowFields::kNone:
      return false;
    case WindowFields::kAllLayers:
      return field == kWindow;
    case WindowFields::kByLayer:
      return field == kWindow || field == kUsed || field == kFirst || field == kTypes;
    case WindowFields::kByPattern:
      return field == kWindow || field == kPattern || field == kOldPattern || field == kTypes;
    case WindowFields::kInTurn:
      return field == kWindow || field == kTypes;
  }
  return false;
}

FoundWindows read_windows(const Family& family, const Fields& config, int64_t layers) {
  switch (family.windows) {
    case WindowFields::kNone:
      return {};
    case WindowFields::kAllLayers:
      return {.windows = Windows(read_window(config, family.default_window)), .field = kWindow};
    case WindowFields::kByLayer:
    case WindowFields::kByPattern:
    case WindowFields::kInTurn:
      break;
  }
  const bool by_layer = family.windows == WindowFields::kByLayer;
  return {.windows = by_layer ? windows_by_layer(config, layers) : windows_by_pattern(family, config, layers),
          .field = config.find_value(kTypes) ? kTypes : kWindow};
}

bool knows_windows(const Family& family, const Windows& windows) {
  switch (family.windows) {
    case WindowFields::kNone:
      return windows.all_full();
    case WindowFields::kAllLayers:
      return windows.all_equal();
    case WindowFields::kByLayer:
    case WindowFields::kByPattern:
    case WindowFields::kInTurn:
      break;
  }
  const std::vector<Windows::Run> counts = windows.counts(windows.pattern_blocks());
  return std::ranges::count_if(counts, [](const Windows::Run& run) { return run.window != Windows::kFull; }) <
         2;
}

void write_windows(const Family& family, const ModelConfig& model, nlohmann::ordered_json& config) {
  const auto window_of = [&](int64_t layer) { return model.window.at(static_cast<size_t>(layer)); };
  if (family.windows == WindowFields::kAllLayers) {
    if (model.window.all_full())
      config[kWindow] = nullptr;  // absent, it would be the family's default
    else
      config[kWindow] = window_of(0);
  }
  const bool by_pattern =
      family.windows == WindowFields::kByPattern || family.windows == WindowFields::kInTurn;
  if (!by_pattern && (family.windows != WindowFields::kByLayer || model.window.all_full())) return;
  int64_t first = model.layers;  // all layers from it on have a window
  while (first > 0 && window_of(first - 1) != Windows::kFull) --first;
  std::vector<const char*> types;
  int64_t window = Windows::kFull;
  for (int64_t l = 0; l < model.layers; ++l) {
    const bool has = window_of(l) != Windows::kFull;
    types.push_back(has ? kWindowLayer : kFullLayer);
    if (has) window = window_of(l);
  }
  config[kTypes] = types;
  config[kWindow] = window == Windows::kFull ? family.default_window : window;
  if (by_pattern) return;
  config[kUsed] = true;
  config[kFirst] = first;
}

}  // namespace tessera
