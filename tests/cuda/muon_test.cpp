// Muon on the GPU: its operations beside fp64, and updates by several ranks.
#include "kernels/gemm/gemm.h"
#include "tests/cuda/several_gpus.h"
#include "tests/cuda/twin.h"
#include "tests/muon_steps.h"

namespace tessera::testing {
namespace {

struct CudaMuon : CudaTest {
  // Values that bf16 has
  static Tensor bf16_normal(HostTensors& make, const Shape& shape) {
    const Tensor t = make.normal(shape);
    for (float& value : floats(t)) value = static_cast<float>(nearest_bf16(value));
    return t;
  }
  // The matrices after the polynomials, with a root mean square of 0.7 or so
  std::vector<std::vector<float>> orthogonal(const std::vector<Tensor>& matrices, DType dtype,
                                             const MuonReference& reference, GemmSource source) {
    const Stream& stream = cuda();
    GemmLibrary& library = *stream.backend().gemms();
    library.take_from(source);
    Arena arena = Arena::cuda();
    HostTensors make;
    std::vector<Tensor> on_device;
    int64_t room = 0;
    for (const Tensor& matrix : matrices) {
      on_device.push_back(arena.alloc(MemoryTag::kData, "matrix", dtype, matrix.shape));
      stream.run(Copy{matrix, on_device.back()});
      room += Orthogonalise::room_for(matrix);
    }
    stream.run(Orthogonalise{.matrices = on_device,
                             .room = arena.alloc(MemoryTag::kData, "room", dtype, {room}),
                             .polynomials = reference.polynomials,
                             .margin = reference.margin,
                             .rms = 0.7});
    std::vector<std::vector<float>> all;
    for (const Tensor& matrix : on_device) {
      const Tensor found = make.poisoned(matrix.shape);
      stream.run(Copy{matrix, found});
      stream.synchronize();
      all.emplace_back(floats(found).begin(), floats(found).end());
    }
    library.take_from(GemmSource::kCublasLt);
    return all;
  }
};

using CudaMuonOfRanks = SeveralGpus;

// Odd sizes, one or many tiles of GEMMs, with cuBLASLt's and with ours. Each result of a GEMM is rounded to
// bf16: the same roundings in fp64 show how far from exact that may be, up to chance.
TEST_F(CudaMuon, AMatrixGoesThroughThePolynomials) {
  HostTensors make;
  for (const auto& [rows, columns] : {std::pair{1, 1},
                                     {1, 9},
                                     {9, 1},
                                     {7, 5},
                                     {33, 17},
                                     {48, 131},
                                     {70, 70},
                                     {8, 8},
                                     {72, 264},
                                     {200, 96},
                                     {128, 512},
                                     {264, 264},
                                     {520, 264},
                                     {336, 608}})
    for (const MuonReference& reference : {kPolarExpressReference, kNewtonSchulzReference}) {
      const Tensor host = bf16_normal(make, {rows, columns});
      const double scale = 0.7 * std::sqrt(std::max(rows, columns));
      const std::vector<double> expected = orthogonal_reference(host, reference, scale),
                                rounded = orthogonal_reference(host, reference, scale, Rounded::kToBf16);
      const std::vector<float> as_floats(rounded.begin(), rounded.end());
      const double allowed[] = {0x1p-17,  // some 64 roundings, of longer sums than on the CPU
                                1.5 * relative_error(as_floats, expected) + 0x1p-9};
      for (const GemmSource source : {GemmSource::kCublasLt, GemmSource::kAuto})
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          const std::vector<float> found = orthogonal({host}, dtype, reference, source).front();
          EXPECT_LT(relative_error(found, expected), allowed[dtype == DType::kBF16])
              << rows << " x " << columns << " " << name_of(dtype) << " " << name_of(source);
        }
    }
}

// Wide, tall and square ones at a time, up to as many as there may be: the bits of each are those that it has
// alone.
TEST_F(CudaMuon, MatricesTogetherHaveTheBitsOfEachAlone) {
  HostTensors make;
  constexpr std::pair<int64_t, int64_t> kShapes[] = {{264, 264}, {272, 512}, {7, 5},   {512, 272},
                                                     {776, 64},  {40, 8},    {8, 2056}};
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const size_t count : {size_t{2}, size_t{6}, Orthogonalise::kMost}) {
      std::vector<Tensor> all;
      for (size_t i = 0; i < count; ++i) {
        const auto [rows, columns] = kShapes[(i + count) % std::size(kShapes)];
        if (rows % 8 == 0 || count > 2) all.push_back(bf16_normal(make, {rows, columns}));
      }
      const auto together = orthogonal(all, dtype, kPolarExpressReference, GemmSource::kAuto);
      for (size_t i = 0; i < all.size(); ++i)
        EXPECT_EQ(together[i], orthogonal({all[i]}, dtype, kPolarExpressReference, GemmSource::kAuto).front())
            << all[i].to_string() << " " << name_of(dtype) << ", " << i << " of " << count;
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
                    .moments = moments,
                    .most_score = group_bytes == 1 ? 100.0 : 0};
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
