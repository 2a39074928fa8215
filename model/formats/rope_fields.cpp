#include "model/formats/rope_fields.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "model/rope.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr const char *kTheta = "rope_theta", *kScaling = "rope_scaling", *kParameters = "rope_parameters";
constexpr const char* kShare = "partial_rotary_factor";
constexpr const char *kOfFull = "full_attention", *kOfWindows = "sliding_attention";
constexpr const char *kType = "rope_type", *kOldType = "type";
constexpr const char *kOriginalContext = "original_max_position_embeddings", *kFactor = "factor",
                     *kAttentionFactor = "attention_factor", *kShortFactors = "short_factor",
                     *kLongFactors = "long_factor", *kTruncate = "truncate";

struct NamedScaling {
  std::string_view type;
  RopeScaling scaling;
};
constexpr NamedScaling kScalings[] = {
    {"default", RopeScaling::kNone},      {"linear", RopeScaling::kLinear},
    {"llama3", RopeScaling::kLlama3},     {"yarn", RopeScaling::kYarn},
    {"longrope", RopeScaling::kLongrope}, {"su", RopeScaling::kLongrope}};  // its name in the first Phi-3

// A field of rope_scaling or rope_parameters: which scalings have it, and which must
struct ScalingField {
  const char* name;
  const char* key;
  std::array<RopeScaling, 3> of;
  std::array<RopeScaling, 3> needed_by;  // of these
};
constexpr RopeScaling kNone = RopeScaling::kNone, kLinear = RopeScaling::kLinear,
                      kLlama3 = RopeScaling::kLlama3, kYarn = RopeScaling::kYarn,
                      kLongrope = RopeScaling::kLongrope;
constexpr ScalingField kScalingFields[] = {
    {kFactor, "model.rope.factor", {kLinear, kLlama3, kYarn}, {kLinear, kLlama3, kYarn}},
    {kOriginalContext, "model.rope.original_context", {kLlama3, kYarn, kLongrope}, {}},
    {"low_freq_factor", "model.rope.low_frequency", {kLlama3}, {kLlama3}},
    {"high_freq_factor", "model.rope.high_frequency", {kLlama3}, {kLlama3}},
    {"beta_fast", "model.rope.beta_fast", {kYarn}, {}},
    {"beta_slow", "model.rope.beta_slow", {kYarn}, {}},
    {kTruncate, "model.rope.truncate", {kYarn}, {}},
    {kAttentionFactor, "model.rope.attention_factor", {kYarn, kLongrope}, {}},
    {kShortFactors, "model.rope.short_factors", {kLongrope}, {kLongrope}},
    {kLongFactors, "model.rope.long_factors", {kLongrope}, {kLongrope}},
};
constexpr std::array kWithContext{kLlama3, kYarn, kLongrope};
template <class T>
constexpr bool is_of_scaling =  // the kinds of these keys
    std::is_same_v<T, double> || std::is_same_v<T, int64_t> || std::is_same_v<T, bool> ||
    std::is_same_v<T, std::vector<double>>;
constexpr const char *kMscale = "mscale", *kMscaleAllDim = "mscale_all_dim";  // yarn: see read_mscale()

bool names(const std::array<RopeScaling, 3>& scalings, RopeScaling scaling) {
  return scaling != kNone && std::ranges::find(scalings, scaling) != scalings.end();
}

RopeScaling read_type(const Fields& fields, bool may_be_absent, std::span<const RopeScaling> scalings) {
  const json* type = fields.find_value(kType, kOldType);
  if (!type && may_be_absent) return kNone;
  check(type, "{}: \"{}\" is missing; it says how the angles are scaled", fields.file, fields.name_of(kType));
  std::string known;
  for (const auto& [word, scaling] : kScalings) {
    if (scaling != kNone && std::ranges::find(scalings, scaling) == scalings.end()) continue;
    if (*type == json(word)) return scaling;
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", word);
  }
  fail("{}: \"{}\" must be one of {}, found {}", fields.file, fields.name_of(kType), known, brief(*type));
}

// Fields that change no angle: the context that a model was trained on, beside a scaling without one, and a
// note of the first models with YaRN.
bool is_harmless_in_scaling(std::string_view field) {
  return field == kOriginalContext || field == "finetuned";
}

// Known and refused: factors for long and short texts, and positions in images
bool is_of_others(std::string_view field) {
  return field == "short_mscale" || field == "long_mscale" || field == "mrope_section";
}

bool is_known_in_scaling(std::string_view field) {
  return field == kType || field == kOldType || field == kTheta || field == kShare || field == kMscale ||
         field == kMscaleAllDim || is_of_others(field) || is_harmless_in_scaling(field) ||
         std::ranges::any_of(kScalingFields, [&](const ScalingField& one) { return field == one.name; });
}

void refuse_unsupported(const Fields& fields, RopeScaling scaling, bool has_share) {
  for (const auto& [field, value] : fields.object.items()) {
    if (value.is_null()) continue;
    if (!is_known_in_scaling(field)) {
      fields.check_ignored(field);
      continue;
    }
    fields.check_not_ignored(field);
    if (field == kType || field == kOldType || field == kTheta || is_harmless_in_scaling(field)) continue;
    if (scaling == kYarn && (field == kMscale || field == kMscaleAllDim)) continue;
    if (scaling == kLongrope && field == kFactor) continue;  // see read_attention_factor()
    const bool is_neutral = (field == kTruncate && value == json(true)) ||
                            (field == kShare && (has_share || value == json(1))) ||
                            (field == kFactor && scaling == kNone && value == json(1)) ||
                            (field == kAttentionFactor && value == json(1));
    const bool of_type = std::ranges::any_of(
        kScalingFields, [&](const ScalingField& one) { return field == one.name && names(one.of, scaling); });
    check(of_type || is_neutral, "{}: \"{}\" is {}, which is not supported with model.rope.scaling={}",
          fields.file, fields.name_of(field), brief(value), name_of(scaling));
  }
}

// Some models give the factor of cos and sin as a quotient (Peng et al., arXiv:2309.00071, equation 22, with
// other constants).
void read_mscale(const Fields& fields, Rope& rope) {
  double shares[2] = {0, 0};
  const char* const both[2] = {kMscale, kMscaleAllDim};
  for (int i = 0; i < 2; ++i) {
    const json* value = fields.find_value(both[i]);
    if (value && *value != json(0)) fields.read(both[i], *value, shares[i]);
  }
  if (shares[0] == 0 || shares[1] == 0 || rope.attention_factor > 0) return;
  const double growth = rope.factor > 1 ? 0.1 * std::log(rope.factor) : 0;
  rope.attention_factor = (shares[0] * growth + 1) / (shares[1] * growth + 1);
}

// longrope's, where the file does not name it. `context`: max_position_embeddings
void read_attention_factor(const Fields& fields, int64_t context, Rope& rope) {
  const auto original = static_cast<double>(rope.original_context);
  double factor = static_cast<double>(context) / original;
  if (const json* value = fields.find_value(kFactor)) fields.read(kFactor, *value, factor);
  if (rope.attention_factor == 0) rope.attention_factor = longrope_attention_factor(factor, original);
}

void check_ranges(const Fields& fields, const Rope& rope) {
  check(rope.scaling != kLlama3 || rope.low_frequency < rope.high_frequency,
        "{}: \"{}\" is {} and \"{}\" is {}; the second has to be larger", fields.file,
        fields.name_of("low_freq_factor"), rope.low_frequency, fields.name_of("high_freq_factor"),
        rope.high_frequency);
  check(rope.scaling != kYarn || rope.beta_slow < rope.beta_fast,
        "{}: \"{}\" is {} and \"{}\" is {}; the second has to be larger", fields.file,
        fields.name_of("beta_slow"), rope.beta_slow, fields.name_of("beta_fast"), rope.beta_fast);
  check(rope.scaling != kLongrope || rope.original_context > 1, "{}: \"{}\" must be at least 2, found {}",
        fields.file, kOriginalContext, rope.original_context);
}

// longrope divides each frequency by a number of its own.
void check_count(const Fields& fields, const char* field, const std::vector<double>& factors, int64_t pairs) {
  check(std::ssize(factors) == pairs,
        "{}: \"{}\" has {} numbers; expected {}, one for each pair of the channels that are rotated",
        fields.file, fields.name_of(field), factors.size(), pairs);
}

// The original context: within, or beside, where some releases of transformers look alone; or the family's
const json* find_original_context(const Fields& within, const Fields& beside, const json& of_family) {
  const json *inside = within.find_value(kOriginalContext), *outside = beside.find_value(kOriginalContext);
  if (!outside && !of_family.is_null()) outside = &of_family;
  check(!inside || !outside || *inside == *outside,
        "{}: {} is {} and {} is {}{}, but both name the same setting", beside.file,
        within.name_of(kOriginalContext), inside ? brief(*inside) : "", kOriginalContext,
        outside ? brief(*outside) : "", outside == &of_family ? " where it is absent" : "");
  return inside ? inside : outside;
}

struct ScalingReader {
  const Fields& beside;  // config.json itself
  int64_t context;
  bool may_lack_type;
  const Family& family;
};

// YaRN's, as transformers reads them: a factor of null is the quotient of both contexts, and a `truncate`
// of null is false. With angles by kind of layer it reads no `truncate`.
bool has_null(const Fields& fields, const char* field) {
  const json* value = fields.find(field);
  return value && value->is_null();
}
void check_truncate(const Fields& fields, const Family& family) {
  const json* value = fields.find_value(kTruncate);
  check(!value || *value == json(true) || !sets(family, "model.rope.local_theta"),
        "{}: \"{}\" is {}, which transformers does not read in a {}: expected true", fields.file,
        fields.name_of(kTruncate), value ? brief(*value) : "", family.title);
}

void read_scaling(const Fields& fields, const ScalingReader& how, Rope& read) {
  ModelConfig model{};  // its keys are those of the fields
  Rope& rope = model.rope;
  rope = read;
  rope.scaling = read_type(fields, how.may_lack_type, how.family.scalings);
  refuse_unsupported(fields, rope.scaling, sets(how.family, "model.rope.share"));
  const int64_t known_context = how.family.default_original_context;
  const json of_family = known_context > 0 ? json(known_context) : json();
  for (const ScalingField& field : kScalingFields) {
    const bool of_type = names(field.of, rope.scaling);
    const json* value = of_type && field.name == kOriginalContext
                            ? find_original_context(fields, how.beside, of_family)
                            : fields.find_value(field.name);
    const bool is_quotient = rope.scaling == kYarn && field.name == kFactor && has_null(fields, kFactor);
    check(value || is_quotient || !names(field.needed_by, rope.scaling), "{}: \"{}\" is missing; {} needs it",
          fields.file, fields.name_of(field.name), name_of(rope.scaling));
    if (!of_type) continue;
    for_each_model_key(model, [&]<class T>(std::string_view key, T& member) {
      if constexpr (is_of_scaling<T>)
        if (value && key == field.key) fields.read(field.name, *value, member);
    });
  }
  const bool needs_context = names(kWithContext, rope.scaling);
  if (needs_context && rope.original_context == 0) rope.original_context = how.context;
  check_ranges(fields, rope);
  if (rope.scaling == kYarn) {
    if (has_null(fields, kFactor))
      rope.factor = static_cast<double>(how.context) / static_cast<double>(rope.original_context);
    check_truncate(fields, how.family);
    if (has_null(fields, kTruncate) && !sets(how.family, "model.rope.local_theta")) rope.truncate = false;
    read_mscale(fields, rope);
  }
  if (rope.scaling == kLongrope) read_attention_factor(fields, how.context, rope);
  read = rope;
}

// A setting that is in the object of rotary positions, or beside it, as transformers 5 and 4 write it.
// Returns its name.
std::string read_either(const Fields& within, const Fields& beside, const char* field, double& value) {
  const json *inside = within.find_value(field), *outside = beside.find_value(field);
  check(!inside || !outside || *inside == *outside,
        "{}: {} is {} and {} is {}, but both name the same setting", beside.file, within.name_of(field),
        inside ? brief(*inside) : "", field, outside ? brief(*outside) : "");
  if (inside) within.read(field, *inside, value);
  if (outside) beside.read(field, *outside, value);
  return inside ? within.name_of(field) : beside.name_of(field);
}

// Some releases of transformers take the quotient of both contexts for YaRN's factor, 4.53 for one.
std::vector<std::string> notices_of_factor(const Fields& fields, int64_t context, const Rope& rope) {
  if (rope.scaling != kYarn || !fields.find_value(kOriginalContext)) return {};
  const double quotient = static_cast<double>(context) / static_cast<double>(rope.original_context);
  if (quotient == rope.factor) return {};
  return {
      fmt::format("{}: YaRN's factor is {}, as \"{}\" says; some releases of transformers use "
                  "max_position_embeddings / original_max_position_embeddings = {} instead",
                  fields.file, rope.factor, fields.name_of(kFactor), quotient)};
}

// The part of rope_parameters that layers with a window have
void read_local(const Fields& config, const json& parameters, const std::string& name, FoundRope& found) {
  const auto local = parameters.find(kOfWindows);
  if (local == parameters.end()) return;
  check(local->is_object(), "{}: \"{}.{}\" must be an object, found {}", config.file, name, kOfWindows,
        brief(*local));
  const Fields fields = config.within(name + "." + kOfWindows, *local);
  const RopeScaling scaling = read_type(fields, /*may_be_absent=*/true, /*scalings=*/{});
  refuse_unsupported(fields, scaling, /*has_share=*/false);
  if (const json* theta = fields.find_value(kTheta)) fields.read(kTheta, *theta, found.rope.local_theta);
  found.fields.push_back({"model.rope.local_theta", fields.name_of(kTheta)});
}

void read_share(const Fields& fields, const Fields& config, const ModelConfig& model, FoundRope& found) {
  const std::string share = read_either(fields, config, kShare, found.rope.share);
  ModelConfig rotated = model;
  rotated.rope.share = found.rope.share;
  const int64_t channels = found.rope.share <= 1 ? rotated.rotated_channels() : 0;
  check(channels >= 2 && channels % 2 == 0,
        "{}: \"{}\" is {}, which rotates {} of a head's {} channels; expected at most 1, and an even number "
        "of them",
        config.file, share, found.rope.share, found.rope.share * static_cast<double>(model.head_dim),
        model.head_dim);
  found.fields.push_back({"model.rope.share", share});
}

}  // namespace

bool is_rope_field(std::string_view field) {
  return field == kTheta || field == kScaling || field == kParameters || field == kOriginalContext;
}

FoundRope read_rope(const Fields& config, const ModelConfig& model, const Family& family) {
  const bool has_share = sets(family, "model.rope.share"), has_local = sets(family, "model.rope.local_theta");
  FoundRope found;
  const json *parameters = config.find_value(kParameters), *scaling = config.find_value(kScaling);
  check(!parameters || !scaling || *parameters == *scaling,
        "{}: {} and {} are both there and differ. Remove one of them from a copy of the folder", config.file,
        kParameters, kScaling);
  std::string name = config.name_of(parameters ? kParameters : kScaling);
  const json* object = parameters ? parameters : scaling;
  found.rope = object ? Rope{} : family.defaults.rope;
  found.rope.theta = model.rope.theta, found.rope.local_theta = model.rope.local_theta;
  if (has_local && object && object->contains(kOfFull)) {
    read_local(config, *object, name, found);
    name += std::string(".") + kOfFull;
    object = &(*object)[kOfFull];
  }
  check(!object || object->is_object(), "{}: \"{}\" must be an object, found {}", config.file, name,
        object ? brief(*object) : "");
  const Fields fields = config.within(name, object ? *object : json::object());

  const std::string theta = read_either(fields, config, kTheta, found.rope.theta);
  check(found.rope.theta > 1, "{}: \"{}\" must be a number above 1, found {}", config.file, kTheta,
        found.rope.theta);
  if (object)
    read_scaling(fields,
                 {.beside = config,
                  .context = model.context,
                  .may_lack_type = parameters != nullptr,
                  .family = family},
                 found.rope);
  found.notices = notices_of_factor(fields, model.context, found.rope);
  if (has_share) read_share(fields, config, model, found);
  if (found.rope.scaling == kLongrope) {
    ModelConfig rotated = model;
    rotated.rope.share = found.rope.share;
    check_count(fields, kShortFactors, found.rope.short_factors, rotated.rotated_channels() / 2);
    check_count(fields, kLongFactors, found.rope.long_factors, rotated.rotated_channels() / 2);
  }

  found.fields.push_back({"model.rope.theta", theta});
  found.fields.push_back({"model.rope.scaling", object ? fields.name_of(kType) : name});
  for (const ScalingField& field : kScalingFields)
    found.fields.push_back({field.key, object ? fields.name_of(field.name) : name});
  return found;
}

void write_rope(const Family& family, const ModelConfig& model, nlohmann::ordered_json& config) {
  const ModelConfig written = canonical(model);  // with the context that the angles depend on
  const RopeScaling scaling = written.rope.scaling;
  config[kTheta] = written.rope.theta;
  if (scaling == kNone && family.defaults.rope.scaling == kNone) return;
  nlohmann::ordered_json object;
  const auto named = std::ranges::find(kScalings, scaling, &NamedScaling::scaling);
  object[scaling == kLongrope ? kOldType : kType] = named->type;
  for (const ScalingField& field : kScalingFields)
    for_each_model_key(written, [&]<class T>(std::string_view key, const T& member) {
      if constexpr (is_of_scaling<T>)
        if (names(field.of, scaling) && key == field.key) object[field.name] = field_value(member);
    });
  if (written.rope.truncate) object.erase(kTruncate);  // as where it is absent
  ModelConfig computed = written;
  computed.rope.attention_factor = 0;
  const bool is_computed =
      object.contains(kAttentionFactor) && rope_attention_factor(computed) == written.rope.attention_factor;
  if (is_computed) object.erase(kAttentionFactor);  // as where it is absent
  if (scaling == kLongrope) {  // as Phi-3 has it: transformers 4 accepts no other fields within
    config[kOriginalContext] = written.rope.original_context;
    object.erase(kOriginalContext);
  }
  config[kScaling] = object;
}

}  // namespace tessera
