#include "model/formats/llm_c.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/check.h"

namespace tessera {
namespace {

constexpr int32_t kLlmCMagic = 20240326;

// The order of the file; in a block, what follows "blocks.3."
constexpr std::string_view kOrder[] = {kTokenTable,
                                       kPositionTable,
                                       "norm1.weight",
                                       "norm1.bias",
                                       "attention.qkv.weight",
                                       "attention.qkv.bias",
                                       "attention.out.weight",
                                       "attention.out.bias",
                                       "norm2.weight",
                                       "norm2.bias",
                                       "mlp.expand.weight",
                                       "mlp.expand.bias",
                                       "mlp.contract.weight",
                                       "mlp.contract.bias",
                                       "norm.weight",
                                       "norm.bias"};

std::ptrdiff_t kind_of(const ParamInfo& info) {
  std::string_view name = info.name;
  if (info.block >= 0) name = name.substr(name.find('.', name.find('.') + 1) + 1);
  const auto found = std::ranges::find(kOrder, name);
  check(found != std::end(kOrder), "llm.c's GPT-2 has no {}", info.name);
  return found - std::begin(kOrder);
}

}  // namespace

void check_llm_c(const ModelConfig& model, NumberFormat format, const std::string& folder) {
  const Family& family = family_for(model);
  check(&family == &kGpt2,
        "{} is a {}, and llm.c's files hold a GPT-2 alone. Export it with --format hf or gguf", folder,
        family.title);
  check(format == NumberFormat::kF32 || format == NumberFormat::kBF16,
        "llm.c's files hold fp32 or bf16, found --dtype {}", name_of(format));
  const auto require = [&](bool holds, const char* key, const std::string& found,
                           const std::string& expected) {
    check(holds, "{} has {}={}, and llm.c's GPT-2 has {}. Export it with --format hf", folder, key, found,
          expected);
  };
  require(model.sparse.all_full(), "model.sparse", text_of(model.sparse), "full");
  require(model.mlp == Mlp::kGelu, "model.mlp", name_of(model.mlp), "gelu");
  require(model.mlp_width == 4 * model.channels, "model.mlp_width", fmt::format("{}", model.mlp_width),
          fmt::format("4 model.channels = {}", 4 * model.channels));
  require(model.norm_epsilon == 1e-5f, "model.norm_epsilon", fmt::format("{}", model.norm_epsilon), "1e-05");
  require(model.tied, "model.tied", "false", "true");
  require(model.scale_attention, "model.scale_attention", "false", "true");
  require(!model.scale_attention_by_layer, "model.scale_attention_by_layer", "true", "false");
}

LlmCHeader llm_c_header(const ModelConfig& model, NumberFormat format) {
  const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
  LlmCHeader header{};
  size_t i = 0;
  for (const int32_t value :
       {kLlmCMagic, format == NumberFormat::kF32 ? 3 : 5, number(model.context), number(model.vocab_size),
        number(model.layers), number(model.heads), number(model.channels), number(model.padded_vocab())})
    header[i++] = value;
  return header;
}

std::vector<ParamPlace> LlmCLayout::order() const {
  std::vector<ParamPlace> places = WeightsLayout::order();
  std::ranges::stable_sort(places, {}, [](const ParamPlace& place) { return kind_of(place.info); });
  return places;
}

std::vector<FileTensor> LlmCLayout::tensors_of(const ParamInfo& info) const {
  return {{.name = info.name, .shape = info.shape, .format = format_}};
}

void LlmCLayout::visit(const ParamInfo& info, const Tensor& values, const Visit& visit) const {
  visit(tensors_of(info).front(), {values.as<float>(), static_cast<size_t>(values.numel())});
}

LlmCWriter::LlmCWriter(const std::filesystem::path& path, const ModelConfig& model, NumberFormat format)
    : file_(path), tensors_(LlmCLayout(model, format).tensors()) {
  const LlmCHeader header = llm_c_header(model, format);
  file_.write(std::as_bytes(std::span(header)));
}

void LlmCWriter::write(std::span<const float> values) {
  check(next_ < tensors_.size() && std::ssize(values) == tensors_[next_].shape.numel(),
        "llm.c: {} values do not fit tensor {} of {}", values.size(), next_, tensors_.size());
  const FileTensor& tensor = tensors_[next_++];
  encode(tensor.format, values, tensor.name, [&](std::span<const std::byte> bytes) { file_.write(bytes); });
}

const std::filesystem::path& LlmCWriter::finish() {
  check(next_ == tensors_.size(), "llm.c: {} of {} tensors were written", next_, tensors_.size());
  return file_.finish();
}

FileChecksum LlmCWriter::commit() {
  finish();
  return file_.commit();
}

bool begins_as_llm_c(std::span<const std::byte> bytes) {
  int32_t magic = 0;
  if (bytes.size() < sizeof magic) return false;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return magic == kLlmCMagic;
}

LlmCReader::LlmCReader(const std::filesystem::path& path, const ModelConfig& model, NumberFormat format)
    : file_(path), tensors_(LlmCLayout(model, format).tensors()) {
  const LlmCHeader header = llm_c_header(model, format);
  int64_t bytes = sizeof(header);
  for (const FileTensor& tensor : tensors_) bytes += tensor.bytes();
  check(std::ssize(file_.bytes()) == bytes, "{} has {} bytes, expected {}", path.string(),
        file_.bytes().size(), bytes);
  check(std::memcmp(file_.bytes().data(), header.data(), sizeof(header)) == 0, "{} has another header",
        path.string());
}

std::span<const std::byte> LlmCReader::bytes(const std::string& name) const {
  size_t at = sizeof(LlmCHeader);
  for (const FileTensor& tensor : tensors_) {
    const auto bytes = static_cast<size_t>(tensor.bytes());
    if (tensor.name == name) return file_.bytes().subspan(at, bytes);
    at += bytes;
  }
  fail("{} has no tensor {}", file_.path().string(), name);
}

}  // namespace tessera
