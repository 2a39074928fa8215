#include "train/run/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"
#include "kernels/base/ledger.h"
#include "model/formats/folder.h"
#include "model/formats/peft.h"
#include "model/formats/safetensors.h"
#include "model/formats/weights.h"
#include "train/run/checkpoint_files.h"
#include "train/run/checkpoint_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMasters = "master.";

// Values of some parameters, which stand side by side in a file
struct Section {
  std::string prefix;                                              // of the parameters' names in the file
  std::string values;                                              // kMaster, or what the update rule keeps
  bool (*has)(const RunShape& shape, const ParamInfo& info) = {};  // which parameters
};
struct TensorFile {
  std::string name;
  DType dtype;
  std::vector<Section> sections;  // in their order
};

bool is_adapter(const RunShape&, const ParamInfo& info) { return info.adapter != AdapterMatrix::kNone; }
bool is_weight(const RunShape& shape, const ParamInfo& info) { return !is_adapter(shape, info); }
bool is_trained(const RunShape& shape, const ParamInfo& info) {
  return shape.model.lora ? is_adapter(shape, info) : !shape.freeze.freezes(info);
}
// What has fp32 values beside the weights' file. With adapters the other weights are those of
// train.init_from.
bool has_master(const RunShape& shape, const ParamInfo& info) {
  return !shape.model.lora || is_adapter(shape, info);
}

// Master weights are saved if the weights of the checkpoint are bf16, and always for adapters, which those
// weights are not.
TensorFile optimizer_file(const RunShape& shape, DType weights) {
  TensorFile file{.name = kOptimizerFile, .dtype = DType::kF32, .sections = {}};
  if (weights != DType::kF32 || shape.model.lora) file.sections.push_back({kMasters, kMaster, has_master});
  for (const StateTensor& one : shape.rule.state)
    file.sections.push_back({one.name + ".", one.name, is_trained});
  return file;
}

// All that a checkpoint holds of the parameters, in the order in which it is written. The rank that writes
// and those that send it their parts walk this list.
std::vector<TensorFile> tensor_files(const RunShape& shape, DType weights) {
  std::vector<TensorFile> files{{kWeightsFile, weights, {{"", kMaster, is_weight}}},
                                optimizer_file(shape, weights)};
  if (shape.model.lora) files.push_back({kAdapterFolder, DType::kF32, {{"", kMaster, is_adapter}}});
  return files;
}

// A parameter of a section, its values on the device, and the trained values of its bucket
struct FoundValues {
  const ParamPlace& place;
  Tensor values, bucket;
};

// Visits the parameters of a file, section by section and bucket by bucket. Every rank calls it for every
// file, in their order: each bucket is gathered from all of them.
void for_each_value(TrainState& state, const TensorFile& file,
                    const std::function<void(const FoundValues&)>& visit) {
  const ParamLayout& layout = state.store().layout();
  for (const Section& section : file.sections)
    for (size_t b = 0; b < layout.buckets.size(); ++b) {
      const auto is_in = [&](const ParamPlace& place) {
        return place.bucket == b && section.has(state.shape(), place.info);
      };
      const bool any_frozen = std::ranges::any_of(
          layout.places, [&](const ParamPlace& place) { return is_in(place) && !place.trained; });
      const Tensor weights = any_frozen ? state.store().whole_weights(b) : Tensor{};
      state.store().with_whole(section.values, b, [&](const Tensor& bucket) {
        for (const ParamPlace& place : layout.places) {
          if (!is_in(place)) continue;
          const Tensor& from = place.trained ? bucket : weights;
          visit({.place = place,
                 .values = from.rows(place.first, place.info.shape.numel()),
                 .bucket = bucket});
        }
      });
    }
}

Tensor on_host(TrainState& state, Arena& staging, const ParamInfo& info, const Tensor& values) {
  const Tensor host = staging.alloc(MemoryTag::kData, info.name, DType::kF32, info.shape);
  state.stream().run(Copy{values.view(info.shape), host});
  state.stream().synchronize();
  return host;
}

// Adds its adapter to a weight on the host, if it has one. Both are in the same bucket.
void merge_adapter(TrainState& state, Arena& staging, const FoundValues& found, const Tensor& weight) {
  const auto adapter = state.store().layout().adapter_of(found.place);
  if (!adapter) return;
  const auto matrix = [&](const ParamPlace& place) {
    return on_host(state, staging, place.info, found.bucket.rows(place.first, place.info.shape.numel()));
  };
  const Tensor a = matrix(*adapter->a), b = matrix(*adapter->b);
  add_adapter(weight, a, b, adapter->a->info.layers, state.shape().model.lora.scale());
}

// Error: a value that is not finite.
FileChecksum write_params(TrainState& state, const fs::path& folder, const TensorFile& file) {
  std::vector<std::string> prefixes;
  for (const Section& section : file.sections) prefixes.push_back(section.prefix);
  WeightsWriter writer(
      folder / file.name, state.shape().model, prefixes, file.dtype,
      [&](const std::string& prefix, const ParamPlace& place) {
        return std::ranges::find(file.sections, prefix, &Section::prefix)->has(state.shape(), place.info);
      });
  Arena staging = Arena::host();
  for_each_value(state, file, [&](const FoundValues& found) {
    const Arena::Scope scope(staging);
    const Tensor host = on_host(state, staging, found.place.info, found.values);
    merge_adapter(state, staging, found, host);
    writer.write(found.place.info, host);
  });
  return writer.commit();
}

FileChecksums write_adapter(TrainState& state, const fs::path& folder, const TensorFile& file,
                            const std::string& base) {
  fs::create_directory(folder / file.name);
  const FileChecksums written =
      write_peft_adapter(folder / file.name, state.shape().model, base, [&](const AdapterSink& sink) {
        Arena staging = Arena::host();
        for_each_value(state, file, [&](const FoundValues& found) {
          const Arena::Scope scope(staging);
          sink(found.place.info, on_host(state, staging, found.place.info, found.values));
        });
      });
  sync_folder(folder / file.name);
  FileChecksums files;
  for (const auto& [name, checksum] : written) files[fmt::format("{}/{}", file.name, name)] = checksum;
  return files;
}

bool is_of(CheckpointPart part, const std::string& file) {
  if (part == CheckpointPart::kWeights) return file == kWeightsFile;
  return part == CheckpointPart::kAll || !file.ends_with(".safetensors");
}

// Bytes of a checkpoint of this model, without the few kilobytes beside the tensors
int64_t bytes_of_checkpoint(TrainState& state, DType dtype) {
  const RunShape& shape = state.shape();
  int64_t bytes = 0;
  for (const TensorFile& file : tensor_files(shape, dtype))
    for (const Section& section : file.sections)
      for (const ParamPlace& place : state.store().layout().places)
        if (section.has(shape, place.info))
          bytes += (place.info.shape.numel() - place.info.padding * shape.model.channels) *
                   static_cast<int64_t>(size_of(file.dtype));
  return bytes;
}

std::string advice_on_space(const fs::path& folder, TrainState& state, DType dtype) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  const int64_t needed = bytes_of_checkpoint(state, dtype);
  if (error || space.available >= static_cast<uintmax_t>(needed)) return "";
  return fmt::format(
      " A checkpoint takes {}, and {} are free: free some space, or keep fewer checkpoints with --set "
      "checkpoint.keep=N.",
      format_bytes(needed), format_bytes(static_cast<int64_t>(space.available)));
}

void write_files(const fs::path& pending, TrainState& state, const RunState& run,
                 const CheckpointOptions& options) {
  FileChecksums files;
  const DType dtype = options.dtype;
  for (const TensorFile& file : tensor_files(state.shape(), dtype)) {
    if (file.name == kAdapterFolder)
      files.merge(write_adapter(state, pending, file, options.base));
    else
      files[file.name] = write_params(state, pending, file);
  }
  nlohmann::ordered_json model = hugging_face_config(state.shape().model, dtype);
  if (options.token_ids)
    for (const auto& [field, id] : options.token_ids->items()) model[field] = id;
  files[kModelFile] = write_json(pending / kModelFile, model);
  RunState with_scales = run;
  with_scales.fp8_scales = state.fp8().scales(state.stream());
  files[kStateFile] = write_json(pending / kStateFile, json_of(with_scales));
  if (!options.config.empty()) files[kConfigFile] = write_file(pending / kConfigFile, options.config);
  for (const auto& [name, bytes] : options.copied) files[name] = write_file(pending / name, bytes);
  write_file(pending / kChecksumsFile, checksums_text(files));
}

// The verdict on a file without a checksum
FileVerdict look_at_file(const fs::path& path) {
  FileVerdict verdict{.path = path, .fault = "", .has_checksum = false};
  try {
    verdict.bytes = std::ssize(MappedFile(path).bytes());
    if (path.extension() == ".safetensors") {
      const SafetensorsReader file(path);
    } else {
      read_json(path);
    }
  } catch (const Error& error) {
    verdict.fault = error.what();
  }
  return verdict;
}

// Reads all of every earlier one until one is whole.
std::string earlier_whole_checkpoint(const fs::path& checkpoint) {
  const int64_t step = step_of_name(checkpoint.filename().string()).value_or(0);
  std::vector<NamedCheckpoint> all = named_checkpoints(checkpoint.parent_path());
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    if (one->step >= step || one->standing != NamedCheckpoint::Standing::kCheckpoint) continue;
    const std::vector<FileVerdict> verdicts = verify_checkpoint(one->path);
    if (std::ranges::all_of(verdicts, [](const FileVerdict& v) { return v.fault.empty(); }))
      return one->path.filename().string();
  }
  return "";
}

// With the values as fp32, so that it is the same for files of bf16 and of fp32
void update_fp32(Checksum& checksum, const Tensor& values) {
  if (values.dtype == DType::kF32) return checksum.update({values.as<std::byte>(), values.bytes()});
  constexpr int64_t kChunk = int64_t{1} << 20;
  std::vector<float> widened(static_cast<size_t>(std::min(kChunk, values.numel())));
  const std::span<const std::byte> bytes(values.as<std::byte>(), values.bytes());
  for (int64_t at = 0; at < values.numel(); at += kChunk) {
    const auto count = static_cast<size_t>(std::min(kChunk, values.numel() - at));
    const std::span<float> chunk(widened.data(), count);
    decode(number_format(values.dtype), bytes.subspan(static_cast<size_t>(at) * 2, count * 2), chunk);
    checksum.update(std::as_bytes(chunk));
  }
}

}  // namespace

fs::path save_checkpoint(const fs::path& folder, TrainState& state, const RunState& run,
                         const CheckpointOptions& options) {
  const fs::path final_path = folder / checkpoint_name(run.step), pending = unfinished(final_path);
  if (state.rank() != 0) {
    for (const TensorFile& file : tensor_files(state.shape(), options.dtype))
      for_each_value(state, file, [](const FoundValues&) {});
    return final_path;
  }
  try {
    fs::create_directories(folder);
    remove_unfinished(folder);  // first, to free space
    fs::create_directory(pending);
    write_files(pending, state, run, options);
    sync_folder(pending);
    give_name(pending, final_path);  // a resumed run may write the same step again
    sync_folder(folder);
    remove_unfinished(folder);
  } catch (const std::exception& error) {
    const std::string advice = advice_on_space(folder, state, options.dtype);
    std::error_code ignored;
    fs::remove_all(pending, ignored);
    fail("the checkpoint of step {} was not written: {}. Earlier checkpoints in {} are whole.{}", run.step,
         error.what(), folder.string(), advice);
  }
  return final_path;
}

RunState read_state(const fs::path& checkpoint, const ModelConfig& model) {
  check_same_model(checkpoint, model);
  return read_run_state(checkpoint);
}

void load_weights(const fs::path& folder, TrainState& state, PositionExtension extension) {
  load_weights(folder, state.shape().model, state.store().writer(),
               {.extension = extension, .hand_over = HandOver::kAsStored});
}

std::string load_base(const fs::path& folder, TrainState& state, PositionExtension extension) {
  Checksum checksum;
  const ParamSink write = state.store().writer();
  load_weights(folder, state.shape().model,
               [&](const ParamPlace& place, const Tensor& values) {
                 update_fp32(checksum, values);
                 write(place, values);
               },
               {.extension = extension, .hand_over = HandOver::kAsStored});
  return checksum.digits();
}

void load_checkpoint(const fs::path& checkpoint, TrainState& state, const BaseWeights& base) {
  state.store().clear_kept();  // the gaps between parameters are in no file
  const ModelConfig& model = state.shape().model;
  const SafetensorsReader file(checkpoint / kOptimizerFile);
  const auto masters = file.entries().lower_bound(kMasters);
  const bool has_masters = masters != file.entries().end() && masters->first.starts_with(kMasters);
  if (model.lora) {
    const std::string found = load_base(base.folder, state, base.extension);
    check(found == base.checksum,
          "the weights in {} are not those that {} trained its adapters on: their checksum is {}, and was "
          "{}. Restore that folder, or start a new run from the checkpoint's own weights with "
          "train.init_from={}",
          base.folder.string(), checkpoint.string(), found, base.checksum, checkpoint.string());
  }
  if (has_masters)
    check_weights(checkpoint, model, PositionExtension::kNone);
  else
    load_weights(checkpoint, state);
  for (const Section& section :
       optimizer_file(state.shape(), has_masters ? DType::kBF16 : DType::kF32).sections)
    for (const ParamPlace& place : state.store().layout().places)
      if (section.has(state.shape(), place.info))
        read_param(file, model, place, section.prefix, state.store().writer(section.values));
  if (state.fp8()) state.fp8().set_scales(state.stream(), read_run_state(checkpoint).fp8_scales);
}

std::vector<FileVerdict> verify_checkpoint(const fs::path& checkpoint) {
  FileChecksums files;
  try {
    files = written_checksums(checkpoint);
  } catch (const Error& error) {
    return {{.path = checkpoint / kChecksumsFile, .fault = error.what()}};
  }
  std::vector<FileVerdict> verdicts;
  if (files.empty())
    for (const char* file : {kWeightsFile, kOptimizerFile, kModelFile, kStateFile})
      verdicts.push_back(look_at_file(checkpoint / file));
  else
    verdicts = verify_files(checkpoint, files);
  return verdicts;
}

bool check_undamaged(const fs::path& checkpoint, CheckpointPart part) {
  std::vector<FileVerdict> verdicts;
  try {
    FileChecksums files = written_checksums(checkpoint);
    if (files.empty()) return false;
    std::erase_if(files, [&](const auto& file) { return !is_of(part, file.first); });
    verdicts = verify_files(checkpoint, files);
  } catch (const Error& error) {
    verdicts.push_back({.path = checkpoint / kChecksumsFile, .fault = error.what()});
  }
  const auto bad = std::ranges::find_if(verdicts, [](const FileVerdict& v) { return !v.fault.empty(); });
  if (bad == verdicts.end()) return true;
  const std::string earlier = earlier_whole_checkpoint(checkpoint);
  fail("{} is damaged: {}. {}", bad->path.string(), bad->fault,
       earlier.empty()
           ? "No earlier checkpoint is whole: start again with --overwrite, or restore this one from a copy"
           : fmt::format("{} is whole: to resume from it, rename the damaged one: mv {} {}.damaged", earlier,
                         checkpoint.string(), checkpoint.string()));
}

}  // namespace tessera
