#include "model/formats/known_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "model/formats/bitsandbytes.h"
#include "model/formats/mxfp4.h"
#include "model/formats/rope_fields.h"
#include "model/formats/window_fields.h"

namespace tessera {
namespace {

using nlohmann::json;

// Fields that change no model's logits, losses or gradients in fp32, whatever their values. Of transformers:
// names, heads of other tasks (their tensors are refused) and execution options. initializer_range is unused
// when training starts from weights.
// clang-format off
constexpr std::string_view kOfTransformers[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_auto_class",
    "_commit_hash", "_experts_implementation", "_flash_attn_2_enabled", "_from_model_config",
    "_model_name_or_path", "_name_or_path", "_num_labels", "_output_attentions", "architectures",
    "attn_implementation", "base_model_ep_plan", "base_model_fsdp_plan", "base_model_pp_plan",
    "base_model_tp_plan", "chunk_size_feed_forward", "cross_attention_hidden_size", "dtype",
    "experts_implementation", "finetuning_task", "gradient_checkpointing", "id2label", "initializer_range",
    "is_decoder", "keys_to_ignore_at_inference", "label2id", "model_type", "name_or_path", "num_labels",
    "output_attentions", "output_hidden_states", "prefix", "problem_type", "return_dict",
    "task_specific_params", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "torch_dtype",
    "torchscript", "transformers.js_config", "transformers_version", "use_bfloat16", "use_return_dict",
    "xla_device"};
// How texts are generated
constexpr std::string_view kOfGeneration[] = {
    "assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight",
    "assistant_lookbehind", "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "cache_config",
    "cache_implementation", "compile_config", "constraints", "continuous_batching_config",
    "decoder_start_token_id", "disable_compile", "diversity_penalty", "do_sample", "dola_layers",
    "early_stopping", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "eos_token_id",
    "eos_token_ids", "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty", "force_words_ids",
    "forced_bos_token_id", "forced_decoder_ids", "forced_eos_token_id", "generation_config", "guidance_scale",
    "is_assistant", "length_penalty", "low_memory", "max_cache_len", "max_length", "max_matching_ngram_size",
    "max_new_tokens", "max_time", "min_length", "min_new_tokens", "min_p", "no_repeat_ngram_size",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_logits", "output_scores", "pad_token_id", "penalty_alpha",
    "prefill_chunk_size", "prompt_lookup_num_tokens", "remove_invalid_values", "renormalize_logits",
    "repetition_penalty", "return_dict_in_generate", "return_legacy_cache", "sep_token_id", "sequence_bias",
    "speculation_type", "stop_strings", "suppress_tokens", "target_lookbehind", "temperature",
    "token_healing", "top_h", "top_k", "top_p", "typical_p", "use_cache", "use_mtp", "watermarking_config"};
// What other programs and people note: where a model comes from, and its tokenizer
constexpr std::string_view kNotes[] = {
    "base_model", "base_model_name", "base_model_name_or_path", "bf16", "bos_token", "chat_template",
    "cls_token_id", "dataset", "datasets", "description", "eod_token_id", "eos_token", "flash_attention",
    "fp16", "fp32", "language", "library_name", "license", "mask_token_id", "max_seq_len", "max_seq_length",
    "max_sequence_length", "model_max_length", "model_name", "model_name_or_path", "pad_token",
    "padding_side", "pipeline_tag", "seq_length", "tags", "tokenizer_model_max_length", "tokenizer_name",
    "tokenizer_padding_side", "unk_token", "unk_token_id", "use_flash_attention", "use_flash_attention_2",
    "use_flash_attn"};
// Programs that train, merge and convert models note versions and fixes under their own names, which
// transformers does not read.
constexpr std::string_view kNotesOf[] = {
    "accelerate_", "axolotl_", "deepspeed_", "llamafactory_", "lmstudio_", "mergekit_", "mlflow_", "mlx_",
    "optimum_", "peft_", "swift_", "trl_", "unsloth_", "wandb_"};
// clang-format on

constexpr std::string_view kNotQuantized =
    "quantized weights of this kind are not supported, only those of bitsandbytes in NF4, and of gpt-oss in "
    "MXFP4; save the model in float32, float16 or bfloat16";
bool is_known_quantization(const json& value, const json&) {
  return is_bitsandbytes_nf4(value) || is_mxfp4(value);
}

constexpr RefusedField kRefusedInAll[] = {
    {"add_cross_attention", "cross attention to an encoder is not supported"},
    {"auto_map", "a model with its own code is not supported"},
    {"is_encoder_decoder", "an encoder with a decoder is not supported"},
    {"pruned_heads", "pruned attention heads are not supported"},
    {"compression_config", kNotQuantized},
    {"pretraining_tp", "products that are split into several sums are not supported", is_one},
    {"quantization", kNotQuantized},
    {"quantization_config", kNotQuantized, is_known_quantization}};

bool is_bias_field(const Family& family, std::string_view field) {
  const auto is = [&](const char* name) { return name && field == name; };
  return is(family.biases.attention) || is(family.biases.mlp);
}

}  // namespace

bool is_harmless_in_all(std::string_view field) {
  for (const std::span<const std::string_view> list :
       {std::span<const std::string_view>(kOfTransformers), std::span<const std::string_view>(kOfGeneration),
        std::span<const std::string_view>(kNotes)})
    if (std::ranges::find(list, field) != list.end()) return true;
  return std::ranges::any_of(kNotesOf, [&](std::string_view lead) { return field.starts_with(lead); });
}

bool is_known_field(const Family& family, std::string_view field) {
  const bool is_rope = family.defaults.positions == Positions::kRope && is_rope_field(field);
  return is_rope || is_window_field(family, field) || is_harmless_in_all(field) ||
         is_bias_field(family, field) || std::ranges::find(family.harmless, field) != family.harmless.end() ||
         std::ranges::any_of(family.dropouts, [&](const DropoutField& one) { return field == one.name; }) ||
         std::ranges::any_of(family.fields, [&](const Field& one) {
           return field == one.name || (one.synonym && field == one.synonym);
         });
}

void refuse_unsupported(const Fields& config, const std::function<bool(std::string_view)>& is_known,
                        std::span<const RefusedField> refused_too) {
  for (const auto& [field, value] : config.object.items()) {
    if (value.is_null()) continue;
    if (is_known(field)) {
      config.check_not_ignored(field);
      continue;
    }
    const RefusedField* refused = nullptr;
    for (const std::span<const RefusedField> list :
         {std::span<const RefusedField>(kRefusedInAll), refused_too})
      for (const RefusedField& one : list)
        if (one.field == field) refused = &one;
    if (!refused) {
      config.check_ignored(field);
      continue;
    }
    config.check_not_ignored(field);
    check(refused->is_neutral(value, config.object), "{}: \"{}\" is {}: {}", config.file,
          config.name_of(field), brief(value), refused->why);
  }
}

}  // namespace tessera
