// What lies in a folder of checkpoints: names, copies, damage, pruning; checksums; values that are not
// finite.
#include "train/run/checkpoint_folder.h"

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/data/support.h"
#include "tests/support.h"
#include "train/run/checkpoint.h"
#include "train/run/verify_checkpoint.h"
#include "train/session/device.h"
#include "train/session/train_state.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
constexpr ModelConfig kTiny{
    .vocab_size = 61, .context = 16, .layers = 1, .heads = 2, .channels = 8, .mlp_width = 32};

struct CheckpointFolder : InTempFolder {
  std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  TrainState state{*be, arena, {.model = kTiny, .micro_batch = 1, .micro_steps = 1, .sequence_length = 8}};
  RunState run{.micro_batch = 1, .sequence_length = 8, .device = Device::kCpu, .data = "builtin"};

  void SetUp() override { state.initialize(3); }
  static void check_folder(bool is_held) { check(is_held, "the folder is lost"); }
  fs::path save(int64_t step) {
    run.step = step, run.data_position = 4 * step;
    return save_checkpoint(folder_, state, run, {.config = "train:\n  steps: 1\n"});
  }
  void flip(const fs::path& file, size_t bit) {
    std::string bytes = read_file(file);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    std::ofstream(file, std::ios::binary) << bytes;
  }
  void edit_state(const fs::path& checkpoint, const char* key, const nlohmann::json& value) {
    auto json = nlohmann::json::parse(read_file(checkpoint / "state.json"));
    json[key] = value;
    std::ofstream(checkpoint / "state.json") << json.dump();
  }
};

TEST_F(CheckpointFolder, NamesAreOursOrNot) {
  EXPECT_EQ(checkpoint_name(1000), "step_00001000");
  EXPECT_EQ(step_of_name("step_00001000"), 1000);
  EXPECT_EQ(step_of_name(checkpoint_name(123'456'789)), 123'456'789);
  for (const char* name :
       {"step_best", "step_", "step_1000", "step_000001000", "step_00001000.found", "step_00000000",
        "step_-0001000", "step_00001000 ", "Step_00001000", "step_99999999999999999999"})
    EXPECT_EQ(step_of_name(name), std::nullopt) << name;
}

TEST_F(CheckpointFolder, StepsSortAsNumbers) {
  for (const int64_t step : {99'999'999, 100'000'000}) save(step);
  EXPECT_EQ(latest_checkpoint(folder_)->filename(), "step_100000000");
  prune_checkpoints(folder_, {.newest = 1});
  EXPECT_EQ(names(), std::set<std::string>{"step_100000000"});
}

TEST_F(CheckpointFolder, WhatARunDidNotWriteIsNeitherResumedFromNorRemoved) {
  for (const int64_t step : {10, 20, 30, 40}) save(step);
  fs::copy(folder_ / "step_00000010", folder_ / "step_best");
  fs::copy(folder_ / "step_00000010", folder_ / "step_00000099");  // a copy under a name of ours
  write("step_00000020/notes.txt", "mine");
  fs::create_directories(folder_ / "mine.unfinished");
  fs::create_directories(folder_ / "step_00000050.unfinished");
  EXPECT_EQ(latest_checkpoint(folder_)->filename(), "step_00000040");
  prune_checkpoints(folder_, {.newest = 1});
  save(60);
  EXPECT_EQ(names(), (std::set<std::string>{"mine.unfinished", "step_00000020", "step_00000040",
                                            "step_00000060", "step_00000099", "step_best"}));
  save(99);  // its name is taken, by what may be somebody's
  EXPECT_TRUE(fs::exists(folder_ / "step_00000099.found/model.safetensors"));
  EXPECT_EQ(read_step(folder_ / "step_00000099"), 99);
  remove_checkpoints(folder_);
  EXPECT_EQ(names(),
            (std::set<std::string>{"mine.unfinished", "step_00000020", "step_00000099.found", "step_best"}));
}

TEST_F(CheckpointFolder, OnlyTheOwnOnesOfARunAreRemoved) {
  for (const int64_t step : {10, 20, 30, 40, 50}) save(step);
  std::set<int64_t> own{10, 30, 40};
  int64_t removals = 0;
  prune_checkpoints(folder_, {.newest = 1}, {.own = &own, .check = [&] { ++removals; }});
  EXPECT_EQ(names(), (std::set<std::string>{"step_00000020", "step_00000040", "step_00000050"}));
  EXPECT_EQ(own, std::set<int64_t>{40});
  EXPECT_EQ(removals, 2);
  // Nothing is removed where the folder is not the run's any more.
  own = {20, 40, 50};
  EXPECT_THROW(prune_checkpoints(folder_, {.newest = 1}, {.own = &own, .check = [] { fail("lost"); }}),
               Error);
  EXPECT_EQ(names().size(), 3u);
  // Nor is another's replaced by one of the same step.
  run.step = 50, run.data_position = 200;
  save_checkpoint(folder_, state, run, {.replaces = false});
  EXPECT_TRUE(names().contains("step_00000050.found"));
}

TEST_F(CheckpointFolder, WhatCannotBeRemovedIsToldAndDoesNotStopARun) {
  for (const int64_t step : {1, 2, 3}) save(step);
  write("step_00000001.removed.unfinished", "in the way of its removal");
  const std::vector<std::string> failures = prune_checkpoints(folder_, {.newest = 1});
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_NE(failures[0].find("step_00000001.removed.unfinished: Not a directory"), std::string::npos)
      << failures[0];
  EXPECT_EQ(names(),
            (std::set<std::string>{"step_00000001", "step_00000001.removed.unfinished", "step_00000003"}));
  fs::remove(folder_ / "step_00000001.removed.unfinished");
  EXPECT_TRUE(prune_checkpoints(folder_, {.newest = 1}).empty());
  EXPECT_EQ(names(), std::set<std::string>{"step_00000003"});
}

// Where the folder is lost while files are written: the writing thread finds it, and the cause is told.
TEST_F(CheckpointFolder, ALostFolderEndsACheckpointThatIsWritten) {
  run.step = 4, run.data_position = 16;
  for (int64_t after = 0; after < 100; ++after) {
    std::atomic<int64_t> checks = 0;
    const auto check = [&] { check_folder(++checks <= after); };
    try {
      save_checkpoint(folder_, state, run, {.check_folder = check});
      EXPECT_GT(after, 3);
      return;  // it was written with fewer checks
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "the folder is lost");
      // Lost after it has its name: it is whole.
      EXPECT_TRUE(!names().contains("step_00000004") || check_undamaged(folder_ / "step_00000004"));
    }
  }
  ADD_FAILURE() << "it is never written";
}

TEST_F(CheckpointFolder, TheSameStepIsWrittenAgain) {
  save(5);
  run.seed = 77;
  save(5);
  EXPECT_EQ(names(), std::set<std::string>{"step_00000005"});
  EXPECT_EQ(read_run_state(folder_ / "step_00000005").seed, 77);
}

TEST_F(CheckpointFolder, MilestonesAndTheBestAreKept) {
  for (const int64_t step : {5, 10, 15, 20, 25, 30}) {
    save(step);
    prune_checkpoints(folder_, {.newest = 2, .every = 10, .best = 15});
  }
  EXPECT_EQ(names(), (std::set<std::string>{"step_00000010", "step_00000015", "step_00000020",
                                            "step_00000025", "step_00000030"}));
}

TEST_F(CheckpointFolder, EveryFlippedBitIsFound) {
  const fs::path path = save(7);
  for (const char* file :
       {"model.safetensors", "optimizer.safetensors", "config.json", "config.yaml", "state.json"}) {
    const size_t bits = fs::file_size(path / file) * 8;
    for (size_t i = 0; i < 40; ++i) {
      const size_t bit = bits * i / 40;
      flip(path / file, bit);
      try {
        check_undamaged(path);
        ADD_FAILURE() << file << " bit " << bit << " of " << bits;
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(file), std::string::npos) << error.what();
      }
      flip(path / file, bit);
    }
  }
  EXPECT_TRUE(check_undamaged(path));
  for (const FileVerdict& v : verify_checkpoint(path)) EXPECT_EQ(v.fault, "");
  const std::string checksums = read_file(path / "checksums.json");
  for (const std::string& changed : {checksums + " ", checksums.substr(0, checksums.size() - 1)}) {
    write("step_00000007/checksums.json", changed);
    expect_error([&] { check_undamaged(path); }, {"checksums.json", "other bytes"});
  }
  fs::remove(path / "checksums.json");
  expect_error([&] { check_undamaged(path); }, {"checksums.json", "missing"});
}

TEST_F(CheckpointFolder, ADamagedOneNamesTheNewestWholeOneBeforeIt) {
  for (const int64_t step : {1, 2, 3}) save(step);
  for (const char* name : {"step_00000002", "step_00000003"})
    flip(folder_ / name / "model.safetensors", 9999);
  expect_error([&] { check_undamaged(folder_ / "step_00000003"); },
               {"step_00000003/model.safetensors is damaged", "its checksum is", "step_00000001 is whole",
                "mv " + (folder_ / "step_00000003").string()});
  flip(folder_ / "step_00000001/optimizer.safetensors", 9999);
  expect_error([&] { check_undamaged(folder_ / "step_00000003"); }, {"earlier checkpoint"});
}

TEST_F(CheckpointFolder, OfTheFirstFormatLoadsWithoutChecksums) {
  const fs::path path = save(7);
  edit_state(path, "format", "tessera checkpoint 1");
  fs::remove(path / "checksums.json");
  fs::remove(path / "config.yaml");
  EXPECT_EQ(latest_checkpoint(folder_), path);
  EXPECT_FALSE(check_undamaged(path));
  load_checkpoint(path, state);
  EXPECT_FALSE(read_state(path, kTiny).fingerprint);
  for (const FileVerdict& v : verify_checkpoint(path))
    EXPECT_TRUE(v.fault.empty() && !v.has_checksum) << v.fault;
  edit_state(path, "format", "tessera checkpoint 3");
  expect_error([&] { read_state(path, kTiny); }, {"format \"tessera checkpoint 3\"", "tessera checkpoint 2"});
}

TEST_F(CheckpointFolder, NumbersOfTheStateHaveRanges) {
  const fs::path path = save(12);
  const std::string whole = read_file(path / "state.json");
  struct Case {
    const char* key;
    nlohmann::json value;
  };
  for (const auto& [key, value] : {Case{"step", 0},
                                   Case{"step", -1},
                                   Case{"step", 12.0},
                                   Case{"step", "12"},
                                   Case{"data_position", 4},
                                   Case{"data_position", -48},
                                   Case{"data_position", 1e30},
                                   Case{"seed", -1},
                                   Case{"seed", nullptr},
                                   Case{"micro_batch", 0},
                                   Case{"sequence_length", 0},
                                   Case{"ranks", 0},
                                   Case{"ranks", 1 << 30},
                                   Case{"device", "tpu"},
                                   Case{"device", 3},
                                   Case{"data", 7},
                                   Case{"shift", 1},
                                   Case{"evaluations_since_best", 13},
                                   Case{"rewinds", -1},
                                   Case{"passed_over_tokens", 1 << 30},
                                   Case{"before_bad_steps", 3},
                                   Case{"before_bad_steps", {13}},
                                   Case{"recent_steps", 3},
                                   Case{"recent_steps", {{"tokens_per_step", 8}, {"losses", {"1"}}}},
                                   Case{"best", 3},
                                   Case{"best", {{"step", 13}, {"validation_loss", 1.0}}},
                                   Case{"data_fingerprint", {{"train", 1}}}}) {
    edit_state(path, key, value);
    expect_error([&] { read_run_state(path); }, {"state.json"});
    std::ofstream(path / "state.json") << whole;
  }
  EXPECT_EQ(read_state(path, kTiny).data_position, 48);
}

TEST_F(CheckpointFolder, WeightsAndMomentsThatAreNotFiniteAreNotSaved) {
  save(1);
  const size_t last = state.store().layout().buckets.size() - 1;
  for (const std::string& name : state.store().kept().names()) {
    float& value = floats(state.store().kept().of(name, last))[3];
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      const float before = std::exchange(value, bad);
      expect_error([&] { save(2); }, {"step 2 was not written", "is not finite", "learning_rate",
                                      "Earlier checkpoints", "are whole"});
      value = before;
    }
  }
  EXPECT_EQ(names(), std::set<std::string>{"step_00000001"});
  save(2);
}

}  // namespace
}  // namespace tessera::testing
