#include "train/run/run_state.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/present.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// The limits of the configuration's keys
constexpr int64_t kMostSteps = 1'000'000'000, kMostSequencesOfAStep = 1'000'000'000;
constexpr int64_t kMostTokensRead = int64_t{1} << 62;  // so that their count plus a sequence is an int64_t
constexpr int64_t kMostBatch = 1'000'000, kMostTokens = 10'000'000, kMostRanks = 65536;

json json_of(const TokenRange& range) { return {range.first_token, range.token_count}; }

TokenRange read_range(const json& object, const std::string& key, const std::string& name, int64_t tokens) {
  const auto found = object.find(key);
  const bool pair = found != object.end() && found->is_array() && found->size() == 2 &&
                    found->at(0).is_number_integer() && found->at(1).is_number_integer();
  check(pair, "{}: \"{}\" must be two whole numbers", name, key);
  const TokenRange range{found->at(0).get<int64_t>(), found->at(1).get<int64_t>()};
  check(0 <= range.first_token && range.first_token < tokens && 1 <= range.token_count &&
            range.token_count <= tokens - range.first_token,
        "{}: \"{}\" is {} tokens from token {} on, of {}", name, key, range.token_count, range.first_token,
        tokens);
  return range;
}

json json_of(const DataFingerprint::Source& source) {
  json object = {{"train", json_of(source.stream)}, {"train_range", json_of(source.range)}};
  if (!source.packing.empty()) object["packing"] = source.packing;
  return object;
}

DataFingerprint::Source read_source(const json& object, const std::string& name) {
  check(object.is_object() && object.contains("train"), "{}: the fingerprint of the data lacks \"train\"",
        name);
  DataFingerprint::Source source{.stream = read_fingerprint(object["train"], name), .range = {}};
  source.range = read_range(object, "train_range", name, source.stream.tokens);
  if (object.contains("packing")) source.packing = text_value(object, "packing", name);
  return source;
}

// One source stands for itself; several are a list, with their weights.
json json_of(const DataFingerprint& fingerprint) {
  json object = json::object();
  if (fingerprint.train.size() == 1) object = json_of(fingerprint.train[0]);
  if (fingerprint.train.size() > 1)
    for (const auto& source : fingerprint.train) {
      json one = json_of(source);
      one["weight"] = source.weight;
      object["sources"].push_back(one);
    }
  if (fingerprint.validation) object["validation"] = json_of(*fingerprint.validation);
  return object;
}

DataFingerprint read_data(const json& object, const std::string& name) {
  DataFingerprint data;
  if (object.is_object() && object.contains("sources")) {
    const json& sources = object["sources"];
    check(sources.is_array() && sources.size() > 1, "{}: \"sources\" is {}, expected a list of several", name,
          brief(sources));
    for (const json& one : sources) {
      data.train.push_back(read_source(one, name));
      check(one.contains("weight") && one["weight"].is_number() && one["weight"].get<double>() > 0,
            "{}: a source of several must have a \"weight\" above 0", name);
      data.train.back().weight = one["weight"].get<double>();
    }
  } else {
    data.train.push_back(read_source(object, name));
  }
  if (object.contains("validation")) data.validation = read_fingerprint(object["validation"], name);
  return data;
}

// {"blocks.1.mlp.expand": [exponent of the scale of x, of dy], ...}
json json_of(const Fp8Scales& scales) {
  json object = json::object();
  for (const auto& [layer, exponents] : scales) object[layer] = {exponents.x, exponents.dy};
  return object;
}

Fp8Scales read_fp8_scales(const json& object, const std::string& name) {
  constexpr int64_t kLargest = 126;  // so that a scale and its inverse are floats
  const auto fits = [](const json& exponent) {
    return exponent.is_number_integer() && std::abs(exponent.get<double>()) <= kLargest;
  };
  check(object.is_object(), "{}: \"fp8_scales\" is {}, expected a map of layers", name, brief(object));
  Fp8Scales scales;
  for (const auto& [layer, pair] : object.items()) {
    check(pair.is_array() && pair.size() == 2 && fits(pair[0]) && fits(pair[1]),
          "{}: \"fp8_scales\" of {} is {}, expected two whole numbers from -{} to {}", name, layer,
          brief(pair), kLargest, kLargest);
    scales[layer] = {.x = pair[0].get<int>(), .dy = pair[1].get<int>()};
  }
  return scales;
}

std::set<int64_t> read_steps(const json& list, const std::string& name, int64_t at_most) {
  check(list.is_array(), "{}: \"before_bad_steps\" is {}, expected a list of steps", name, brief(list));
  std::set<int64_t> steps;
  for (const json& one : list)
    steps.insert(whole_number({{"before_bad_steps", one}}, "before_bad_steps", name, 1, at_most));
  return steps;
}

// {"tokens_per_step": 524288, "losses": [...], "grad_norms": [...]}, which hold each number exactly
json json_of(const RecentSteps& recent) {
  return {{"tokens_per_step", recent.tokens_per_step},
          {"losses", recent.losses},
          {"grad_norms", recent.grad_norms}};
}

RecentSteps read_recent(const json& object, const std::string& name) {
  RecentSteps recent{.tokens_per_step = whole_number(object, "tokens_per_step", name, 1)};
  const auto numbers = [&](const char* key) {
    std::vector<double> found;
    const bool is_list = object.contains(key) && object[key].is_array() &&
                         object[key].size() <= RecentSteps::kMost &&
                         std::ranges::all_of(object[key], [](const json& one) { return one.is_number(); });
    check(is_list, "{}: \"{}\" of the recent steps must be at most {} numbers", name, key,
          RecentSteps::kMost);
    for (const json& one : object[key]) found.push_back(one.get<double>());
    return found;
  };
  recent.losses = numbers("losses");
  recent.grad_norms = numbers("grad_norms");
  check(recent.losses.size() == recent.grad_norms.size(),
        "{}: the recent steps have {} losses and {} gradient norms, expected as many", name,
        recent.losses.size(), recent.grad_norms.size());
  return recent;
}

template <HasWords E>
E read_word(const json& object, const std::string& key, const std::string& name) {
  const std::optional<E> found = from_word<E>(text_value(object, key, name));
  constexpr auto known = values_with_words<E>();
  check(found.has_value(), "{}: \"{}\" is {}, expected {}", name, key, brief(object[key]),
        join_words(names_of<E>(known)));
  return present(found);
}

// Reads either format that is known.
json read_known(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kStateFile;
  json object = read_json(path);
  const std::string format = text_value(object, "format", path.string());
  check(format == kStateFormat || format == kStateWithoutChecksums,
        "{} has the format {}; this program reads \"{}\" and \"{}\". Resume with the version of Tessera that "
        "wrote it",
        path.string(), brief(object["format"]), kStateFormat, kStateWithoutChecksums);
  return object;
}

}  // namespace

bool note_evaluation(RunState& run, double validation_loss) {
  if (run.step == 0) return false;
  const bool is_best =
      std::isfinite(validation_loss) && (!run.best || validation_loss < run.best->validation_loss);
  if (is_best) run.best = {.step = run.step, .validation_loss = validation_loss};
  run.evaluations_since_best = is_best ? 0 : run.evaluations_since_best + 1;
  return is_best;
}

int64_t position_with_length(const RunState& was, int64_t tokens) {
  if (was.sequence_length == tokens) return was.data_position;
  return (was.data_position * was.sequence_length + tokens - 1) / tokens;
}

nlohmann::ordered_json json_of(const RunState& s) {
  nlohmann::ordered_json object = {{"format", kStateFormat},
                                   {"step", s.step},
                                   {"data_position", s.data_position},
                                   {"seed", s.seed},
                                   {"micro_batch", s.micro_batch},
                                   {"sequence_length", s.sequence_length},
                                   {"ranks", s.ranks},
                                   {"device", name_of(s.device)},
                                   {"data", s.data},
                                   {"shift", s.shift},
                                   {"documents", name_of(s.documents)},
                                   {"freeze", s.freeze},
                                   {"lora", s.lora},
                                   {"evaluations_since_best", s.evaluations_since_best}};
  if (s.shard && s.ranks > 1) object["shard"] = name_of(present(s.shard));
  if (s.replicas > 1) object["replicas"] = s.replicas;
  if (s.mlp_chunk.value_or(0) > 0) object["mlp_chunk"] = present(s.mlp_chunk);
  if (!s.fp8_scales.empty()) object["fp8_scales"] = json_of(s.fp8_scales);
  if (s.skipped_updates > 0) object["skipped_updates"] = s.skipped_updates;
  if (s.rewinds > 0) object["rewinds"] = s.rewinds;
  if (s.passed_over_tokens > 0) object["passed_over_tokens"] = s.passed_over_tokens;
  if (!s.before_bad_steps.empty()) object["before_bad_steps"] = s.before_bad_steps;
  if (!s.recent.losses.empty()) object["recent_steps"] = json_of(s.recent);
  if (!s.base.empty()) object["base_checksum"] = s.base;
  if (!s.reference.empty()) object["reference_checksum"] = s.reference;
  if (!s.teacher.empty()) object["teacher_checksum"] = s.teacher;
  if (s.fingerprint) object["data_fingerprint"] = json_of(*s.fingerprint);
  if (s.best) object["best"] = {{"step", s.best->step}, {"validation_loss", s.best->validation_loss}};
  return object;
}

int64_t read_step(const fs::path& checkpoint) {
  return whole_number(read_known(checkpoint), "step", (checkpoint / kStateFile).string(), 1, kMostSteps);
}

RunState read_run_state(const fs::path& checkpoint, int64_t least_step) {
  const std::string name = (checkpoint / kStateFile).string();
  const json object = read_known(checkpoint);
  const auto whole = [&](const char* key, int64_t at_least, int64_t at_most) {
    return whole_number(object, key, name, at_least, at_most);
  };
  const int64_t step = whole("step", least_step, kMostSteps),
                tokens = whole("sequence_length", 1, kMostTokens);
  RunState run{.step = step,
               // A step consumes at least one sequence.
               .data_position = whole(
                   "data_position", step,
                   std::min(std::max<int64_t>(step, 1) * kMostSequencesOfAStep, kMostTokensRead / tokens)),
               .seed = whole("seed", 0, std::numeric_limits<int64_t>::max()),
               .micro_batch = whole("micro_batch", 1, kMostBatch),
               .sequence_length = tokens,
               .ranks = object.contains("ranks") ? whole("ranks", 1, kMostRanks) : 1,
               .device = read_word<Device>(object, "device", name),
               .data = text_value(object, "data", name)};
  if (object.contains("shard")) run.shard = read_word<Shard>(object, "shard", name);
  run.replicas = object.contains("replicas") ? whole("replicas", 1, kMostRanks) : 1;
  run.mlp_chunk = object.contains("mlp_chunk") ? whole("mlp_chunk", 1, kMostTokens) : 0;
  if (object.contains("shift")) {
    check(object["shift"].is_boolean(), "{}: \"shift\" is {}, expected true or false", name,
          brief(object["shift"]));
    run.shift = object["shift"].get<bool>();
  }
  if (object.contains("documents")) run.documents = read_word<Documents>(object, "documents", name);
  if (object.contains("freeze")) run.freeze = text_value(object, "freeze", name);
  if (object.contains("lora")) run.lora = text_value(object, "lora", name);
  if (run.lora != "none") run.base = text_value(object, "base_checksum", name);
  for (const auto& [key, to] :
       {std::pair{"reference_checksum", &run.reference}, std::pair{"teacher_checksum", &run.teacher}})
    if (object.contains(key)) *to = text_value(object, key, name);
  if (object.contains("skipped_updates")) run.skipped_updates = whole("skipped_updates", 0, step);
  if (object.contains("rewinds")) run.rewinds = whole("rewinds", 0, kMostSteps);
  if (object.contains("passed_over_tokens"))
    run.passed_over_tokens = whole("passed_over_tokens", 0, run.data_position * tokens);
  if (object.contains("before_bad_steps"))
    run.before_bad_steps = read_steps(object["before_bad_steps"], name, step);
  if (object.contains("recent_steps")) run.recent = read_recent(object["recent_steps"], name);
  if (object.contains("fp8_scales")) run.fp8_scales = read_fp8_scales(object["fp8_scales"], name);
  if (object.contains("evaluations_since_best"))
    run.evaluations_since_best = whole("evaluations_since_best", 0, step);
  if (object.contains("data_fingerprint")) run.fingerprint = read_data(object["data_fingerprint"], name);
  if (object.contains("best")) {
    const json& best = object["best"];
    run.best = {.step = whole_number(best, "step", name, 1, step), .validation_loss = 0};
    check(best.contains("validation_loss") && best["validation_loss"].is_number(),
          "{}: the best evaluation must have a number \"validation_loss\"", name);
    run.best->validation_loss = best["validation_loss"].get<double>();
  }
  return run;
}

std::string lines_of(const DataFingerprint& data) {
  std::string lines;
  const auto add = [&](const std::string& key, const StreamFingerprint& stream) {
    lines += fmt::format("{}: {} tokens of the tokenizer {}\n", key, stream.tokens, stream.tokenizer);
    for (const StreamFingerprint::Source& file : stream.sources)
      lines +=
          fmt::format("{}: {}, {} bytes, checksum of its start {}\n", key, file.file, file.bytes, file.start);
    lines += fmt::format("{}: checksum of a sample of all its files {}\n", key, stream.sample);
    lines += fmt::format("{}: checksum of where its documents begin {}\n", key, stream.documents);
  };
  for (const DataFingerprint::Source& source : data.train) {
    add("data.train", source.stream);
    lines += fmt::format("data.train: checksum of its packing {}\n", source.packing);
  }
  if (data.validation) add("data.validation", *data.validation);
  return lines;
}

}  // namespace tessera
