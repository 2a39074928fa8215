// A step in which several ranks share the tokens of each sequence is the step of one rank.
//
// What others have got wrong, and the test that would find it:
//   packed documents, a loss of 1.83 times the right one    Documents
//   gradients off by a factor                               EveryGradientIsThatOfOneRank
//   the context counted as data in the gradient's scale     WithOtherSequences, EveryGradientIsThatOfOneRank
//   partial gradients added in bf16                         PartialGradientsAreSummedInF32
//   overflow where partial results are merged               none are; DealtQueries.LargeScoresDoNotOverflow
//   ranks that see nothing give NaN                         RanksWithoutTargets
//   uneven parts                                            TwoToFiveRanks, ASequenceShorterThanTheRanks
//   copies that overtake computing                          OffloadAndChunks
//   out of memory only where a run goes on                  ContextRun.ResumesWithTheSameRanksOrOthers
#include "tests/block_patterns.h"
#include "tests/data_parallel.h"
#include "tests/lora_steps.h"
#include "tests/model_variants.h"
#include "train/session/memory_plan.h"

namespace tessera::testing {
namespace {

struct ContextParallel : ::testing::Test {
  void SetUp() override {
    std::string why_not;
    if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  }
};

constexpr SparsePattern kSparsePattern{.window = 1, .global = 1, .random = 1, .seed = 3, .block = 2};

constexpr int kManySteps = 50, kFewSteps = 4;

struct ContextCase {
  int data = 1, context = 2;
  ModelConfig model = kSharedModel;
  int64_t longest_document = 0;
  bool uneven = false;
  Shard shard = Shard::kOptimizer;
  ByBlock<Keep> keep = {};
  int64_t micro_batch = 6, sequence_length = 17;
  int64_t heads = 0;  // of keys, at a time
  AttentionKind attention = AttentionKind::kFlash;
  std::function<void(RunShape&)> choose = {};  // the rest of the shape, of both runs
  double tolerance = tolerance::kLossesOfRanks;
  int steps = kFewSteps;
};

RunShape shape_of(const ContextCase& c, bool alone) {
  RunShape shape = shared_shape(alone ? 1 : c.data, c.shard);
  shape.model = c.model;
  shape.micro_batch = c.micro_batch, shape.micro_steps /= c.micro_batch;
  shape.sequence_length = c.sequence_length;
  shape.documents = c.longest_document > 0;
  shape.keep = c.keep;
  shape.attention = c.attention;
  if (c.choose) c.choose(shape);
  if (!alone) shape.mesh.context = c.context, shape.context_heads = c.heads;
  return shape;
}

SharedRun run_of(const ContextCase& c, bool alone, int steps) {
  return {.shape = shape_of(c, alone),
          .steps = steps,
          .uneven = c.uneven,
          .longest_document = c.longest_document};
}

void expect_one_rank(const ContextCase& c) {
  on_ranks(c.data * c.context, [&](const Ranks& ranks) {
    const std::vector<double> one = run_shared({}, run_of(c, true, c.steps));
    if (c.steps == kManySteps) {
      EXPECT_LT(one.back(), 0.9 * one.front()) << "nothing was learned";
    }
    std::string weights;
    SharedRun shared = run_of(c, false, c.steps);
    shared.after = [&](TrainState& state) { weights = weight_bytes(state); };
    const std::vector<double> ours = run_shared(ranks, shared);
    const double of_first = c.tolerance * tolerance::kFirstLossOfRanks / tolerance::kLossesOfRanks;
    EXPECT_LT(largest_difference({ours[0]}, {one[0]}), of_first);
    EXPECT_LT(largest_difference(ours, one), c.tolerance);
    for (const std::string& theirs : ranks.exchange(weights)) EXPECT_TRUE(theirs == weights);
  });
}

TEST_F(ContextParallel, TwoToFiveRanks) {
  expect_one_rank({.context = 2, .steps = kManySteps});
  for (const int context : {3, 5}) expect_one_rank({.context = context});
}
TEST_F(ContextParallel, TwiceTheSameBits) {
  on_ranks(3, [](const Ranks& ranks) {
    ModelConfig sparse = kSharedModel;
    sparse.sparse = SparseBlocks(kSparsePattern);
    for (const ModelConfig& model : {kSharedModel, sparse}) {
      const SharedRun run = run_of({.context = 3, .model = model, .longest_document = 9}, false, kFewSteps);
      EXPECT_EQ(run_shared(ranks, run), run_shared(ranks, run));
    }
  });
}
TEST_F(ContextParallel, Documents) {
  for (const int64_t longest : {1, 5}) expect_one_rank({.context = 3, .longest_document = longest});
  expect_one_rank({.context = 2, .longest_document = 17, .steps = kManySteps});
  expect_one_rank({.data = 2, .context = 2, .longest_document = 9});
}
// Of most sequences most ranks have no token that counts.
TEST_F(ContextParallel, RanksWithoutTargets) {
  expect_one_rank({.context = 4, .longest_document = 6, .uneven = true});
  expect_one_rank({.data = 2, .context = 2, .uneven = true});
}
TEST_F(ContextParallel, ASequenceShorterThanTheRanks) {
  expect_one_rank({.context = 5, .sequence_length = 3});
}
TEST_F(ContextParallel, EveryFamily) {
  for (const ModelConfig& model :
       {families_of(kSharedModel).back().model, variants_of(kSharedModel).back().model})
    expect_one_rank({.context = 3, .model = model, .longest_document = 11});
}
// With the losses of their routers, in one micro-batch and in several
TEST_F(ContextParallel, Experts) {
  const std::vector<Variant> all = parts_of(kSharedModel);
  const ModelConfig model = std::ranges::find(all, "qwen3 with experts", &Variant::name)->model;
  const auto choose = [](RunShape& shape) { shape.router_losses = {.balance = 0.5, .z = 0.1}; };
  for (const int64_t micro_batch : {12, 3})
    expect_one_rank({.context = 3,
                     .model = model,
                     .longest_document = 11,
                     .uneven = true,
                     .micro_batch = micro_batch,
                     .choose = choose});
  expect_one_rank({.data = 2, .context = 2, .model = model, .micro_batch = 2, .choose = choose});
}
// Blocks with windows have tables of their own, and the deal follows the work of all blocks.
TEST_F(ContextParallel, WindowsByBlock) {
  ModelConfig qwen3 = families_of(kSharedModel).back().model, gpt2 = kSharedModel;
  qwen3.window = Windows({{4}, {Windows::kFull}}), qwen3.rope.local_theta = 100;
  gpt2.window = Windows({{3}, {1}});
  for (const int64_t longest : {0, 9})
    expect_one_rank({.context = 3, .model = qwen3, .longest_document = longest});
  expect_one_rank({.data = 2, .context = 2, .model = gpt2});
  gpt2.dropout.attention = 0.2;
  expect_one_rank({.context = 2, .model = gpt2, .keep = kKeepAttention});
}
// Lists of the blocks that a rank has: blocks that do not divide the sequence, patterns of several sizes,
// ranks with fewer tokens and with none, beside windows and blocks that see all
TEST_F(ContextParallel, SparseBlocks) {
  ModelConfig qwen3 = families_of(kSharedModel).back().model, gpt2 = kSharedModel, chosen = gpt2;
  qwen3.heads = 4, qwen3.kv_heads = 2;
  qwen3.sparse = SparseBlocks(
      {{.pattern = {.window = 1, .global = 1, .random = 1, .seed = 3, .block = 4}}, {.pattern = {}}});
  gpt2.layers = 3;
  gpt2.sparse = SparseBlocks({{.pattern = {.window = 2, .stride = 3, .block = 2}},
                              {.pattern = {.window = 1, .block = 6}},
                              {.pattern = {}}});
  gpt2.window = Windows({{Windows::kFull}, {Windows::kFull}, {5}});
  chosen.sparse =
      SparseBlocks({{.pattern = {.window = 1, .block = 4}}, {.pattern = {.block = 2, .chosen = 2}}});
  for (const AttentionKind attention : {AttentionKind::kFlash, AttentionKind::kNaive})
    for (const int64_t longest : {0, 9})
      for (const ModelConfig& model : {qwen3, gpt2, chosen})
        for (const int context : {2, 3})
          expect_one_rank(
              {.context = context, .model = model, .longest_document = longest, .attention = attention});
  expect_one_rank({.context = 2, .model = qwen3, .steps = kManySteps});
  expect_one_rank({.data = 2, .context = 2, .model = qwen3, .longest_document = 9, .shard = Shard::kWeights});
  for (const int64_t tokens : {5, 7, 16})
    expect_one_rank({.context = 4, .model = qwen3, .sequence_length = tokens});
  for (const Keep keep : {Keep::nothing(), kKeepAttention})
    expect_one_rank({.context = 3, .model = gpt2, .longest_document = 11, .keep = keep});
  gpt2.dropout = {.attention = 0.2};
  expect_one_rank({.context = 3, .model = gpt2, .longest_document = 9});
  expect_one_rank({.context = 2, .model = gpt2, .attention = AttentionKind::kNaive});
}
TEST_F(ContextParallel, Recomputation) {
  for (const Keep keep : {Keep::nothing(), kKeepAttention, kKeepOutputs})
    expect_one_rank({.context = 2, .longest_document = 9, .keep = keep});
}
// Each block for itself, in the same bits as all kept; and the plan of a rank is its ledger.
TEST_F(ContextParallel, RecomputationByBlocks) {
  ModelConfig qwen3 = families_of(kSharedModel).back().model;
  qwen3.layers = 4;
  on_ranks(2, [&](const Ranks& ranks) {
    const auto run = [&](const ByBlock<Keep>& keep, const Offload& offload) {
      SharedRun own = run_of({.context = 2, .model = qwen3, .longest_document = 9, .keep = keep}, false, 2);
      own.shape.offload = offload, own.shape.poison = Poison::kYes;
      return own;
    };
    const std::vector<double> kept = run_shared(ranks, run(kKeepAll, {}));
    for (const ByBlock<Keep>& keep : mixed_keeps())
      for (const Offload& offload : {Offload{}, Offload{.activations = true, .blocks = 3}}) {
        const SharedRun own = run(keep, offload);
        EXPECT_EQ(run_shared(ranks, own), kept) << text_of(keep) << " " << text_of(offload);
      }
  });
}
TEST_F(ContextParallel, NaiveAttention) {
  expect_one_rank({.context = 3, .longest_document = 9, .attention = AttentionKind::kNaive});
}
// A mask of another place would change the first loss by percents.
TEST_F(ContextParallel, Dropout) {
  ModelConfig model = kSharedModel;
  model.dropout = {.embedding = 0.05, .residual = 0.1, .attention = 0.2};
  for (const int context : {2, 3, 4, 5})
    expect_one_rank({.context = context, .model = model, .longest_document = context == 3 ? 9 : 0});
  expect_one_rank({.data = 2, .context = 2, .model = model});
}
// Alone, so that nothing else can hide it
TEST_F(ContextParallel, DropoutOfProbabilities) {
  ModelConfig model = families_of(kSharedModel).back().model;
  model.dropout = {.attention = 0.5};
  for (const AttentionKind attention : {AttentionKind::kFlash, AttentionKind::kNaive})
    expect_one_rank({.context = 3, .model = model, .longest_document = 9, .attention = attention});
  expect_one_rank({.context = 2, .model = model, .longest_document = 17, .keep = Keep::nothing()});
}

// On the CPU no sum depends on which heads are computed together.
TEST_F(ContextParallel, SomeHeadsAtATimeChangeNoBit) {
  ModelConfig dropping = kSharedModel, grouped = families_of(kSharedModel).back().model;
  dropping.dropout = {.attention = 0.2};
  grouped.heads = 4, grouped.kv_heads = 2;
  ModelConfig sparse = grouped;
  sparse.sparse = SparseBlocks(kSparsePattern);
  for (const ModelConfig& model : {dropping, grouped, sparse})
    for (const AttentionKind attention : {AttentionKind::kFlash, AttentionKind::kNaive})
      for (const int64_t heads : {1, 2}) {
        ASSERT_GT(model.kv_heads, 1);
        on_ranks(3, [&](const Ranks& ranks) {
          ContextCase c{.context = 3,
                        .model = model,
                        .longest_document = 9,
                        .keep = heads == 1 ? kKeepOutputs : Keep::nothing(),
                        .attention = attention};
          c.heads = model.kv_heads;
          const std::vector<double> at_once = run_shared(ranks, run_of(c, false, kFewSteps));
          c.heads = heads;
          EXPECT_EQ(run_shared(ranks, run_of(c, false, kFewSteps)), at_once);
        });
      }
}

// The most whose buffers take up to 2 GiB
TEST_F(ContextParallel, HeadsOfAPart) {
  const auto heads = [](int64_t tokens, int64_t head_dim, int64_t kv_heads) {
    return heads_of_part({.batch = 1,
                          .tokens = tokens / 2,
                          .heads = 2 * kv_heads,
                          .head_dim = head_dim,
                          .kv_heads = kv_heads,
                          .kv_tokens = tokens});
  };
  EXPECT_EQ(heads(131'072, 64, 8), 8);
  EXPECT_EQ(heads(262'144, 64, 8), 4);
  EXPECT_EQ(heads(131'072, 64, 25), 5);
  EXPECT_EQ(heads(131'072, 128, 7), 1);
  EXPECT_EQ(heads(1'048'576, 128, 8), 1);
}

TEST_F(ContextParallel, OffloadAndChunks) {
  const ModelConfig qwen3 = families_of(kSharedModel).back().model;
  for (const Offload& offload :
       {Offload{.optimizer = true, .activations = true}, Offload{.weights = true, .gradients = true}})
    expect_one_rank({.model = qwen3,
                     .longest_document = 9,
                     .shard = Shard::kWeights,
                     .keep = kKeepOutputs,
                     .choose = [&](RunShape& shape) {
                       shape.offload = offload, shape.poison = Poison::kYes;
                       shape.mlp_chunk = 20, shape.classifier_chunk = 33;
                     }});
}
TEST_F(ContextParallel, Adapters) {
  const ModelConfig qwen3 = families_of(kSharedModel).back().model;
  for (const Shard shard : {Shard::kOptimizer, Shard::kWeights})
    expect_one_rank({.context = 3,
                     .model = with_adapters(qwen3, 4),
                     .longest_document = 9,
                     .shard = shard,
                     .choose = [](RunShape& shape) { shape.freeze = Freeze::all_but_adapters(); }});
}
// A value that another order of sums moves over the border of two FP8 values jumps by an eighth.
TEST_F(ContextParallel, Fp8) {
  expect_one_rank({.context = 2,
                   .longest_document = 9,
                   .choose = [](RunShape& shape) { shape.fp8 = {.gemm_dtype = GemmDtype::kFp8}; },
                   .tolerance = tolerance::kFp8LossesOfRanks});
}

TEST_F(ContextParallel, EveryGradientIsThatOfOneRank) {
  const ModelConfig qwen3 = families_of(kSharedModel).back().model;
  ModelConfig dropping = kSharedModel;
  dropping.dropout = {.embedding = 0.05, .residual = 0.1, .attention = 0.2};
  ModelConfig sparse = qwen3;
  sparse.sparse = SparseBlocks(kSparsePattern);
  for (const ModelConfig& model : {kSharedModel, qwen3, dropping, sparse})
    for (const int64_t longest : {0, 9})
      on_ranks(3, [&](const Ranks& ranks) {
        const ContextCase c{.context = 3, .model = model, .longest_document = longest, .shard = Shard::kNone};
        std::vector<std::vector<float>> one, ours;
        SharedRun alone = run_of(c, true, 1), shared = run_of(c, false, 1);
        alone.after = [&](TrainState& state) { one = gradients_of(state); };
        shared.after = [&](TrainState& state) { ours = gradients_of(state); };
        run_shared({}, alone);
        run_shared(ranks, shared);
        ASSERT_EQ(one.size(), ours.size());
        for (size_t b = 0; b < one.size(); ++b) {
          ASSERT_EQ(one[b].size(), ours[b].size());
          float largest = 0, difference = 0;
          for (size_t i = 0; i < one[b].size(); ++i) {
            largest = std::max(largest, std::abs(one[b][i]));
            difference = std::max(difference, std::abs(one[b][i] - ours[b][i]));
          }
          EXPECT_GT(largest, 0);
          EXPECT_LT(difference, tolerance::kGradientsOfContext * largest) << "bucket " << b;
        }
      });
}

// Of three ranks. In bf16, 256 + 1 + 1 would be 256.
TEST_F(ContextParallel, PartialGradientsAreSummedInF32) {
  Arena arena = Arena::plan(Device::kCpu);
  const ContextBackward backward = allocate_context_backward(
      arena, allocate_context(arena, 3, {.batch = 1, .tokens = 2, .heads = 1, .head_dim = 8, .kv_tokens = 5},
                              DType::kBF16));
  EXPECT_EQ(backward.d_keys.dtype, DType::kBF16);
  EXPECT_EQ(backward.d_gathered.dtype, DType::kF32);
  on_ranks(3, [](const Ranks& ranks) {
    const std::unique_ptr<Backend> be = make_cpu_backend();
    const Mesh mesh(*be, {.context = 3}, ranks);
    HostTensors make;
    const CpuStream cpu;
    // Two tokens of each rank, of six; all of them have a row in the order of the ranks.
    const Tensor order = make.empty({6}, DType::kI32);
    for (int32_t row = 0; row < 6; ++row) order.as<int32_t>()[row] = row;
    const ContextPass context{.axis = &mesh.axis(Axis::kContext), .tables = {.scattered_rows = order}};
    const ContextBackward gradients{.d_keys = make.empty({1, 6, 2, 8}),
                                    .d_gathered = make.empty({3, 2, 2, 8})};
    std::ranges::fill(floats(gradients.d_keys), ranks.rank == 0 ? 256.0f : 1.0f);
    const Heads dk{make.poisoned({1, 2, 1, 8}), 0, 1}, dv{make.poisoned({1, 2, 1, 8}), 0, 1};
    KeyGradients sums(cpu, context, gradients, {dk, dv}, 1);
    sums.sum();
    sums.finish();
    for (const Heads& sum : {dk, dv})
      for (const float value : floats(sum.tensor)) ASSERT_EQ(value, 258);
  });
}

TEST_F(ContextParallel, ThePlanOfARankIsItsLedger) {
  on_ranks(4, [](const Ranks& ranks) {
    ModelConfig sparse = kSharedModel;  // whose lists are longer on one rank than on the other
    sparse.sparse = SparseBlocks(SparsePattern{.window = 1, .global = 1, .stride = 3, .block = 1});
    for (const int64_t longest : {0, 9})
      for (const Shard shard : {Shard::kOptimizer, Shard::kWeights}) {
        const RunShape shape = shape_of({.data = 2,
                                         .context = 2,
                                         .model = shard == Shard::kWeights ? sparse : kSharedModel,
                                         .longest_document = longest,
                                         .shard = shard,
                                         .heads = longest > 0 ? 1 : 0},
                                        false);
        const std::unique_ptr<Backend> be = make_cpu_backend();
        const Mesh mesh(*be, shape.mesh, ranks);
        expect_ledger_is_plan(*be, shape, mesh.step_axes());
      }
  });
}

}  // namespace
}  // namespace tessera::testing
