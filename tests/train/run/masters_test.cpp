// Masters of bf16 weights are exact wherever they lie and however they are split: over many updates, and
// from one run to another through a checkpoint. On the CPU, which has no kernels for bf16 weights, an update
// rule in plain loops stands for AdamW.
#include "tests/masters.h"

#include <bit>

#include "kernels/base/master.h"
#include "model/formats/safetensors.h"
#include "model/optimizer.h"
#include "tests/data_parallel.h"
#include "train/run/checkpoint.h"
#include "train/run/checkpoint_folder.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kUpdates = 30;

// What an update makes of a master, wherever it lies: a change of its size or far below a bf16 weight's last
// place, and one time in five a tie.
float updated(float master, int64_t step) {
  const Philox random(std::bit_cast<uint32_t>(master), static_cast<uint64_t>(step));
  const double next = master - (step % 3 == 0 ? 1e-2 : 1e-6) * random.normal(0);
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(next));
  return random.bits(1)[0] % 5 == 0 ? std::bit_cast<float>((bits & 0xffff0000u) | 0x8000u)
                                    : static_cast<float>(next);
}

UpdateRule rule_in_loops() {
  return {.name = "plain loops",
          .groups = {{.has = is_any,
                      .state = {},
                      .run = [](const Stream&, std::span<const UpdatedPart> parts, const UpdateStep& step) {
                        for (const UpdatedPart& part : parts)
                          for (int64_t i = 0; part.weights.data && i < part.weights.numel(); ++i) {
                            if (!part.low) {
                              float& weight = part.weights.as<float>()[i];
                              weight = updated(weight, step.number);
                              continue;
                            }
                            uint16_t &weight = part.weights.as<uint16_t>()[i],
                                     &low = part.low.as<uint16_t>()[i];
                            const float master = std::bit_cast<float>(master_bits({weight, low}));
                            const SplitMaster split =
                                split_master(std::bit_cast<uint32_t>(updated(master, step.number)));
                            weight = split.weight, low = split.low;
                          }
                      }}}};
}

// By the order of the calls alone: the values of a parameter, among them ties, and zeros in its padding
Tensor values_of(const ParamPlace& place, HostTensors& make) {
  const Tensor values = make.normal(place.info.shape, 0.1);
  const int64_t filled = values.numel() / place.info.shape[0] * (place.info.shape[0] - place.info.padding);
  std::fill(values.as<float>() + filled, values.as<float>() + values.numel(), 0.0f);
  floats(values)[0] = std::bit_cast<float>(0x3c018000u),
  floats(values)[1] = std::bit_cast<float>(0xbc008000u);
  return values;
}

// A store of parameters, updated without a model.
struct Updated {
  std::unique_ptr<Backend> be = make_cpu_backend();
  std::unique_ptr<Communicator> comm;
  Arena arena = Arena::host(), of_weights = Arena::host(), of_optimizer = Arena::host();
  std::optional<ParamStore> store;
  std::optional<Optimizer> optimizer;
  HostTensors make;

  struct Options {
    DType dtype = DType::kBF16;
    Shard shard = Shard::kNone;
    bool weights_on_host = false, untied = false;
    Freeze freeze = {};
  };
  Updated(const Ranks& ranks, const Options& options) : comm(make_communicator(*be, ranks)) {
    ModelConfig model = kSharedModel;
    model.tied = !options.untied;
    store.emplace(
        Stream(*be), arena,
        ParamStore::Shape{.model = model,
                          .dtype = options.dtype,
                          .homes = {.shards = {options.shard, ranks.size},
                                    .axis = comm.get(),
                                    .freeze = options.freeze,
                                    .weights = {.host = options.weights_on_host ? &of_weights : nullptr},
                                    .training = ParamStore::Training{.kept = &of_optimizer}}});
    optimizer.emplace(arena, *store, rule_in_loops());
    store->kept().clear();
    const ParamSink write = store->writer();
    for (const ParamPlace& place : store->layout().places) write(place, values_of(place, make));
  }
  void update(int64_t step) {
    optimizer->update(Stream(*be), {.config = kTestOptimizer, .learning_rate = 1, .number = step});
    if (step % 7 == 0) store->lease_tables();
  }
  std::vector<NamedTensor> kept(const std::string& name) {
    return kept_on_host(Stream(*be), *store, name, make);
  }
};

void expect_same_values(const std::vector<NamedTensor>& found, const std::vector<NamedTensor>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(std::memcmp(found[i].tensor.data, wanted[i].tensor.data, wanted[i].tensor.bytes()), 0)
        << wanted[i].name;
}
void expect_rounded_values(const std::vector<NamedTensor>& weights, const std::vector<NamedTensor>& masters) {
  ASSERT_EQ(weights.size(), masters.size());
  for (size_t i = 0; i < weights.size(); ++i)
    for (size_t k = 0; k < floats(masters[i].tensor).size(); ++k)
      ASSERT_EQ(floats(weights[i].tensor)[k], nearest_bf16(floats(masters[i].tensor)[k])) << masters[i].name;
}

// Each rank has all masters in the end, as one that trains in fp32.
TEST(HalvedMasters, AreThoseOfFp32HoweverTheyAreSplit) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  for (const int count : {1, 2, 3})
    on_ranks(count, [&](const Ranks& ranks) {
      for (const bool untied : {false, true}) {
        Updated plain({}, {.dtype = DType::kF32, .untied = untied});
        for (int64_t step = 1; step <= kUpdates; ++step) plain.update(step);
        const std::vector<NamedTensor> wanted = plain.kept(kMaster);
        for (const Shard shard : kAllShards)
          for (const bool on_host : {false, true}) {
            if (on_host && ranks.size > 1 && shard != Shard::kWeights) continue;
            SCOPED_TRACE(fmt::format("{}, weights on the {}", name_of(shard), on_host ? "host" : "device"));
            Updated halves(ranks, {.shard = shard, .weights_on_host = on_host, .untied = untied});
            expect_rounded_values(halves.kept(kWeight), halves.kept(kMaster));
            for (int64_t step = 1; step <= kUpdates; ++step) halves.update(step);
            expect_same_values(halves.kept(kMaster), wanted);
            expect_rounded_values(halves.kept(kWeight), wanted);
          }
      }
    });
}

TEST(HalvedMasters, TakeTwoBytesAParameter) {
  const Updated fp32({}, {.dtype = DType::kF32}), bf16({}, {});
  int64_t trained = 0;
  for (const ParamBucket& bucket : bf16.store->layout().buckets) trained += bucket.trained;
  const auto optimizer = [](const Arena& arena) {
    return arena.ledger().peak_of_each()[static_cast<int>(MemoryTag::kOptimizer)];
  };
  EXPECT_EQ(optimizer(fp32.of_optimizer), 0) << "the weights are the masters";
  EXPECT_EQ(optimizer(bf16.of_optimizer), 2 * trained);
}

// Frozen weights are rounded alike, and that is all that is left of them.
TEST(HalvedMasters, AreNotKeptOfFrozenWeights) {
  Freeze freeze;
  freeze.add(ParamPart::kAttention);
  Updated one({}, {.freeze = freeze});
  int64_t frozen = 0, lost = 0;
  HostTensors same;
  const std::vector<NamedTensor> masters = one.kept(kMaster), weights = one.kept(kWeight);
  for (const ParamPlace& place : one.store->layout().places) {
    const Tensor values = values_of(place, same);
    for (size_t i = 0; i < floats(values).size(); ++i) {
      const float value = floats(values)[i], rounded = static_cast<float>(nearest_bf16(value));
      ASSERT_EQ(floats(weights[place.index].tensor)[i], rounded) << place.info.name;
      ASSERT_EQ(floats(masters[place.index].tensor)[i], place.trained ? value : rounded) << place.info.name;
      lost += !place.trained && value != rounded;
    }
    frozen += !place.trained;
  }
  EXPECT_GT(frozen, 0);
  EXPECT_GT(lost, 0);
}

// A training state whose values are set: nothing runs a forward in bf16 on the CPU.
struct SavedRun {
  std::unique_ptr<Backend> be = make_cpu_backend();
  std::unique_ptr<Communicator> comm;
  Arena arena = Arena::host();
  TrainState state;
  HostTensors make;

  SavedRun(const Ranks& ranks, const RunShape& shape)
      : comm(make_communicator(*be, ranks)), state(*be, arena, shape, {.all = comm.get()}) {
    state.initialize(3);
  }
  void fill() {
    for (const std::string& name : state.store().kept().names()) {
      const ParamSink write = state.store().writer(name);
      for (const ParamPlace& place : state.store().layout().places)
        if (place.trained || name == kMaster) write(place, values_of(place, make));
    }
  }
  std::vector<NamedTensor> kept(const std::string& name) {
    return kept_on_host(state.stream(), state.store(), name, make);
  }
};

RunShape shape_in(DType dtype, int ranks = 1, Shard shard = Shard::kNone, const Offload& offload = {}) {
  RunShape shape = shared_shape(ranks, shard);
  shape.dtype = dtype, shape.offload = offload;
  return shape;
}

struct MastersInCheckpoints : ::testing::Test {
  fs::path folder = fs::temp_directory_path() / fmt::format("tessera_masters_{}", getpid());
  const RunState run{.step = 3, .device = Device::kCpu, .data = "builtin"};

  void TearDown() override { fs::remove_all(folder); }
  void expect_loaded(SavedRun& from, SavedRun& to) {
    for (const std::string& name : from.state.store().kept().names())
      expect_same_values(to.kept(name), from.kept(name));
    if (to.state.store().dtype() == DType::kBF16) expect_rounded_values(to.kept(kWeight), to.kept(kMaster));
  }
};

// A checkpoint has masters in fp32, whatever the run keeps: those of a run in fp32 stand for those of a run
// that kept fp32 copies.
TEST_F(MastersInCheckpoints, AreReadToTheSameBits) {
  for (const DType from : {DType::kF32, DType::kBF16})
    for (const DType to : {DType::kF32, DType::kBF16})
      for (const DType file : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(fmt::format("from {} in {} to {}", name_of(from), name_of(file), name_of(to)));
        SavedRun made({}, shape_in(from)), loaded({}, shape_in(to));
        made.fill();
        const fs::path path = save_checkpoint(folder, made.state, run, {.dtype = file});
        load_checkpoint(path, loaded.state);
        expect_loaded(made, loaded);
        // The file has the weights that the run computes with.
        if (from == DType::kBF16 && file == DType::kBF16) {
          SavedRun weights({}, shape_in(DType::kF32));
          load_weights(path, weights.state);
          expect_same_values(weights.kept(kWeight), made.kept(kWeight));
        }
      }
  const SafetensorsReader optimizer(folder / checkpoint_name(3) / "optimizer.safetensors");
  int64_t masters = 0;
  for (const auto& [name, entry] : optimizer.entries()) {
    EXPECT_EQ(entry.dtype, "F32") << name;
    masters += name.starts_with("master.");
  }
  EXPECT_EQ(masters, std::ssize(ParamLayout(kSharedModel, 1).places));
}

// The bytes of the parameters of which a rank has an element, of all that the file has of a section
int64_t bytes_of_part(SavedRun& run, bool all) {
  const ParamStore& store = run.state.store();
  int64_t bytes = 0;
  for (const ParamPlace& place : store.layout().places) {
    const int64_t each = store.layout().buckets[place.bucket].trained / store.part().count,
                  begins = store.part().index * each;
    const bool overlaps = place.first < begins + each && place.first + place.info.shape.numel() > begins;
    if (all || overlaps)
      bytes += 4 * (place.info.shape.numel() - place.info.padding * store.model().channels);
  }
  return bytes;
}

// Whole weights need all masters, but of the moments each rank reads its part, and of split weights that
// alone.
TEST_F(MastersInCheckpoints, ARankReadsItsPart) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  on_ranks(3, [&](const Ranks& ranks) {
    folder = ranks.exchange(folder.string())[0];
    SavedRun alone({}, shape_in(DType::kBF16));
    alone.fill();
    for (const DType file : {DType::kF32, DType::kBF16}) {  // weights in their own file, and masters
      fs::path path;
      if (ranks.rank == 0) path = save_checkpoint(folder, alone.state, run, {.dtype = file});
      path = ranks.exchange(path.string())[0];
      for (const Shard shard : kAllShards) {
        SCOPED_TRACE(fmt::format("{}, file in {}", name_of(shard), name_of(file)));
        SavedRun loaded(ranks, shape_in(DType::kBF16, 3, shard));
        const int64_t whole = bytes_of_part(loaded, true), part = bytes_of_part(loaded, false);
        EXPECT_EQ(load_checkpoint(path, loaded.state), shard == Shard::kNone      ? 3 * whole
                                                       : shard == Shard::kWeights ? 3 * part
                                                                                  : whole + 2 * part);
        EXPECT_EQ(part < whole, shard != Shard::kNone);
        expect_loaded(alone, loaded);
        ranks.exchange("read");
      }
    }
    if (ranks.rank == 0) fs::remove_all(folder);
  });
}

// A run goes on elsewhere with the same bits: more ranks or fewer, another split, in host memory or not.
TEST_F(MastersInCheckpoints, MoveBetweenPlacements) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  on_ranks(2, [&](const Ranks& ranks) {
    folder = ranks.exchange(folder.string())[0];
    const CheckpointOptions options{.dtype = DType::kBF16,
                                    .barrier = [&] { ranks.exchange("the folder is there"); }};
    SavedRun alone({}, shape_in(DType::kBF16));
    alone.fill();
    for (const Shard shard : kAllShards)
      for (const Shard other : kAllShards) {
        SCOPED_TRACE(fmt::format("{} to {}", name_of(shard), name_of(other)));
        const Offload offload{.optimizer = shard == Shard::kOptimizer || shard == Shard::kWeights,
                              .weights = shard == Shard::kWeights};
        SavedRun made(ranks, shape_in(DType::kBF16, 2, shard, offload)),
            loaded(ranks, shape_in(DType::kBF16, 2, other)), one({}, shape_in(DType::kBF16));
        made.fill();
        expect_loaded(alone, made);
        const fs::path path = save_checkpoint(folder, made.state, run, options);
        ranks.exchange("written");
        load_checkpoint(path, loaded.state), load_checkpoint(path, one.state);
        expect_loaded(alone, loaded), expect_loaded(alone, one);
        ranks.exchange("read");
      }
    if (ranks.rank == 0) fs::remove_all(folder);
  });
}

}  // namespace
}  // namespace tessera::testing
