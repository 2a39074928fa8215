#include "train/run/checkpoint.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "kernels/base/arena.h"
#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"
#include "kernels/base/ledger.h"
#include "kernels/base/system_error.h"
#include "kernels/communicator.h"
#include "model/formats/bitsandbytes.h"
#include "model/formats/folder.h"
#include "model/formats/peft.h"
#include "model/formats/tensor_files.h"
#include "model/formats/weights.h"
#include "train/run/checkpoint_files.h"
#include "train/run/checkpoint_folder.h"
#include "train/run/checkpoint_tensors.h"
#include "train/run/nf4_base.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr auto kPoll = std::chrono::milliseconds(10);  // for the files of other ranks

// A parameter of a section, and what reads its values, or those of others in its bucket
struct FoundValues {
  const ParamPlace& place;
  const ParamReader& read;
};

// Visits the parameters of a file, section by section and bucket by bucket. Every rank calls it for every
// file, in their order: each bucket is gathered from all of them.
void for_each_value(TrainState& state, const TensorFile& file,
                    const std::function<void(const FoundValues&)>& visit) {
  const ParamLayout& layout = state.store().layout();
  for (const SectionOfBucket& part : file.parts) {
    state.store().with_whole(part.section.values, part.bucket, [&](const ParamReader& read) {
      for (const ParamPlace& place : layout.places)
        if (place.bucket == part.bucket && part.section.has(state.shape(), place.info))
          visit({.place = place, .read = read});
    });
  }
}

// A tensor on the host, with the memory that it lies in
struct HostCopy {
  std::shared_ptr<Arena> arena;
  Tensor tensor;
};

HostCopy on_host(TrainState& state, const FoundValues& found) {
  const ParamInfo& info = found.place.info;
  HostCopy copy{.arena = std::make_shared<Arena>(Arena::host()), .tensor = {}};
  copy.arena->reserve(info.shape.numel() * int64_t{sizeof(float)});
  copy.tensor = copy.arena->alloc(MemoryTag::kData, info.name, DType::kF32, info.shape);
  found.read(found.place, copy.tensor);
  state.stream().synchronize();
  return copy;
}

// Adds its adapter to a weight on the host, if it has one. Both are in the same bucket.
void merge_adapter(TrainState& state, const FoundValues& found, const Tensor& weight) {
  const auto adapter = state.store().layout().adapter_of(found.place);
  if (!adapter) return;
  const HostCopy a = on_host(state, {.place = *adapter->a, .read = found.read}),
                 b = on_host(state, {.place = *adapter->b, .read = found.read});
  add_adapter(weight, a.tensor, b.tensor, adapter->a->info.layers, state.shape().model.lora.scale());
}

// Where a checkpoint is written: tasks of its queue alone touch the folder and `files`.
struct Writing {
  fs::path folder;
  WriteQueue& queue;
  FileChecksums& files;
  Values values;
  std::function<void()> check_folder;

  void push(int64_t bytes, std::function<void()> task) const {
    queue.push(bytes, [check = check_folder, task = std::move(task)] {
      check();
      task();
    });
  }
};

// Error: a value that is not finite.
void write_params(const Writing& to, TrainState& state, const TensorFile& file) {
  const auto writer = std::make_shared<std::optional<WeightsWriter>>();
  to.push(0, [=, path = to.folder / file.name, shape = state.shape(), values = to.values] {
    writer->emplace(
        path, shape.model, file.prefixes(), file.dtype,
        [&](const std::string& prefix, const ParamPlace& place) { return file.has(shape, prefix, place); },
        values);
  });
  for_each_value(state, file, [&](const FoundValues& found) {
    const HostCopy copy = on_host(state, found);
    merge_adapter(state, found, copy.tensor);
    to.push(static_cast<int64_t>(copy.tensor.bytes()),
            [writer, copy, info = found.place.info] { (*writer)->write(info, copy.tensor); });
  });
  to.push(0, [writer, &files = to.files, name = file.name] { files[name] = (*writer)->commit(); });
}

// What frozen matrices are rounded to
std::string stored_form_of(const RunShape& shape) {
  return shape.base != BaseForm::kAuto ? name_of(shape.base) : shape.fp8 ? "fp8" : "";
}

void write_adapter(const Writing& to, TrainState& state, const TensorFile& file,
                   const CheckpointOptions& options) {
  struct Adapter {
    ParamInfo info;
    HostCopy values;
  };
  std::vector<Adapter> adapters;
  for_each_value(state, file, [&](const FoundValues& found) {
    adapters.push_back({found.place.info, on_host(state, found)});
  });
  const AdapterBase of{.name = options.base,
                       .stored_as = options.base_is_kept ? "" : stored_form_of(state.shape())};
  to.push(0, [=, &files = to.files, folder = to.folder / file.name, model = state.shape().model,
              adapters = std::move(adapters)] {
    fs::create_directory(folder);
    const FileChecksums written = write_peft_adapter(folder, model, of, [&](const AdapterSink& sink) {
      for (const Adapter& one : adapters) sink(one.info, one.values.tensor);
    });
    sync_folder(folder);
    for (const auto& [name, checksum] : written) files[fmt::format("{}/{}", file.name, name)] = checksum;
  });
}

std::string advice_on_space(const fs::path& folder, int64_t needed) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error || space.available >= static_cast<uintmax_t>(needed)) return "";
  return fmt::format(
      " A checkpoint takes {}, and {} are free: free some space, or keep fewer checkpoints with --set "
      "checkpoint.keep=N.",
      format_bytes(needed), format_bytes(static_cast<int64_t>(space.available)));
}

// The files of this rank
void write_tensors(const Writing& to, TrainState& state, const std::vector<TensorFile>& files,
                   const CheckpointOptions& options) {
  for (const TensorFile& file : files) {
    if (file.rank != state.rank())
      for_each_value(state, file, [](const FoundValues&) {});
    else if (file.name == kAdapterFolder)
      write_adapter(to, state, file, options);
    else
      write_params(to, state, file);
  }
}

// What is no tensor
void write_texts(const Writing& to, TrainState& state, const std::vector<TensorFile>& files,
                 const RunState& run, const CheckpointOptions& options) {
  std::map<std::string, nlohmann::ordered_json> texts;
  texts[kModelFile] = hugging_face_config(state.shape().model, options.dtype);
  if (options.token_ids)
    for (const auto& [field, id] : options.token_ids->items()) texts[kModelFile][field] = id;
  RunState with_scales = run;
  with_scales.fp8_scales = state.fp8().scales(state.stream());
  texts[kStateFile] = json_of(with_scales);
  if (options.disks.several())  // the same bytes on every disk
    texts[kStateFile] = nlohmann::ordered_json::parse(options.exchange(texts[kStateFile].dump()).front());
  if (!options.disks.leads(state.rank())) return;
  for (const char* stem : {kWeightsStem, kOptimizerStem})
    if (std::ranges::none_of(files, [&](const auto& f) { return f.name == tensor_file_name(stem, 0, 1); }))
      texts[index_name(stem)] = index_of(state, files, stem);
  to.push(0,
          [&found = to.files, folder = to.folder, texts, config = options.config, copied = options.copied] {
            for (const auto& [name, json] : texts) found[name] = write_json(folder / name, json);
            if (!config.empty()) found[kConfigFile] = write_file(folder / kConfigFile, config);
            found.merge(write_copied_files(folder, copied));
          });
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

PendingCheckpoint::PendingCheckpoint(const fs::path& folder, TrainState& state, const RunState& run,
                                     const CheckpointOptions& options)
    : folder_(folder),
      path_(folder / checkpoint_name(run.step)),
      pending_(unfinished(path_)),
      step_(run.step),
      bytes_(0),
      rank_(state.rank()),
      disks_(options.disks),
      exchange_(options.exchange),
      replaces_(options.replaces),
      check_folder_(options.check_folder) {
  try {
    const std::vector<TensorFile> files = tensor_files(state, options);
    bytes_ = bytes_of(state, files);
    std::set<int64_t> writers;
    for (const TensorFile& file : files) writers.insert(file.rank);
    if (disks_.leads(rank_)) {
      check_folder_();
      fs::create_directories(folder);
      remove_unfinished(folder);  // first, to free space
      fs::create_directory(pending_);
      for (const int64_t rank : writers)
        if (rank != rank_ && disks_.leader_of(rank) == rank_) others_.push_back(rank);
    }
    options.barrier();  // the folder is there
    queue_ = std::make_unique<WriteQueue>(device_memory(Device::kCpu).free / 2 / state.shape().ranks());
    const Writing to{.folder = pending_,
                     .queue = *queue_,
                     .files = files_,
                     .values = options.any_values ? Values::kAny : Values::kFinite,
                     .check_folder = check_folder_};
    write_tensors(to, state, files, options);
    if (disks_.leads(rank_) || disks_.several()) write_texts(to, state, files, run, options);
    if (!disks_.leads(rank_) && writers.contains(rank_))
      to.push(0, [this] { write_json(pending_ / rank_file_name(rank_), json_of(files_)); });
  } catch (const CommunicationError&) {
    throw;  // the checkpoint is not the cause: the watchdog knows which rank is gone
  } catch (const std::exception& error) {
    fail_with(error);
  }
}

PendingCheckpoint::~PendingCheckpoint() = default;

bool PendingCheckpoint::others_are_done() const {
  return std::ranges::all_of(others_,
                             [&](int64_t rank) { return fs::exists(pending_ / rank_file_name(rank)); });
}

bool PendingCheckpoint::done_within(double seconds) {
  const Clock::time_point start = Clock::now();
  if (!queue_->done_within(seconds)) return false;
  while (!others_are_done()) {
    if (seconds_since(start) >= seconds) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

void PendingCheckpoint::take_files_of_others() {
  for (; !others_are_done(); std::this_thread::sleep_for(kPoll))
    check_folder_();  // if one ends, the run does
  for (const int64_t rank : others_) {
    const fs::path path = pending_ / rank_file_name(rank);
    files_.merge(read_checksums(read_json(path), path.string()));
    fs::remove(path);
  }
}

// What every disk has, and which machine has the rest
void PendingCheckpoint::take_files_of_disks() {
  const bool leads = disks_.leads(rank_);
  const std::vector<std::string> of_disks = exchange_(leads ? json_of(files_).dump() : "");
  FileChecksums all;
  std::map<std::string, std::vector<size_t>> places;
  for (size_t rank = 0; rank < of_disks.size(); ++rank) {
    if (of_disks[rank].empty()) continue;
    for (const auto& [name, sum] : read_checksums(nlohmann::json::parse(of_disks[rank]), "a disk's files")) {
      const auto& found = all.try_emplace(name, sum).first->second;
      places[name].push_back(rank);
      check(found == sum, "{} of {} is not that of {}. Both have to train from the same files", name,
            disks_.machine_of(static_cast<int64_t>(rank)),
            disks_.machine_of(static_cast<int64_t>(places[name].front())));
    }
  }
  if (!leads) return;
  std::map<std::string, std::string> machines;
  for (const auto& [name, ranks] : places)
    if (ranks.size() == 1) machines[name] = disks_.machine_of(static_cast<int64_t>(ranks[0]));
  files_ = std::move(all);
  files_[kMachinesFile] = write_file(pending_ / kMachinesFile, machines_text(machines));
}

fs::path PendingCheckpoint::finish() {
  try {
    queue_->finish();
    const bool leads = disks_.leads(rank_);
    if (leads) {
      take_files_of_others();
      check_folder_();
    }
    if (disks_.several()) take_files_of_disks();
    if (!leads) {
      if (disks_.several()) exchange_("");  // as below
      return path_;
    }
    write_file(pending_ / kChecksumsFile, checksums_text(files_));
    sync_folder(pending_);
    check_folder_();
    give_name(pending_, path_, replaces_);  // a resumed run may write the same step again
    sync_folder(folder_);
    if (disks_.several()) exchange_("");  // it is whole on every disk
    check_folder_();
    leftovers_ = remove_unfinished(folder_);
  } catch (const std::exception& error) {
    fail_with(error);
  }
  return path_;
}

void PendingCheckpoint::fail_with(const std::exception& error) const {
  const std::string why = error_text(error);
  check_folder_();  // if the folder is another one now, that is the cause
  const std::string advice = advice_on_space(folder_, bytes_);
  std::error_code ignored;
  if (disks_.leads(rank_)) fs::remove_all(pending_, ignored);
  fail("the checkpoint of step {} was not written: {}. Earlier checkpoints in {} are whole.{}", step_, why,
       folder_.string(), advice);
}

fs::path save_checkpoint(const fs::path& folder, TrainState& state, const RunState& run,
                         const CheckpointOptions& options) {
  return PendingCheckpoint(folder, state, run, options).finish();
}

RunState read_state(const fs::path& checkpoint, const ModelConfig& model, int64_t least_step) {
  check_same_model(checkpoint, model);
  return read_run_state(checkpoint, least_step);
}

namespace {

int64_t load_kept(const fs::path& folder, TrainState& state, LoadOptions options) {
  options.hand_over = HandOver::kAsStored;
  options.reads = [&](const ParamPlace& place) { return state.store().keeps(kMaster, place); };
  return load_weights(folder, state.shape().model, state.store().writer(), options);
}

}  // namespace

int64_t load_weights(const fs::path& folder, TrainState& state, const FolderOptions& options) {
  return load_kept(folder, state, {.folder = options});
}

namespace {

std::string load_summed(const fs::path& folder, const ModelConfig& model, const ParamSink& write,
                        const FolderOptions& options) {
  Checksum checksum;
  load_weights(folder, model,
               [&](const ParamPlace& place, const Tensor& values) {
                 update_fp32(checksum, values);
                 if (write) write(place, values);
               },
               {.folder = options, .hand_over = HandOver::kAsStored});
  return checksum.digits();
}

}  // namespace

std::string load_base(const fs::path& folder, TrainState& state, const FolderOptions& options) {
  const std::string checksum = load_summed(folder, state.shape().model, state.store().writer(), options);
  if (is_nf4(state.shape().base) && is_in_nf4(folder)) load_nf4_base(folder, state, options);
  return checksum;
}

std::string load_fixed(const fs::path& folder, Session& session, const FolderOptions& options) {
  return load_summed(folder, session.shape().model, session.store().writer(), options);
}

std::string checksum_of_weights(const fs::path& folder, const ModelConfig& model,
                                const FolderOptions& options) {
  return load_summed(folder, model, {}, options);
}

int64_t load_checkpoint(const fs::path& checkpoint, TrainState& state, const BaseWeights& base) {
  state.store().kept().clear();  // the gaps between parameters are in no file
  const ModelConfig& model = state.shape().model;
  const TensorFiles files(checkpoint, kOptimizerStem);
  const auto masters = files.tensors().lower_bound(kMasters);
  const bool has_masters = masters != files.tensors().end() && masters->first.starts_with(kMasters);
  if (model.lora) {
    const std::string found = load_base(base.folder, state, base.options);
    check(found == base.checksum,
          "the weights in {} are not those that {} trained its adapters on: their checksum is {}, and was "
          "{}. Restore that folder, or start a new run from the checkpoint's own weights with "
          "train.init_from={}",
          base.folder.string(), checkpoint.string(), found, base.checksum, checkpoint.string());
  }
  int64_t bytes = 0;
  if (has_masters)
    check_weights(checkpoint, model);
  else
    bytes = load_kept(checkpoint, state, {.values = Values::kAny});  // those of a bad step, too
  for (const Section& section : optimizer_sections(state.shape(), has_masters ? DType::kBF16 : DType::kF32))
    for (const ParamPlace& place : state.store().layout().places)
      if (section.has(state.shape(), place.info) && state.store().keeps(section.values, place))
        bytes += read_param(files, model, place, section.prefix, state.store().writer(section.values));
  if (state.fp8()) state.fp8().set_scales(state.stream(), read_run_state(checkpoint, 0).fp8_scales);
  return bytes;
}

}  // namespace tessera
