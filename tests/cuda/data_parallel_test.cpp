// A step of several GPUs is the step of one.
#include "tests/data_parallel.h"

#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

class CudaDataParallel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (count_cuda_devices() < 2) GTEST_SKIP() << "needs at least 2 GPUs, found " << count_cuda_devices();
    std::string why_not;
    if (!can_communicate(Device::kCuda, why_not)) GTEST_SKIP() << why_not;
  }

  // On 2 GPUs, and on 4 if there are as many.
  static void on_gpus(const std::function<void(const Ranks&, const DeviceTraits&)>& body) {
    for (const int size : {2, 4}) {
      if (size > count_cuda_devices()) continue;
      on_ranks(size, [&](const Ranks& ranks) {
        use_cuda_device(ranks.rank);
        DeviceTraits device;
        std::string why_not;
        ASSERT_TRUE(find_cuda_device(device, why_not)) << why_not;
        body(ranks, device);
      });
    }
  }
};

RunShape cuda_shape(int ranks, DType dtype, Shard shard, bool reduce_in_fp32 = false) {
  RunShape shape = shared_shape(ranks, shard);
  shape.model.channels = 128, shape.model.head_dim = 64;  // a head dim that the fused kernels serve
  shape.dtype = dtype;
  shape.reduce_in_fp32 = reduce_in_fp32;
  return shape;
}

TEST_F(CudaDataParallel, LossesInFp32AreThoseOfOneGpu) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    for (const Shard shard : kAllShards) {
      const std::vector<double> one =
          run_shared({}, {.device = device, .shape = cuda_shape(1, DType::kF32, shard), .steps = 50});
      EXPECT_LT(one.back(), 0.8 * one.front()) << "nothing was learned";
      const std::vector<double> ours = run_shared(
          ranks, {.device = device, .shape = cuda_shape(ranks.size, DType::kF32, shard), .steps = 50});
      EXPECT_LT(largest_difference({ours[0]}, {one[0]}), tolerance::kFirstLossOfRanks);
      EXPECT_LT(largest_difference(ours, one), tolerance::kLossesOfRanks);
    }
  });
}

TEST_F(CudaDataParallel, WeightsAreTheSameBitsOnAllGpusAndInEveryRun) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const Shard shard : kAllShards)
        for (const bool in_fp32 : {false, true}) {
          if (in_fp32 && dtype == DType::kF32) continue;  // as without
          std::string weights, before;
          const auto run = [&](int steps) {
            return run_shared(ranks, {.device = device,
                                      .shape = cuda_shape(ranks.size, dtype, shard, in_fp32),
                                      .steps = steps,
                                      .after = [&](TrainState& state) { weights = weight_bytes(state); }});
          };
          std::vector<double> losses;
          for (const int steps : {1, 10}) {
            losses = run(steps);
            for (const std::string& theirs : ranks.exchange(weights)) EXPECT_TRUE(theirs == weights) << steps;
          }
          before = weights;
          EXPECT_EQ(run(10), losses);
          EXPECT_TRUE(weights == before);
        }
  });
}

// Gradients in bf16 are summed in bf16 or in fp32: neither is far from one GPU's sums.
TEST_F(CudaDataParallel, LossesInBf16AreCloseToThoseOfOneGpu) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    const std::vector<double> one =
        run_shared({}, {.device = device, .shape = cuda_shape(1, DType::kBF16, Shard::kNone), .steps = 10});
    for (const Shard shard : kAllShards)
      for (const bool in_fp32 : {false, true}) {
        const std::vector<double> ours = run_shared(
            ranks,
            {.device = device, .shape = cuda_shape(ranks.size, DType::kBF16, shard, in_fp32), .steps = 10});
        EXPECT_LT(largest_difference(ours, one), tolerance::kBf16ModelLoss) << name_of(shard) << in_fp32;
      }
  });
}

// Kernels read and write it over the bus: the same bits.
TEST(CudaOffload, TheOptimizerInHostMemoryChangesNoBit) {
  DeviceTraits device;
  std::string why_not;
  if (!find_cuda_device(device, why_not)) GTEST_SKIP() << "no GPU: " << why_not;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const DType moments : {DType::kF32, DType::kBF16}) {
      std::string weights;
      const auto run = [&](bool offload) {
        RunShape shape = cuda_shape(1, dtype, Shard::kNone);
        shape.rule = adamw(moments);
        shape.offload_optimizer = offload;
        return run_shared({}, {.device = device, .shape = shape, .steps = 5, .after = [&](TrainState& state) {
                                 weights = weight_bytes(state);
                               }});
      };
      const std::vector<double> losses = run(false);
      const std::string on_gpu = weights;
      EXPECT_EQ(run(true), losses) << name_of(dtype) << name_of(moments);
      EXPECT_TRUE(weights == on_gpu) << name_of(dtype) << name_of(moments);
    }
}

TEST_F(CudaDataParallel, TheOptimizerInHostMemory) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    for (const Shard shard : kAllShards) {
      RunShape shape = cuda_shape(ranks.size, DType::kBF16, shard);
      const std::vector<double> losses = run_shared(ranks, {.device = device, .shape = shape, .steps = 5});
      shape.offload_optimizer = true;
      EXPECT_EQ(run_shared(ranks, {.device = device, .shape = shape, .steps = 5}), losses) << name_of(shard);
    }
  });
}

TEST_F(CudaDataParallel, ThePlanOfARankIsItsLedger) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    for (const Shard shard : kAllShards)
      for (const bool in_fp32 : {false, true}) {
        const RunShape shape = cuda_shape(ranks.size, DType::kBF16, shard, in_fp32);
        const std::unique_ptr<Backend> be = make_backend(device);
        const std::unique_ptr<Communicator> comm = make_communicator(*be, ranks);
        expect_ledger_is_plan(*be, comm.get(), shape);
      }
  });
}

}  // namespace
}  // namespace tessera::testing
