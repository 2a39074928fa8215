#include "model/formats/llama_cpp.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/arena.h"
#include "kernels/base/check.h"
#include "model/formats/llama_tables.h"
#include "model/formats/pieces.h"
#include "model/rope.h"

namespace tessera {
namespace {

// Of GPT-2 and Phi-3, whose ffn_up is the gate and then the up projection
constexpr TensorNames kPlainTensors[] = {
    {.ours = "token_table", .theirs = {{{"token_embd.weight"}}}},
    {.ours = "position_table", .theirs = {{{"position_embd.weight"}}}},
    {.ours = "head.", .theirs = {{{"output."}}}},
    {.ours = "norm.", .theirs = {{{"output_norm."}}}},
    {.ours = "norm1.", .theirs = {{{"attn_norm."}}}},
    {.ours = "attention.qkv.", .theirs = {{{"attn_qkv."}}}},
    {.ours = "attention.out.", .theirs = {{{"attn_output."}}}},
    {.ours = "norm2.", .theirs = {{{"ffn_norm."}}}},
    {.ours = "mlp.expand.", .theirs = {{{"ffn_up."}}}},
    {.ours = "mlp.contract.", .theirs = {{{"ffn_down."}}}},
};
constexpr std::string_view kQ = "attn_q.", kK = "attn_k.", kRouter = "ffn_gate_inp.",
                           kSharedGate = "ffn_gate_inp_shexp.";
constexpr TensorNames kTensorNames[] = {
    {.ours = "token_table", .theirs = {{{"token_embd.weight"}}}},
    {.ours = "head.", .theirs = {{{"output."}}}},
    {.ours = "norm.", .theirs = {{{"output_norm."}}}},
    {.ours = "norm1.", .theirs = {{{"attn_norm."}}}},
    {.ours = "attention.qkv.", .theirs = {{{kQ}, {kK}, {"attn_v."}}}},
    {.ours = "attention.q_norm.", .theirs = {{{"attn_q_norm."}}}},
    {.ours = "attention.k_norm.", .theirs = {{{"attn_k_norm."}}}},
    {.ours = "attention.out.", .theirs = {{{"attn_output."}}}},
    {.ours = "norm2.", .theirs = {{{"ffn_norm."}}}},
    {.ours = "mlp.expand.", .theirs = {{{"ffn_gate."}, {"ffn_up."}}}},
    {.ours = "mlp.contract.", .theirs = {{{"ffn_down."}}}},
    {.ours = "experts.router.", .theirs = {{{kRouter}}}},
    {.ours = "experts.expand.", .theirs = {{{"ffn_gate_exps."}, {"ffn_up_exps."}}}, .stacked = true},
    {.ours = "experts.contract.", .theirs = {{{"ffn_down_exps."}}}, .stacked = true},
    {.ours = "experts.shared_gate.", .theirs = {{{kSharedGate}}}},
    {.ours = "experts.shared_expand.", .theirs = {{{"ffn_gate_shexp."}, {"ffn_up_shexp."}}}},
    {.ours = "experts.shared_contract.", .theirs = {{{"ffn_down_shexp."}}}},
    {.ours = "norm1_after.", .theirs = {{{"post_attention_norm."}}}},  // this and the next: Gemma's, OLMo 2's
    {.ours = "norm2_after.", .theirs = {{{"post_ffw_norm."}}}},
};
constexpr TensorNames kGptOssOwnTensors[] = {
    {.ours = "norm2.", .theirs = {{{"post_attention_norm."}}}},
    {.ours = "attention.sinks", .theirs = {{{"attn_sinks.weight"}}}},
};
constexpr auto kGptOssTensors = joined(kGptOssOwnTensors, kTensorNames);  // the first name that fits

std::vector<TensorPiece> pieces_in_gguf(const ModelConfig& model, const ParamInfo& info) {
  const Family& family = family_for(model);
  std::span<const TensorNames> tensors = kTensorNames;
  if (&family == &kGpt2 || &family == &kPhi3) tensors = kPlainTensors;
  if (&family == &kGptOss) tensors = kGptOssTensors;
  return pieces_of(TensorTable{.title = "GGUF", .lead = "", .block = "blk.{}.", .tensors = tensors}, model,
                   info);
}

FileTensor tensor_of(const TensorPiece& piece, NumberFormat format) {
  FileTensor tensor{.name = piece.name, .shape = piece.shape, .format = format};
  const bool gates = piece.name.find(kSharedGate) != piece.name.npos,
             routes = gates || piece.name.find(kRouter) != piece.name.npos;
  if (gates) tensor.shape = {piece.columns};  // a vector there
  const bool is_vector = piece.shape.rank() == 1 || piece.name.ends_with(".bias"),
             of_experts = piece.shape.rank() == 3;
  if (is_vector || routes || piece.name == "position_embd.weight")
    tensor.format = NumberFormat::kF32;
  else if (format == NumberFormat::kMxfp4 && !of_experts)
    tensor.format = NumberFormat::kBF16;
  else if (piece.columns % block_of(format) != 0)
    tensor.format = NumberFormat::kF16;
  return tensor;
}

// llama.cpp's numbers of general.file_type, "most tensors are ..."
uint32_t file_type(NumberFormat format) {
  switch (format) {
    case NumberFormat::kF32:
      return 0;
    case NumberFormat::kF16:
      return 1;
    case NumberFormat::kQ8:
      return 7;
    case NumberFormat::kBF16:
      return 32;
    case NumberFormat::kMxfp4:
      return 38;  // of experts
  }
  fail("GGUF has no files of {}", name_of(format));
}

std::string size_label(int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  if (count >= 1e9) return fmt::format("{:.1f}B", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.0f}M", count / 1e6);
  return fmt::format("{:.0f}K", count / 1e3);
}

// The factor of cos and sin where a file names none
double default_attention_factor(const Rope& rope) {
  return rope.factor > 1 ? 1 + 0.1 * std::log(rope.factor) : 1;
}

void add_rope(const ModelConfig& model, const std::string& arch, std::vector<GgufField>& fields) {
  const Rope rope = canonical(model).rope;
  const auto add = [&](const char* key, GgufValue value) {
    fields.push_back({arch + ".rope." + key, std::move(value)});
  };
  const auto real = [](double value) { return static_cast<float>(value); };
  add("dimension_count", static_cast<uint32_t>(model.rotated_channels()));
  add("freq_base", real(rope.theta));
  if (rope.scaling == RopeScaling::kLongrope) {
    add("scaling.type", std::string(name_of(rope.scaling)));
    add("scaling.original_context_length", static_cast<uint32_t>(rope.original_context));
    add("scaling.attn_factor", real(rope_attention_factor(model)));
    return;
  }
  if (rope.scaling != RopeScaling::kLinear && rope.scaling != RopeScaling::kYarn) return;
  add("scaling.type", std::string(name_of(rope.scaling)));
  add("scaling.factor", real(rope.factor));
  if (rope.scaling != RopeScaling::kYarn) return;
  add("scaling.original_context_length", static_cast<uint32_t>(rope.original_context));
  add("scaling.yarn_beta_fast", real(rope.beta_fast));
  add("scaling.yarn_beta_slow", real(rope.beta_slow));
  const double share = rope_attention_factor(model) / default_attention_factor(rope);
  if (std::abs(share - 1) > 1e-6) add("scaling.attn_factor", real(share));
}

// In each head of a matrix or of a vector of biases, channels i and i + D/2 become 2 i and 2 i + 1.
void reorder_rows(std::span<const float> from, int64_t D, int64_t columns, float* out) {
  const int64_t rows = std::ssize(from) / columns;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t channel = row % D, half = channel / (D / 2), pair = channel % (D / 2);
    const int64_t to = row - channel + 2 * pair + half;
    std::copy_n(from.begin() + row * columns, columns, out + to * columns);
  }
}

// Mistral and Mixtral are Llamas there.
std::string name_in_llama_cpp(const Family& family) {
  if (&family == &kMistral || &family == &kMixtral) return "llama";
  if (&family == &kQwen3Moe) return "qwen3moe";
  if (&family == &kQwen2Moe) return "qwen2moe";
  if (&family == &kGemma3) return "gemma3";
  if (&family == &kGptOss) return "gpt-oss";
  return family.name;
}

// Whether no text is longer than a window
bool windows_hide_nothing(const ModelConfig& model) {
  return std::ranges::all_of(model.window.runs(), [&](const Windows::Run& run) {
    return run.window == Windows::kFull || run.window >= model.context;
  });
}

constexpr const char* kEachSecond = "a block within a window, then one without";

// What llama.cpp knows of a Gemma without reading it
struct GemmaConstants {
  int64_t windows;        // blocks within a window before one without
  const char* pattern;    // in words
  int64_t blocks_of_27b;  // by which it tells the model of 27 billion parameters
};
const GemmaConstants* gemma_constants(const Family& family) {
  static constexpr GemmaConstants kSecond{1, kEachSecond, 46},
      kThird{5, "five blocks within a window, then one without", 62};
  return &family == &kGemma2 ? &kSecond : &family == &kGemma3 ? &kThird : nullptr;
}

// Whether so many blocks with windows of one length, then one without, repeat
bool has_windows_of(int64_t windows, const ModelConfig& model) {
  const Windows published({{.window = model.window.at(0), .blocks = windows}, {.window = Windows::kFull}});
  return model.window.cut(model.layers) == published.cut(model.layers);
}

void check_gemma(const GemmaConstants& gemma, const ModelConfig& model, const auto& require) {
  require(model.window.all_full() || has_windows_of(gemma.windows, model), "model.window",
          text_of(model.window), gemma.pattern);
  // What it takes for query_pre_attn_scalar; it divides whole numbers.
  const bool is_27b = model.layers == gemma.blocks_of_27b;
  const int64_t query_scalar = is_27b ? model.channels / model.heads : model.head_dim;
  require(canonical(model).query_scalar == query_scalar, "model.query_scalar", canonical(model).query_scalar,
          is_27b ? fmt::format("{} (model.channels / model.heads, in {} blocks)", query_scalar, model.layers)
                 : fmt::format("{} (model.head_dim)", query_scalar));
  require(model.bias == Bias::kNone, "model.bias", name_of(model.bias), "none");
  require(model.tied, "model.tied", "false", "true");
}

}  // namespace

void check_llama_cpp(const ModelConfig& model, const std::string& folder) {
  const Family& family = family_for(model);
  const auto require = [&](bool holds, const char* key, const auto& found, const std::string& expected) {
    check(holds,
          "{} has {}={}, and llama.cpp computes models of {} only with {}. Export it with --format hf, or "
          "train with that setting",
          folder, key, found, family.title, expected);
  };
  require(model.sparse.all_full(), "model.sparse", text_of(model.sparse),
          "full: every token sees all before it");
  check(&family != &kTessera && &family != &kBloom,
        "{} has parts that Tessera does not write for llama.cpp: its config.json is of model_type {}. Export "
        "it with --format hf",
        folder, family.name);
  if (model.experts) {  // constants of llama.cpp
    const bool qwen2 = &family == &kQwen2Moe, gpt_oss = &family == &kGptOss,
               sums = !qwen2 && &family != &kOlmoe, untied = !sums || gpt_oss;
    check(untied || &family == &kMixtral || &family == &kQwen3Moe || &family == &kGraniteMoe,
          "{} has experts (model_type {}), whose tensors Tessera does not write for llama.cpp yet. Export it "
          "with --format hf, which llama.cpp converts",
          folder, family.name);
    require(!model.has_dense_blocks(), "model.experts.every", model.experts.every,
            "1, and no model.experts.dense_layers");
    require(model.experts.rule().sums_to_one() == sums, "model.experts.renormalise", !sums,
            sums ? "true" : "false");
    require(qwen2 || model.bias == (gpt_oss ? Bias::kAll : Bias::kNone), "model.bias", name_of(model.bias),
            gpt_oss ? "all" : "none");
    require(!untied || !model.tied, "model.tied", model.tied, "false");
    require(&family != &kOlmoe || model.kv_heads == model.heads, "model.kv_heads", model.kv_heads,
            fmt::format("{} (model.heads)", model.heads));
  }
  if (&family == &kGpt2) {
    require(model.mlp == Mlp::kGelu, "model.mlp", name_of(model.mlp), "gelu");
    require(model.scale_attention, "model.scale_attention", "false", "true");
    require(!model.scale_attention_by_layer, "model.scale_attention_by_layer", "true", "false");
    return;
  }
  if (const GemmaConstants* gemma = gemma_constants(family)) {
    check_gemma(*gemma, model, require);
    if (&family == &kGemma3) {
      require(model.window.all_full() || model.rope.local_theta == 1e4, "model.rope.local_theta",
              model.rope.local_theta, "10000");
      require(model.logit_cap == 0, "model.logit_cap", model.logit_cap, "0");
    } else {  // it divides by both
      require(model.attention_cap > 0, "model.attention_cap", model.attention_cap, "a cap above 0");
      require(model.logit_cap > 0, "model.logit_cap", model.logit_cap, "a cap above 0");
    }
  } else if (&family == &kGptOss) {
    require(model.window.all_full() || has_windows_of(1, model), "model.window", text_of(model.window),
            kEachSecond);
  } else {
    require(windows_hide_nothing(model), "model.window", text_of(model.window),
            "full, or at least model.context");
  }
  if (&family == &kOlmo2) {
    require(model.bias == Bias::kNone, "model.bias", name_of(model.bias), "none");
    require(!model.tied, "model.tied", "true", "false");
  }
  const Rope rope = canonical(model).rope;
  const bool yarn = rope.scaling == RopeScaling::kYarn;
  require(!yarn || rope.beta_fast == 32, "model.rope.beta_fast", rope.beta_fast, "32");
  require(!yarn || rope.beta_slow == 1, "model.rope.beta_slow", rope.beta_slow, "1");
  require(!yarn || rope.truncate || &family == &kGptOss, "model.rope.truncate", "false", "true");
  require(rope.scaling != RopeScaling::kLlama3 || name_in_llama_cpp(family) == "llama", "model.rope.scaling",
          "llama3", "none, linear or yarn");
  require(rope.scaling != RopeScaling::kLongrope || name_in_llama_cpp(family) == "llama" || &family == &kPhi3,
          "model.rope.scaling", "longrope", "none, linear or yarn");
  require(&family != &kQwen3 || model.bias == Bias::kNone, "model.bias", name_of(model.bias), "none");
  require(
      (&family != &kQwen2 && &family != &kQwen2Moe && &family != &kPhi3 && &family != &kOlmo2 &&
       &family != &kOlmoe) ||
          model.attention_width() == model.channels,
      "model.head_dim", fmt::format("{}", model.head_dim),
      fmt::format("model.channels / model.heads = {}", model.channels / std::max<int64_t>(1, model.heads)));
}

std::vector<GgufField> llama_cpp_fields(const ModelConfig& model, NumberFormat format,
                                        const std::string& name) {
  const Family& family = family_for(model);
  const std::string arch = name_in_llama_cpp(family);
  std::vector<GgufField> fields{{"general.architecture", arch},
                                {"general.type", std::string("model")},
                                {"general.name", name},
                                {"general.size_label", size_label(model.parameters())}};
  const auto add = [&](const char* key, GgufValue value) {
    fields.push_back({arch + "." + key, std::move(value)});
  };
  const auto count = [](int64_t value) { return static_cast<uint32_t>(value); };
  add("block_count", count(model.layers));
  add("context_length", count(model.context));
  add("embedding_length", count(model.channels));
  add("feed_forward_length", count(&family == &kGptOss ? model.experts.width : model.mlp_width));
  if (model.experts) {
    add("expert_count", count(model.experts.count));
    add("expert_used_count", count(model.experts.active));
    add("expert_feed_forward_length", count(model.experts.width));
    if (model.experts.shared_width > 0)
      add("expert_shared_feed_forward_length", count(model.experts.shared_width));
  }
  add("attention.head_count", count(model.heads));
  if (&family == &kGpt2) {
    add("attention.layer_norm_epsilon", model.norm_epsilon);
  } else {
    add("attention.head_count_kv", count(model.kv_heads));
    add("attention.key_length", count(model.head_dim));
    add("attention.value_length", count(model.head_dim));
    add("attention.layer_norm_rms_epsilon", model.norm_epsilon);
    add_rope(model, arch, fields);
    if (&family == &kGraniteMoe) {
      const auto query_scalar = static_cast<double>(canonical(model).query_scalar);
      add("attention.scale", static_cast<float>(1 / std::sqrt(query_scalar)));
      add("embedding_scale", static_cast<float>(model.embedding_scale));
      add("residual_scale", static_cast<float>(model.residual_scale));
      add("logit_scale", static_cast<float>(model.logit_divisor));  // which it divides by
    }
    if (&family == &kGemma3 || &family == &kPhi3)  // 0: none
      add("attention.sliding_window", count(model.window.at(0)));
    if (&family == &kGemma2 || &family == &kGptOss)  // 0 would hide all
      add("attention.sliding_window", count(model.window.all_full() ? model.context : model.window.at(0)));
    if (&family == &kGemma2) {
      add("attn_logit_softcapping", static_cast<float>(model.attention_cap));
      add("final_logit_softcapping", static_cast<float>(model.logit_cap));
    }
  }
  add("vocab_size", count(model.vocab_size));
  fields.push_back({"general.file_type", file_type(format)});
  fields.push_back({"general.quantization_version", uint32_t{2}});
  return fields;
}

std::vector<std::string> llama_cpp_notices(const ModelConfig& model) {
  if (&family_for(model) != &kGptOss || canonical(model).rope.truncate) return {};
  return {
      "llama.cpp rounds the numbers of the pairs between which YaRN blends to whole ones, as of every gpt-oss: "
      "its angles differ a little from those of model.rope.truncate=false"};
}

std::vector<RopeFactors> llama_cpp_rope_factors(const ModelConfig& model) {
  if (model.positions != Positions::kRope) return {};
  if (model.rope.scaling == RopeScaling::kLongrope) {
    const auto real = [](const std::vector<double>& all) {
      return std::vector<float>(all.begin(), all.end());
    };
    return {{"rope_factors_long.weight", real(model.rope.long_factors)},
            {"rope_factors_short.weight", real(model.rope.short_factors)}};
  }
  if (model.rope.scaling != RopeScaling::kLlama3) return {};
  ModelConfig plain = model;
  plain.rope = {.theta = model.rope.theta, .share = model.rope.share};
  const std::vector<double> scaled = rope_frequencies(model, model.context),
                            unscaled = rope_frequencies(plain, model.context);
  std::vector<float> factors;
  for (size_t i = 0; i < scaled.size(); ++i) factors.push_back(static_cast<float>(unscaled[i] / scaled[i]));
  return {{"rope_freqs.weight", factors}};
}

LlamaCppLayout::LlamaCppLayout(const ModelConfig& model, NumberFormat format)
    : WeightsLayout(model),
      format_(format),
      reorders_(name_in_llama_cpp(family_for(model)) == "llama" || &family_for(model) == &kGraniteMoe),
      offset_(model.norm_offset()) {}

std::vector<FileTensor> LlamaCppLayout::tensors_of(const ParamInfo& info) const {
  std::vector<FileTensor> tensors;
  for (const TensorPiece& piece : pieces_in_gguf(model_, info)) tensors.push_back(tensor_of(piece, format_));
  return tensors;
}

void LlamaCppLayout::visit(const ParamInfo& info, const Tensor& values, const Visit& visit) const {
  for (const TensorPiece& piece : pieces_in_gguf(model_, info)) {
    const FileTensor tensor = tensor_of(piece, format_);
    const std::span<const float> parameter(values.as<float>(), static_cast<size_t>(values.numel()));
    if (!is_plain(piece)) {  // of experts
      Arena staging = Arena::host();
      const Tensor turned = staging.alloc(MemoryTag::kData, info.name, DType::kF32, piece.shape);
      const std::span<float> in_file(turned.as<float>(), static_cast<size_t>(piece.elements()));
      to_file(piece, parameter, in_file);
      visit(tensor, in_file);
      continue;
    }
    const std::span<const float> rows = part(piece, parameter);
    const std::string_view name = piece.name;
    const bool rotated = name.find(kQ) != name.npos || name.find(kK) != name.npos;
    const bool reorders = reorders_ && rotated, adds = offset_ != 0 && info.part == ParamPart::kNorms;
    if (!reorders && !adds) {
      visit(tensor, rows);
      continue;
    }
    Arena staging = Arena::host();
    const Tensor changed = staging.alloc(MemoryTag::kData, info.name, DType::kF32, piece.shape);
    const std::span<float> out(changed.as<float>(), rows.size());
    if (reorders)
      reorder_rows(rows, model_.head_dim, piece.columns, out.data());
    else
      std::ranges::transform(rows, out.begin(), [&](float weight) { return weight + offset_; });
    visit(tensor, out);
  }
}

}  // namespace tessera
