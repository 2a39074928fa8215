// Every variant and part of a model on the CPU, against fp64 and against what must not change its results.
#include "model/init.h"
#include "tests/block_patterns.h"
#include "tests/model/loud_model.h"
#include "tests/model_variants.h"
#include "tests/tolerances.h"
#include "tests/train_steps.h"

namespace tessera::testing {
namespace {

constexpr ModelConfig kPlainModel{.vocab_size = 29, .context = 16, .layers = 3, .heads = 2, .channels = 16};

std::vector<Variant> all_variants() {
  std::vector<Variant> all = variants_of(kPlainModel), parts = parts_of(kPlainModel);
  all.insert(all.end(), parts.begin(), parts.end());
  for (const Variant& each : sparse_parts_of(kPlainModel)) all.push_back(each);
  return all;
}
std::vector<Variant> plain_and_variants() {
  std::vector<Variant> all = all_variants();
  all.insert(all.begin(), {"plain", kPlainModel});
  return all;
}

TEST(Variants, LossAndGradientsAreThoseOfFp64) {
  std::vector<Variant> all = plain_and_variants(), random = random_variants(12, 1);
  all.insert(all.end(), random.begin(), random.end());
  for (const Variant& variant : all) {
    SCOPED_TRACE(variant.name);
    LoudModel naive(variant.model, AttentionKind::kNaive), flash(variant.model, AttentionKind::kFlash);
    expect_fp64(naive, flash);
  }
}

// Each switch changes the loss by far more than the tolerance above: none of them does nothing.
TEST(Variants, EveryOneIsAnotherModel) {
  const double plain = LoudModel(kPlainModel, AttentionKind::kFlash).train();
  for (const Variant& variant : all_variants())
    EXPECT_GT(std::abs(LoudModel(variant.model, AttentionKind::kFlash).train() / plain - 1), 1e-5)
        << variant.name;
}

TEST(Variants, AHeadOfItsOwnChangesNoOtherInitialWeight) {
  ModelConfig untied = kPlainModel;
  untied.tied = false;
  const auto initial = [](const ModelConfig& config) {
    std::map<std::string, std::vector<float>> weights;
    init_weights(config, 7, {.values = [&](const ParamPlace& place, const Tensor& values) {
                   weights[place.info.name] = {floats(values).begin(), floats(values).end()};
                 }});
    return weights;
  };
  auto tied_weights = initial(kPlainModel), weights = initial(untied);
  const std::vector<float> head = weights.at("head.weight");
  weights.erase("head.weight");
  EXPECT_EQ(weights, tied_weights);
  ASSERT_EQ(head.size(), static_cast<size_t>(kPlainModel.padded_vocab() * kPlainModel.channels));
  const auto filled = static_cast<size_t>(kPlainModel.vocab_size * kPlainModel.channels);
  double squares = 0;
  for (size_t i = 0; i < head.size(); ++i) {
    squares += static_cast<double>(head[i]) * head[i];
    if (i >= filled) {
      ASSERT_EQ(head[i], 0);
    }
  }
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(filled)), 0.02, 0.003);
  EXPECT_NE(head, tied_weights.at("token_table"));

  const ParamLayout layout(untied, 2);
  for (const ParamPlace& place : layout.places) {
    if (place.info.name != "head.weight") continue;
    EXPECT_EQ(place.bucket, layout.buckets.size() - 1);
    EXPECT_EQ(place.bucket, layout.head);
    EXPECT_TRUE(place.info.decay);
    return;
  }
  FAIL() << "there is no head.weight";
}

TEST(Variants, AParameterIsCountedOnce) {
  for (const Variant& variant : plain_and_variants()) {
    int64_t count = 0;
    for (const ParamPlace& place : ParamLayout(variant.model, 1).places) {
      const Shape& shape = place.info.shape;
      count += shape.numel() - place.info.padding * (shape.rank() == 2 ? shape[1] : 1);
    }
    EXPECT_EQ(count, variant.model.parameters()) << variant.name;
  }
}

constexpr Keep kKeeps[] = {kKeepAll,
                           kKeepAllButMlp,
                           kKeepAttention,
                           kKeepOutputs,
                           {Recomputed::kNorms},
                           {Recomputed::kAttention},
                           {Recomputed::kActivation},
                           {Recomputed::kNorms, Recomputed::kActivation},
                           {Recomputed::kAttention, Recomputed::kActivation},
                           {Recomputed::kNorms, Recomputed::kAttention, Recomputed::kMlp}};

RunShape shape_of(const Variant& variant) {
  return {.model = variant.model, .micro_batch = 3, .micro_steps = 2, .sequence_length = 15};
}

TEST(Variants, ThePlanIsTheStep) {
  for (const Variant& variant : all_variants())
    for (const Keep keep : kKeeps) {
      SCOPED_TRACE(fmt::format("{}, {}", variant.name, text_of(keep)));
      RunShape shape = shape_of(variant);
      shape.keep = keep;
      expect_plan_is_the_step({}, shape);
    }
}

// Steps that learn; what the backward computes again, block by block, has the same bits; padding stays zero.
TEST(Variants, RecomputingChangesNoBitAndPaddingStaysZero) {
  for (const Variant& variant : all_variants()) {
    SCOPED_TRACE(variant.name);
    HostTensors make;
    RunShape shape = shape_of(variant);
    const StepsResult kept = run_steps({}, shape, 3, make, 1e-2);
    for (const Keep keep : kKeeps) {
      shape.keep = keep;
      expect_same_bits(run_steps({}, shape, 3, make, 1e-2), kept);
    }
    for (const auto& [name, tensor] : kept.weights) {
      if (name != "token_table" && name != "head.weight") continue;
      for (int64_t i = kPlainModel.vocab_size * kPlainModel.channels; i < tensor.numel(); ++i)
        ASSERT_EQ(floats(tensor)[static_cast<size_t>(i)], 0) << name;
    }
  }
}

// Blocks that keep different things, in each family
TEST(Variants, WhatBlocksKeepEachForThemselvesChangesNoBit) {
  std::vector<Variant> all = families_of(kPlainModel);
  std::erase_if(all, [](const Variant& v) { return v.name != "qwen3" && v.name != "llama with dropout"; });
  all.push_back({"plain", kPlainModel});
  all.push_back(variants_of(kPlainModel).back());
  for (Variant& variant : all) {
    variant.model.layers = 5;
    HostTensors make;
    RunShape shape = shape_of(variant);
    const StepsResult kept = run_steps({}, shape, 3, make, 1e-2);
    for (const ByBlock<Keep>& keep : mixed_keeps()) {
      SCOPED_TRACE(fmt::format("{}, {}", variant.name, text_of(keep)));
      shape.keep = keep;
      expect_same_bits(run_steps({}, shape, 3, make, 1e-2), kept);
      expect_plan_is_the_step({}, shape);
    }
  }
}

// Kept memory is that of the blocks: it lies between the plans of one level for all, block by block.
TEST(Variants, EachBlockMoreThatDropsSavesWhatItKept) {
  RunShape shape =
      shape_of({"plain", {.vocab_size = 29, .context = 16, .layers = 8, .heads = 2, .channels = 64}});
  const auto peak = [&](const ByBlock<Keep>& keep) {
    shape.keep = keep;
    return plan_memory(shape, {}).peak_bytes();
  };
  const int64_t all = peak(kKeepAll), nothing = peak(kKeepAttention),
                block = (peak(ByBlock<Keep>({{kKeepAttention, 2}, {kKeepAll}})) -
                         peak(ByBlock<Keep>({{kKeepAttention, 3}, {kKeepAll}})));
  EXPECT_GT(block, 13 * shape.rows() * shape.model.channels * 4);
  for (int64_t count = 1; count < 8; ++count)
    EXPECT_EQ(peak(ByBlock<Keep>({{kKeepAttention, count}, {kKeepAll}})), all - (count - 1) * block) << count;
  EXPECT_EQ(nothing, all - 7 * block) << "a block of one group has the place that all of the group share";
}

// On a GPU no kernel would notice.
TEST(Vocabulary, IdsOutsideItAreRefusedBeforeAnyKernel) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  const RunShape shape = shape_of({"plain", kPlainModel});
  TrainState state(*be, arena, shape);
  state.initialize(1);
  const auto count = static_cast<size_t>(shape.tokens_per_step());
  const std::vector<int32_t> good(count, 28);
  const auto expect_refused = [&](const std::string& begins, const auto& call) {
    try {
      call();
      ADD_FAILURE() << "taken: " << begins;
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(begins)) << error.what();
      EXPECT_NE(std::string(error.what()).find("Set model.vocab_size"), std::string::npos) << error.what();
    }
  };
  const auto step = [&](std::span<const int32_t> tokens, std::span<const int32_t> targets) {
    state.step({.tokens = tokens, .targets = targets}, shape.tokens_per_step(), kTestOptimizer, 1e-3, 1);
  };
  const auto evaluate = [&](std::span<const int32_t> tokens, std::span<const int32_t> targets) {
    state.session().evaluate({.tokens = tokens, .targets = targets}, 1);
  };
  for (const int32_t id : {29, 127, 128, -1, std::numeric_limits<int32_t>::min()}) {  // 29 to 127: padding
    std::vector<int32_t> bad = good;
    bad[17] = id;
    const std::string found =
        fmt::format("{} (number 18 of {}) is outside the model's vocabulary of 29 tokens", id, count);
    expect_refused("token " + found, [&] { step(bad, good); });
    if (id != kNoTarget) expect_refused("target " + found, [&] { step(good, bad); });
    const auto batch = [&](const std::vector<int32_t>& ids) { return std::span(ids).subspan(10, 15); };
    const std::string in_batch = fmt::format("{} (number 8 of 15)", id);
    expect_refused("token " + in_batch, [&] { evaluate(batch(bad), batch(good)); });
    if (id != kNoTarget) expect_refused("target " + in_batch, [&] { evaluate(batch(good), batch(bad)); });
    expect_refused("token " + in_batch, [&] { state.session().last_logits(batch(bad), 1); });
  }
  step(good, good);
  EXPECT_TRUE(std::isfinite(state.finish_step().loss));
}

}  // namespace
}  // namespace tessera::testing
