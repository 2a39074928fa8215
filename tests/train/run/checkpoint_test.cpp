// Checkpoints and safetensors: round trips, foreign and damaged files, full disks.
#include "train/run/checkpoint.h"

#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/bf16.h"
#include "model/formats/safetensors.h"
#include "model/formats/weights.h"
#include "tests/model_families.h"
#include "tests/support.h"
#include "train/run/checkpoint_folder.h"
#include "train/run/verify_checkpoint.h"
#include "train/session/device.h"
#include "train/session/train_state.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
constexpr ModelConfig kTinyRun{.vocab_size = 61, .context = 16, .layers = 2, .heads = 2, .channels = 24};

template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

void expect_parts_of(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
}

void expect_same_optimizer(TrainState& a, TrainState& b) {
  for (const std::string& name : a.store().kept().names())
    for (size_t i = 0; i < a.store().layout().buckets.size(); ++i) {
      const Tensor &left = a.store().kept().of(name, i), &right = b.store().kept().of(name, i);
      EXPECT_EQ(std::memcmp(left.data, right.data, left.bytes()), 0) << name << ", bucket " << i;
    }
}

struct Checkpoint : ::testing::Test {
  fs::path folder = fs::temp_directory_path() / ("tessera_checkpoint_test_" + std::to_string(getpid()));
  std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  TrainState state{*be, arena, {.model = kTinyRun, .micro_batch = 1, .micro_steps = 1, .sequence_length = 8}};
  RunState run{.step = 120,
               .data_position = 4711,
               .seed = 9,
               .micro_batch = 1,
               .sequence_length = 8,
               .device = Device::kCpu,
               .data = "builtin"};

  void SetUp() override {
    fs::create_directories(folder);
    state.initialize(3);
    const std::vector<int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8};
    state.step({.tokens = tokens, .targets = tokens}, 8,
               {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .max_grad_norm = 1}, 1e-2,
               1);
    state.finish_step();
  }
  void TearDown() override { fs::remove_all(folder); }
  fs::path save() { return save_checkpoint(folder, state, run); }
};

TEST_F(Checkpoint, RoundTripKeepsEveryBit) {
  const fs::path path = save();
  EXPECT_EQ(path.filename(), "step_00000120");
  Arena other_arena = Arena::host();
  TrainState other(*be, other_arena, state.shape());
  other.initialize(77);  // also what lies between parameters
  load_checkpoint(path, other);
  expect_same_optimizer(state, other);
  const RunState read = read_state(path, kTinyRun);
  EXPECT_EQ(read.step, 120);
  EXPECT_EQ(read.data_position, 4711);
  EXPECT_EQ(read.data, "builtin");
  EXPECT_EQ(read.mlp_chunk, 0);
  run.mlp_chunk = 2048;
  EXPECT_EQ(read_state(save(), kTinyRun).mlp_chunk, 2048);
}

// It is written from copies: what the weights become meanwhile is not in it.
TEST_F(Checkpoint, IsOfTheMomentThatItBegan) {
  Arena then_arena = Arena::host(), read_arena = Arena::host();
  TrainState then(*be, then_arena, state.shape()), read(*be, read_arena, state.shape());
  load_checkpoint(save(), then);
  RunState later = run;
  later.step = 121;
  PendingCheckpoint pending(folder, state, later);
  state.initialize(99);
  EXPECT_TRUE(pending.done_within(60));
  EXPECT_FALSE(fs::exists(folder / "step_00000121")) << "it has its name before it is finished";
  const fs::path path = pending.finish();
  EXPECT_TRUE(check_undamaged(path));
  load_checkpoint(path, read);
  expect_same_optimizer(then, read);
}

// As if the run had been killed: the next one removes what is left.
TEST_F(Checkpoint, ThatIsNotFinishedHasNoName) {
  const fs::path whole = save();
  RunState later = run;
  later.step = 121;
  { const PendingCheckpoint pending(folder, state, later); }
  EXPECT_TRUE(fs::exists(folder / "step_00000121.unfinished"));
  EXPECT_EQ(latest_checkpoint(folder), whole);
  save();
  EXPECT_FALSE(fs::exists(folder / "step_00000121.unfinished"));
}

// The weights are rounded in the file; what a run resumes from is not.
TEST_F(Checkpoint, WeightsInBf16ResumeWithEveryBit) {
  const fs::path path = save_checkpoint(folder, state, run, {.dtype = DType::kBF16});
  const SafetensorsReader weights(path / "model.safetensors"), optimizer(path / "optimizer.safetensors");
  for (const auto& [name, entry] : weights.entries()) {
    EXPECT_EQ(entry.dtype, "BF16") << name;
    for (const char* prefix : {"master.", "first_moment.", "second_moment."})
      EXPECT_EQ(optimizer.entries().at(prefix + name).dtype, "F32") << name;
  }
  EXPECT_EQ(optimizer.entries().size(), 3 * weights.entries().size());
  std::ifstream config(path / "config.json");
  EXPECT_EQ(nlohmann::json::parse(config)["torch_dtype"], "bfloat16");
  EXPECT_TRUE(check_undamaged(path));

  Arena other_arena = Arena::host();
  TrainState other(*be, other_arena, state.shape());
  other.initialize(77);
  load_checkpoint(path, other);
  expect_same_optimizer(state, other);
  load_weights(path, other);  // as train.init_from does
  const std::span<float> exact = floats(state.store().weights().token_table),
                         rounded = floats(other.store().weights().token_table);
  for (size_t i = 0; i < exact.size(); ++i)
    ASSERT_EQ(rounded[i], float_from_bf16(bf16_from_float(exact[i]))) << i;
}

TEST_F(Checkpoint, Fp32WeightsStandOnceInTheFiles) {
  const fs::path path = save();
  const SafetensorsReader weights(path / "model.safetensors"), optimizer(path / "optimizer.safetensors");
  EXPECT_EQ(optimizer.entries().size(), 2 * weights.entries().size());
  for (const auto& [name, entry] : weights.entries()) EXPECT_EQ(entry.dtype, "F32") << name;
}

// Of every family: their names in transformers, and the same values again.
TEST_F(Checkpoint, EveryFamilyIsSavedAndLoaded) {
  for (const FamilyModel& one : family_models())
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      RunShape shape = state.shape();
      shape.model = one.model;
      Arena arenas[2] = {Arena::host(), Arena::host()};
      TrainState made(*be, arenas[0], shape), loaded(*be, arenas[1], shape);
      made.initialize(5);
      const std::vector<int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8};
      made.step({.tokens = tokens, .targets = tokens}, 8,
                {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .max_grad_norm = 1}, 1e-2,
                1);
      made.finish_step();
      const fs::path path = save_checkpoint(folder, made, run, {.dtype = dtype});
      EXPECT_EQ(read_state(path, one.model).step, run.step);
      loaded.initialize(6);
      load_checkpoint(path, loaded);
      SCOPED_TRACE(one.name);
      expect_same_optimizer(made, loaded);
    }
}

TEST_F(Checkpoint, FilesOfTheSourceFolderAreCopied) {
  const fs::path source = folder / "source";
  fs::create_directories(source);
  std::ofstream(source / "tokenizer.json") << "{\"a\": 1}";
  std::ofstream(source / "chat_template.jinja") << std::string("x\0y\n", 4);
  std::ofstream(source / "merges.txt");
  std::ofstream(source / "README.md") << "not one of them";
  const CopiedFiles copied = read_copied_files(source);
  EXPECT_EQ(copied, (CopiedFiles{{"chat_template.jinja", std::string("x\0y\n", 4)},
                                 {"merges.txt", ""},
                                 {"tokenizer.json", "{\"a\": 1}"}}));
  for (const int64_t step : {5, 20}) {
    run.step = step;
    save_checkpoint(folder, state, run, {.copied = copied});
  }
  const fs::path path = folder / "step_00000020";
  EXPECT_EQ(read_copied_files(path), copied);  // a run that resumes has them from here
  EXPECT_TRUE(written_checksums(path).contains("tokenizer.json"));
  EXPECT_TRUE(check_undamaged(path));
  prune_checkpoints(folder, {.newest = 1});
  EXPECT_FALSE(fs::exists(folder / "step_00000005")) << "they are files of ours";

  std::ofstream(path / "tokenizer.json") << "{\"a\": 2}";
  expect_parts_of(error_of([&] { check_undamaged(path); }), {"tokenizer.json is damaged", "checksum"});
}

TEST_F(Checkpoint, TheNewestIsFoundAndOldOnesGo) {
  EXPECT_FALSE(latest_checkpoint(folder));
  for (const int64_t step : {5, 20, 100}) run.step = step, save();
  fs::create_directories(folder / "step_00000999.unfinished");
  EXPECT_EQ(latest_checkpoint(folder)->filename(), "step_00000100");
  prune_checkpoints(folder, {});
  EXPECT_TRUE(fs::exists(folder / "step_00000005"));
  prune_checkpoints(folder, {.newest = 2});
  EXPECT_FALSE(fs::exists(folder / "step_00000005"));
  EXPECT_TRUE(fs::exists(folder / "step_00000020"));
  run.step = 120, save();
  EXPECT_FALSE(fs::exists(folder / "step_00000999.unfinished"));  // left by a run that was killed
}

TEST_F(Checkpoint, OfAnotherModelIsRefusedWithBothSizes) {
  const fs::path path = save();
  ModelConfig other = kTinyRun;
  other.layers = 3;
  expect_parts_of(error_of([&] { read_state(path, other); }),
                  {"another model", "n_layer is 2", "has model.layers=3"});
  RunShape shape = state.shape();
  shape.model = other;
  Arena other_arena = Arena::host();
  TrainState unlike(*be, other_arena, shape);
  expect_parts_of(error_of([&] { load_weights(path, unlike); }), {"another model"});
}

TEST_F(Checkpoint, PositionsAreStretchedOnlyWhereThereAreTooFew) {
  const fs::path path = save();
  const std::vector<int32_t> prompt{5, 60, 7, 8, 1};
  Arena same_arena = Arena::host();
  TrainState same(*be, same_arena, state.shape());
  load_weights(path, same, {.extension = PositionExtension::kInterpolate});
  EXPECT_EQ(same.session().last_logits(prompt, 1), state.session().last_logits(prompt, 1))
      << "nothing was extended";

  RunShape shape = state.shape();
  shape.model.context = 61;  // 16 positions over 61: every fourth is one of them
  Arena long_arena = Arena::host();
  TrainState extended(*be, long_arena, shape);
  expect_parts_of(error_of([&] { load_weights(path, extended); }),
                  {"n_positions is 16", "has model.context=61"});
  load_weights(path, extended, {.extension = PositionExtension::kInterpolate});
  const Params weights = extended.store().weights();
  const std::span<float> before = floats(state.store().weights().position_table),
                         after = floats(weights.position_table);
  for (int64_t i = 0; i < 61; ++i) {
    for (int64_t c = 0; c < kTinyRun.channels; ++c) {
      const auto below = static_cast<size_t>(i / 4 * kTinyRun.channels + c),
                 above = static_cast<size_t>(std::min<int64_t>(i / 4 + 1, 15) * kTinyRun.channels + c);
      const float share = static_cast<float>(i % 4) / 4;
      ASSERT_NEAR(after[i * kTinyRun.channels + c], (1 - share) * before[below] + share * before[above], 1e-7)
          << i;
    }
  }
  EXPECT_EQ(relative_error(weights.token_table, state.store().weights().token_table), 0);

  shape.model.context = 9;
  Arena short_arena = Arena::host();
  TrainState shorter(*be, short_arena, shape);
  expect_parts_of(error_of([&] { load_weights(path, shorter, {.extension = PositionExtension::kRepeat}); }),
                  {"n_positions is 16", "has model.context=9"});
}

TEST_F(Checkpoint, DamageIsNamed) {
  const fs::path path = save();
  fs::resize_file(path / "optimizer.safetensors", 5000);
  expect_parts_of(error_of([&] { load_checkpoint(path, state); }), {"optimizer.safetensors", "truncated"});
  std::ofstream(path / "state.json") << "{\"step\": ";
  expect_parts_of(error_of([&] { read_state(path, kTinyRun); }), {"state.json:1:10: not JSON"});
  std::ofstream(path / "state.json") << std::string(200'000, '[');
  expect_parts_of(error_of([&] { read_state(path, kTinyRun); }), {"state.json:1:65", "64 deep"});
  std::ofstream(path / "model.safetensors") << "hello";
  expect_parts_of(error_of([&] { load_weights(path, state); }), {"not a safetensors file"});
  std::ofstream(path / "config.json") << std::string(200'000, '[') + std::string(200'000, ']');
  expect_parts_of(error_of([&] { read_state(path, kTinyRun); }), {"config.json:1:65", "64 deep"});
  fs::remove(path / "config.json");
  expect_parts_of(error_of([&] { read_state(path, kTinyRun); }), {"has no config.json"});
  expect_parts_of(error_of([&] { load_weights(folder / "none", state); }), {"is not a folder"});
}

// A limit on the size of files stands in for a full disk: write() fails in the same place.
TEST_F(Checkpoint, AFullDiskLeavesTheEarlierCheckpointsAndNothingElse) {
  run.step = 10;
  save();
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{8192, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  run.step = 20;
  const std::string message = error_of([&] { save(); });
  setrlimit(RLIMIT_FSIZE, &before);
  expect_parts_of(message,
                  {"step 20 was not written", "model.safetensors", "File too large", "Earlier checkpoints"});
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator{}), 1);
  EXPECT_EQ(latest_checkpoint(folder)->filename(), "step_00000010");
  EXPECT_EQ(read_state(*latest_checkpoint(folder), kTinyRun).step, 10);
}

TEST(Safetensors, ReadsHalfPrecision) {
  const fs::path path = fs::temp_directory_path() / ("tessera_half_" + std::to_string(getpid()));
  const std::string header =
      R"({"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"h":{"dtype":"F16","shape":[3],"data_offsets":[4,10]}})";
  const uint64_t length = header.size();
  const uint16_t data[5] = {0x3F80, 0xC000, 0x3C00, 0x0001, 0xFC00};  // bf16 1, -2; half 1, 2^-24, -inf
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header;
  file.write(reinterpret_cast<const char*>(data), sizeof(data));
  file.close();
  const SafetensorsReader reader(path);
  std::vector<float> b(2), h(3);
  reader.read("b", {2}, b);
  reader.read("h", {3}, h);
  EXPECT_EQ(b, (std::vector<float>{1, -2}));
  EXPECT_EQ(h, (std::vector<float>{1, 0x1p-24f, -INFINITY}));
  expect_parts_of(error_of([&] { reader.read("b", {3}, h); }), {"tensor b", "[2]", "[3]"});
  expect_parts_of(error_of([&] { reader.read("c", {3}, h); }), {"has no tensor c"});
  fs::remove(path);
}

}  // namespace
}  // namespace tessera::testing
