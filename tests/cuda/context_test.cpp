// Ranks that share the tokens of each sequence, on GPUs: what they move, and a step beside that of one GPU.
#include "tests/cuda/several_gpus.h"
#include "tests/cuda/twin.h"
#include "tests/model_variants.h"

namespace tessera {
namespace {

class CudaMoveHeads : public CudaTest {};

TEST_F(CudaMoveHeads, RowsOfEveryDtypeInAnyOrder) {
  for (const DType from : kReal)
    for (const DType to : kReal)
      for (const int64_t D : {64, 20, 9})
        for (const bool ordered : {false, true}) {
          SCOPED_TRACE(fmt::format("{} to {}, D {}, {}", name_of(from), name_of(to), D, ordered));
          const Twin source = input(from, {3, 7, 5, D}), made = output(to, {2, 9, 4, D}),
                     same = output(to, {1, 21, 3, D});
          const Twin rows = indices({18}, [](int64_t i) { return static_cast<int32_t>(i * 5 % 22 - 1); });
          if (ordered)
            run_on_both({made}, [&](auto on) {
              return MoveHeads{.from = {on(source), 1, 4}, .to = {on(made), 0, 4}, .rows = on(rows)};
            });
          else
            run_on_both({same}, [&](auto on) {
              return MoveHeads{.from = {on(source), 2, 3}, .to = {on(same), 0, 3}};
            });
          ordered ? expect_same(made, "to") : expect_same(same, "to");
        }
}

}  // namespace

namespace testing {
namespace {

class CudaContextParallel : public SeveralGpus {};

// Of a Qwen3 with two query heads to a head of keys; `groups` of `context` ranks
RunShape context_shape(DType dtype, int groups, int context, int64_t tokens) {
  RunShape shape = shared_shape(groups, Shard::kNone);
  shape.model = families_of(kSharedModel).back().model;
  shape.model.channels = 128, shape.model.heads = 4, shape.model.kv_heads = 2, shape.model.head_dim = 64;
  shape.model.context = std::max<int64_t>(tokens, shape.model.context);
  shape.micro_batch = 2, shape.micro_steps /= 2;
  shape.sequence_length = tokens;
  shape.dtype = dtype;
  shape.documents = true;
  shape.mesh.context = context;
  shape.context_heads = context > 1 && tokens == 1000 ? 1 : 0;  // parts, and all at once
  return shape;
}

// Of one group of all GPUs; of four GPUs, of two groups too. Blocks take turns with a window and without.
TEST_F(CudaContextParallel, LossesInFp32AreThoseOfOneGpu) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    for (const Shard shard : kAllShards)
      for (const int64_t longest : {9, 200}) {
        const auto run = [&](const Ranks& of, int context) {
          RunShape shape = context_shape(DType::kF32, of.size / context, context, 200);
          if (shard == Shard::kNone)
            shape.model.window = Windows({{.window = 40}, {.window = Windows::kFull}});
          shape.shard = shard;
          return run_shared(of, {.device = device, .shape = shape, .steps = 20, .longest_document = longest});
        };
        const std::vector<double> one = run({}, 1);
        for (int context = 2; context <= ranks.size; context *= 2) {
          SCOPED_TRACE(fmt::format("{} GPUs, {} share a sequence", ranks.size, context));
          const std::vector<double> ours = run(ranks, context);
          EXPECT_LT(largest_difference({ours[0]}, {one[0]}), tolerance::kFirstLossOfRanks);
          EXPECT_LT(largest_difference(ours, one), tolerance::kLossesOfRanks);
          EXPECT_EQ(run(ranks, context), ours) << "twice the same run";
        }
      }
  });
}

// Lists of each GPU's own query blocks, beside blocks that see all: of 700 tokens GPUs have unequal parts.
TEST_F(CudaContextParallel, LossesOfSparseBlocksAreThoseOfOneGpu) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const AttentionKind attention : {AttentionKind::kFlash, AttentionKind::kNaive})
        for (const int64_t longest : {0, 300}) {
          SCOPED_TRACE(fmt::format("{} {} documents up to {}", name_of(dtype), name_of(attention), longest));
          const auto run = [&](const Ranks& of, int context) {
            RunShape shape = context_shape(dtype, of.size / context, context, 700);
            shape.model.sparse = read_sparse("window:1+global:1+random:1+seed:3,full");
            shape.attention = attention, shape.documents = longest > 0;
            return run_shared(of,
                              {.device = device, .shape = shape, .steps = 10, .longest_document = longest});
          };
          const std::vector<double> one = run({}, 1), ours = run(ranks, ranks.size);
          const bool f32 = dtype == DType::kF32;
          EXPECT_LT(largest_difference({ours[0]}, {one[0]}),
                    f32 ? tolerance::kFirstLossOfRanks : tolerance::kBf16ModelLoss);
          EXPECT_LT(largest_difference(ours, one),
                    f32 ? tolerance::kLossesOfRanks : tolerance::kBf16ModelLoss);
          EXPECT_EQ(run(ranks, ranks.size), ours) << "twice the same run";
        }
  });
}

double error_beside(const std::vector<std::vector<float>>& got, const std::vector<std::vector<float>>& want) {
  double squares = 0, all = 0;
  for (size_t b = 0; b < want.size(); ++b)
    for (size_t i = 0; i < want[b].size(); ++i) {
      const double off = static_cast<double>(got[b][i]) - static_cast<double>(want[b][i]);
      squares += off * off, all += static_cast<double>(want[b][i]) * static_cast<double>(want[b][i]);
    }
  return std::sqrt(squares / all);
}

// Partial sums of dK and dV are rounded to bf16 once more than on one GPU; that may be seen, but not felt.
TEST_F(CudaContextParallel, GradientsInBf16AreAsNearToFp32AsThoseOfOneGpu) {
  on_gpus([](const Ranks& ranks, const DeviceTraits& device) {
    for (const int64_t longest : {40, 1000}) {
      std::vector<std::vector<float>> found;
      const auto gradients = [&](const Ranks& of, DType dtype) {
        run_shared(of, {.device = device,
                        .shape = context_shape(dtype, 1, of.size, 1000),
                        .longest_document = longest,
                        .after = [&](TrainState& state) { found = gradients_of(state); }});
        return found;
      };
      const std::vector<std::vector<float>> exact = gradients({}, DType::kF32),
                                            one = gradients({}, DType::kBF16),
                                            ours = gradients(ranks, DType::kBF16);
      const double error = error_beside(ours, exact), of_one = error_beside(one, exact);
      EXPECT_LT(error, tolerance::kErrorOfContext * of_one) << error << " " << of_one;
      if (ranks.rank == 0)
        fmt::print("{} GPUs, documents up to {}: error {:.5f}, of one GPU {:.5f}\n", ranks.size, longest,
                   error, of_one);
    }
  });
}

}  // namespace
}  // namespace testing
}  // namespace tessera
