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
// each prefix of its name. The order is that of the prefixes, and within a prefix that of the buckets.
class WeightsWriter {
 public:
  // Values are rounded to `dtype`, to nearest even. If `has` is given, a prefix has only the parameters for
  // which it is true.
  using Has = std::function<bool(const std::string& prefix, const ParamPlace& place)>;
  WeightsWriter(const std::filesystem::path& path, const ModelConfig& model,
                const std::vector<std::string>& prefixes, DType dtype = DType::kF32, const Has& has = {},
                Values values = Values::kFinite);
  // `values`: fp32 on the host, of info.shape. Error: with kFinite a value that is not finite
  void write(const ParamInfo& info, const Tensor& values);
  FileChecksum commit();

 private:
  HuggingFaceLayout layout_;
  SafetensorsWriter file_;
};

// The names of the tensors that such a writer writes
std::vector<std::string> tensor_names(const ModelConfig& model, const std::vector<std::string>& prefixes,
                                      const WeightsWriter::Has& has);

// Reads a parameter from files that WeightsWriter wrote with this prefix. Returns the number of its bytes in
// the files.
int64_t read_param(const TensorFiles& files, const ModelConfig& model, const ParamPlace& place,
                   const std::string& prefix, const ParamSink& sink);

// The type in which a parameter is handed over on the host: fp32, or bf16 if the file has all of it in bf16
enum class HandOver : uint8_t { kFp32, kAsStored };

// A folder with exactly the weights of a model: config.json, and in model.safetensors (or the files that an
// index names) exactly the tensors of such a model, with or without the leading "transformer." or "model.".
// If the model is of texts and images, the tensors of images are left out, and a notice says so.
class WeightsFolder {
 public:
  // Reads only the headers. The files stay open, so they may be removed meanwhile. The folder may have fewer
  // positions than `model` if the options extend them. Error: something is missing, malformed or superfluous,
  // or belongs to another model.
  WeightsFolder(const std::filesystem::path& folder, const ModelConfig& model,
                const FolderOptions& options = {}, Values values = Values::kFinite);

  // The values of one parameter. Error: with kFinite a value that is not finite
  void read(const ParamPlace& place, const ParamSink& sink, HandOver hand_over = HandOver::kFp32) const;
  // Asks the system to begin to read the values of one parameter; returns the number of their bytes in the
  // files.
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
  // The format of the tensors; fp32 if they differ; mxfp4 if experts have it and all others are bf16
  NumberFormat format() const;

 private:
  struct InFile {  // the file that has a tensor, and its name there
    const SafetensorsReader& file;
    std::string name;
  };
  // How the files name the tensors
  enum class Naming : uint8_t {
    kFamily,  // model.layers.3..., lm_head
    kBare,    // without the family's lead, as in files of the bare model
    kBefore,  // within a model of texts and images: language_model.model.layers.3..., language_model.lm_head
    kBehind,  // likewise: model.language_model.layers.3..., lm_head
  };
  Naming naming_of_files() const;
  void leave_images_out();
  std::string first_tensor_of(const char* param) const;  // its name by the family's table
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

// Checks that `folder` holds the weights of `model`, as WeightsFolder says. Returns its notices.
std::vector<std::string> check_weights(const std::filesystem::path& folder, const ModelConfig& model,
                                       const FolderOptions& options = {});

// Loads the weights of a folder: a checkpoint, or a model from transformers' save_pretrained(). Adapters do
// not change. Only one parameter at a time is in memory. Returns the number of bytes of what was read in the
// files. Error: as WeightsFolder.
struct LoadOptions {
  FolderOptions folder = {};
  Values values = Values::kFinite;
  HandOver hand_over = HandOver::kFp32;
  std::function<bool(const ParamPlace&)> reads = {};  // which parameters; none: all
};
int64_t load_weights(const std::filesystem::path& folder, const ModelConfig& model, const ParamSink& sink,
                     const LoadOptions& options = {});

}  // namespace tessera
