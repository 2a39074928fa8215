// A model as llama.cpp reads it from a GGUF file: its architectures gpt2, llama, qwen2, qwen3, gemma2,
// gemma3, olmo2, phi3 and gpt-oss.
#pragma once

#include <string>
#include <vector>

#include "model/formats/gguf.h"
#include "model/formats/layout.h"

namespace tessera {

// Error: a setting that llama.cpp's architecture does not compute, with its key and what to do; `folder` is
// where the model is, for the message.
void check_llama_cpp(const ModelConfig& model, const std::string& folder);

// The fields that describe the model, general.architecture first; not those of the tokenizer.
// `name`: of the model, for people
std::vector<GgufField> llama_cpp_fields(const ModelConfig& model, NumberFormat format,
                                        const std::string& name);

// What llama.cpp computes a little differently
std::vector<std::string> llama_cpp_notices(const ModelConfig& model);

// The factors by which llama.cpp divides the frequencies of rotary positions, a tensor of R / 2 of them:
// rope_freqs.weight of model.rope.scaling=llama3; rope_factors_short.weight and rope_factors_long.weight of
// longrope, of which it takes the second for contexts longer than the original one; of others none
struct RopeFactors {
  const char* name;
  std::vector<float> values;
};
std::vector<RopeFactors> llama_cpp_rope_factors(const ModelConfig& model);

// Matrices are in `format`; vectors and the position table are fp32, and where rows do not fill the blocks of
// q8_0 or mxfp4, fp16 serves. In mxfp4 are matrices of experts, others in bf16. llama.cpp's rotation of a
// Llama turns neighbouring channels, ours channels i and i + D/2: the rows of its q and k are reordered.
// Weights of norms that multiply by 1 + weight have the 1 in them.
class LlamaCppLayout final : public WeightsLayout {
 public:
  LlamaCppLayout(const ModelConfig& model, NumberFormat format);
  std::vector<FileTensor> tensors_of(const ParamInfo& info) const override;
  void visit(const ParamInfo& info, const Tensor& values, const Visit& visit) const override;

 private:
  NumberFormat format_;
  bool reorders_;  // rows of q and k
  float offset_;   // is added to the weights of norms
};

}  // namespace tessera
