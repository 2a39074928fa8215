#include "train/config/load_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>

#include "kernels/base/check.h"
#include "kernels/base/system_error.h"
#include "model/formats/folder.h"
#include "model/formats/peft.h"
#include "train/config/check_config.h"
#include "train/config/config_keys.h"
#include "train/config/config_yaml.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& file) {
  std::error_code error;  // ignored: opening the file reports it
  check(!fs::is_directory(file, error), "{}: this is a folder; name a YAML file in it", file.string());
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  std::string text(kMostYamlBytes + 1, '\0');  // bounded: /dev/zero has no end
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  check_system(in.good() || in.eof(), "{}: cannot be read: {}", file.string());
  return text;
}

class Reader {
 public:
  Config read(const fs::path& file, std::span<const std::string> overrides, bool resume) {
    read_file(file);
    for (const std::string& text : overrides) apply_override(text);
    take_epochs();
    take_preset();
    const std::string weights = sourced_.config.train.init_from;
    // A resumed run is compared with its checkpoint; the folder that it started from may no longer exist, but
    // for adapters, where a run whose configuration leaves the model to that folder needs it.
    const bool needed = sourced_.config.train.lora && !sourced_.is_set("model.layers");
    const bool named = !weights.empty() && weights != kRequired;
    if (named && (!resume || needed || fs::is_directory(weights))) {
      take_model_of(weights, resume);
      take_sequence_length(weights);
    }
    check_across(sourced_);
    Config config = sourced_.config;
    const char* const family = family_of(config.model.resolved());
    if (!config.model.sparse.all_full())
      config.notices.push_back(fmt::format(
          "no other program has model.sparse: checkpoints have the model_type sparse_{}, which other "
          "programs do not load",
          family));
    else if (family == std::string_view("tessera"))
      config.notices.push_back(
          "no family of transformers has a model with these parts: checkpoints have the model_type tessera, "
          "which other programs do not load");
    if (config.train.folder.empty()) config.train.folder = "runs/" + file.stem().string();
    return config;
  }

 private:
  void read_file(const fs::path& file);
  void read_map(const std::string& section, const YAML::Node& map, const YamlSource& source);
  void apply_override(const std::string& text);
  void set(const Written& value, Origin origin);
  void set_key(const Written& value, Origin origin);
  void take_epochs();
  void take_preset();
  void take_model_of(const fs::path& weights, bool resume);
  void take_sequence_length(const std::string& weights);
  void keep_original_context(const ModelConfig& found, const std::string& file);

  SourcedConfig sourced_;
  std::map<std::string, std::string, std::less<>> names_;  // of the keys that were set, as they were written
};

// A key may have its earlier name: two names of one key are refused, as neither wins.
void Reader::set_key(const Written& value, Origin origin) {
  Written named = value;
  named.key = present_name(value.key);
  named.text = present_value(named.key, value.text);
  const Place before = sourced_.place(named.key);
  std::string& name = names_[named.key];
  check(before.origin != origin || name == value.key,
        "{}: {} is given, and {} is the same key ({}): remove one of them", value.where, value.key, name,
        before.where);
  if (name.empty() && named.key != value.key)
    sourced_.config.notices.push_back(
        fmt::format("{}: {} is called {} now; a later version will refuse the old name", value.where,
                    value.key, named.key));
  if (named.text != value.text)
    sourced_.config.notices.push_back(
        fmt::format("{}: {}={} is written {} now; a later version will refuse the old word", value.where,
                    named.key, value.text, named.text));
  name = value.key;
  sourced_.set(named, origin);
}

// Sets a key, or all keys of a section that takes one value.
void Reader::set(const Written& value, Origin origin) {
  if (is_key(value.key)) return set_key(value, origin);
  for (const std::string_view key : keys_in(value.key)) {
    Written own = value;
    own.key = key;
    set_key(own, origin);
  }
}

void Reader::read_file(const fs::path& file) {
  const YamlSource source{file.string()};
  const YAML::Node root = parse_yaml(read_text(file), source);
  if (root.IsNull()) return;
  check(root.IsMap(), "{}: a configuration is a map of sections, such as \"model:\", found {}",
        source.at(root.Mark()), written("", root, source).describe());
  read_map("", root, source);
}

void Reader::read_map(const std::string& section, const YAML::Node& map, const YamlSource& source) {
  std::map<std::string, YAML::Mark> seen;
  for (const auto& entry : map) {
    const YAML::Node &name = entry.first, &value = entry.second;
    const std::string where = source.at(name.Mark());
    check(name.IsScalar(), "{}: a key is one word, found {}", where, written("", name, source).describe());
    const std::string& leaf = name.Scalar();
    const std::string key = section.empty() ? leaf : section + "." + leaf;
    const auto [first, is_new] = seen.emplace(leaf, name.Mark());
    check(is_new, "{}: {} is given twice; the first is at {}", where, in_quotes(key),
          source.at(first->second));

    const Written found = written(key, value, source);
    if (!is_key(key) && !is_section(key))
      fail("{}: {}", where, value.IsMap() ? unknown_section(key) : unknown_key(key));
    check(leaf.find('.') == std::string::npos, "{}: in a file, {} is written as {}", where, in_quotes(key),
          nested(key));
    const bool has_value = found.kind == Written::Kind::kPlain || found.kind == Written::Kind::kQuoted;
    if (is_key(key) || (takes_one_value(key) && has_value)) {
      set(found, Origin::kFile);
      continue;
    }
    check(value.IsMap() || value.IsNull(),
          "{}: {} is a section, whose keys ({}) stand indented below it{}; found {}", found.where, key,
          fmt::join(keys_in(key), ", "), takes_one_value(key) ? ", or takes one value for all" : "",
          found.describe());
    if (value.IsMap()) read_map(key, value, source);
  }
}

void Reader::apply_override(const std::string& text) {
  const YamlSource source{.name = "--set " + text, .has_lines = false};
  const size_t equals = text.find('=');
  check(equals != std::string::npos,
        "{}: no \"=\" found; write it as --set key=value, such as --set train.steps=100", source.name);
  const std::string key = text.substr(0, equals), value = text.substr(equals + 1);
  check(!is_section(key) || takes_one_value(key), "{}: {} is a section; set one of its keys: {}", source.name,
        key, fmt::join(keys_in(key), ", "));
  if (!is_key(key) && !is_section(key)) fail("{}: {}", source.name, unknown_key(key));
  // In YAML, a line break in a plain scalar is a space.
  check(value.find('\n') == std::string::npos,
        "{}: a line break in a value is written \\n within double quotes", source.name);
  Written found = written(key, parse_yaml(value, source), source);
  if (value.empty()) found.kind = Written::Kind::kQuoted;  // `key=` sets an empty text
  set(found, Origin::kOverride);
}

// train.epochs stands in place of train.steps, which has a default.
void Reader::take_epochs() {
  Config::Train& train = sourced_.config.train;
  if (train.epochs > 0 && !sourced_.is_set("train.steps")) train.steps = 0;
}

// Sets the keys of the model that nobody has set. A scaling of rotary positions is taken whole or not at all.
void Reader::take_preset() {
  const Preset preset = sourced_.config.model.preset;
  if (preset == Preset::kNone) return;
  Config published;
  published.model = Config::Model(preset_model(preset));
  if (sourced_.is_set("model.layers"))
    published.model.window = published.model.window.cut(sourced_.config.model.layers);
  if (sourced_.is_set("model.rope.scaling") &&
      sourced_.config.model.rope.scaling != published.model.rope.scaling) {
    const Rope rope = published.model.rope;
    published.model.rope = {.theta = rope.theta, .local_theta = rope.local_theta, .share = rope.share};
  }
  for_each_model_key(published.model, [&](const char* key, const auto&) {
    if (sourced_.is_set(key)) return;
    sourced_.set({.key = key,
                  .where = fmt::format("preset {}", name_of(preset)),
                  .kind = Written::Kind::kPlain,
                  .text = value_of(published, key)},
                 Origin::kPreset);
  });
}

// `asked` with auto as it is meant in a model of the size of `found`
Config without_auto(Config asked, const ModelConfig& found) {
  Config::Model sized = asked.model;
  sized.heads = found.heads;
  sized.channels = found.channels;
  const ModelConfig resolved = sized.resolved();
  asked.model.kv_heads = resolved.kv_heads;
  asked.model.head_dim = resolved.head_dim;
  asked.model.mlp_width = resolved.mlp_width;
  return asked;
}

// The differences between a configuration and the folder of train.init_from, as one message
struct Contradiction {
  std::string where, text, keys;

  // `theirs`: "n_layer is 12"
  void add(const Place& place, std::string_view key, const std::string& ours, const std::string& theirs) {
    const bool is_first = where.empty();
    if (is_first) where = place.where;
    text += fmt::format("{}{}{} is {}, and {}", is_first ? "" : "; ", key,
                        is_first ? "" : " (" + place.where + ")", ours, theirs);
    const std::string to_remove = place.origin == Origin::kPreset ? "model.preset" : std::string(key);
    if (keys != to_remove && !keys.ends_with(", " + to_remove)) keys += (is_first ? "" : ", ") + to_remove;
  }
};

// train.init_from sets the keys that describe the model; a key that was set has to agree with it. Learned
// positions may be extended; with rotary ones, the context and the angles are free. Sparse blocks, which have
// no weights, and dropout may be any.
void Reader::take_model_of(const fs::path& weights, bool resume) {
  const FoundModel found = [&] {
    try {
      return read_model_config(weights, sourced_.config.train.ignore_fields);
    } catch (const Error& error) {
      fail("{}: train.init_from: {}", sourced_.place("train.init_from").where, error.what());
    }
  }();
  // With all channels rotated a Phi-3 is a Llama whose files have layers joined.
  check(!sourced_.config.train.lora || has_layers_of_adapters(found.type, found.model),
        "{}: train.lora: the adapters' layers would be named as those of model_type {}, and {} has "
        "model_type {}. Rewrite it: ./export {} --format hf --output PATH, and set train.init_from=PATH",
        sourced_.place("train.lora.rank").where, family_of(found.model), weights.string(), found.type,
        weights.string());
  const std::string file = (weights / "config.json").string();
  const Config asked = without_auto(sourced_.config, found.model);
  Config theirs;  // as they are set, and as they are compared: without auto
  theirs.model = Config::Model(found.model);
  const Config theirs_resolved = without_auto(theirs, found.model);
  const bool rotary = found.model.positions == Positions::kRope;
  const int64_t context = asked.model.context;
  const bool has_own_scaling = sourced_.place("model.rope.scaling").origin >= Origin::kFile &&
                               asked.model.rope.scaling != found.model.rope.scaling;
  const auto take = [&](const char* key) {
    sourced_.set({.key = key,
                  .where = fmt::format("{}: {}", file, found.field_of(key)),
                  .kind = Written::Kind::kPlain,
                  .text = value_of(theirs, key)},
                 Origin::kDefault);
  };
  Contradiction contradiction;
  for_each_model_key(found.model, [&](const char* key, const auto&) {
    const Place place = sourced_.place(key);
    const std::string field = found.field_of(key);
    const bool is_context = key == std::string_view("model.context");
    const bool of_angles = rotary && is_angle(key);
    if (resume && place.origin != Origin::kDefault) return;
    if (of_angles && place.origin >= Origin::kFile) return;
    if (key == std::string_view("model.sparse") && place.origin >= Origin::kFile) return;
    // A scaling is taken whole or not at all.
    if (of_angles && place.origin == Origin::kDefault && has_own_scaling &&
        key != std::string_view("model.rope.theta") && key != std::string_view("model.rope.local_theta"))
      return;
    if (place.origin == Origin::kDefault || (is_context && rotary && place.origin == Origin::kPreset)) {
      return take(key);
    }
    const std::string ours = value_of(asked, key), given = value_of(theirs_resolved, key);
    const bool extended =
        asked.model.position_extension != PositionExtension::kNone && context > found.model.context;
    if (ours == given || (is_context && (rotary || extended))) return;
    const bool is_of_family = !found.fields.contains(key);
    contradiction.add(place, key, ours,
                      is_of_family ? fmt::format("model_type {} has {}", in_quotes(found.family), given)
                                   : fmt::format("{} is {}", field, given));
  });
  for_each_dropout_key(found.model.dropout, [&](const char* key, const auto&) {
    if (sourced_.place(key).origin == Origin::kDefault && found.fields.contains(key)) take(key);
  });
  if (!contradiction.keys.empty()) {
    const char* advice =
        contradiction.keys != "model.context" ? ""
        : context > found.model.context
            ? " model.position_extension=interpolate (or repeat, or blend) extends the position table."
            : " For shorter sequences, set train.sequence_length: the position table is not shortened.";
    fail(
        "{}: {} in {}. train.init_from sets the model: remove {} from the configuration.{} The "
        "configuration finetune has none of these keys: ./train --config finetune.yaml --set "
        "train.init_from={}",
        contradiction.where, contradiction.text, file, contradiction.keys, advice, weights.string());
  }
  keep_original_context(found.model, file);
}

// Models read more tokens than people train on at a time: where a step has no whole number of sequences of
// the folder's context, they have a usual length.
void Reader::take_sequence_length(const std::string& weights) {
  constexpr int64_t kUsual = 4096, kLeast = 128;
  const Config& config = sourced_.config;
  const int64_t context = config.model.context, tokens = config.train.tokens_per_step,
                sequences = std::max<int64_t>(config.train.micro_batch, 1);
  const bool is_open = config.train.sequence_length == 0 && config.train.context_schedule.empty() &&
                       sourced_.place("model.context").origin == Origin::kDefault;
  if (!is_open || tokens % (context * sequences) == 0 || tokens % sequences != 0) return;
  const int64_t length = longest_divisor(tokens / sequences, std::min(context, kUsual));
  if (length < kLeast) return;
  sourced_.set({.key = "train.sequence_length",
                .where = (fs::path(weights) / "config.json").string(),
                .kind = Written::Kind::kPlain,
                .text = fmt::format("{}", length)},
               Origin::kDefault);
  sourced_.config.notices.push_back(
      fmt::format("train.sequence_length is {}: the context of {}, {}, does not divide train.tokens_per_step "
                  "{}. --set train.sequence_length=N trains on others",
                  length, weights, context, tokens));
}

// An original context of auto is the folder's, whatever model.context is.
void Reader::keep_original_context(const ModelConfig& found, const std::string& file) {
  const Config::Model& model = sourced_.config.model;
  const bool uses_it = model.rope.scaling != RopeScaling::kNone && model.rope.scaling != RopeScaling::kLinear;
  const int64_t original = found.rope.original_context > 0 ? found.rope.original_context : found.context;
  if (!uses_it || model.rope.original_context > 0 || model.context == original) return;
  sourced_.set({.key = "model.rope.original_context",
                .where = file,
                .kind = Written::Kind::kPlain,
                .text = fmt::format("{}", original)},
               Origin::kDefault);
}

}  // namespace

Config load_config(const fs::path& file, std::span<const std::string> overrides, bool resume) {
  return Reader().read(file, overrides, resume);
}

}  // namespace tessera
