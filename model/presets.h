// Published models by name: their sizes and variants, as their config.json has them.
#pragma once

#include "model/config.h"

namespace tessera {

enum class Preset : uint8_t {
  kNone,
  kGpt2Small,
  kGpt2Medium,
  kGpt2Large,
  kGpt2Xl,
  kLlama31_8b,
  kLlama31_70b,
  kLlama32_1b,
  kLlama32_3b,
  kQwen25_05b,
  kQwen25_15b,
  kQwen25_3b,
  kQwen25_7b,
  kQwen25_14b,
  kQwen25_32b,
  kQwen3_06b,
  kQwen3_17b,
  kQwen3_4b,
  kQwen3_8b,
  kQwen3_14b,
  kQwen3_32b,
  kSmollm2_135m,
  kSmollm2_360m,
  kSmollm2_17b,
  kGemma3_270m,
  kGemma3_1b,
  kGemma3_4b,
  kOlmo2_1b,
  kOlmo2_7b,
  kOlmo2_13b,
  kOlmo2_32b,
  kPhi4Mini,
};
constexpr auto words_of(Preset) {  // of model.preset
  return std::array{Word{"none", Preset::kNone},
                    Word{"gpt2_small", Preset::kGpt2Small},
                    Word{"gpt2_medium", Preset::kGpt2Medium},
                    Word{"gpt2_large", Preset::kGpt2Large},
                    Word{"gpt2_xl", Preset::kGpt2Xl},
                    Word{"llama3.1_8b", Preset::kLlama31_8b},
                    Word{"llama3.1_70b", Preset::kLlama31_70b},
                    Word{"llama3.2_1b", Preset::kLlama32_1b},
                    Word{"llama3.2_3b", Preset::kLlama32_3b},
                    Word{"qwen2.5_0.5b", Preset::kQwen25_05b},
                    Word{"qwen2.5_1.5b", Preset::kQwen25_15b},
                    Word{"qwen2.5_3b", Preset::kQwen25_3b},
                    Word{"qwen2.5_7b", Preset::kQwen25_7b},
                    Word{"qwen2.5_14b", Preset::kQwen25_14b},
                    Word{"qwen2.5_32b", Preset::kQwen25_32b},
                    Word{"qwen3_0.6b", Preset::kQwen3_06b},
                    Word{"qwen3_1.7b", Preset::kQwen3_17b},
                    Word{"qwen3_4b", Preset::kQwen3_4b},
                    Word{"qwen3_8b", Preset::kQwen3_8b},
                    Word{"qwen3_14b", Preset::kQwen3_14b},
                    Word{"qwen3_32b", Preset::kQwen3_32b},
                    Word{"smollm2_135m", Preset::kSmollm2_135m},
                    Word{"smollm2_360m", Preset::kSmollm2_360m},
                    Word{"smollm2_1.7b", Preset::kSmollm2_17b},
                    Word{"gemma3_270m", Preset::kGemma3_270m},
                    Word{"gemma3_1b", Preset::kGemma3_1b},
                    Word{"gemma3_4b", Preset::kGemma3_4b},
                    Word{"olmo2_1b", Preset::kOlmo2_1b},
                    Word{"olmo2_7b", Preset::kOlmo2_7b},
                    Word{"olmo2_13b", Preset::kOlmo2_13b},
                    Word{"olmo2_32b", Preset::kOlmo2_32b},
                    Word{"phi4_mini", Preset::kPhi4Mini}};
}

ModelConfig preset_model(Preset preset);  // Error: kNone

}  // namespace tessera
