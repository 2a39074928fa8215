// A family of models of Hugging Face's transformers, as one table. It says which fields of config.json set
// which member of ModelConfig, which fields change nothing or are refused, and how the tensors are named and
// laid out. Reading and writing use the same table. docs/adding_a_model.md shows how to add a family.
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
  const char* key;                // the configuration key of the member, see for_each_model_key()
  const char* synonym = nullptr;  // another name of the field that transformers accepts
  bool may_be_null = false;       // null means that the member is computed from others
  bool is_read = true;            // false: the field is only written, for other programs
  bool inverse_root = false;      // the field is 1 / sqrt(the member), where the member is a whole number
};

// A field of config.json that sets a member of DropoutConfig
struct DropoutField {
  const char* name;
  const char* key;  // see for_each_dropout_key()
};

// The names of the fields of config.json that set model.bias, if the family has such fields
struct BiasFields {
  const char* attention = nullptr;  // true: q, k, v and W_O have a bias
  const char* mlp = nullptr;        // true: all layers of the MLP have one
  explicit operator bool() const { return attention != nullptr; }
};

// How config.json says which layers have a window: see window_fields.h
enum class WindowFields : uint8_t { kNone, kAllLayers, kByLayer, kByPattern, kInTurn };

// The words of the field that sets model.mlp. If several words mean the same Mlp, the first one is written.
using MlpWord = Word<Mlp>;

// A field that may change the model, and is refused unless its value is neutral. Null is always neutral.
// `config` has all fields
bool says_nothing(const nlohmann::json& value, const nlohmann::json& config);  // false or empty
bool is_true(const nlohmann::json& value, const nlohmann::json& config);
bool is_one(const nlohmann::json& value, const nlohmann::json& config);
bool is_zero(const nlohmann::json& value, const nlohmann::json& config);
struct RefusedField {
  std::string_view field, why;
  bool (*is_neutral)(const nlohmann::json& value, const nlohmann::json& config) = says_nothing;
};

// Which tensors of a file make up a parameter, in the order of the parameter's rows. A name that ends with a
// dot, such as "norm1.", stands for all parameters that begin with it, and the rest of the name is kept:
// "norm1.bias" is "ln_1.bias" in the file. The first row of the table that fits counts. If a Linear has a
// count, either each of its layers has tensors of its own, with the layer's number in place of "{}", or all
// layers are `stacked` in one tensor.
struct TensorNames {
  std::string_view ours;                   // ParamInfo::name; in a block, the part after "blocks.3."
  std::array<std::string_view, 3> theirs;  // one tensor, or one for each of Linear::rows
  bool transposed = false;                 // the matrix is [in, out] in the file
  bool by_head = false;                    // in the file, the rows of q, k and v of each head follow one
                                           // another
  bool gated = false;                      // the row holds only for a model with a gated MLP
  bool stacked = false;                    // the tensor is [count, ..]
  bool interleaved = false;                // in the file, rows of gate and of up alternate
};

// A model of texts and images whose text part is a model of this family. Its fields are in text_config. Its
// tensors are named "language_model.model.layers.3..." in published files, and
// "model.language_model.layers.3..." in files that use the names of transformers' memory.
struct WithImages {
  const char* name = nullptr;                       // its model_type; null: there is no such model
  std::span<const std::string_view> harmless = {};  // fields beside text_config that do not change texts
  std::string_view image_tensors = {};              // a regular expression for the tensors of images
};

// The modules of a mixture of experts in transformers' memory. PEFT names adapters by these modules. Files
// may have other names: in memory the experts are two tensors, gate_up_proj and down_proj.
struct ExpertModules {
  std::string_view experts = "mlp.experts.", router = "mlp.gate.";
};

inline constexpr RopeScaling kAllScalings[] = {RopeScaling::kLinear, RopeScaling::kLlama3, RopeScaling::kYarn,
                                               RopeScaling::kLongrope};

struct Family {
  const char* name;          // model_type
  const char* title;         // for messages
  const char* architecture;  // the class of transformers
  ModelConfig defaults;      // those of transformers; members that are 0 are computed: see fill_computed()
  std::span<const Field> fields = {};
  std::span<const MlpWord> mlps = {};
  BiasFields biases = {};
  std::span<const std::string_view> harmless = {};  // change nothing; in addition to those of every family
  std::span<const RefusedField> refused = {};       // in addition to those of every family
  std::span<const DropoutField> dropouts = {};
  double default_dropout = 0;                            // if config.json names none
  std::span<const RopeScaling> scalings = kAllScalings;  // the scalings of rotary positions that it may have
  int64_t default_original_context = 0;                  // if config.json names none; 0: it is the context
  WindowFields windows = WindowFields::kNone;
  int64_t default_window = Windows::kFull;  // if config.json names none; not for kByLayer
  std::string_view lead = {};               // begins tensor names; files of the bare model lack it
  std::string_view block = {};              // "h.{}.": follows the lead; {} is the number of the block
  std::span<const TensorNames> tensors = {};
  std::string_view buffers = {};  // a regular expression: tensors of old files that are not weights
  WithImages with_images = {};
  ExpertModules modules = {};
  bool pads = false;  // by transformers' default a padding token's row of the table gets no gradients
};

extern const Family kBloom, kGpt2, kGptOss, kGraniteMoe, kGemma2, kGemma3, kLlama, kMistral, kMixtral, kQwen2,
    kQwen2Moe, kQwen3, kQwen3Moe, kOlmo2, kOlmoe, kPhi3, kTessera;
std::span<const Family* const> families();
const Family* find_family(std::string_view name);              // by its model_type; null: there is none
const Family* find_family_with_images(std::string_view name);  // by WithImages::name

// The family that can hold this model. Error: as family_of in folder.h
const Family& family_for(const ModelConfig& model);

// Whether a field of the family sets the key. If its positions are rotary, it sets the keys of the angles.
bool sets(const Family& family, std::string_view key);

// Whether these biases are the family's defaults, or its fields can say which they are
bool knows_bias(const Family& family, Bias bias);

// Whether the family's angles may have this scaling
bool knows_scaling(const Family& family, RopeScaling scaling);

// Computes the members that are 0: the number of key/value heads is the number of heads, D = C / H, F = 4 C.
void fill_computed(ModelConfig& model);

// The same model in one form, if several forms mean the same: members of Rope that it does not use get their
// defaults, and members that are computed if they are 0 get their values, and so does query_scalar.
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
