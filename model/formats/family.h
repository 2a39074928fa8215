// A family of models in Hugging Face's transformers, as one table: which fields of config.json set which
// member of ModelConfig, which fields change nothing or are refused, and how the tensors are named and laid
// out. Reading and writing walk the same table. docs/adding_a_model.md shows how a family is added.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "model/config.h"
#include "model/part.h"

namespace tessera {

// A field of config.json that sets a member of ModelConfig
struct Field {
  const char* name;
  const char* key;                // of a configuration, as in for_each_model_key()
  const char* synonym = nullptr;  // another name that transformers accepts
  bool may_be_null = false;       // null: the member is computed from others
  bool is_read = true;            // false: written for other programs
  bool inverse_root = false;      // the field is 1 / sqrt(the member), which is a whole number
};

// A field of config.json that sets a member of DropoutConfig
struct DropoutField {
  const char* name;
  const char* key;  // as in for_each_dropout_key()
};

// The fields of config.json that set model.bias, if a family has any
struct BiasFields {
  const char* attention = nullptr;  // true: q, k, v and W_O have a bias
  const char* mlp = nullptr;        // true: all layers of the MLP have one
  explicit operator bool() const { return attention != nullptr; }
};

// How config.json says which layers attend within a window: window_fields.h
enum class WindowFields : uint8_t { kNone, kAllLayers, kByLayer, kByPattern, kInTurn };

// The words of the field of model.mlp; the first of each Mlp is written.
using MlpWord = Word<Mlp>;

// A field that may change the model unless its value is neutral; null always is. `config`: all fields
bool says_nothing(const nlohmann::json& value, const nlohmann::json& config);  // false or empty
bool is_true(const nlohmann::json& value, const nlohmann::json& config);
bool is_one(const nlohmann::json& value, const nlohmann::json& config);
bool is_zero(const nlohmann::json& value, const nlohmann::json& config);
struct RefusedField {
  std::string_view field, why;
  bool (*is_neutral)(const nlohmann::json& value, const nlohmann::json& config) = says_nothing;
};

// A parameter's tensors in a file, which follow one another in its rows. "norm1." also stands for all
// parameters that begin so; what follows is kept: "norm1.bias" is "ln_1.bias". The first that fits counts.
// Of a Linear with a count each of its layers has tensors of its own, with its number in place of "{}", or
// all are `stacked` in one.
struct TensorNames {
  std::string_view ours;                   // ParamInfo::name; in a block, what follows "blocks.3."
  std::array<std::string_view, 3> theirs;  // one, or one for each of Linear::rows
  bool transposed = false;                 // a matrix is [in, out] in the file
  bool by_head = false;                    // rows of q, k and v of one head follow one another, head by head
  bool gated = false;                      // only of a model with a gated MLP
  bool stacked = false;                    // [count, ..]
  bool interleaved = false;                // rows of gate and up take turns
};

// A model of texts and images whose model of texts is of a family: its fields are in text_config, and its
// tensors are named "language_model.model.layers.3..." in published files, and
// "model.language_model.layers.3..." where the names are those in transformers' memory.
struct WithImages {
  const char* name = nullptr;                       // model_type; none: there is no such model
  std::span<const std::string_view> harmless = {};  // fields beside text_config that change no texts
  std::string_view image_tensors = {};              // a regular expression
};

// The modules of a mixture of experts in transformers' memory, which PEFT's adapters are named by. Files may
// have other names: experts are two tensors there, gate_up_proj and down_proj.
struct ExpertModules {
  std::string_view experts = "mlp.experts.", router = "mlp.gate.";
};

inline constexpr RopeScaling kAllScalings[] = {RopeScaling::kLinear, RopeScaling::kLlama3, RopeScaling::kYarn,
                                               RopeScaling::kLongrope};

struct Family {
  const char* name;          // model_type
  const char* title;         // for messages
  const char* architecture;  // transformers' class
  ModelConfig defaults;      // transformers' own; members that are 0 are computed: see fill_computed()
  std::span<const Field> fields = {};
  std::span<const MlpWord> mlps = {};
  BiasFields biases = {};
  std::span<const std::string_view> harmless = {};  // change nothing, besides those of every family
  std::span<const RefusedField> refused = {};       // besides those of every family
  std::span<const DropoutField> dropouts = {};
  double default_dropout = 0;                            // where config.json names none
  std::span<const RopeScaling> scalings = kAllScalings;  // of rotary positions, that it may have
  int64_t default_original_context = 0;                  // where config.json names none; 0: it is the context
  WindowFields windows = WindowFields::kNone;
  int64_t default_window = Windows::kFull;  // but for kByLayer: where config.json names none
  std::string_view lead = {};               // of tensor names; files of the bare model lack it
  std::string_view block = {};              // "h.{}.": follows the lead, with the number of the block
  std::span<const TensorNames> tensors = {};
  std::string_view buffers = {};  // a regular expression: tensors of old files that are not weights
  WithImages with_images = {};
  ExpertModules modules = {};
  bool pads = false;  // by transformers' default: the table's row of a padding token, which gets no gradients
};

extern const Family kBloom, kGpt2, kGptOss, kGraniteMoe, kGemma2, kGemma3, kLlama, kMistral, kMixtral, kQwen2,
    kQwen2Moe, kQwen3, kQwen3Moe, kOlmo2, kOlmoe, kPhi3, kTessera;
std::span<const Family* const> families();
const Family* find_family(std::string_view name);              // by its model_type; null: there is none
const Family* find_family_with_images(std::string_view name);  // by the model_type of such a model

// The family that can hold this model. Error: as family_of in folder.h
const Family& family_for(const ModelConfig& model);

// Whether a field of the family sets the key. One with rotary positions sets those of the angles.
bool sets(const Family& family, std::string_view key);

// Whether the biases are the family's own, or its fields can say which they are
bool knows_bias(const Family& family, Bias bias);

// Whether its angles may be scaled so
bool knows_scaling(const Family& family, RopeScaling scaling);

// Computes the members that are 0: as many key/value heads as heads, D = C / H, F = 4 C.
void fill_computed(ModelConfig& model);

// The same model with one value where several mean the same: members of Rope that it does not use have their
// defaults, and those that are computed if 0 are written out, as is query_scalar.
ModelConfig canonical(ModelConfig model);

// Calls visit(key, member of a, member of b) for every key.
template <class A, class B, class Visit>
void for_each_model_key_of(A& a, B& b, Visit&& visit) {
  for_each_model_key(a, [&]<class T>(std::string_view key, T& left) {
    for_each_model_key(b, [&]<class U>(std::string_view other, U& right) {
      if constexpr (std::is_same_v<std::remove_const_t<T>, std::remove_const_t<U>>)
        if (key == other) visit(key, left, right);
    });
  });
}

}  // namespace tessera
