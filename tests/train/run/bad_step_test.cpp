// Steps that go bad: faults that are planted into operations or weights are found and named.
#include <bit>
#include <cmath>

#include "kernels/base/fp8.h"
#include "kernels/base/fp8_scale.h"
#include "tests/bad_step_run.h"
#include "tests/rank_group.h"
#include "tests/says.h"
#include "tests/train_ranks.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

float& element(const Tensor& tensor, int64_t i) { return tensor.as<float>()[i]; }

struct BadStepOfARun : TrainRanks {
  using Run = BadStepRun;
  static std::string message_of(RankGroup& group, const fs::path& in, Run run) {
    run.settings.insert(run.settings.begin(), "train.tokens_per_step=256");
    return testing::message_of(group, in, run);
  }
  std::string message_of(const Run& run) const {
    RankGroup alone(World{}, Config{});
    return message_of(alone, folder, run);
  }
  // Of several ranks, which have to say the same
  void expect_of_ranks(int count, const Run& run, const Words& parts) const {
    on_ranks(count, [&](const Ranks& ranks) {
      const fs::path in = ranks.exchange(folder.string())[0];
      Config config = load_config(in / "small.yaml", run.settings);
      RankGroup group(world_of(ranks), config);
      const std::string message = message_of(group, in, run);
      expect_parts(message, parts);
      for (const std::string& theirs : ranks.exchange(message)) EXPECT_EQ(theirs, message);
    });
  }
};

TEST_F(BadStepOfARun, FindsAWeight) {
  const BadStepOfARun::Run run{
      .spoils = [](OpenRun& open) { spoil(open, "blocks.1.mlp.expand.weight", 5 * 32 + 3); }};
  expect_parts(
      message_of(run),
      {"step 1: the loss is nan", "linear forward in block 1, in the forward, micro-batch 1 of 4",
       "It reads weight (blocks.1.mlp.expand.weight, fp32 [128, 32]", "1 of 4096 values is not finite",
       "the first at [5, 3]", "No operation of this step", "text.txt, tokens "});
}

TEST_F(BadStepOfARun, FindsAWeightThatRanksSplit) {
  const BadStepOfARun::Run run{.settings = {"parallel.shard=weights"}, .spoils = [](OpenRun& open) {
                                 spoil(open, "blocks.1.mlp.expand.weight", 5 * 32 + 3);
                               }};
  expect_of_ranks(2, run,
                  {"linear forward in block 1, in the forward, micro-batch 1 of 2, rank 0",
                   "blocks.1.mlp.expand.weight", "the first at [5, 3]"});
}

// Only sequences with that token are bad.
TEST_F(BadStepOfARun, FindsARowOfTheTable) {
  const BadStepOfARun::Run run{.spoils = [](OpenRun& open) { spoil(open, "token_table", 'x' * 32 + 7); }};
  expect_parts(message_of(run),
               {"embedding forward of the embeddings, in the forward", "token_table (token_table, fp32 [",
                fmt::format("the first at [{}, 7]", int{'x'}), "the first bad value is of token "});
}

TEST_F(BadStepOfARun, FindsAGradientInsideABlock) {
  const BadStepOfARun::Run run{.fault = [](const AnyOp& op, Backend& be, const Launch&) {
    const auto* backward = std::get_if<const LinearBackward*>(&op);
    if (backward && be.place().block == 1 && be.place().micro_batch == 2 && (*backward)->pre_activation)
      element((*backward)->dx, 40) = INFINITY;
  }};
  expect_parts(message_of(run),
               {"linear backward in block 1, in the backward, micro-batch 3 of 4", "It writes dx (", "1 of ",
                "All that it reads is finite", "largest magnitude",
                "sequences with bad values:\n    sequence 0, at position 4"});
}

TEST_F(BadStepOfARun, FindsAHead) {
  const auto fault = [](const AnyOp& op, Backend& be, const Launch&) {
    if (const auto* forward = std::get_if<const AttentionForward*>(&op); forward && be.place().block == 0) {
      const Tensor& y = (*forward)->y.tensor;  // [2, 32, 2, 16]: sequence 1, token 9, head 1
      element(y, ((32 + 9) * 2 + 1) * 16) = NAN;
    }
  };
  const std::string message = message_of({.settings = {"model.heads=2"}, .fault = fault});
  expect_parts(message, {"attention forward in block 0, in the forward, micro-batch 1 of 4",
                         "attention output, fp32 [2, 32, 2, 16]", "the first at [1, 9, 1, 0]",
                         "is of token 9 of sequence 1: ", "sequence 1, at position 1"});
  EXPECT_EQ(message.find("sequence 0, at"), std::string::npos) << message;
  expect_of_ranks(2,
                  {.settings = {"parallel.context=2"},
                   .fault =
                       [](const AnyOp& op, Backend& be, const Launch&) {
                         const auto* forward = std::get_if<const AttentionForward*>(&op);
                         if (forward && be.place().block == 1) element((*forward)->y.tensor, 3) = NAN;
                       }},
                  {"attention forward in block 1, in the forward, micro-batch 1 of 4, rank 0"});
}

TEST_F(BadStepOfARun, FindsAnOverflowInFp8) {
  const auto in_fp8 = [](float x) {
    const float scale = std::bit_cast<float>(fp8_scale(std::bit_cast<uint32_t>(x), true, 0));
    return fmt::format("largest magnitude {:.6g}", scale * round_to_fp8(x / scale, kE4M3));
  };
  expect_parts(
      message_of(overflow_in_fp8(32, {})),
      {"step 1: the loss is ", "linear forward in block 1, in the forward, micro-batch 1 of 4",
       "It writes y (MLP hidden layer, fp32 [64, 128]", "1 of 8192 values is not finite, the first at [2, 5]",
       "All that it reads is finite", "x (FP8 operand, ", in_fp8(1e30f), "weight (FP8 blocks.1.mlp.expand, ",
       in_fp8(1e10f), "is of token 2 of sequence 0: "});
}

// By the scale of the step before, that input is cut off: nothing overflows.
TEST_F(BadStepOfARun, ThatInputIsCutOffByAScaleOfTheStepBefore) {
  BadStepRun run = overflow_in_fp8(32, {"train.steps=1"});
  const auto spoils = run.spoils;
  run.spoils = [&](OpenRun& open) {
    spoils(open);
    Fp8Scales scales;
    for (const Fp8Place& place : open.phase->state().fp8().places()) scales[place.name] = {};
    open.phase->state().fp8().set_scales(open.phase->state().stream(), scales);
  };
  EXPECT_EQ(message_of(run), "");
}

// The earliest operation of all ranks is told, of whichever rank.
TEST_F(BadStepOfARun, FindsTheFirstRank) {
  on_ranks(2, [&](const Ranks& ranks) {
    const fs::path in = ranks.exchange(folder.string())[0];
    RankGroup group(world_of(ranks), Config{});
    const auto fault = [&](const AnyOp& op, Backend& be, const Launch&) {
      const auto* forward = std::get_if<const AttentionForward*>(&op);
      if (forward && ranks.rank == 1 && be.place().block == 1) element((*forward)->y.tensor, 3) = NAN;
    };
    expect_parts(
        message_of(group, in, {.fault = fault}),
        {"attention forward in block 1, in the forward, micro-batch 1 of 2, rank 1", "at position 4"});
  });
}

TEST_F(BadStepOfARun, SuspectsTheHardware) {
  int64_t times = 0;
  const BadStepOfARun::Run run{.fault = [&](const AnyOp& op, Backend& be, const Launch&) {
    const auto* forward = std::get_if<const AttentionForward*>(&op);
    if (forward && be.place().block == 0 && be.place().micro_batch == 0 && ++times == 3)
      element((*forward)->y.tensor, 3) = NAN;
  }};
  expect_parts(message_of(run), {"step 3: the loss is nan", "the hardware is suspect", "step_00000002"});
  on_ranks(2, [&](const Ranks& ranks) {
    const fs::path in = ranks.exchange(folder.string())[0];
    RankGroup group(world_of(ranks), Config{});
    int64_t steps = 0;
    const auto fault = [&](const AnyOp& op, Backend& be, const Launch&) {
      const auto* forward = std::get_if<const AttentionForward*>(&op);
      if (forward && ranks.rank == 1 && be.place().block == 0 && be.place().micro_batch == 0 && ++steps == 3)
        element((*forward)->y.tensor, 3) = NAN;
    };
    expect_parts(message_of(group, in, {.fault = fault}),
                 {"step 3: the loss is nan", "the hardware is suspect. It was rank 1, by its loss"});
  });
}

// A run goes on after two bad steps, and stops at the second where it may skip one.
TEST_F(BadStepOfARun, SkipsAStep) {
  const auto message_with = [&](int64_t bad_passes, const Words& more) {  // from step 3 on
    int64_t passes = 0;
    return message_of({.settings = with({"train.on_bad_step.nonfinite=skip", "train.steps=6"}, more),
                       .fault = [&, bad_passes](const AnyOp& op, Backend& be, const Launch&) {
                         const auto* forward = std::get_if<const AttentionForward*>(&op);
                         if (!forward || be.place().block != 0 || be.place().micro_batch != 0) return;
                         if (++passes >= 3 && passes < 3 + bad_passes) element((*forward)->y.tensor, 3) = NAN;
                       }});
  };
  EXPECT_EQ(message_with(2, {}), "");
  std::ifstream metrics(folder / "out" / "metrics.jsonl");
  std::vector<nlohmann::json> steps;
  for (std::string line; std::getline(metrics, line);)
    if (const auto json = nlohmann::json::parse(line); json["type"] == "step") steps.push_back(json);
  ASSERT_EQ(steps.size(), 6u);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].contains("skipped"), i == 2 || i == 3) << i;
    EXPECT_EQ(steps[i]["loss"].is_null(), i == 2 || i == 3) << i;
  }
  const RunState state = read_run_state(folder / "out" / "checkpoints" / "step_00000006");
  EXPECT_EQ(state.skipped_updates, 2);
  EXPECT_EQ(state.data_position, 6 * 8);
  expect_parts(message_with(3, {"train.on_bad_step.most_skips=1"}),
               {"step 4: the loss is nan", "attention forward in block 0", "has skipped 1 steps"});
}

// Step 3 goes bad once: the run goes back to step 2, and on with the sequences of step 4.
TEST_F(BadStepOfARun, GoesBack) {
  int64_t passes = 0;
  EXPECT_EQ(message_of({.settings = {"train.on_bad_step.nonfinite=rewind", "train.steps=6"},
                        .fault =
                            [&](const AnyOp& op, Backend& be, const Launch&) {
                              const auto* forward = std::get_if<const AttentionForward*>(&op);
                              if (!forward || be.place().block != 0 || be.place().micro_batch != 0) return;
                              if (++passes == 3) element((*forward)->y.tensor, 3) = NAN;
                            }}),
            "");
  const RunState state = read_run_state(folder / "out" / "checkpoints" / "step_00000006");
  EXPECT_EQ(state.rewinds, 1);
  EXPECT_EQ(state.skipped_updates, 0);
  EXPECT_EQ(state.data_position, 7 * 8);
  EXPECT_EQ(state.passed_over_tokens, 256);
  EXPECT_EQ(state.before_bad_steps, std::set<int64_t>{2});
}

struct ReplayedStep : BadStepOfARun {
  static ProcessResult replay(const fs::path& in, const std::string& bad) {
    return run_process(TRAIN_BINARY, {"--replay", "out/" + bad}, {.folder = in});
  }
  static void spoils(OpenRun& run) { spoil(run, "blocks.1.mlp.expand.weight", 5 * 32 + 3); }
  static void expect_the_weight_again(const fs::path& in) {
    const ProcessResult bad = replay(in, "bad_step_00000001");
    EXPECT_EQ(bad.status, 1) << bad.error;
    expect_parts(bad.out, {"step 1: the loss is nan", "linear forward in block 1, in the forward",
                           "It reads weight (blocks.1.mlp.expand.weight, fp32 [128, 32]",
                           "the first at [5, 3]", "text.txt, tokens ", "the step is bad again"});
  }
};

// Weights may be NaN in the folder.
TEST_F(ReplayedStep, OfABadWeightIsBadAgain) {
  expect_parts(message_of({.spoils = spoils}), {"--replay ", "out/bad_step_00000001"});
  expect_the_weight_again(folder);
}

TEST_F(ReplayedStep, OfRanksIsBadAgain) {
  on_ranks(2, [&](const Ranks& ranks) {
    const fs::path in = ranks.exchange(folder.string())[0];
    RankGroup group(world_of(ranks), Config{});
    expect_parts(message_of(group, in, {.settings = {"parallel.shard=weights"}, .spoils = spoils}),
                 {"--replay ", "out/bad_step_00000001"});
    if (ranks.rank == 0) expect_the_weight_again(in);
  });
}

TEST_F(ReplayedStep, OfAFaultThatIsGoneIsNot) {
  int64_t passes = 0;
  message_of({.fault = [&](const AnyOp& op, Backend& be, const Launch&) {
    const auto* forward = std::get_if<const AttentionForward*>(&op);
    if (forward && be.place().block == 0 && be.place().micro_batch == 0 && ++passes == 3)
      element((*forward)->y.tensor, 3) = NAN;
  }});
  const ProcessResult healthy = replay(folder, "bad_step_00000003");
  EXPECT_EQ(healthy.status, 0) << healthy.error;
  expect_parts(healthy.out, {"step 3: the loss is nan", "the hardware is suspect", "not bad this time"});
}

}  // namespace
}  // namespace tessera::testing
