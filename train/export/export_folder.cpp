#include "train/export/export_folder.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "data/pending_folder.h"
#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/ledger.h"
#include "kernels/base/output.h"
#include "kernels/base/text.h"
#include "model/formats/family.h"
#include "model/formats/folder.h"
#include "model/formats/llama_cpp.h"
#include "model/formats/llm_c.h"
#include "model/formats/peft.h"
#include "model/formats/safetensors.h"
#include "model/formats/sharded_safetensors.h"
#include "train/export/checkpoint_adapter.h"
#include "train/export/gguf_tokenizer.h"
#include "train/export/source.h"
#include "train/export/tokenizer_files.h"
#include "train/run/model_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool is_part_of_export(std::string_view name) {
  return name == kModelFile || name == kTemplatesFolder ||
         std::ranges::find(kCopiedFiles, name) != kCopiedFiles.end() ||
         (name.starts_with("model") &&
          (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")));
}
constexpr Replaceable kExportedModel{.what = "an exported model", .has_part = is_part_of_export};

bool is_part_of_adapter(std::string_view name) { return name == kAdapterConfigFile || name == kAdapterFile; }
constexpr Replaceable kExportedAdapter{.what = "an exported adapter", .has_part = is_part_of_adapter};

int64_t bytes_of_all(const std::vector<FileTensor>& tensors) {
  int64_t bytes = 0;
  for (const FileTensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

// A full disk is found before minutes of work.
void check_space(const fs::path& output, int64_t bytes) {
  const fs::path folder = fs::absolute(output).parent_path();
  std::error_code error;
  fs::path existing = folder;
  while (!fs::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  const fs::space_info space = fs::space(existing, error);
  check(error || space.available >= static_cast<uintmax_t>(bytes),
        "the export takes {}, and {} are free in {}: free some space, or name another --output",
        format_bytes(bytes), format_bytes(static_cast<int64_t>(space.available)), existing.string());
}

// Neither of two folders may be inside the other.
void check_apart(const fs::path& source, const fs::path& output) {
  const std::string from = fs::weakly_canonical(source).string() + "/",
                    to = fs::weakly_canonical(fs::absolute(output)).string() + "/";
  check(!from.starts_with(to) && !to.starts_with(from),
        "--output {} and the model's folder {} overlap: name a folder elsewhere", output.string(),
        source.string());
}

class Export {
 public:
  Export(const ExportOptions& options, ExportProgress& progress)
      : options_(options),
        progress_(progress),
        source_(open_source({.folder = options.folder,
                             .tokenizer = options.tokenizer,
                             .ignored_fields = options.ignored_fields},
                            progress)),
        numbers_(options.numbers.value_or(numbers_of_source())),
        what_(family_for(source_.model).title),
        parameters_(source_.model.parameters()) {
    take_base();
  }

  void run();

 private:
  void check_not_sparse() const;
  void write_hugging_face();
  void write_gguf();
  void write_llm_c();
  void write_peft();
  void take_base();
  NumberFormat numbers_of_source() const;
  void check_file() const;
  // The values of a parameter that is exported
  void read(const ParamPlace& place, const ParamSink& sink) const;
  void notice_others(const PendingFolder& folder);
  void tell_notices();

  // Writes all tensors of the layout.
  template <class Writer>
  void write(const WeightsLayout& layout, Writer& writer);
  // Reads them back. `bytes_of` gives those of a tensor in the file.
  template <class BytesOf>
  void compare(const WeightsLayout& layout, BytesOf&& bytes_of);
  void count(size_t tensors, const FileChecksums& files);

  const ExportOptions& options_;
  ExportProgress& progress_;
  ExportSource source_;
  std::optional<CheckpointAdapter> adapter_;  // that is added to the weights of options.base
  NumberFormat numbers_;
  std::string what_;
  int64_t parameters_;
  int64_t tensors_ = 0, files_ = 0, bytes_ = 0;  // written
};

// Where experts are in MXFP4, which a GGUF file keeps, the values of all tensors are those of bf16.
NumberFormat Export::numbers_of_source() const {
  const NumberFormat format = source_.weights->format();
  return format == NumberFormat::kMxfp4 && options_.format != ExportFormat::kGguf ? NumberFormat::kBF16
                                                                                   : format;
}

// Says what the adapter of the checkpoint belongs to, where the run rounded its weights.
void Export::take_base() {
  const AdapterBase trained_on = adapter_base_of(source_.folder);
  const std::string base = trained_on.name.empty() ? "FOLDER" : trained_on.name;
  if (!options_.base.empty()) {
    adapter_.emplace(source_.folder, source_.model);
    source_.weights =
        std::make_unique<WeightsFolder>(find_model_folder(options_.base).path, source_.model,
                                        FolderOptions{.ignored_fields = options_.ignored_fields});
  }
  if (trained_on.stored_as.empty()) return;
  const std::string rounded =
      fmt::format("the adapter was trained on the weights of {}, rounded to {}", base, trained_on.stored_as);
  if (options_.format == ExportFormat::kPeft)
    source_.notices.push_back(
        rounded +
        ", and has another loss on weights that are not rounded so. --format hf exports it "
        "with the weights that it was trained on");
  else if (adapter_)
    source_.notices.push_back(fmt::format(
        "{}: added to those of {} as they are it has another loss. Compare with the export without --base: "
        "./evaluate scores both",
        rounded, options_.base));
  else
    source_.notices.push_back(
        fmt::format("{}: it is exported with these rounded weights. --base {} adds it to the weights as they "
                    "are; ./evaluate "
                    "scores both",
                    rounded, base));
}

void Export::read(const ParamPlace& place, const ParamSink& sink) const {
  source_.weights->read(place, [&](const ParamPlace& found, const Tensor& values) {
    if (adapter_) adapter_->add_to(found.info, values);
    sink(found, values);
  });
}

template <class Writer>
void Export::write(const WeightsLayout& layout, Writer& writer) {
  progress_.begin("writing", bytes_of_all(layout.tensors()));
  for (const ParamPlace& place : layout.order())
    read(place, [&](const ParamPlace& found, const Tensor& values) {
      layout.visit(found.info, values, [&](const FileTensor& tensor, std::span<const float> rows) {
        writer.write(rows);
        progress_.add(tensor.bytes());
      });
    });
}

void compare_tensor(const FileTensor& tensor, std::span<const float> values,
                    std::span<const std::byte> found) {
  size_t at = 0;
  encode(tensor.format, values, tensor.name, [&](std::span<const std::byte> expected) {
    check(at + expected.size() <= found.size() &&
              std::memcmp(found.data() + at, expected.data(), expected.size()) == 0,
          "the tensor {} was read back with other values than were written, near byte {} of it: the disk or "
          "the memory is faulty. Nothing was kept; export to another disk",
          tensor.name, at);
    at += expected.size();
  });
  check(at == found.size(), "the tensor {} was read back with {} bytes instead of {}", tensor.name,
        found.size(), at);
}

template <class BytesOf>
void Export::compare(const WeightsLayout& layout, BytesOf&& bytes_of) {
  progress_.begin("comparing", bytes_of_all(layout.tensors()));
  for (const ParamPlace& place : layout.order())
    read(place, [&](const ParamPlace& found, const Tensor& values) {
      layout.visit(found.info, values, [&](const FileTensor& tensor, std::span<const float> rows) {
        compare_tensor(tensor, rows, bytes_of(tensor.name));
        progress_.add(tensor.bytes());
      });
    });
}

void Export::count(size_t tensors, const FileChecksums& files) {
  tensors_ = static_cast<int64_t>(tensors);
  files_ = std::ssize(files);
  for (const auto& [name, file] : files) bytes_ += file.bytes;
}

void Export::notice_others(const PendingFolder& folder) {
  for (const fs::path& left : folder.remove_abandoned())
    source_.notices.push_back(
        fmt::format("{} was removed: the ./export that wrote it was killed", left.string()));
  for (const fs::path& left : folder.others())
    source_.notices.push_back(fmt::format(
        "{} is of another export to this name, which is running or was killed; if none runs: rm -r {}",
        left.string(), left.string()));
}

void Export::tell_notices() {
  for (const std::string& notice : source_.notices) progress_.notice(notice);
}

// The output is a file.
void Export::check_file() const {
  std::error_code error;
  const fs::path& output = options_.output;
  check(!fs::is_directory(output, error), "--output {} is a folder; a {} is a file: name one in it",
        output.string(), name_of(options_.format));
  check(options_.force || !fs::exists(fs::symlink_status(output, error)),
        "{} exists: choose another name, or replace it with --force", output.string());
  check(!fs::exists(output, error) || fs::is_regular_file(output, error),
        "{} exists and is not a file: choose another name", output.string());
  if (fs::exists(output, error)) {
    const MappedFile old(output);
    check(old.bytes().empty() || begins_as_gguf(old.bytes()) || begins_as_llm_c(old.bytes()),
          "{} is not replaced: it does not begin as an exported model does; choose another name",
          output.string());
  }
  check_writable(output.string());
}

// Other programs would take the weights for those of a model that sees all, and compute other numbers.
void Export::check_not_sparse() const {
  check(source_.model.sparse.all_full(),
        "{} has model.sparse={}, which no other program has: it would take the weights for those of a "
        "model that sees every block. Use the folder itself: it holds safetensors, which "
        "./generate, ./evaluate and train.init_from read, and --set model.sparse=full trains it as a model "
        "that sees all",
        source_.folder.string(), text_of(source_.model.sparse));
}

void Export::write_hugging_face() {
  check_apart(source_.folder, options_.output);
  const HuggingFaceLayout layout(source_.model, numbers_);
  const std::vector<FileTensor> tensors = layout.tensors();
  check_space(options_.output, bytes_of_all(tensors));
  const CopiedFiles others = hugging_face_files(source_);
  if (!source_.tokenizer) source_.notices.push_back(source_.no_tokenizer);
  PendingFolder folder(options_.output, options_.force, kExportedModel);
  notice_others(folder);
  tell_notices();

  ShardedSafetensorsWriter writer(folder.path(), tensors, options_.shard_bytes);
  write(layout, writer);
  FileChecksums files = writer.commit();
  nlohmann::ordered_json config = hugging_face_config(source_.model, numbers_);
  for (const auto& [field, id] : source_.token_ids.items()) config[field] = id;
  files[kModelFile] = write_json(folder.path() / kModelFile, config);
  files.merge(write_copied_files(folder.path(), others));

  for (const FileVerdict& verdict : verify_files(folder.path(), files))
    check(verdict.fault.empty(), "{} was read back and is damaged: {}", verdict.path.string(), verdict.fault);
  check_weights(folder.path(), source_.model);  // our own reader takes it
  const TensorFiles written(folder.path());
  compare(layout, [&](const std::string& name) { return written.file_of(name).entries().at(name).bytes; });
  sync_folder(folder.path());
  folder.publish();
  count(tensors.size(), files);
}

void Export::write_gguf() {
  check_llama_cpp(source_.model, source_.folder.string());
  check(numbers_ != NumberFormat::kMxfp4 || source_.model.experts,
        "--dtype mxfp4 is for matrices of experts, of which {} has none: 8 bits a number are --dtype q8_0",
        source_.folder.string());
  check_file();
  GgufTokenizer tokenizer = gguf_tokenizer(definition_of(source_), source_.model.vocab_size,
                                           token_ids_with_ends(source_), chat_template_of(source_));
  source_.notices.insert(source_.notices.end(), tokenizer.notices.begin(), tokenizer.notices.end());
  const LlamaCppLayout layout(source_.model, numbers_);
  std::vector<FileTensor> tensors = layout.tensors();
  const auto halves = std::ranges::count(tensors, NumberFormat::kF16, &FileTensor::format);
  if (block_of(numbers_) > 1 && halves > 0)
    source_.notices.push_back(fmt::format("{} tensors are fp16 instead of {}: their rows do not divide into "
                                          "blocks of {}",
                                          halves, name_of(numbers_), block_of(numbers_)));
  std::ranges::move(llama_cpp_notices(source_.model), std::back_inserter(source_.notices));
  const std::vector<RopeFactors> factors = llama_cpp_rope_factors(source_.model);
  std::vector<FileTensor> of_factors;
  for (const auto& [name, values] : factors)
    of_factors.push_back({.name = name, .shape = {std::ssize(values)}});
  tensors.insert(tensors.begin(), of_factors.begin(), of_factors.end());
  check_space(options_.output, bytes_of_all(tensors));
  tell_notices();

  const auto tokens = std::ranges::find(tokenizer.fields, "tokenizer.ggml.tokens", &GgufField::key);
  const std::string name =
      name_for_llama_cpp(source_.name, std::get<std::vector<std::string>>(tokens->value));
  std::vector<GgufField> fields = llama_cpp_fields(source_.model, numbers_, name);
  std::ranges::move(tokenizer.fields, std::back_inserter(fields));
  GgufWriter writer(options_.output, fields, tensors);
  for (const RopeFactors& each : factors) writer.write(each.values);
  write(layout, writer);
  const GgufReader written(writer.finish());
  compare(layout, [&](const std::string& name) { return written.bytes(name); });
  for (size_t i = 0; i < factors.size(); ++i)
    compare_tensor(of_factors[i], factors[i].values, written.bytes(factors[i].name));
  for (const GgufField& field : fields)
    check(written.fields().at(field.key) == field.value, "the field {} was read back with another value",
          field.key);
  count(tensors.size(), {{options_.output.filename(), writer.commit()}});
}

void Export::write_llm_c() {
  check_llm_c(source_.model, numbers_, source_.folder.string());
  check_file();
  const LlmCLayout layout(source_.model, numbers_);
  const std::vector<FileTensor> tensors = layout.tensors();
  check_space(options_.output, bytes_of_all(tensors));
  tell_notices();

  LlmCWriter writer(options_.output, source_.model, numbers_);
  write(layout, writer);
  const LlmCReader written(writer.finish(), source_.model, numbers_);
  compare(layout, [&](const std::string& name) { return written.bytes(name); });
  count(tensors.size(), {{options_.output.filename(), writer.commit()}});
}

// The adapter of a checkpoint is in PEFT's format: its files are copied.
void Export::write_peft() {
  const std::string name = source_.folder.string();
  const FileChecksums expected = written_checksums(source_.folder);
  const std::string adapter = std::string(kAdapterFolder) + "/";
  check(expected.contains(adapter + kAdapterFile) && expected.contains(adapter + kAdapterConfigFile),
        "{} has no adapter: only the checkpoints of a run with train.lora have one. --format hf exports the "
        "model",
        name);
  check_apart(source_.folder, options_.output);
  check_space(options_.output, expected.at(adapter + kAdapterFile).bytes);
  PendingFolder folder(options_.output, options_.force, kExportedAdapter);
  notice_others(folder);
  tell_notices();

  FileChecksums files;
  for (const char* file : {kAdapterConfigFile, kAdapterFile}) {
    const MappedFile from(source_.folder / kAdapterFolder / file);
    const std::span<const std::byte> bytes = from.bytes();
    files[file] =
        write_file(folder.path() / file, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    check(files[file] == expected.at(adapter + file), "{} is damaged: its checksum is not that of {}",
          from.path().string(), (source_.folder / kChecksumsFile).string());
  }
  for (const FileVerdict& verdict : verify_files(folder.path(), files))
    check(verdict.fault.empty(), "{} was read back and is damaged: {}", verdict.path.string(), verdict.fault);
  const SafetensorsReader written(folder.path() / kAdapterFile);
  parameters_ = 0;
  for (const auto& [tensor, entry] : written.entries())
    parameters_ += static_cast<int64_t>(entry.bytes.size() / sizeof(float));
  what_ = "adapter of " + what_;
  numbers_ = NumberFormat::kF32;
  sync_folder(folder.path());
  folder.publish();
  count(written.entries().size(), files);
}

void Export::run() {
  const auto start = std::chrono::steady_clock::now();
  check_not_sparse();
  switch (options_.format) {
    case ExportFormat::kHuggingFace:
      write_hugging_face();
      break;
    case ExportFormat::kGguf:
      write_gguf();
      break;
    case ExportFormat::kLlmC:
      write_llm_c();
      break;
    case ExportFormat::kPeft:
      write_peft();
      break;
  }
  progress_.clear();
  fmt::print("export: wrote {}: {}, parameters {}, {}, tensors {}, files {}, bytes {}, seconds {:.1f}\n",
             options_.output.string(), what_, format_count(static_cast<double>(parameters_)),
             name_of(numbers_), tensors_, files_, format_count(static_cast<double>(bytes_)),
             std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

std::vector<NumberFormat> numbers_of(ExportFormat format) {
  switch (format) {
    case ExportFormat::kHuggingFace:
      return {NumberFormat::kF32, NumberFormat::kF16, NumberFormat::kBF16};
    case ExportFormat::kLlmC:
      return {NumberFormat::kF32, NumberFormat::kBF16};
    case ExportFormat::kPeft:
      return {NumberFormat::kF32};
    case ExportFormat::kGguf:
      break;
  }
  constexpr auto all = values_with_words<NumberFormat>();
  return {all.begin(), all.end()};
}

// Before the folder is read
void check_options(const ExportOptions& options) {
  const std::vector<NumberFormat> numbers = numbers_of(options.format);
  check(!options.numbers || std::ranges::find(numbers, *options.numbers) != numbers.end(),
        "--format {} writes {}{}, found --dtype {}", name_of(options.format),
        options.format == ExportFormat::kPeft ? "the adapter in " : "",
        join_words(names_of<NumberFormat>(numbers)), options.numbers ? name_of(*options.numbers) : "");
  check(options.format != ExportFormat::kPeft || options.tokenizer.empty(),
        "--format peft writes no tokenizer, found --tokenizer {}", options.tokenizer);
  check(options.format != ExportFormat::kPeft || options.base.empty(),
        "--format peft writes the adapter alone, found --base {}", options.base);
}

}  // namespace

void export_folder(const ExportOptions& options) {
  check_options(options);
  ExportProgress progress;
  Export(options, progress).run();
}

}  // namespace tessera
