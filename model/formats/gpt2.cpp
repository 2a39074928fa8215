#include "model/formats/gpt2.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct NamedMlp {
  std::string_view field;
  Mlp mlp;
};
constexpr std::array kMlpNames = {  // the first of each is written
    NamedMlp{"gelu_new", Mlp::kGelu}, NamedMlp{"gelu_pytorch_tanh", Mlp::kGelu},
    NamedMlp{"gelu", Mlp::kGeluExact}, NamedMlp{"relu", Mlp::kRelu}};

// transformers accepts both names; the second is that of other models.
constexpr std::array kSynonyms = {
    std::pair{"n_positions", "max_position_embeddings"}, std::pair{"n_layer", "num_hidden_layers"},
    std::pair{"n_head", "num_attention_heads"}, std::pair{"n_embd", "hidden_size"}};

constexpr int64_t kMost = 1'000'000'000;  // a configuration's limits are narrower
constexpr std::array kDropouts = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};
constexpr double kDefaultDropout = 0.1;  // where a config.json names none

// Fields that do not change a GPT-2's logits, losses or gradients in fp32: names, text generation, heads of
// other tasks (their tensors are refused), execution options of transformers. reorder_and_upcast_attn
// computes the scores in fp32, which Tessera always does. initializer_range is unused when training starts
// from weights.
// clang-format off
constexpr std::string_view kHarmless[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
    "_commit_hash", "_flash_attn_2_enabled", "_name_or_path", "_num_labels", "architectures",
    "attn_implementation", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size",
    "eos_token_id", "eos_token_ids", "exponential_decay_length_penalty", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing", "id2label",
    "initializer_range", "is_decoder", "label2id", "length_penalty", "max_length", "min_length",
    "model_type", "n_ctx", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_past", "output_scores",
    "pad_token_id", "predict_special_tokens", "prefix", "problem_type", "remove_invalid_values",
    "reorder_and_upcast_attn", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "sep_token_id", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_proj_to_logits", "summary_type", "summary_use_proj", "suppress_tokens",
    "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class",
    "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p", "use_bfloat16",
    "use_cache"};
// clang-format on

// Fields that change the model unless they are empty, false or null
struct Refused {
  std::string_view field, why;
};
constexpr Refused kRefused[] = {
    {"add_cross_attention", "cross attention to an encoder is not supported"},
    {"auto_map", "a model with its own code is not supported"},
    {"is_encoder_decoder", "an encoder with a decoder is not supported"},
    {"pruned_heads", "pruned attention heads are not supported"},
    {"quantization_config",
     "quantized weights are not supported; save the model in float32, float16 or bfloat16"}};

bool says_nothing(const json& value) {
  return value.is_null() || value == json(false) ||
         ((value.is_object() || value.is_array()) && value.empty());
}

// One config.json
struct Fields {
  json fields;
  std::string name;  // of the file

  // The value of a field or of its synonym; null: use the default of transformers.
  const json* find(std::string_view field) const {
    const auto own = fields.find(field);
    const json* found = own == fields.end() ? nullptr : &*own;
    for (const auto& [known, synonym] : kSynonyms) {
      if (field != known || !fields.contains(synonym)) continue;
      const json& other = fields[synonym];
      check(!found || *found == other, "{}: {} is {} and {} is {}, but both name the same setting", name,
            known, brief(found ? *found : other), synonym, brief(other));
      found = &other;
    }
    return found;
  }
  void read(const char* field, int64_t& out) const {
    if (const json* value = find(field))
      out = whole_number(json::object({{field, *value}}), field, name, 1, kMost);
  }
  void read(const char* field, bool& out) const {
    const json* value = find(field);
    if (!value) return;
    check(value->is_boolean(), "{}: \"{}\" wants true or false, found {}", name, field, brief(*value));
    out = value->get<bool>();
  }
  void read(const char* field, float& out) const {
    const json* value = find(field);
    if (!value) return;
    check(value->is_number() && value->get<double>() > 0 && value->get<double>() <= 1,
          "{}: \"{}\" wants a number above 0 and at most 1, found {}", name, field, brief(*value));
    out = static_cast<float>(value->get<double>());
  }
  void read(const char* field, Mlp& out) const {
    const json* value = find(field);
    if (!value) return;
    std::string known;
    for (const auto& [spelled, mlp] : kMlpNames) {
      if (*value == json(spelled)) {
        out = mlp;
        return;
      }
      known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", spelled);
    }
    fail("{}: \"{}\" is {}; supported: {}", name, field, brief(*value), known);
  }
  void refuse_unsupported(const ModelConfig& known) const;
  std::vector<std::string> dropout() const;
};

void Fields::refuse_unsupported(const ModelConfig& model) const {
  for (const auto& [field, value] : fields.items()) {
    if (value.is_null() ||
        std::find(std::begin(kHarmless), std::end(kHarmless), field) != std::end(kHarmless))
      continue;
    const auto refused = std::find_if(std::begin(kRefused), std::end(kRefused),
                                      [&](const Refused& r) { return r.field == field; });
    if (refused != std::end(kRefused)) {
      check(says_nothing(value), "{}: \"{}\" is {}: {}", name, field, brief(value), refused->why);
      continue;
    }
    bool known = std::find(kDropouts.begin(), kDropouts.end(), field) != kDropouts.end();
    for_each_gpt2_field(model,
                        [&](const char* ours, const char*, const auto&) { known = known || field == ours; });
    for (const auto& [ours, synonym] : kSynonyms) known = known || field == synonym;
    check(
        known,
        "{}: the field {} is unknown and may change the model. If it does not, remove it from a copy of the "
        "folder",
        name, brief(json(field)));
  }
}

std::vector<std::string> Fields::dropout() const {
  std::string asked;
  for (const char* field : kDropouts) {
    const json* value = find(field);
    check(!value || value->is_number(), "{}: \"{}\" wants a number, found {}", name, field,
          value ? brief(*value) : "");
    const double share = value ? value->get<double>() : kDefaultDropout;
    if (share != 0) asked += fmt::format("{}{} {}", asked.empty() ? "" : ", ", field, share);
  }
  if (asked.empty()) return {};
  return {fmt::format("{} has dropout ({}); Tessera trains without dropout", name, asked)};
}

json field_value(int64_t value) { return value; }
json field_value(bool value) { return value; }
json field_value(float value) {  // the shortest that reads back to the same float: 1e-05, not 9.999999747e-06
  return json::parse(fmt::format("{}", value));
}
json field_value(Mlp value) {
  for (const auto& [field, mlp] : kMlpNames)
    if (mlp == value) return field;
  fail("an unknown MLP {}", static_cast<int>(value));
}

}  // namespace

std::string setting_of(int64_t value) { return fmt::format("{}", value); }
std::string setting_of(bool value) { return value ? "true" : "false"; }
std::string setting_of(float value) { return fmt::format("{}", value); }
std::string setting_of(Mlp value) { return name_of(value); }

std::string gpt2_name(const ParamInfo& info) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kParts = {
      {{"token_table", "transformer.wte.weight"},
       {"position_table", "transformer.wpe.weight"},
       {"head.", "lm_head."},
       {"norm.", "transformer.ln_f."},
       {"norm1.", "ln_1."},
       {"attention.qkv.", "attn.c_attn."},
       {"attention.out.", "attn.c_proj."},
       {"norm2.", "ln_2."},
       {"mlp.expand.", "mlp.c_fc."},
       {"mlp.contract.", "mlp.c_proj."}}};
  std::string lead;
  std::string_view rest = info.name;
  if (info.block >= 0) {
    lead = fmt::format("transformer.h.{}.", info.block);
    rest = rest.substr(rest.find('.', rest.find('.') + 1) + 1);
  }
  for (const auto& [ours, theirs] : kParts)
    if (rest.starts_with(ours)) return lead + std::string(theirs) + std::string(rest.substr(ours.size()));
  fail("GPT-2 has no {}", info.name);
}

bool gpt2_transposes(const ParamInfo& info) { return info.block >= 0 && info.shape.rank() == 2; }

FoundModel read_gpt2_config(const fs::path& folder) {
  const std::string path = folder.string();
  check(
      fs::is_directory(folder),
      "{} is not a folder; wanted one with config.json and model.safetensors: a checkpoint, or a folder from "
      "transformers' save_pretrained()",
      path);
  if (!fs::exists(folder / "config.json")) {
    const bool is_run = fs::is_directory(folder / "checkpoints");
    fail("{} has no config.json; wanted {}", path,
         is_run ? fmt::format("one of the folders in {}", (folder / "checkpoints").string())
                : "a checkpoint, or a folder from transformers' save_pretrained()");
  }
  const Fields file{.fields = read_json(folder / "config.json"), .name = (folder / "config.json").string()};
  const std::string type = text_value(file.fields, "model_type", file.name);
  check(type == "gpt2", "{}: model_type is {}; supported: \"gpt2\"", file.name, brief(json(type)));

  ModelConfig model{.vocab_size = 50257, .context = 1024, .layers = 12, .heads = 12, .channels = 768};
  file.refuse_unsupported(model);
  for_each_gpt2_field(model, [&](std::string_view field, const char*, auto& member) {
    if (field != "n_inner") file.read(field.data(), member);
  });
  const json* inner = file.find("n_inner");
  model.kv_heads = model.heads;
  model.head_dim = model.channels / model.heads;
  model.mlp_width = 4 * model.channels;
  if (inner && !inner->is_null()) file.read("n_inner", model.mlp_width);
  return {.model = model, .notices = file.dropout()};
}

nlohmann::ordered_json hugging_face_config(const ModelConfig& model) {
  nlohmann::ordered_json config = {{"architectures", {"GPT2LMHeadModel"}}, {"model_type", "gpt2"}};
  for_each_gpt2_field(model, [&](const char* field, const char*, const auto& member) {
    config[field] = field_value(member);
  });
  config["n_ctx"] = model.context;
  for (const char* dropout : kDropouts) config[dropout] = 0.0;
  // GPT-2's default ids are outside a small vocabulary
  config["bos_token_id"] = model.vocab_size - 1;
  config["eos_token_id"] = model.vocab_size - 1;
  config["torch_dtype"] = "float32";
  return config;
}

FoundModel check_same_model(const fs::path& folder, const ModelConfig& wanted, PositionExtension extension) {
  FoundModel model = read_gpt2_config(folder);
  const ModelConfig& found = model.model;
  std::vector<std::string> theirs;
  for_each_gpt2_field(
      found, [&](const char*, const char*, const auto& member) { theirs.push_back(setting_of(member)); });
  std::string differences;
  size_t i = 0;
  for_each_gpt2_field(wanted, [&](std::string_view field, const char* key, const auto& member) {
    const std::string &their = theirs[i++], our = setting_of(member);
    const bool extended =
        field == "n_positions" && extension != PositionExtension::kNone && found.context < wanted.context;
    if (their != our && !extended)
      differences += fmt::format("{}its {} is {}, and this configuration has {}={}",
                                 differences.empty() ? "" : "; ", field, their, key, our);
  });
  check(differences.empty(),
        "{} is of another model: {}. Use its own configuration (config.yaml in the folder of its run), or "
        "start a new run with another --set train.folder=NAME",
        folder.string(), differences);
  return model;
}

}  // namespace tessera
