// Muon on the GPU: its operations beside fp64, and updates by several ranks.
#include "tests/cuda/several_gpus.h"
#include "tests/cuda/twin.h"
#include "tests/muon_steps.h"

namespace tessera::testing {
namespace {

using CudaMuon = CudaTest;
using CudaMuonOfRanks = SeveralGpus;

// Odd sizes, one or many tiles of GEMMs. Each result of a GEMM is rounded to bf16: the same roundings in fp64
// show how far from exact that may be, up to chance.
TEST_F(CudaMuon, AMatrixGoesThroughThePolynomials) {
  const Stream& stream = cuda();
  Arena arena = Arena::cuda();
  HostTensors make;
  for (const auto [rows, columns] :
       {std::pair{1, 1}, {1, 9}, {9, 1}, {7, 5}, {33, 17}, {48, 131}, {70, 70}, {200, 96}, {128, 512}})
    for (const MuonReference& reference : {kPolarExpressReference, kNewtonSchulzReference})
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        Arena::Scope scope(arena);
        const Tensor host = make.normal({rows, columns}), found = make.poisoned({rows, columns}),
                     matrix = arena.alloc(MemoryTag::kData, "matrix", dtype, {rows, columns}),
                     room = arena.alloc(MemoryTag::kData, "room", dtype,
                                        {Orthogonalise::room_for(rows, columns)});
        stream.run(Copy{host, matrix});
        stream.run(Copy{matrix, host});
        stream.run(Orthogonalise{.matrix = matrix,
                                 .room = room,
                                 .polynomials = reference.polynomials,
                                 .margin = reference.margin,
                                 .scale = 0.7});
        stream.run(Copy{matrix, found});
        stream.synchronize();
        const std::vector<double> expected = orthogonal_reference(host, reference, 0.7);
        double allowed = 0x1p-17;  // some 64 roundings, of longer sums than on the CPU
        if (dtype == DType::kBF16) {
          const std::vector<double> rounded = orthogonal_reference(host, reference, 0.7, Rounded::kToBf16);
          const std::vector<float> as_floats(rounded.begin(), rounded.end());
          allowed = 1.5 * relative_error(as_floats, expected) + 0x1p-9;
        }
        EXPECT_LT(relative_error(floats(found), expected), allowed)
            << rows << " x " << columns << " " << name_of(dtype);
      }
}

TEST_F(CudaMuon, UpdatesAreThoseOfTheCpuToRounding) {
  MuonRun run;
  run.steps = 1;
  const std::string cpu = muon_bytes(run, {});
  run.device = traits();
  const std::string gpu = muon_bytes(run, {});
  ASSERT_EQ(cpu.size(), gpu.size());
  const auto* a = reinterpret_cast<const float*>(cpu.data());
  const auto* b = reinterpret_cast<const float*>(gpu.data());
  double error = 0, size = 0;
  for (size_t i = 0; i < cpu.size() / sizeof(float); ++i)
    error += std::pow(a[i] - b[i], 2), size += static_cast<double>(a[i]) * a[i];
  EXPECT_LT(std::sqrt(error / size), 1e-5);
}

TEST_F(CudaMuonOfRanks, TwoUpdateToTheBitAsOneDoes) {
  on_gpus(2, [](const Ranks& ranks, const DeviceTraits& device) {
    for (const DType moments : {DType::kF32, DType::kBF16})
      for (const int64_t group_bytes : {int64_t{1}, int64_t{1} << 30}) {
        MuonRun run{.device = device,
                    .dtype = DType::kBF16,
                    .muon = {.group_bytes = group_bytes},
                    .moments = moments};
        run.model.channels = 256, run.model.layers = 5;
        const std::string one = muon_bytes(run, {});
        for (const Shard shard : kAllShards) {
          run.shards = {shard, ranks.size};
          EXPECT_TRUE(muon_bytes(run, ranks) == one) << name_of(shard);
        }
      }
  });
}

}  // namespace
}  // namespace tessera::testing
