#include "model/formats/folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/hub_name.h"
#include "kernels/base/json_text.h"
#include "model/formats/family.h"
#include "model/formats/field_values.h"
#include "model/formats/known_fields.h"
#include "model/formats/rope_fields.h"
#include "model/formats/window_fields.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const Family& family_named(const std::string& type, const std::string& file) {
  if (const Family* family = find_family(type)) return *family;
  if (const Family* family = find_family_with_images(type)) return *family;
  std::string known;
  for (const Family* family : families()) {
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", family->name);
    if (family->with_images.name) known += fmt::format(", \"{}\"", family->with_images.name);
  }
  fail("{}: \"model_type\" must be one of {}, found {}", file, known, brief(json(type)));
}

// Which of both models' fields says whether the head is tied differs between releases of transformers.
constexpr const char* kTied = "tie_word_embeddings";
constexpr RefusedField kRefusedBesideText[] = {
    {kTied, "a model of texts and images with a head of its own is not supported", is_true}};

// The fields of the model of texts within one of texts and images
Fields fields_of_text(const Family& family, const Fields& config) {
  constexpr const char* kText = "text_config";
  const json* text = config.find_value(kText);
  check(text && text->is_object(), "{}: \"{}\" must be an object, the fields of the model of texts, found {}",
        config.file, kText, text ? brief(*text) : "nothing");
  const auto& harmless = family.with_images.harmless;
  refuse_unsupported(
      config,
      [&](std::string_view field) {
        return field == kText || is_harmless_in_all(field) ||
               std::ranges::find(harmless, field) != harmless.end();
      },
      kRefusedBesideText);
  Fields fields = config.within(kText, *text);
  const json* type = fields.find_value("model_type");
  check(!type || *type == json(family.name), "{}: \"{}\" must be \"{}\", found {}", config.file,
        fields.name_of("model_type"), family.name, type ? brief(*type) : "");
  const json* tied = fields.find_value(kTied);
  check(!tied || *tied == json(true), "{}: \"{}\" is {}: {}", config.file, fields.name_of(kTied),
        tied ? brief(*tied) : "", kRefusedBesideText[0].why);
  return fields;
}

// A number that 1 / sqrt(n) is, of a whole n
void read_inverse_root(const Fields& config, const char* field, const json& value, int64_t& n) {
  double root = 0;
  config.read(field, value, root);
  const double exact = 1 / (root * root);
  n = exact < 1e12 ? std::llround(exact) : 0;
  check(n > 0 && std::abs(1 / std::sqrt(static_cast<double>(n)) - root) <= 1e-7 * root,
        "{}: \"{}\" must be 1 / sqrt(n) of a whole number n, such as 0.125, found {}", config.file,
        config.name_of(field), brief(value));
}

void read_fields(const Family& family, const Fields& config, FoundModel& found) {
  for (const Field& field : family.fields) {
    if (!field.is_read) continue;
    found.fields[field.key] = config.name_of(field.name);
    const json* value = config.find(field.name, field.synonym);
    if (!value) continue;
    for_each_model_key(found.model, [&]<class T>(std::string_view key, T& member) {
      if (key != field.key) return;
      if constexpr (std::is_same_v<T, Mlp>) {
        config.read(field.name, *value, family.mlps, member);
      } else if constexpr (std::is_same_v<T, int64_t>) {
        if (field.inverse_root)
          read_inverse_root(config, field.name, *value, member);
        else if (value->is_null() && field.may_be_null)
          member = 0;
        else
          config.read(field.name, *value, member);
      } else if constexpr (requires { config.read(field.name, *value, member); }) {
        if (value->is_null() && field.may_be_null)
          member = T{};
        else
          config.read(field.name, *value, member);
      }
    });
  }
}

// A model of a family with sparse blocks of attention (model.sparse) has a model_type of its own, so that no
// other program takes it for one that sees all, and computes something else.
constexpr std::string_view kSparseType = "sparse_", kSparseField = "sparse_attention";

void read_sparse_field(const Fields& config, FoundModel& found) {
  const std::string text = text_value(config.object, std::string(kSparseField), config.file);
  try {
    found.model.sparse = read_sparse(text);
  } catch (const Error& error) {
    fail("{}: \"{}\": {}", config.file, kSparseField, error.what());
  }
  found.fields["model.sparse"] = config.name_of(kSparseField);
}

void read_biases(const Family& family, const Fields& config, FoundModel& found) {
  if (!family.biases) return;
  const auto read = [&](const char* name) {
    const json* value = name ? config.find_value(name) : nullptr;
    bool has_bias = false;
    if (value) config.read(name, *value, has_bias);
    return has_bias;
  };
  const bool attention = read(family.biases.attention), mlp = read(family.biases.mlp);
  if (attention || mlp) found.model.bias = !mlp ? Bias::kAttention : !attention ? Bias::kMlp : Bias::kAll;
  found.fields["model.bias"] =
      config.name_of(!attention && mlp ? family.biases.mlp : family.biases.attention);
}

void write_biases(const Family& family, const ModelConfig& model, nlohmann::ordered_json& config) {
  if (model.bias == family.defaults.bias) return;
  if (family.biases.attention) config[family.biases.attention] = model.has_out_bias();
  if (family.biases.mlp) config[family.biases.mlp] = model.has_mlp_bias();
}

// Where config.json lacks the field, transformers drops with the family's default.
void read_dropout(const Family& family, const Fields& config, FoundModel& found) {
  for (const auto& [name, key] : family.dropouts) {
    found.fields[key] = config.name_of(name);
    const json* value = config.find(name);
    const double probability = !value               ? family.default_dropout
                               : value->is_number() ? value->get<double>()
                                                    : NAN;
    check(probability >= 0 && probability < 1,
          "{}: \"{}\" must be a number of at least 0 and below 1, found {}", config.file,
          config.name_of(name), value ? brief(*value) : "");
    for_each_dropout_key(found.model.dropout, [&](std::string_view one, double& member) {
      if (one == key) member = probability;
    });
  }
}

// `ours`: of a run that starts from these weights
std::vector<std::string> notices_of_dropout(const fs::path& folder, const FoundModel& found,
                                            const DropoutConfig& ours) {
  std::string taken;
  for_each_dropout_key(found.model.dropout, [&](std::string_view key, double their) {
    for_each_dropout_key(ours, [&](std::string_view other, double our) {
      if (key != other || their == 0 || their != our) return;
      taken += fmt::format("{}{} {}", taken.empty() ? "" : ", ", found.field_of(key), their);
    });
  });
  if (taken.empty()) return {};
  return {fmt::format("{} has dropout ({}), which this run uses, too; --set model.dropout=0 trains without",
                      (folder / "config.json").string(), taken)};
}

// Rotary positions beyond those that a model was trained on
std::string notice_of_context(const fs::path& folder, const FoundModel& found, const ModelConfig& model) {
  const int64_t trained = found.model.context;
  if (model.positions != Positions::kRope || model.context <= trained) return "";
  const std::string what =
      fmt::format("model.context is {}, and the {} of {} is {}", model.context,
                  found.field_of("model.context"), (folder / "config.json").string(), trained);
  const Rope &theirs = found.model.rope, &ours = model.rope;
  const double factor = static_cast<double>(model.context) / static_cast<double>(trained);
  if (theirs.scaling == RopeScaling::kLongrope && ours.scaling == RopeScaling::kLongrope)
    return fmt::format(
        "{}: the model has not seen the angles of later positions, which model.rope.long_factors "
        "decide; leave them to the training",
        what);
  if (canonical(found.model).rope == canonical(model).rope ||
      (theirs.scaling == ours.scaling && theirs.factor == ours.factor && theirs.theta == ours.theta))
    return fmt::format(
        "{}: the model has not seen the angles of later positions. To keep them within what it knows, --set "
        "model.rope.scaling=yarn --set model.rope.factor={:.4g} (or linear); or raise "
        "model.rope.theta; or leave them to the training",
        what, factor * (theirs.scaling == RopeScaling::kNone ? 1 : theirs.factor));
  const double covered =
      ours.factor * static_cast<double>(ours.original_context > 0 ? ours.original_context : trained);
  if (ours.scaling == RopeScaling::kNone || ours.scaling == RopeScaling::kLongrope ||
      covered >= static_cast<double>(model.context))
    return "";
  return fmt::format("{}: model.rope.factor={} is meant for {:.6g} positions", what, ours.factor, covered);
}

// Heads are slices of the channels unless a head has a size of its own.
void check_divides(const Fields& config, const FoundModel& found) {
  const ModelConfig& model = found.model;
  check(model.head_dim > 0 || model.channels % model.heads == 0, "{}: {} is {}, which does not divide {} {}",
        config.file, found.field_of("model.heads"), model.heads, found.field_of("model.channels"),
        model.channels);
}

// Before anything is computed from them
void check_sizes(const Fields& config, const FoundModel& found) {
  const ModelConfig& model = found.model;
  for_each_model_key(model, [&]<class T>(std::string_view key, const T& value) {
    if constexpr (std::is_same_v<T, int64_t>)
      check(value <= most_of(key), "{}: {} is {}; expected at most {}", config.file, found.field_of(key),
            value, most_of(key));
  });
  check(model.heads <= kMostAttentionWidth / model.head_dim,
        "{}: {} is {} and {} is {}: heads wider than {} in all are not supported", config.file,
        found.field_of("model.heads"), model.heads, found.field_of("model.head_dim"), model.head_dim,
        kMostAttentionWidth);
}

const char* name_in_torch(NumberFormat weights) {
  switch (weights) {
    case NumberFormat::kF32:
      return "float32";
    case NumberFormat::kF16:
      return "float16";
    case NumberFormat::kBF16:
      return "bfloat16";
    case NumberFormat::kQ8:
    case NumberFormat::kMxfp4:
      break;
  }
  fail("transformers does not load weights in {}", name_of(weights));
}

}  // namespace

bool is_angle(std::string_view key) { return key.starts_with("model.rope.") && key != "model.rope.share"; }

std::string FoundModel::field_of(std::string_view key) const {
  const auto found = fields.find(key);
  return found == fields.end() ? "model_type" : found->second;
}

FoundModel read_model_config(const fs::path& folder, const std::vector<std::string>& ignored_fields) {
  const std::string path = folder.string();
  check(fs::is_directory(folder),
        "{} is not a folder; expected one with config.json and model.safetensors: a checkpoint, or a folder "
        "from transformers' save_pretrained(){}",
        path, fs::exists(folder) ? "" : hub_advice(path, HubFiles::kModel));
  if (!fs::exists(folder / "config.json")) {
    check(!fs::exists(folder / "adapter_config.json"),
          "{0} holds an adapter of PEFT and no model. Merge it into its model, and name the folder of that: "
          "python3 -c \"from peft import AutoPeftModelForCausalLM as M; "
          "M.from_pretrained('{0}').merge_and_unload().save_pretrained('{0}_merged')\". A checkpoint of "
          "Tessera's holds merged weights beside its folder adapter",
          path);
    const bool is_run = fs::is_directory(folder / "checkpoints");
    fail("{} has no config.json; expected {}", path,
         is_run ? fmt::format("one of the folders in {}", (folder / "checkpoints").string())
                : "a checkpoint, or a folder from transformers' save_pretrained()");
  }
  const fs::path file = folder / "config.json";
  const Fields whole{.object = read_json(file), .file = file.string(), .ignored = ignored_fields};
  const std::string written_type = text_value(whole.object, "model_type", whole.file);
  const bool sparse = written_type.starts_with(kSparseType);
  const std::string type = sparse ? written_type.substr(kSparseType.size()) : written_type;
  const Family& family = family_named(type, whole.file);
  const Fields config = type == family.name ? whole : fields_of_text(family, whole);
  refuse_unsupported(
      config,
      [&](std::string_view field) {
        return is_known_field(family, field) || (sparse && field == kSparseField);
      },
      family.refused);
  FoundModel found{.model = family.defaults, .family = family.name, .type = type, .fields = {}};
  if (sparse) read_sparse_field(config, found);
  read_fields(family, config, found);
  read_biases(family, config, found);
  check_divides(config, found);
  fill_computed(found.model);
  if (!found.model.has_dense_blocks()) found.model.mlp_width = found.model.experts.width;  // it has none
  check_sizes(config, found);
  read_dropout(family, config, found);
  const FoundWindows windows = read_windows(family, config, found.model.layers);
  found.model.window = windows.windows;
  if (windows.field) found.fields["model.window"] = config.name_of(windows.field);
  if (found.model.positions == Positions::kRope) {
    const FoundRope rope = read_rope(config, found.model, family);
    found.model.rope = rope.rope;
    for (const auto& [key, field] : rope.fields) found.fields[key] = field;
    found.notices.insert(found.notices.end(), rope.notices.begin(), rope.notices.end());
  }
  // As a configuration has them where they say nothing
  const ModelConfig simple = canonical(found.model);
  if (found.model.query_scalar == found.model.head_dim) found.model.query_scalar = 0;
  found.model.rope.local_theta = simple.rope.local_theta;
  return found;
}

const char* family_of(const ModelConfig& model) { return family_for(model).name; }

nlohmann::ordered_json hugging_face_config(const ModelConfig& model, NumberFormat weights) {
  const Family& family = family_for(model);
  nlohmann::ordered_json config = {{"architectures", {family.architecture}}, {"model_type", family.name}};
  if (!model.sparse.all_full()) {
    config["architectures"] = {fmt::format("Sparse{}", family.architecture)};
    config["model_type"] = fmt::format("{}{}", kSparseType, family.name);
    config[kSparseField] = text_of(model.sparse);
  }
  const ModelConfig written = canonical(model);
  for (const Field& field : family.fields)
    for_each_model_key(written, [&]<class T>(std::string_view key, const T& member) {
      if (key != field.key) return;
      if constexpr (std::is_same_v<T, Mlp>)
        config[field.name] = field_value(member, family.mlps);
      else if constexpr (std::is_same_v<T, int64_t>)
        config[field.name] = field.inverse_root ? json(1 / std::sqrt(static_cast<double>(member)))
                             : field.may_be_null && member == 0 ? json()
                                                                : field_value(member);
      else if constexpr (requires { field_value(member); })
        config[field.name] = field.may_be_null && member == T{} ? json() : field_value(member);
    });
  const char* const kLocal = "model.rope.local_theta";
  for (const Field& field : family.fields)
    if (std::string_view(field.key) == kLocal && written.rope.local_theta == 0 && !field.may_be_null)
      config[field.name] = written.rope.theta;  // as in other layers
  write_biases(family, model, config);
  write_windows(family, model, config);
  if (model.positions == Positions::kRope) write_rope(family, model, config);
  for (const DropoutField& field : family.dropouts)
    for_each_dropout_key(model.dropout, [&](std::string_view one, double probability) {
      if (one == field.key) config[field.name] = probability;
    });
  // transformers' default ids may be outside a small vocabulary
  config["bos_token_id"] = model.vocab_size - 1;
  config["eos_token_id"] = model.vocab_size - 1;
  if (family.pads) config["pad_token_id"] = nullptr;
  config["torch_dtype"] = name_in_torch(weights);
  return config;
}

nlohmann::ordered_json hugging_face_config(const ModelConfig& model, DType weights) {
  return hugging_face_config(model, number_format(weights));
}

FoundModel check_same_model(const fs::path& folder, const ModelConfig& model, const ModelMay& may) {
  FoundModel found = read_model_config(folder, may.options.ignored_fields);
  std::string differences;
  const ModelConfig theirs = canonical(found.model), ours = canonical(model);
  for_each_model_key_of(theirs, ours, [&](std::string_view key, const auto& their, const auto& our) {
    const bool extended = may.options.extension != PositionExtension::kNone && theirs.context < ours.context;
    const bool rotary = ours.positions == Positions::kRope;
    const bool any_context = ours.positions != Positions::kLearned;
    const bool may_differ = (key == "model.context" && (any_context || extended)) ||
                            (rotary && may.have_another_use && is_angle(key)) ||
                            (may.have_another_use && key == "model.sparse");
    if (their == our || may_differ) return;
    const std::string field = found.field_of(key);
    const bool by_type = field == "model_type";
    differences += fmt::format(
        "{}its {} is {}, and this configuration has {}={}", differences.empty() ? "" : "; ", field,
        by_type ? fmt::format("{} ({}={})", found.family, key, setting_of(their)) : setting_of(their), key,
        setting_of(our));
  });
  check(differences.empty(),
        "{} is of another model: {}. Use its own configuration (config.yaml in the folder of its run), or "
        "start a new run with another --set train.folder=NAME",
        folder.string(), differences);
  const std::vector<std::string> of_dropout = notices_of_dropout(folder, found, model.dropout);
  found.notices.insert(found.notices.begin(), of_dropout.begin(), of_dropout.end());
  if (const std::string notice = notice_of_context(folder, found, model); !notice.empty())
    found.notices.push_back(notice);
  return found;
}

std::string setting_of(int64_t value) { return fmt::format("{}", value); }
std::string setting_of(bool value) { return value ? "true" : "false"; }
std::string setting_of(float value) { return fmt::format("{}", value); }
std::string setting_of(double value) { return fmt::format("{}", value); }
std::string setting_of(const Windows& value) { return text_of(value); }
std::string setting_of(const SparseBlocks& value) { return text_of(value); }
std::string setting_of(const std::vector<int64_t>& values) {
  return values.empty() ? "none" : fmt::format("[{}]", fmt::join(values, ", "));
}
std::string setting_of(const std::vector<double>& values) {
  return values.empty() ? "none" : fmt::format("[{}]", fmt::join(values, ", "));
}

}  // namespace tessera
