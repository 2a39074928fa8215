#include "train/run/bad_step_folder.h"

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"
#include "train/run/checkpoint_files.h"
#include "train/run/checkpoint_folder.h"
#include "train/run/gemm_choices.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char *kFacts = "bad_step.json", *kBatch = "batch.bin", *kReport = "report.txt",
                     *kFactsFormat = "tessera bad step 2",
                     *kWithoutChecksums = "tessera bad step 1",  // is read as well: it lists the other files
                         *kFolderPrefix = "bad_step_";

FileChecksum write_batch(const fs::path& path, const Sequences& batch) {
  OutputFile file(path);
  for (const auto* part : {&batch.tokens, &batch.targets, &batch.documents})
    file.write(std::as_bytes(std::span(*part)));
  file.write(std::as_bytes(std::span(batch.weights)));
  return file.commit();
}

// Calls visit(file name, values) for what else a loss reads of the sequences: kinds of documents and
// log-probabilities for a loss of pairs, and the stored logits of a teacher.
template <class Of, class Visit>
void for_each_extra(Of& batch, const Visit& visit) {
  visit("kinds.bin", batch.kinds);
  visit("log_probs.bin", batch.log_probs);
  visit("teacher_ids.bin", batch.teacher_ids);
  visit("teacher_logits.bin", batch.teacher_logits);
}

bool is_extra(const std::string& name) {
  bool found = false;
  const Sequences none;
  for_each_extra(none, [&](const char* extra, const auto&) { found |= name == extra; });
  return found;
}

// Reads a file that has the same number of values for each of `tokens` tokens.
template <class T>
void read_extra(const fs::path& path, size_t tokens, std::vector<T>& to) {
  const MappedFile file(path);
  check(file.bytes().size() % (tokens * sizeof(T)) == 0, "{} has {} bytes, expected a multiple of {}",
        path.string(), file.bytes().size(), tokens * sizeof(T));
  to.resize(file.bytes().size() / sizeof(T));
  std::memcpy(to.data(), file.bytes().data(), file.bytes().size());
}

Sequences read_batch(const fs::path& path, int64_t tokens) {
  const MappedFile file(path);
  const auto bytes = std::ssize(file.bytes()), part = tokens * int64_t{sizeof(int32_t)};
  check(bytes == 2 * part || bytes == 4 * part || bytes == 5 * part,
        "{} has {} bytes, expected {}, {} with documents, or {} with documents and weights", path.string(),
        bytes, 2 * part, 4 * part, 5 * part);
  Sequences batch;
  size_t at = 0;
  const auto read = [&](auto& to, int64_t count) {
    to.resize(static_cast<size_t>(count));
    std::memcpy(to.data(), file.bytes().data() + at, to.size() * sizeof(int32_t));
    at += to.size() * sizeof(int32_t);
  };
  read(batch.tokens, tokens);
  read(batch.targets, tokens);
  if (bytes >= 4 * part) read(batch.documents, 2 * tokens);
  if (bytes == 5 * part) read(batch.weights, tokens);
  return batch;
}

// What is not finite is null in the text.
Json json_of(const KeptStep& kept) {
  const BadStep& bad = kept.bad;
  return {{"format", kFactsFormat},
          {"step", bad.step},
          {"reason", bad.kind()},
          {"loss", bad.loss},
          {"grad_norm", bad.grad_norm},
          {"loss_score", bad.scores.loss},
          {"grad_norm_score", bad.scores.grad_norm},
          {"loss_limit", bad.limits.loss},
          {"grad_norm_limit", bad.limits.grad_norm},
          {"learning_rate", bad.learning_rate},
          {"loss_tokens", bad.counted_tokens},
          {"last_checkpoint", kept.last_checkpoint},
          {"ranks", kept.ranks},
          {"device", kept.device},
          {"data_position", kept.position},
          {"sequence_length", kept.sequence_length},
          {"worst_sequences", bad.worst},
          {"sequences", kept.origins}};
}

nlohmann::json read_facts(const fs::path& folder) {
  const fs::path path = folder / kFacts;
  nlohmann::json facts = read_json(path);
  const std::string format = text_value(facts, "format", path.string());
  check(format == kFactsFormat || format == kWithoutChecksums,
        "{} has the format {}, expected \"{}\" or \"{}\"", path.string(), brief(facts["format"]),
        kFactsFormat, kWithoutChecksums);
  return facts;
}

KeptStep kept_of(const nlohmann::json& facts, const std::string& name) {
  const auto number = [&](const char* key, double if_null) {
    check(facts.contains(key) && (facts[key].is_number() || facts[key].is_null()),
          "{}: \"{}\" must be a number, or null where it is not finite", name, key);
    return facts[key].is_null() ? if_null : facts[key].get<double>();
  };
  const auto texts = [&](const char* key) {
    const bool are_texts = facts.contains(key) && facts[key].is_array() &&
                           std::ranges::all_of(facts[key], [](const auto& one) { return one.is_string(); });
    check(are_texts, "{}: \"{}\" must be a list of texts", name, key);
    return facts[key].get<std::vector<std::string>>();
  };
  const std::string reason = text_value(facts, "reason", name);
  check(reason == "spike" || reason == "nonfinite", "{}: \"reason\" is {}, expected spike or nonfinite", name,
        brief(facts["reason"]));
  constexpr double kNone = std::numeric_limits<double>::infinity();
  // On its own: where a later field throws, GCC 12 destroys what a braced list within another holds twice.
  const BadStep bad{
      .step = whole_number(facts, "step", name, 1),
      .verdict = reason == "spike" ? StepVerdict::kAbove : StepVerdict::kNotFinite,
      .loss = number("loss", std::nan("")),
      .grad_norm = number("grad_norm", std::nan("")),
      .own_loss = 0,
      .counted_tokens = number("loss_tokens", 0),
      .learning_rate = number("learning_rate", 0),
      .limits = {.loss = number("loss_limit", kNone), .grad_norm = number("grad_norm_limit", kNone)},
      .scores = {.loss = number("loss_score", 0), .grad_norm = number("grad_norm_score", 0)},
      .worst = texts("worst_sequences")};
  KeptStep kept{.bad = bad,
                .position = whole_number(facts, "data_position", name),
                .sequence_length = whole_number(facts, "sequence_length", name, 1, 10'000'000),
                .origins = texts("sequences"),
                .ranks = whole_number(facts, "ranks", name, 1, 65536),
                .device = text_value(facts, "device", name),
                .last_checkpoint = whole_number(facts, "last_checkpoint", name)};
  check(!kept.origins.empty(), "{}: \"sequences\" is empty", name);
  return kept;
}

// What is no checkpoint, by rank 0
void write_rest(const fs::path& folder, const BadStepWriting& what) {
  FileChecksums files;
  files[kBatch] = write_batch(folder / kBatch, what.batch);
  for_each_extra(what.batch, [&](const char* name, const auto& values) {
    if (values.empty()) return;
    OutputFile file(folder / name);
    file.write(std::as_bytes(std::span(values)));
    files[name] = file.commit();
  });
  files[kReport] = write_file(folder / kReport, what.report + "\n");
  if (const fs::path gemms = gemms_file(what.run); fs::exists(gemms)) {
    const MappedFile table(gemms);
    const auto bytes = table.bytes();
    const std::string name = gemms.filename().string();
    files[name] = write_file(folder / name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  files[kFacts] = write_json(folder / kFacts, json_of(what.kept));
  write_file(folder / kChecksumsFile, checksums_text(files));
  sync_folder(folder);
}

// The files beside the checkpoint, which has checksums of its own. Error: it is missing or damaged.
FileChecksums checksums_of(const fs::path& folder) {
  const fs::path path = folder / kChecksumsFile, facts_path = folder / kFacts;
  FileChecksums files;
  if (fs::exists(path)) {
    files = read_checksums_file(path);
    check(files.contains(kFacts), "{} lacks the checksum of {}", path.string(), kFacts);
  } else {
    const nlohmann::json facts = read_facts(folder);
    check(facts["format"] == kWithoutChecksums, "{} is missing", path.string());
    check(facts.contains("files"), "{} lacks \"files\"", facts_path.string());
    files = read_checksums(facts["files"], facts_path.string());
  }
  check(files.contains(kBatch), "the checksums of {} lack that of {}", folder.string(), kBatch);
  return files;
}

bool holds_only_ours(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_file = name == kFacts || name == kBatch || name == kReport || name == kChecksumsFile ||
                         is_extra(name) || entry.path() == gemms_file(folder);
    if (entry.is_symlink() || (!is_file && !(step_of_name(name) && holds_only_our_files(entry.path()))))
      return false;
  }
  return true;
}

// Whether it is of this step, with the same sequences, and can be replaced
bool is_of_same_step(const fs::path& folder, const BadStepWriting& what) {
  try {
    const nlohmann::json facts = read_facts(folder);
    Checksum batch;
    for (const auto* part : {&what.batch.tokens, &what.batch.targets, &what.batch.documents})
      batch.update(std::as_bytes(std::span(*part)));
    batch.update(std::as_bytes(std::span(what.batch.weights)));
    return whole_number(facts, "step", kFacts) == what.kept.bad.step &&
           whole_number(facts, "data_position", kFacts) == what.kept.position &&
           checksums_of(folder).at(kBatch).checksum == batch.digits() && holds_only_ours(folder);
  } catch (const std::exception&) {  // damaged: it stays, under its name
    return false;
  }
}

// The folder that an earlier start of the run wrote for this step, or a name that is not taken
fs::path choose_name(const BadStepWriting& what) {
  const std::string name = fmt::format("{}{:08}", kFolderPrefix, what.kept.bad.step);
  fs::path found = what.run / name;
  for (int i = 2; fs::exists(fs::symlink_status(found)) && !is_of_same_step(found, what); ++i)
    found = what.run / fmt::format("{}-{}", name, i);
  return found;
}

}  // namespace

fs::path write_bad_step(const BadStepWriting& what) {
  what.ranks.enter_phase("the folder of a bad step", Timeout::kNone);
  const bool leads = what.options.disks.leads(what.ranks.rank());
  // The largest number that a disk needs
  const std::vector<std::string> names = what.ranks.exchange(leads ? choose_name(what).string() : "");
  const fs::path path =
      std::ranges::max(names, {}, [](const std::string& name) { return std::pair(name.size(), name); });
  const fs::path pending = unfinished(path);
  CheckpointOptions options = what.options;
  options.dtype = DType::kF32;
  options.any_values = true;
  if (leads) {
    options.check_folder();
    fs::remove_all(pending);  // of a run that was killed
    fs::create_directories(pending);
  }
  save_checkpoint(pending, what.state, what.before, options);
  if (leads) {
    options.check_folder();
    write_rest(pending, what);
    options.check_folder();
    fs::path replaced;
    if (fs::exists(path))
      replaced = exchange(pending, path);
    else
      fs::rename(pending, path);
    sync_folder(path.parent_path());
    std::error_code ignored;  // the new one is there; what is left of the other is removed with the next
    if (!replaced.empty()) fs::remove_all(replaced, ignored);
  }
  what.ranks.sum({0});  // it is there
  return path;
}

BadStepFolder read_bad_step(const fs::path& folder) {
  const fs::path facts = folder / kFacts;
  check(fs::exists(facts),
        "{} is not the folder of a bad step: it has no {}. A run that a bad step stops names its folder, "
        "such as runs/NAME/{}00001234",
        folder.string(), kFacts, kFolderPrefix);
  for (const FileVerdict& file : verify_files(folder, checksums_of(folder)))
    check(file.fault.empty(), "{} is damaged: {}", file.path.string(), file.fault);
  BadStepFolder found{
      .kept = kept_of(read_facts(folder), facts.string()), .checkpoint = {}, .gemms = {}, .batch = {}};
  found.checkpoint = folder / checkpoint_name(found.kept.bad.step - 1);
  check(fs::is_directory(found.checkpoint), "{} is missing", found.checkpoint.string());
  if (fs::exists(gemms_file(folder))) found.gemms = gemms_file(folder);
  found.batch = read_batch(folder / kBatch, std::ssize(found.kept.origins) * found.kept.sequence_length);
  for_each_extra(found.batch, [&](const char* name, auto& values) {
    if (fs::exists(folder / name)) read_extra(folder / name, found.batch.tokens.size(), values);
  });
  check(found.batch.teacher_logits.empty() ||
            found.batch.teacher_logits.size() == found.batch.teacher_ids.size() + found.batch.tokens.size(),
        "{} has {} logits of a teacher and {} ids: expected one logit more for each token", folder.string(),
        found.batch.teacher_logits.size(), found.batch.teacher_ids.size());
  return found;
}

std::set<int64_t> checkpoints_before_bad_steps(const fs::path& run) {
  std::set<int64_t> steps;
  if (!fs::is_directory(run)) return steps;
  for (const auto& entry : fs::directory_iterator(run)) {
    if (!entry.path().filename().string().starts_with(kFolderPrefix)) continue;
    try {
      steps.insert(whole_number(read_facts(entry.path()), "last_checkpoint", kFacts));
    } catch (const Error&) {  // unfinished, or damaged: --replay says so
    }
  }
  steps.erase(0);
  return steps;
}

}  // namespace tessera
