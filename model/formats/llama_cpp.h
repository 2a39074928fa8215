// A model as llama.cpp reads it from a GGUF file: its architectures gpt2, llama, qwen2, qwen3, gemma2,
// gemma3, olmo2, phi3 and gpt-oss.
#pragma once

#include <string>
#include <vector>

#include "model/formats/gguf.h"
#include "model/formats/layout.h"

namespace tessera {

// Error: a setting that llama.cpp's architecture does not compute; the message has its key and what to do.
// `folder` is where the model is, for the message.
void check_llama_cpp(const ModelConfig& model, const std::string& folder);

// The fields that describe the model, with general.architecture first. The fields of the tokenizer are not
// among them. `name`: the name of the model that people read
std::vector<GgufField> llama_cpp_fields(const ModelConfig& model, NumberFormat format,
                                        const std::string& name);

// Notices about what llama.cpp computes slightly differently
std::vector<std::string> llama_cpp_notices(const ModelConfig& model);

// The factors by which llama.cpp divides the frequencies of rotary positions: tensors with R / 2 factors
// each. For model.rope.scaling=llama3 this is rope_freqs.weight. For longrope these are
// rope_factors_short.weight and rope_factors_long.weight; llama.cpp uses the second one for contexts longer
// than the original one. For other scalings there are none
struct RopeFactors {
  const char* name;
  std::vector<float> values;
};
std::vector<RopeFactors> llama_cpp_rope_factors(const ModelConfig& model);

// Matrices are in `format`; vectors and the position table are in fp32. If rows do not fill the blocks of
// q8_0 or mxfp4, they are in fp16. With mxfp4 only matrices of experts have that format, and others are in
// bf16. For a Llama, llama.cpp rotates neighbouring channels, and we rotate channels i and i + D/2: so the
// rows of its q and k are reordered. Weights of norms that multiply by 1 + weight include the 1.
class LlamaCppLayout final : public WeightsLayout {
 public:
  LlamaCppLayout(const ModelConfig& model, NumberFormat format);
  std::vector<FileTensor> tensors_of(const ParamInfo& info) const override;
  void visit(const ParamInfo& info, const Tensor& values, const Visit& visit) const override;

 private:
  NumberFormat format_;
  bool reorders_;  // whether rows of q and k are reordered
  float offset_;   // what is added to the weights of norms
};

}  // namespace tessera
