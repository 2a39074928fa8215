// llm.c's file of a GPT-2: 256 int32, then the tensors; those of a kind follow one another for all layers.
//   header   20240326; version 3 (fp32) or 5 (bf16); context, vocabulary, layers, heads, channels, and the
//            vocabulary padded to a multiple of 128; zeros
#pragma once

#include <array>
#include <filesystem>
#include <span>
#include <string>

#include "kernels/base/file.h"
#include "model/formats/layout.h"

namespace tessera {

// Error: a setting that llm.c's GPT-2 does not have, with its key; a number format other than fp32 and bf16.
// `folder` is where the model is, for the message.
void check_llm_c(const ModelConfig& model, NumberFormat format, const std::string& folder);

using LlmCHeader = std::array<int32_t, 256>;
LlmCHeader llm_c_header(const ModelConfig& model, NumberFormat format);

// The tensors have the names of our parameters. Matrices are [O, I], and the token table includes the rows of
// zeros that pad the vocabulary.
class LlmCLayout final : public WeightsLayout {
 public:
  LlmCLayout(const ModelConfig& model, NumberFormat format) : WeightsLayout(model), format_(format) {}
  std::vector<ParamPlace> order() const override;
  std::vector<FileTensor> tensors_of(const ParamInfo& info) const override;
  void visit(const ParamInfo& info, const Tensor& values, const Visit& visit) const override;

 private:
  NumberFormat format_;
};

// Writes tensors in the order of the layout. The file appears when commit() is called.
class LlmCWriter {
 public:
  LlmCWriter(const std::filesystem::path& path, const ModelConfig& model, NumberFormat format);
  void write(std::span<const float> values);
  // The complete file under its temporary name. Error: tensors are missing
  const std::filesystem::path& finish();
  FileChecksum commit();

 private:
  OutputFile file_;
  std::vector<FileTensor> tensors_;
  size_t next_ = 0;
};

// Reads such a file of a known model. Error: it has another header, or another size
class LlmCReader {
 public:
  LlmCReader(const std::filesystem::path& path, const ModelConfig& model, NumberFormat format);
  std::span<const std::byte> bytes(const std::string& tensor) const;  // Error: no such tensor

 private:
  MappedFile file_;
  std::vector<FileTensor> tensors_;
};

bool begins_as_llm_c(std::span<const std::byte> bytes);

}  // namespace tessera
