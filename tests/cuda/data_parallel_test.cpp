// A step of several GPUs is the step of one.
#include "tests/cuda/several_gpus.h"
#include "tests/offloaded_steps.h"
#include "tests/stored_fp8.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

class CudaDataParallel : public SeveralGpus {};

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

// Of one GPU each, and of two where there are four
TEST_F(CudaDataParallel, ReplicasHaveTheLossesOfOneGpu) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const Shard shard : {Shard::kOptimizer, Shard::kGradients, Shard::kWeights})
        for (int replicas = 2; replicas <= ranks.size; ++replicas) {
          if (ranks.size % replicas != 0) continue;
          SCOPED_TRACE(fmt::format("{} {} {}", name_of(dtype), name_of(shard), replicas));
          const std::vector<double> one =
              run_shared({}, {.device = device, .shape = cuda_shape(1, dtype, shard), .steps = 10});
          for (const bool in_fp32 : {false, true}) {
            if (in_fp32 && dtype == DType::kF32) continue;
            RunShape shape = cuda_shape(ranks.size, dtype, shard, in_fp32);
            shape.mesh.replicas = replicas;
            std::string weights;
            const SharedRun run{
                .device = device, .shape = shape, .steps = 10, .after = [&](TrainState& state) {
                  weights = weight_bytes(state);
                }};
            const std::vector<double> ours = run_shared(ranks, run);
            const double allowed =
                dtype == DType::kF32 ? tolerance::kLossesOfRanks : tolerance::kBf16ModelLoss;
            EXPECT_LT(largest_difference(ours, one), allowed) << in_fp32;
            for (const std::string& theirs : ranks.exchange(weights))
              EXPECT_TRUE(theirs == weights) << in_fp32;
            EXPECT_EQ(run_shared(ranks, run), ours) << in_fp32;
          }
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
        shape.offload.optimizer = offload;
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
      shape.offload.optimizer = true;
      EXPECT_EQ(run_shared(ranks, {.device = device, .shape = shape, .steps = 5}), losses) << name_of(shard);
    }
  });
}

struct PoisonedOffload {
  Poison poison;
  Offload offload;
};
void expect_no_bit_changes(const std::vector<PoisonedOffload>& cases) {
  DeviceTraits device;
  std::string why_not;
  if (!find_cuda_device(device, why_not)) GTEST_SKIP() << "no GPU: " << why_not;
  const std::unique_ptr<Backend> be = make_cuda_backend();
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const auto& [name, shape] : offloaded_shapes(dtype)) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(dtype), name));
      for (const auto& [poison, offload] : cases) expect_offload_changes_no_bit(*be, shape, poison, offload);
    }
}

TEST(CudaOffload, ActivationsInHostMemoryChangeNoBit) {
  expect_no_bit_changes({{Poison::kNo, {.activations = true}}, {Poison::kYes, {.activations = true}}});
}

TEST(CudaOffload, WeightsInHostMemoryChangeNoBit) {
  expect_no_bit_changes({{Poison::kNo, {.weights = true}},
                         {Poison::kYes, {.weights = true}},
                         {Poison::kYes, {.optimizer = true, .activations = true, .weights = true}}});
}

TEST(CudaOffload, GradientsInHostMemoryChangeNoBit) {
  expect_no_bit_changes(
      {{Poison::kNo, {.gradients = true}},
       {Poison::kYes, {.gradients = true}},
       {Poison::kYes, {.optimizer = true, .activations = true, .weights = true, .gradients = true}}});
}

TEST(CudaOffload, OfAFewSmallBlocks) {  // few enough for an emulated GPU
  DeviceTraits device;
  std::string why_not;
  if (!find_cuda_device(device, why_not)) GTEST_SKIP() << "no GPU: " << why_not;
  const std::unique_ptr<Backend> be = make_cuda_backend();
  for (const Poison poison : {Poison::kNo, Poison::kYes}) {
    RunShape shape = offloaded_shapes(DType::kF32)[0].shape;
    shape.model.layers = 4, shape.micro_batch = 1, shape.keep = kKeepAttention;
    for (const Offload& offload :
         {Offload{.activations = true}, Offload{.activations = true, .weights = true}})
      expect_offload_changes_no_bit(*be, shape, poison, offload);
    shape.dtype = DType::kBF16;  // with masters of which weights and lower bits lie on either side
    for (const Offload& offload :
         {Offload{.optimizer = true}, Offload{.weights = true}, Offload{.optimizer = true, .weights = true}})
      expect_offload_changes_no_bit(*be, shape, poison, offload);
    shape.micro_steps = 2;  // of which the second adds to what the first has written
    for (const Offload& offload : {Offload{.gradients = true}, Offload{.optimizer = true, .gradients = true}})
      expect_offload_changes_no_bit(*be, shape, poison, offload);
  }
}

TEST(CudaOffload, OfSomeSmallBlocksThatKeepDifferentThings) {  // few enough for an emulated GPU
  DeviceTraits device;
  std::string why_not;
  if (!find_cuda_device(device, why_not)) GTEST_SKIP() << "no GPU: " << why_not;
  RunShape shape = shapes_by_block(DType::kF32)[0].shape;
  shape.model.layers = 4, shape.micro_batch = 1;
  shape.keep = ByBlock<Keep>({{kKeepAttention, 3}, {kKeepAll}}), shape.offload.blocks = 3;
  expect_the_bits_of_kept_blocks(*make_cuda_backend(), shape);
  expect_plan_is_the_step(device, shape);
}

TEST(CudaOffload, OfSomeBlocksThatKeepDifferentThings) {
  DeviceTraits device;
  std::string why_not;
  if (!find_cuda_device(device, why_not)) GTEST_SKIP() << "no GPU: " << why_not;
  const std::unique_ptr<Backend> be = make_cuda_backend();
  for (const auto& [name, shape] : shapes_by_block(DType::kBF16)) {
    SCOPED_TRACE(name);
    expect_the_bits_of_kept_blocks(*be, shape);
    expect_plan_is_the_step(device, shape);
    RunShape on_device = shape;  // with CUDA graphs
    on_device.offload = {};
    expect_the_bits_of_kept_blocks(*be, on_device);
    expect_plan_is_the_step(device, on_device);
  }
}

TEST(CudaOffload, APlanWithActivationsInHostMemoryIsTheLedger) {
  DeviceTraits device;
  std::string why_not;
  if (!find_cuda_device(device, why_not)) GTEST_SKIP() << "no GPU: " << why_not;
  for (const auto& [name, plain] : offloaded_shapes(DType::kBF16)) {
    SCOPED_TRACE(name);
    RunShape shape = plain;
    for (const bool more : {false, true}) {
      shape.offload = {.optimizer = true, .activations = true, .weights = more, .gradients = more};
      expect_plan_is_the_step(device, shape);
    }
  }
}

// So large that a copy takes longer than it takes to enqueue the operations of a block, and longer than a
// small block computes
TEST(CudaOffload, CopiesThatAreLateChangeNoBit) {
  DeviceTraits device;
  std::string why_not;
  if (!find_cuda_device(device, why_not)) GTEST_SKIP() << "no GPU: " << why_not;
  for (const Keep keep : {kKeepAll, kKeepAttention, kKeepOutputs})
    for (const Poison poison : {Poison::kNo, Poison::kYes}) {
      RunShape shape = offloaded_shapes(DType::kBF16)[1].shape;
      shape.model.context = shape.sequence_length = 1024;
      shape.model.channels = 512, shape.model.heads = 8, shape.model.head_dim = 64;
      shape.model.mlp_width = 2048, shape.model.layers = 8;
      shape.micro_batch = 8, shape.keep = keep;
      std::string weights;
      const auto run = [&](const Offload& offload) {
        shape.offload = offload, shape.poison = poison;
        const std::unique_ptr<Backend> be = make_cuda_backend();
        Arena arena = Arena::cuda();
        TrainState state(*be, arena, shape);
        state.initialize(3);
        HostTensors make;
        std::vector<double> losses;
        for (int step = 1; step <= 4; ++step) {
          const Tensor ids = make.tokens({shape.tokens_per_step() + 1}, shape.model.vocab_size);
          const std::span all(ids.as<int32_t>(), static_cast<size_t>(ids.numel()));
          state.step({.tokens = all.first(all.size() - 1), .targets = all.last(all.size() - 1)},
                     shape.tokens_per_step(), kTestOptimizer, kSharedRate, step);
          losses.push_back(state.finish_step().loss);
        }
        weights = weight_bytes(state);
        return losses;
      };
      const std::vector<double> losses = run({});
      const std::string on_gpu = weights;
      for (const Offload& offload : {Offload{.activations = true}, Offload{.gradients = true},
                                     Offload{.activations = true, .weights = true, .gradients = true}}) {
        EXPECT_EQ(run(offload), losses) << text_of(keep) << " " << text_of(offload);
        EXPECT_TRUE(weights == on_gpu) << text_of(keep) << " " << text_of(offload);
      }
    }
}

TEST_F(CudaDataParallel, ActivationsInHostMemory) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    for (const Shard shard : kAllShards)
      for (const Keep keep : {kKeepAll, kKeepAttention}) {
        RunShape shape = cuda_shape(ranks.size, DType::kBF16, shard);
        shape.model.layers = 5, shape.keep = keep;
        const std::vector<double> losses = run_shared(ranks, {.device = device, .shape = shape, .steps = 5});
        shape.offload = {.activations = true, .weights = shard == Shard::kWeights};
        shape.poison = Poison::kYes;
        EXPECT_EQ(run_shared(ranks, {.device = device, .shape = shape, .steps = 5}), losses)
            << name_of(shard) << " " << text_of(keep);
      }
  });
}

// bf16 gradients that are summed in bf16 and in fp32, in one micro-step and in several
TEST_F(CudaDataParallel, GradientsInHostMemory) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    for (const Shard shard : kAllShards)
      for (const bool in_fp32 : {false, true})
        for (const bool one_micro_step : {false, true}) {
          RunShape shape = cuda_shape(ranks.size, DType::kBF16, shard);
          shape.model.layers = 5, shape.reduce_in_fp32 = in_fp32;
          if (one_micro_step) shape.micro_batch *= std::exchange(shape.micro_steps, 1);
          const std::vector<double> losses =
              run_shared(ranks, {.device = device, .shape = shape, .steps = 5});
          shape.offload = {.optimizer = true, .weights = shard == Shard::kWeights, .gradients = true};
          shape.poison = Poison::kYes;
          EXPECT_EQ(run_shared(ranks, {.device = device, .shape = shape, .steps = 5}), losses)
              << name_of(shard) << (in_fp32 ? ", summed in fp32" : "")
              << (one_micro_step ? ", one micro-step" : "");
        }
  });
}

// Gathered as bytes, from the device or the host
TEST_F(CudaDataParallel, WeightsGatheredInFp8GiveTheBitsOfWholeOnes) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    if (device.arch >= 89) expect_gathered_gives_the_bits_of_whole(ranks, device);
  });
}

TEST_F(CudaDataParallel, ThePlanOfARankInFp8IsItsLedger) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    for (const Trained8& trained : kTrained) {
      SCOPED_TRACE(trained.name);
      const RunShape shape = stored_shape(trained, shared_shape(ranks.size, Shard::kWeights), device);
      const std::unique_ptr<Backend> be = make_backend(device);
      const std::unique_ptr<Communicator> comm = make_communicator(*be, ranks);
      if (device.arch >= 89) expect_ledger_is_plan(*be, shape, {.all = comm.get()});
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
        expect_ledger_is_plan(*be, shape, {.all = comm.get()});
      }
  });
}

}  // namespace
}  // namespace tessera::testing
