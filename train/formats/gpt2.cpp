#include "train/formats/gpt2.h"

#include "data/json_text.h"
#include "kernels/base/check.h"

namespace tessera {

namespace fs = std::filesystem;

nlohmann::ordered_json hugging_face_config(const ModelConfig& model) {
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

int64_t check_same_model(const fs::path& folder, const ModelConfig& wanted, bool may_be_shorter) {
  const fs::path path = folder / "config.json";
  const nlohmann::json found = read_json(path);
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

}  // namespace tessera
