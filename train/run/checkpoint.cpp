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

// Values of every parameter, and how their names begin in a file
struct Section {
  Kept kept;
  const char* prefix;
};
constexpr Section kWeights{Kept::kMaster, ""}, kMasters{Kept::kMaster, "master."},
    kFirstMoments{Kept::kFirstMoment, "first_moment."}, kSecondMoments{Kept::kSecondMoment, "second_moment."};

bool is_adapter(const ParamInfo& info) { return info.adapter != AdapterMatrix::kNone; }

// Of the optimizer's file, in its order. Weights that were rounded are kept in fp32 as well, and so are
// adapters, which the weights of the checkpoint are not.
std::vector<Section> optimizer_sections(const RunShape& shape, DType weights) {
  if (weights == DType::kF32 && !shape.model.lora) return {kFirstMoments, kSecondMoments};
  return {kMasters, kFirstMoments, kSecondMoments};
}

// Frozen parameters have weights, whose fp32 values are their masters, but no moments. With adapters the
// weights of a model have no other values than those.
bool has(const Section& section, const RunShape& shape, const ParamInfo& info) {
  if (std::string_view(section.prefix).empty()) return !is_adapter(info);
  if (shape.model.lora) return is_adapter(info);
  return section.kept == Kept::kMaster || !shape.freeze.freezes(info);
}

// Visits the parameters bucket by bucket, with their values on the device and the trained values of the
// bucket.
template <class Visit>
void for_each_value(TrainState& state, const Section& section, Visit&& visit) {
  const ParamLayout& layout = state.optimizer().layout();
  for (size_t b = 0; b < layout.buckets.size(); ++b)
    state.with_whole(section.kept, b, [&](const Tensor& bucket) {
      for (const ParamPlace& place : layout.places)
        if (place.bucket == b && has(section, state.shape(), place.info))
          visit(place.info,
                place.trained ? bucket.rows(place.first, place.info.shape.numel())
                              : layout.view(state.model().params.buckets, place),
                bucket);
    });
}

Tensor on_host(TrainState& state, Arena& staging, const ParamInfo& info, const Tensor& values) {
  const Tensor host = staging.alloc(MemoryTag::kData, info.name, DType::kF32, info.shape);
  state.stream().run(Copy{values.view(info.shape), host});
  state.stream().synchronize();
  return host;
}

// Adds its adapter to a weight on the host, if it has one. `masters`: of the bucket that both are in
void merge_adapter(TrainState& state, Arena& staging, const ParamInfo& info, const Tensor& masters,
                   const Tensor& weight) {
  constexpr std::string_view kWeight = "weight";
  if (!state.shape().model.lora || !info.name.ends_with(kWeight)) return;
  const std::string layer = info.name.substr(0, info.name.size() - kWeight.size());
  Tensor a, b;
  LayerParts layers{};
  for (const ParamPlace& place : state.optimizer().layout().places) {
    if (!is_adapter(place.info) || !place.info.name.starts_with(layer)) continue;
    (place.info.adapter == AdapterMatrix::kA ? a : b) =
        on_host(state, staging, place.info, masters.rows(place.first, place.info.shape.numel()));
    layers = place.info.layers;
  }
  if (a) add_adapter(weight, a, b, layers, state.shape().model.lora.scale());
}

// The values in each section, in the order of the buckets. Error: a value that is not finite.
FileChecksum write_params(TrainState& state, const fs::path& path, const std::vector<Section>& sections,
                          DType dtype) {
  std::vector<std::string> prefixes;
  for (const Section& section : sections) prefixes.emplace_back(section.prefix);
  WeightsWriter file(
      path, state.shape().model, prefixes, dtype, [&](const std::string& prefix, const ParamPlace& place) {
        const auto named =
            std::ranges::find_if(sections, [&](const Section& s) { return prefix == s.prefix; });
        return has(*named, state.shape(), place.info);
      });
  Arena staging = Arena::host();
  for (const Section& section : sections)
    for_each_value(state, section, [&](const ParamInfo& info, const Tensor& tensor, const Tensor& bucket) {
      const Arena::Scope scope(staging);
      const Tensor host = on_host(state, staging, info, tensor);
      merge_adapter(state, staging, info, bucket, host);
      file.write(info, host);
    });
  return file.commit();
}

FileChecksums write_adapter(TrainState& state, const fs::path& folder, const std::string& base) {
  fs::create_directory(folder);
  FileChecksums files = write_peft_adapter(folder, state.shape().model, base, [&](const AdapterSink& sink) {
    Arena staging = Arena::host();
    for_each_value(state, kMasters, [&](const ParamInfo& info, const Tensor& tensor, const Tensor&) {
      const Arena::Scope scope(staging);
      sink(info, on_host(state, staging, info, tensor));
    });
  });
  sync_folder(folder);
  return files;
}

// What a rank other than the first does meanwhile: it sends its parts, in the order in which they are
// written.
void gather_params(TrainState& state, DType dtype) {
  const auto gather = [&](const Section& section) {
    for_each_value(state, section, [](const ParamInfo&, const Tensor&, const Tensor&) {});
  };
  gather(kWeights);
  std::ranges::for_each(optimizer_sections(state.shape(), dtype), gather);
  if (state.shape().model.lora) gather(kMasters);  // write_adapter()
}

bool is_of(CheckpointPart part, const std::string& file) {
  if (part == CheckpointPart::kWeights) return file == kWeightsFile;
  return part == CheckpointPart::kAll || !file.ends_with(".safetensors");
}

// Bytes of a checkpoint of this model, without the few kilobytes beside the tensors
int64_t bytes_of_checkpoint(const TrainState& state, DType dtype) {
  const RunShape& shape = state.shape();
  const auto sections = static_cast<int64_t>(optimizer_sections(shape, dtype).size());
  const int64_t kept = shape.model.parameters() - (shape.model.lora ? shape.model.base().parameters() : 0);
  return shape.model.base().parameters() * static_cast<int64_t>(size_of(dtype)) +
         kept * static_cast<int64_t>(sizeof(float)) * (sections + (shape.model.lora ? 1 : 0));
}

std::string advice_on_space(const fs::path& folder, const TrainState& state, DType dtype) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  const int64_t wanted = bytes_of_checkpoint(state, dtype);
  if (error || space.available >= static_cast<uintmax_t>(wanted)) return "";
  return fmt::format(
      " A checkpoint takes {}, and {} are free: free some space, or keep fewer checkpoints with --set "
      "checkpoint.keep=N.",
      format_bytes(wanted), format_bytes(static_cast<int64_t>(space.available)));
}

void write_files(const fs::path& pending, TrainState& state, const RunState& run,
                 const CheckpointOptions& options) {
  FileChecksums files;
  const DType dtype = options.dtype;
  files[kWeightsFile] = write_params(state, pending / kWeightsFile, {kWeights}, dtype);
  files[kOptimizerFile] =
      write_params(state, pending / kOptimizerFile, optimizer_sections(state.shape(), dtype), DType::kF32);
  if (state.shape().model.lora)
    for (const auto& [name, file] : write_adapter(state, pending / kAdapterFolder, options.base))
      files[fmt::format("{}/{}", kAdapterFolder, name)] = file;
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

// Of one without checksums
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
    gather_params(state, options.dtype);
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
  load_weights(folder, state.shape().model, state.writer(Kept::kMaster),
               {.extension = extension, .hand_over = HandOver::kAsStored});
}

std::string load_base(const fs::path& folder, TrainState& state, PositionExtension extension) {
  Checksum checksum;
  const ParamSink write = state.writer(Kept::kMaster);
  load_weights(folder, state.shape().model,
               [&](const ParamPlace& place, const Tensor& values) {
                 update_fp32(checksum, values);
                 write(place, values);
               },
               {.extension = extension, .hand_over = HandOver::kAsStored});
  return checksum.digits();
}

void load_checkpoint(const fs::path& checkpoint, TrainState& state, const BaseWeights& base) {
  state.optimizer().clear(state.stream());  // the gaps between parameters are in no file
  const ModelConfig& model = state.shape().model;
  const SafetensorsReader file(checkpoint / kOptimizerFile);
  const auto masters = file.entries().lower_bound(kMasters.prefix);
  const bool has_masters = masters != file.entries().end() && masters->first.starts_with(kMasters.prefix);
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
  for (const Section& section : optimizer_sections(state.shape(), has_masters ? DType::kBF16 : DType::kF32))
    for (const ParamPlace& place : state.optimizer().layout().places)
      if (has(section, state.shape(), place.info))
        read_param(file, model, place, section.prefix, state.writer(section.kept));
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
