// How a kind of file holds a model: which tensors each parameter becomes, in which order, and with which
// values. The code that writes a file and the code that compares it afterwards both use the layout.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/formats/family.h"
#include "model/formats/file_tensor.h"
#include "model/params.h"

namespace tessera {

class WeightsLayout {
 public:
  virtual ~WeightsLayout() = default;

  // The parameters in the order in which the file has their tensors
  virtual std::vector<ParamPlace> order() const;
  // In the order of the file. Error: the format of numbers does not suit a tensor.
  virtual std::vector<FileTensor> tensors_of(const ParamInfo& info) const = 0;
  // Calls visit(tensor, values) for each of tensors_of(info). `values` are fp32 on the host, of info.shape
  using Visit = std::function<void(const FileTensor& tensor, std::span<const float> values)>;
  virtual void visit(const ParamInfo& info, const Tensor& values, const Visit& visit) const = 0;

  std::vector<FileTensor> tensors() const;  // of all parameters

 protected:
  explicit WeightsLayout(const ModelConfig& model) : model_(model) {}
  ModelConfig model_;
};

// The names and layouts that the model's family has in Hugging Face's transformers
class HuggingFaceLayout final : public WeightsLayout {
 public:
  HuggingFaceLayout(const ModelConfig& model, NumberFormat format);
  std::vector<FileTensor> tensors_of(const ParamInfo& info) const override;
  void visit(const ParamInfo& info, const Tensor& values, const Visit& visit) const override;

 private:
  const Family& family_;
  NumberFormat format_;
};

}  // namespace tessera
