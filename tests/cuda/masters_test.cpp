// Masters on CUDA: those of the CPU, from and to the host or the device; and the initial ones of each rank.
#include "tests/masters.h"

#include "tests/cuda/twin.h"
#include "tests/train_steps.h"

namespace tessera {
namespace {

using CudaOps = CudaTest;

TEST_F(CudaOps, MastersAreSplitAndJoinedWhereverTheyLie) {
  const Stream with_little_room(cuda().backend(), output(DType::kF32, {1000}).cuda);
  for (const int64_t count : {1, 999, 1000, 4099}) {
    const Twin masters = with_values(DType::kF32, {count}, [&](int64_t i) {
      const auto bits = static_cast<uint32_t>(random_());
      return std::bit_cast<float>((bits & 0xbfff0000u) | (i % 3 == 0 ? 0x8000u : bits * 31 & 0xffffu));
    });
    const Twin weights = output(DType::kBF16, {count}), low = output(DType::kU16, {count});
    for (const Tensor& from : {masters.cpu, masters.cuda}) {
      with_little_room.run(SplitMasters{.masters = from, .weights = weights.cuda, .low = low.cuda});
      const Twin alone = output(DType::kBF16, {count}), joined = output(DType::kF32, {count});
      with_little_room.run(SplitMasters{.masters = from, .weights = alone.cuda, .low = {}});
      EXPECT_EQ(bytes_of(alone.cuda), bytes_of(weights.cuda));
      const std::vector<float> rounded = floats_of(weights.cuda);
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(rounded[i], testing::nearest_bf16(masters.cpu.as<float>()[i])) << i;
      for (const Tensor& to : {joined.cpu, joined.cuda}) {
        with_little_room.run(JoinMasters{.weights = weights.cuda, .low = low.cuda, .masters = to});
        const std::vector<char> found = to.device == Device::kCuda
                                            ? bytes_of(to)
                                            : std::vector<char>(to.as<char>(), to.as<char>() + to.bytes());
        EXPECT_EQ(std::memcmp(found.data(), masters.cpu.data, masters.cpu.bytes()), 0);
      }
      cuda().run(FillZero{weights.cuda}), cuda().run(FillZero{low.cuda});
    }
  }
  const Twin three = input(DType::kF32, {3}), low = output(DType::kU16, {3});
  EXPECT_NE(message_of([&] {
              cuda().run(SplitMasters{.masters = three.cuda, .weights = three.cuda, .low = low.cuda});
            }).find("weights must be bf16 [3] on cuda"),
            std::string::npos);
}

// Of two ranks each draws the same weights, and keeps the lower bits of its part of the masters.
TEST_F(CudaOps, InitialMastersOfARankAreItsPart) {
  RunShape shape{.model = {.vocab_size = 61, .context = 40, .layers = 2, .heads = 2, .channels = 48},
                 .micro_batch = 1,
                 .micro_steps = 1,
                 .sequence_length = 8,
                 .dtype = DType::kBF16,
                 .mesh = {.data = 2}};
  std::map<std::string, std::vector<float>> wanted;
  init_weights(shape.model, 7, {.values = [&](const ParamPlace& place, const Tensor& values) {
                 wanted[place.info.name] = {values.as<float>(), values.as<float>() + values.numel()};
               }});
  for (const Shard shard : {Shard::kNone, Shard::kOptimizer, Shard::kGradients, Shard::kWeights})
    for (const int rank : {0, 1}) {
      SCOPED_TRACE(fmt::format("{} rank {}", name_of(shard), rank));
      shape.shard = shard;
      const std::unique_ptr<Backend> be = make_cuda_backend();
      Arena arena = Arena::cuda();
      const auto comm = make_plan_communicator(Device::kCuda, rank, 2);
      TrainState state(*be, arena, shape, {.all = comm.get()});
      state.initialize(7);
      ParamStore& store = state.store();
      for (size_t b = 0; b < store.layout().buckets.size(); ++b) {
        const Tensor low = store.kept().of(kMaster, b), weights = store.weight_home().updated(b);
        std::vector<float> masters(low.numel());
        state.stream().run(JoinMasters{.weights = weights,
                                       .low = low,
                                       .masters = {masters.data(), DType::kF32, low.shape, Device::kCpu}});
        const int64_t begins = store.part().index * low.numel();
        int64_t seen = 0;
        for (const ParamPlace& place : store.layout().places) {
          if (place.bucket != b) continue;
          const std::vector<float>& values = wanted.at(place.info.name);
          for (int64_t i = 0; i < std::ssize(values); ++i) {
            const int64_t at = place.first + i - begins;
            if (at < 0 || at >= low.numel()) continue;
            ASSERT_EQ(masters[at], values[i]) << place.info.name << " " << i;
            ++seen;
          }
        }
        EXPECT_GT(seen, 0);
        if (shard == Shard::kWeights) continue;
        const std::vector<float> rounded = floats_of(store.weights().buckets[b]);
        for (const ParamPlace& place : store.layout().places)
          for (int64_t i = 0; place.bucket == b && i < place.info.shape.numel(); ++i)
            ASSERT_EQ(rounded[place.first + i], testing::nearest_bf16(wanted.at(place.info.name)[i]))
                << place.info.name << " " << i;
      }
    }
}

}  // namespace
}  // namespace tessera
