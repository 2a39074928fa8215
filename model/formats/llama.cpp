// Llama: Touvron et al., arXiv:2302.13971; Llama 3: arXiv:2407.21783. TinyLlama and SmolLM2 are of this
// family.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/formats/llama_tables.h"

namespace tessera {

using nlohmann::json;

bool is_full_attention(const json& value, const json&) {
  return value.is_array() &&
         std::ranges::all_of(value, [](const json& layer) { return layer == json("full_attention"); });
}

bool is_unused_window(const json&, const json& config) {
  const auto used = config.find("use_sliding_window");
  return used != config.end() && *used == json(false);
}

namespace {

// Layers before max_window_layers have no window, and others are refused.
constexpr std::string_view kHarmlessInLlama[] = {"is_llama_config", "max_window_layers"};

constexpr RefusedField kRefusedInLlama[] = {
    {"rope_interleaved", "rotary positions of neighbouring channels are not supported"},
    kNoPartialRotation,
    kNoOtherLayers,
    kNoSlidingWindow,
    kNoWindow,
};

}  // namespace

constinit const Family kLlama = like_llama({
    .name = "llama",
    .title = "Llama",
    .architecture = "LlamaForCausalLM",
    .defaults = kLlamaDefaults,
    .biases = {.attention = "attention_bias", .mlp = "mlp_bias"},
    .harmless = kHarmlessInLlama,
    .refused = kRefusedInLlama,
});

}  // namespace tessera
