#include "train/config/load_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>

#include "kernels/base/check.h"
#include "model/formats/folder.h"
#include "train/config/config_fields.h"
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
  check(in.good() || in.eof(), "{}: cannot be read: {}", file.string(), std::strerror(errno));
  return text;
}

std::string nearest_multiples(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return below > 0 ? fmt::format("the nearest are {} and {}", below, below + unit)
                   : fmt::format("the least is {}", unit);
}

std::string nearest_divisors(int64_t of, int64_t value) {
  int64_t below = std::min(value, of), above = value;
  while (of % below != 0) --below;
  if (value > of) return fmt::format("the nearest that does is {}", below);
  while (of % above != 0) ++above;
  return fmt::format("the nearest that do are {} and {}", below, above);
}

void set(Config& config, const Written& value) {
  for_each_field(config, [&](std::string_view key, auto& member, const auto& kind, std::string_view) {
    if (key == value.key) member = kind.read(value);
  });
}

std::string value_of(const Config& config, std::string_view wanted) {
  std::string out;
  for_each_field(config, [&](std::string_view key, const auto& member, const auto& kind, std::string_view) {
    if (key == wanted) out = kind.write(member);
  });
  return out;
}

class Reader {
 public:
  Config read(const fs::path& file, std::span<const std::string> overrides, bool resume) {
    read_file(file);
    for (const std::string& text : overrides) apply_override(text);
    const std::string& weights = config_.train.init_from;
    // A resumed run is compared with its checkpoint; the folder that it started from may no longer exist.
    if (!weights.empty() && !(resume && !fs::is_directory(weights))) take_model_of(weights, resume);
    check_across();
    if (config_.train.folder.empty()) config_.train.folder = "runs/" + file.stem().string();
    return config_;
  }

 private:
  void read_file(const fs::path& file);
  void read_map(const std::string& section, const YAML::Node& map, const YamlSource& source);
  void apply_override(const std::string& text);
  void take_model_of(const fs::path& weights, bool resume);

  void check_across() const;
  void require(bool holds, std::string_view a, std::string_view relation, std::string_view b,
               const std::string& advice = "") const;
  std::string cite(std::string_view key) const;

  // Where a key was set last. rank: 0 the default, 1 the file, 2 --set
  struct Place {
    int rank = 0;
    std::string where = "default";
  };
  Place place(std::string_view key) const {
    const auto found = places_.find(key);
    return found == places_.end() ? Place{} : found->second;
  }

  Config config_;
  std::map<std::string, Place, std::less<>> places_;  // of the keys that were set
};

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
    if (section.empty() && is_section(leaf)) {
      check(value.IsMap() || value.IsNull(),
            "{}: {} is a section, whose keys ({}) stand indented below it; found {}", found.where, leaf,
            fmt::join(keys_in(leaf), ", "), found.describe());
      if (value.IsMap()) read_map(leaf, value, source);
    } else if (is_key(key) && leaf.find('.') == std::string::npos) {
      set(config_, found);
      places_[key] = {1, found.where};
    } else if (is_key(leaf) && section.empty()) {
      const auto [parent, child] = split_key(leaf);
      fail("{}: in a file, {} is written as \"{}:\" and, indented below it, \"{}: ...\"", where,
           in_quotes(leaf), parent, child);
    } else {
      const bool meant_section = section.empty() && value.IsMap();
      fail("{}: {}", where, meant_section ? unknown_section(key) : unknown_key(key));
    }
  }
}

void Reader::apply_override(const std::string& text) {
  const YamlSource source{.name = "--set " + text, .has_lines = false};
  const size_t equals = text.find('=');
  check(equals != std::string::npos,
        "{}: no \"=\" found; write it as --set key=value, such as --set train.steps=100", source.name);
  const std::string key = text.substr(0, equals), value = text.substr(equals + 1);
  check(!is_section(key), "{}: {} is a section; set one of its keys: {}", source.name, key,
        fmt::join(keys_in(key), ", "));
  check(is_key(key), "{}: {}", source.name, unknown_key(key));
  // In YAML, a line break in a plain scalar is a space.
  check(value.find('\n') == std::string::npos,
        "{}: a line break in a value is written \\n within double quotes", source.name);
  Written found = written(key, parse_yaml(value, source), source);
  if (value.empty()) found.kind = Written::Kind::kQuoted;  // `key=` sets an empty text
  set(config_, found);
  places_[key] = {2, source.name};
}

// train.init_from sets the keys that describe the model; a key that was set has to agree with it. The
// position table may be extended.
void Reader::take_model_of(const fs::path& weights, bool resume) {
  const FoundModel found = [&] {
    try {
      return read_model_config(weights);
    } catch (const Error& error) {
      fail("{}: train.init_from: {}", place("train.init_from").where, error.what());
    }
  }();
  Config asked = config_;
  std::string where, differences, keys;
  for_each_model_key(found.model, [&](const char* key, const auto& member) {
    if (!is_key(key)) return;
    const std::string field = found.field_of(key);
    if (resume && place(key).rank > 0) return;
    const std::string source = fmt::format("{}: {}", (weights / "config.json").string(), field);
    set(config_, {.key = key, .where = source, .kind = Written::Kind::kPlain, .text = setting_of(member)});
    if (place(key).rank == 0) {
      places_[key] = {0, source};
      return;
    }
    // "auto", once model.channels is known
    if (asked.model.mlp_width == 0) asked.model.mlp_width = 4 * config_.model.channels;
    const std::string ours = value_of(asked, key), theirs = value_of(config_, key);
    if (ours == theirs) return;
    if (key == std::string_view("model.context") &&
        asked.model.position_extension != PositionExtension::kNone &&
        asked.model.context > config_.model.context) {
      config_.model.context = asked.model.context;
      return;
    }
    const bool is_first = where.empty();
    if (is_first) where = place(key).where;
    differences += fmt::format("{}{}{} is {}, and {} is {}", is_first ? "" : "; ", key,
                               is_first ? "" : " (" + place(key).where + ")", ours, field, theirs);
    keys += (is_first ? "" : ", ") + std::string(key);
  });
  if (keys.empty()) return;
  const char* advice =
      keys != "model.context" ? ""
      : asked.model.context > found.model.context
          ? " model.position_extension=interpolate (or repeat, or blend) extends the position table."
          : " For shorter sequences, set train.sequence_length: the position table is not shortened.";
  fail(
      "{}: {} in {}. train.init_from sets the model: remove {} from the configuration.{} The "
      "configuration finetune has none of these keys: ./train --config finetune.yaml --set "
      "train.init_from={}",
      where, differences, (weights / "config.json").string(), keys, advice, weights.string());
}

// "model.heads 12"
std::string Reader::cite(std::string_view key) const {
  return fmt::format("{} {}", key, value_of(config_, key));
}

// Fails with "where: a ... relation b ...", at the place of the key that was set last: by --set, else in the
// file.
void Reader::require(bool holds, std::string_view a, std::string_view relation, std::string_view b,
                     const std::string& advice) const {
  if (holds) return;
  const bool blame_b = place(b).rank > place(a).rank;
  const std::string other = fmt::format(" ({})", place(blame_b ? a : b).where);
  fail("{}: {}{} {} {}{}{}", place(blame_b ? b : a).where, cite(a), blame_b ? other : "", relation, cite(b),
       blame_b ? "" : other, advice.empty() ? "" : "; " + advice);
}

void Reader::check_across() const {
  const auto& model = config_.model;
  const auto& train = config_.train;
  const auto& optimizer = config_.optimizer;
  const int64_t T = config_.sequence_length();
  const std::string_view sequence = train.sequence_length > 0 ? "train.sequence_length" : "model.context";

  require(model.channels % model.heads == 0, "model.heads", "does not divide", "model.channels",
          nearest_divisors(model.channels, model.heads));
  require(T <= model.context, "train.sequence_length", "is more than", "model.context");
  require(train.tokens_per_step % T == 0, "train.tokens_per_step", "is not a multiple of", sequence,
          nearest_multiples(train.tokens_per_step, T));
  if (train.micro_batch > 0) {
    const int64_t tokens = T * train.micro_batch;
    require(train.tokens_per_step % tokens == 0, "train.tokens_per_step",
            fmt::format("is not a multiple of {} tokens x", T), "train.micro_batch",
            nearest_multiples(train.tokens_per_step, tokens));
  }
  require(optimizer.min_learning_rate <= optimizer.learning_rate, "optimizer.min_learning_rate",
          "is more than", "optimizer.learning_rate");
  const auto& checkpoint = config_.checkpoint;
  if (checkpoint.keep_every > 0)
    require(checkpoint.every > 0 && checkpoint.keep_every % checkpoint.every == 0, "checkpoint.keep_every",
            "is not a multiple of", "checkpoint.every",
            checkpoint.every > 0 ? nearest_multiples(checkpoint.keep_every, checkpoint.every)
                                 : "which writes one only at the end");
  if (checkpoint.keep_best)
    require(config_.evaluation.every > 0, "checkpoint.keep_best", "needs evaluations, but",
            "evaluation.every");
}

}  // namespace

Config load_config(const fs::path& file, std::span<const std::string> overrides, bool resume) {
  return Reader().read(file, overrides, resume);
}

}  // namespace tessera
