// What a checkpoint holds follows from the update rule, adapters and frozen parts; and however many ranks
// share it, the files are the same.
#include <fstream>
#include <set>

#include "model/formats/safetensors.h"
#include "tests/data_parallel.h"
#include "tests/momentum_rule.h"
#include "train/run/checkpoint.h"
#include "train/run/verify_checkpoint.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

const RunState kRun{.step = 3, .device = Device::kCpu, .data = "builtin"};

struct Case {
  const char* name;
  std::function<void(RunShape&)> choose;
  DType dtype = DType::kF32;
  size_t files = 5;  // of tensors and beside them
  int64_t file_bytes = int64_t{1} << 30;
};

std::vector<Case> cases() {
  const auto lora = [](RunShape& s) {
    s.model.lora = {.rank = 2, .alpha = 4, .split_qkv = false};  // as GPT-2 has it
    s.freeze = Freeze::all_but_adapters();
  };
  return {{"fp32", [](RunShape&) {}},
          {"masters", [](RunShape&) {}, DType::kBF16},
          {"moments in bf16", [](RunShape& s) { s.rule = adamw(DType::kBF16); }, DType::kBF16},
          {"frozen", [](RunShape& s) { s.freeze.add(ParamPart::kEmbeddings); }, DType::kBF16},
          {"adapters", lora, DType::kF32, 7},
          {"adapters and another rule",
           [=](RunShape& s) {
             lora(s);
             s.rule = momentum_rule();
           },
           DType::kBF16, 7},
          {"bf16 weights", [](RunShape& s) { s.dtype = DType::kBF16; }},
          {"bf16 weights in bf16", [](RunShape& s) { s.dtype = DType::kBF16; }, DType::kBF16},
          {"bf16 weights, of which some are frozen",
           [](RunShape& s) {
             s.dtype = DType::kBF16;
             s.freeze.add(ParamPart::kAttention);
           },
           DType::kBF16},
          {"adapters of bf16 weights",
           [=](RunShape& s) {
             lora(s);
             s.dtype = DType::kBF16;
           },
           DType::kBF16, 7},
          // In fp32 a block is a file by itself: 4 of weights, 8 of moments, two indices, three texts.
          {"small files", [](RunShape&) {}, DType::kF32, 17, 20'000},
          {"small files of frozen parts and adapters", lora, DType::kBF16, 12, 20'000}};
}

// Values that depend on the name alone, for all that is kept
void fill(TrainState& state) {
  for (const std::string& name : state.store().kept().names()) {
    HostTensors make;
    const ParamSink write = state.store().writer(name);
    for (const ParamPlace& place : state.store().layout().places)
      if (place.trained || name == kMaster) {
        const Tensor values = make.normal(place.info.shape, 0.1, static_cast<double>(name.size()));
        const int64_t filled =
            values.numel() / place.info.shape[0] * (place.info.shape[0] - place.info.padding);
        std::fill(values.as<float>() + filled, values.as<float>() + values.numel(), 0.0f);
        write(place, values);
      }
  }
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[fs::relative(entry.path(), folder)] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

// As rank `ranks.rank` of some; the files that rank 0 has written
std::map<std::string, std::string> saved(const Ranks& ranks, const Case& one,
                                         Shard shard = Shard::kOptimizer) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  const std::unique_ptr<Communicator> comm = make_communicator(*be, ranks);
  RunShape shape = shared_shape(ranks.size, shard);
  one.choose(shape);
  Arena arena = Arena::host();
  TrainState state(*be, arena, shape, {.all = comm.get()});
  state.initialize(3);
  fill(state);
  std::string folder =
      fs::temp_directory_path() / fmt::format("tessera_sections_{}_{}", getpid(), ranks.size);
  CheckpointOptions options{.dtype = one.dtype, .file_bytes = one.file_bytes};
  if (ranks.size > 1) {
    folder = ranks.exchange(folder)[0];
    options.barrier = [&] { ranks.exchange("the folder is there"); };
  }
  const fs::path path = save_checkpoint(folder, state, kRun, options);
  if (ranks.rank != 0) return {};
  const auto files = files_of(path);
  fs::remove_all(folder);
  return files;
}

TEST(CheckpointSections, RanksWriteTheFilesThatOneWrites) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  on_ranks(2, [](const Ranks& ranks) {
    for (const Shard shard : kAllShards)
      for (const Case& one : cases()) {
        SCOPED_TRACE(fmt::format("{}, split: {}", one.name, name_of(shard)));
        const auto shared = saved(ranks, one, shard);
        if (ranks.rank != 0) continue;
        const auto alone = saved({}, one);
        EXPECT_EQ(alone.size(), one.files);
        for (const auto& [name, bytes] : alone) {
          ASSERT_TRUE(shared.contains(name)) << name;
          EXPECT_TRUE(shared.at(name) == bytes) << name;
        }
      }
  });
}

// Several files are read as one is.
TEST(CheckpointSections, SmallFilesLoad) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arenas[3] = {Arena::host(), Arena::host(), Arena::host()};
  const RunShape shape = shared_shape(1);
  TrainState state(*be, arenas[0], shape), loaded(*be, arenas[1], shape), weights(*be, arenas[2], shape);
  state.initialize(3), loaded.initialize(4), weights.initialize(5);
  fill(state);
  const fs::path folder = fs::temp_directory_path() / fmt::format("tessera_small_{}", getpid());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const fs::path path = save_checkpoint(folder, state, kRun, {.dtype = dtype, .file_bytes = 20'000});
    EXPECT_FALSE(fs::exists(path / "model.safetensors"));
    EXPECT_TRUE(fs::exists(path / "model.safetensors.index.json"));
    EXPECT_TRUE(check_undamaged(path));
    load_checkpoint(path, loaded);
    for (const std::string& name : state.store().kept().names())
      for (size_t b = 0; b < state.store().layout().buckets.size(); ++b) {
        const Tensor &left = state.store().kept().of(name, b), &right = loaded.store().kept().of(name, b);
        EXPECT_EQ(std::memcmp(left.data, right.data, left.bytes()), 0) << name << ", bucket " << b;
      }
    load_weights(path, weights);  // as train.init_from does
    EXPECT_TRUE(dtype == DType::kBF16 || weight_bytes(weights) == weight_bytes(state));
    // Damage of any of them is found.
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() != ".safetensors") continue;
      const fs::path kept = folder / "kept";
      fs::copy_file(entry.path(), kept, fs::copy_options::overwrite_existing);
      std::fstream(entry.path(), std::ios::in | std::ios::out | std::ios::binary).seekp(-3, std::ios::end)
          << '!';
      EXPECT_THROW(check_undamaged(path), Error) << entry.path();
      fs::rename(kept, entry.path());
    }
    EXPECT_TRUE(check_undamaged(path));
  }
  fs::remove_all(folder);
}

// A rule with other state needs no change in the optimizer, plans and checkpoints.
struct AnotherRule : ::testing::Test {
  RunShape shape = [] {
    RunShape shape = shared_shape(1);
    shape.rule = momentum_rule();
    return shape;
  }();
  fs::path folder = fs::temp_directory_path() / fmt::format("tessera_rule_{}", getpid());
  std::unique_ptr<Backend> be = make_cpu_backend();
  std::vector<int32_t> ids = std::vector<int32_t>(static_cast<size_t>(shape.tokens_per_step()), 7);

  void TearDown() override { fs::remove_all(folder); }
  double step(TrainState& state, int64_t number) {
    state.step({.tokens = ids, .targets = ids}, shape.tokens_per_step(), kTestOptimizer, 0.1, number);
    return state.finish_step().loss;
  }
};

TEST_F(AnotherRule, TrainsAndResumesWithTheSameBits) {
  Arena arenas[2] = {Arena::host(), Arena::host()};
  TrainState state(*be, arenas[0], shape), other(*be, arenas[1], shape);
  state.initialize(3);
  const double first = step(state, 1);
  EXPECT_LT(step(state, 2), first);
  const fs::path path = save_checkpoint(folder, state, kRun);
  std::set<std::string> kinds;
  const SafetensorsReader file(path / "optimizer.safetensors");
  for (const auto& [name, entry] : file.entries()) kinds.insert(name.substr(0, name.find('.')));
  EXPECT_EQ(kinds, std::set<std::string>{"momentum"});
  other.initialize(4);
  load_checkpoint(path, other);
  EXPECT_EQ(step(other, 3), step(state, 3));
  EXPECT_EQ(step(other, 4), step(state, 4));
}

TEST_F(AnotherRule, ItsMemoryIsThePlan) {
  expect_plan_is_the_step({}, shape);
  const MemoryLedger plan = plan_memory(shape, {}), of_adamw = plan_memory(shared_shape(1), {});
  constexpr auto kTag = static_cast<int>(MemoryTag::kOptimizer);
  EXPECT_NEAR(static_cast<double>(of_adamw.at_peak()[kTag]) / static_cast<double>(plan.at_peak()[kTag]), 2,
              0.01);
}

}  // namespace
}  // namespace tessera::testing
