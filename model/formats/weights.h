// The weights of a folder: model.safetensors with the names and layouts of its family, beside config.json.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "model/formats/folder.h"
#include "model/formats/layout.h"
#include "model/formats/positions.h"
#include "model/formats/safetensors.h"
#include "model/formats/tensor_files.h"
#include "model/params.h"

namespace tessera {

// Writes parameters with the names and layouts of the model's family. Every parameter is written once for
// each prefix of its name: in the order of the prefixes, and for one prefix in the order of the buckets.
class WeightsWriter {
 public:
  // Values are rounded to `dtype`, to nearest even. With `has`, a prefix has those parameters alone.
  using Has = std::function<bool(const std::string& prefix, const ParamPlace& place)>;
  WeightsWriter(const std::filesystem::path& path, const ModelConfig& model,
                const std::vector<std::string>& prefixes, DType dtype = DType::kF32, const Has& has = {},
                Values values = Values::kFinite);
  // `values`: fp32 on the host, of info.shape. Error: with kFinite a value that is not
  void write(const ParamInfo& info, const Tensor& values);
  FileChecksum commit();

 private:
  HuggingFaceLayout layout_;
  SafetensorsWriter file_;
};

// Of the tensors that such a writer writes
std::vector<std::string> tensor_names(const ModelConfig& model, const std::vector<std::string>& prefixes,
                                      const WeightsWriter::Has& has);

// Reads a parameter from files that WeightsWriter wrote with this prefix. Returns its bytes in the files.
int64_t read_param(const TensorFiles& files, const ModelConfig& model, const ParamPlace& place,
                   const std::string& prefix, const ParamSink& sink);

// In what a parameter is handed over on the host: fp32, or bf16 where the file has all of it in bf16
enum class HandOver : uint8_t { kFp32, kAsStored };

// A folder with exactly the weights of a model: config.json, and in model.safetensors (or the files that an
// index names) exactly the tensors of such a model, with or without the leading "transformer." or "model.".
// Of a model of texts and images those of the images are left out, which a notice says.
class WeightsFolder {
 public:
  // Only headers are read; the files stay open, so they may be removed meanwhile. The folder may have fewer
  // positions than `model` if the options extend them. Error: anything missing, malformed, superfluous, or
  // of another model.
  WeightsFolder(const std::filesystem::path& folder, const ModelConfig& model,
                const FolderOptions& options = {}, Values values = Values::kFinite);

  // The values of one parameter. Error: with kFinite a value that is not
  void read(const ParamPlace& place, const ParamSink& sink, HandOver hand_over = HandOver::kFp32) const;
  // Has the system begin to read the values of one parameter; returns their bytes in the files.
  int64_t read_ahead(const ParamPlace& place) const;
  // Whether a matrix of the parameter is stored in NF4
  bool has_nf4(const ParamPlace& place) const;
  // Why the codes and scales of the parameter's matrices are not those of a FourBitMatrix in NF4 with these
  // `small_scales`. Empty: they are
  std::string nf4_difference(const ParamPlace& place, const LayerParts& small_scales) const;
  // Hands them over, on the host. Error: there is such a difference
  using Nf4Sink = std::function<void(const Tensor& codes, const Tensor& scales)>;
  void read_nf4(const ParamPlace& place, const LayerParts& small_scales, const Nf4Sink& sink) const;
  const std::vector<std::string>& notices() const { return found_.notices; }  // see FoundModel
  // Of the tensors; fp32 where they differ; mxfp4 where experts are stored so, and all others in bf16
  NumberFormat format() const;

 private:
  struct InFile {  // where a file has a tensor
    const SafetensorsReader& file;
    std::string name;
  };
  // How the files name the tensors of the family
  enum class Naming : uint8_t {
    kFamily,  // model.layers.3..., lm_head
    kBare,    // without the family's lead, as files of the bare model
    kBefore,  // within a model of texts and images: language_model.model.layers.3..., language_model.lm_head
    kBehind,  // likewise: model.language_model.layers.3..., lm_head
  };
  Naming naming_of_files() const;
  void leave_images_out();
  std::string first_tensor_of(const char* param) const;  // its name in the family
  InFile find(const std::string& name) const;
  std::string name_in_file(const std::string& name) const;
  void refuse_left_over(const std::set<std::string>& known) const;
  void check_tied_head(const std::string& head) const;
  void read_extended(const ParamPlace& place, const ParamSink& sink) const;
  const SafetensorsReader::Entry& entry_of(const std::string& name) const;

  std::filesystem::path folder_;
  PositionExtension extension_;
  Values values_;
  FoundModel found_;
  const Family& family_;
  TensorFiles files_;
  Naming naming_ = Naming::kFamily;
};

// Whether `folder` holds the weights of `model`, as WeightsFolder says. Returns its notices.
std::vector<std::string> check_weights(const std::filesystem::path& folder, const ModelConfig& model,
                                       const FolderOptions& options = {});

// Loads the weights of a folder: a checkpoint, or a model from transformers' save_pretrained(). Adapters are
// left as they are. In memory is one parameter at a time. Returns the bytes in the files of what was read.
// Error: as WeightsFolder.
struct LoadOptions {
  FolderOptions folder = {};
  Values values = Values::kFinite;
  HandOver hand_over = HandOver::kFp32;
  std::function<bool(const ParamPlace&)> reads = {};  // which parameters; none: all
};
int64_t load_weights(const std::filesystem::path& folder, const ModelConfig& model, const ParamSink& sink,
                     const LoadOptions& options = {});

}  // namespace tessera
