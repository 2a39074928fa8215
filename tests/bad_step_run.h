// Runs in this process, on any device, with what is planted into weights or operations: their steps go bad.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/planted_faults.h"
#include "train/config/load_config.h"
#include "train/run/train_loop.h"

namespace tessera::testing {

struct BadStepRun {
  std::vector<std::string> settings = {};
  std::function<void(OpenRun&)> spoils = {};
  Fault::Run fault = {};  // after each operation
  TrainerOptions options = {.overwrite = true};
};

// The message with which the run of small.yaml, on text.txt of the folder `in`, stops; "": it does not
inline std::string message_of(RankGroup& group, const std::filesystem::path& in, const BadStepRun& with) {
  std::vector<std::string> settings{fmt::format("train.folder={}", (in / "out").string()),
                                    fmt::format("data.train={}", (in / "text.txt").string()),
                                    "train.steps=4",
                                    "train.micro_batch=2",
                                    "evaluation.every=0",
                                    "sampling.every=0",
                                    "checkpoint.every=2"};
  settings.insert(settings.end(), with.settings.begin(), with.settings.end());
  Config config = load_config(in / "small.yaml", settings);
  config.ranks = group.size();
  std::string message;
  Fault fault({}, with.fault);
  OpenRun run(config, with.options, group);
  if (with.spoils) with.spoils(run);
  run.device.backend->add_observer(fault);
  try {
    TrainLoop(run).run();
  } catch (const Error& error) {
    message = error.what();
  }
  group.finish();
  return message;
}
inline std::string message_of(const std::filesystem::path& in, const BadStepRun& run) {
  RankGroup alone(World{}, Config{});
  return message_of(alone, in, run);
}

inline void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "wanted: " << part << "\nfound:  " << message;
}

// A value in one element of a parameter, of this rank's part if it is split
inline void spoil(OpenRun& run, const std::string& name, int64_t element, float value = NAN) {
  ParamStore& store = run.phase->state().store();
  for (const ParamPlace& place : store.layout().places) {
    if (place.info.name != name) continue;
    std::vector<float> values(static_cast<size_t>(place.info.shape.numel()), 0.01f);
    values[static_cast<size_t>(element)] = value;
    return store.writer()(place, {values.data(), DType::kF32, place.info.shape, Device::kCpu});
  }
  FAIL() << "no parameter " << name;
}

// A product of GEMMs in FP8 that is too large for fp32 and bf16, though what it is computed from is finite:
// 1e30 of token 2 by 1e10 in row 5 of the weight
inline BadStepRun overflow_in_fp8(int64_t channels, std::vector<std::string> settings) {
  settings.insert(settings.end(),
                  {"train.gemm_dtype=fp8", "train.fp8.edges=true", "train.cuda_graphs=false"});
  return {.settings = settings,
          .spoils = [=](OpenRun& run) { spoil(run, "blocks.1.mlp.expand.weight", 5 * channels + 3, 1e10f); },
          .fault = in_second_norm(1, 2 * channels + 3, 1e30f)};
}

}  // namespace tessera::testing
