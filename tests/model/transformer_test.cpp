// The model: its memory, its parameters, and what must not change its results.
#include "model/transformer.h"

#include <set>

#include "model/init.h"
#include "tests/support.h"
#include "tests/train_steps.h"

namespace tessera::testing {
namespace {

constexpr ModelConfig kTiny{.vocab_size = 61, .context = 48, .layers = 3, .heads = 2, .channels = 24};

RunShape tiny_shape(AttentionKind attention = AttentionKind::kFlash) {
  return {.model = kTiny, .micro_batch = 3, .micro_steps = 2, .sequence_length = 37, .attention = attention};
}

TEST(Parameters, EveryOneHasAPlaceAndTheCountIsRight) {
  Arena arena = Arena::plan(Device::kCpu);
  const ParamLayout layout(kTiny, 1);
  const Params params =
      layout.params(kTiny, allocate_buckets(arena, MemoryTag::kWeights, "weights", DType::kF32, layout));
  int64_t count = 0;
  std::set<std::string> names;
  for_each_param(params, kTiny, [&](const ParamInfo& info, const Tensor& tensor) {
    EXPECT_EQ(tensor.shape, info.shape) << info.name;
    count += info.shape.numel() - info.padding * (info.shape.rank() == 2 ? info.shape[1] : 1);
    names.insert(info.name);
    EXPECT_EQ(info.decay, info.shape.rank() == 2) << info.name;
  });
  EXPECT_EQ(count, kTiny.parameters());
  EXPECT_EQ(static_cast<int64_t>(names.size()), 2 + 12 * kTiny.layers + 2);
  EXPECT_EQ((ModelConfig{50257, 1024, 12, 12, 768}.parameters()),
            124439808);  // Hugging Face's count for GPT-2
  EXPECT_EQ((ModelConfig{50257, 1024, 48, 25, 1600}.parameters()), 1557611200);
}

TEST(Parameters, WidthAndHeadAreCounted) {
  ModelConfig config{50257, 1024, 12, 12, 768};
  const double flops = config.flops_per_token(1024);
  EXPECT_EQ(config.mlp_width, 3072);
  config.mlp_width = 2048;  // two matrices of C rows and a bias in each of 12 blocks
  EXPECT_EQ(config.parameters(), 124439808 - 12 * 1024 * (2 * 768 + 1));
  EXPECT_EQ(config.flops_per_token(1024), flops - 6.0 * 12 * 1024 * (2 * 768 + 1));
  config.mlp_width = 3072;
  config.tied = false;
  EXPECT_EQ(config.parameters(), 124439808 + 50257 * 768);
  EXPECT_EQ(config.flops_per_token(1024), flops);  // a table that only looks up multiplies nothing
}

// Neither places nor sizes may overlap, and every part of a bucket is as large as the others.
TEST(Parameters, BucketsHoldEveryParameterOnce) {
  for (const int64_t parts : {1, 2, 3, 8}) {
    const ParamLayout layout(kTiny, parts);
    ASSERT_EQ(static_cast<int64_t>(layout.buckets.size()), kTiny.layers + 1);
    for (size_t b = 0; b < layout.buckets.size(); ++b) {
      const ParamBucket& bucket = layout.buckets[b];
      EXPECT_EQ(bucket.elements % (parts * kParamAlignment), 0);
      std::vector<int> owners(static_cast<size_t>(bucket.elements));
      for (const ParamPlace& place : layout.places) {
        if (place.bucket != b) continue;
        EXPECT_EQ(place.first % kParamAlignment, 0) << place.info.name;
        EXPECT_EQ(place.first < bucket.decayed, place.info.decay) << place.info.name;
        for (int64_t i = 0; i < place.info.shape.numel(); ++i)
          ++owners.at(static_cast<size_t>(place.first + i));
      }
      EXPECT_EQ(*std::max_element(owners.begin(), owners.end()), 1);
    }
  }
}

TEST(Parameters, InitialWeightsFollowGpt2AndTheSeed) {
  Arena arena = Arena::host();
  const ParamLayout layout(kTiny, 1);
  const auto initial = [&](const Params& params, uint64_t seed) {
    init_weights(kTiny, seed, {.values = [&](const ParamPlace& place, const Tensor& values) {
                   std::memcpy(layout.view(params.buckets, place).data, values.data, values.bytes());
                 }});
  };
  CpuStream cpu;
  ParamStore of_a(cpu, arena, {.model = kTiny}), of_b(cpu, arena, {.model = kTiny});
  const Params &a = of_a.weights(), &b = of_b.weights();
  initial(a, 7);
  initial(b, 7);
  EXPECT_EQ(relative_error(a.blocks[1].attention.qkv.weight, b.blocks[1].attention.qkv.weight), 0);
  initial(b, 8);
  EXPECT_GT(relative_error(a.blocks[1].attention.qkv.weight, b.blocks[1].attention.qkv.weight), 0.1);
  const auto deviation = [](const Tensor& t) {
    return std::sqrt(dot(t, t) / static_cast<double>(t.numel()));
  };
  EXPECT_NEAR(deviation(a.blocks[0].attention.qkv.weight), 0.02, 0.002);
  EXPECT_NEAR(deviation(a.blocks[0].mlp.contract.weight), 0.02 / std::sqrt(6.0), 0.001);
  EXPECT_EQ(floats(a.norm.weight)[3], 1);
  for (int64_t i = kTiny.vocab_size * kTiny.channels; i < a.token_table.numel(); ++i)
    ASSERT_EQ(floats(a.token_table)[i], 0);
}

StepsResult run_on_cpu(const RunShape& shape, int steps, HostTensors& make) {
  return run_steps({}, shape, steps, make, 1e-2);
}

TEST(Training, TheFirstLossIsThatOfAUniformGuess) {
  HostTensors make;
  EXPECT_NEAR(run_on_cpu(tiny_shape(), 1, make).losses[0], std::log(61.0), 0.05);
}

TEST(Training, SameSeedSameBits) {
  HostTensors make;
  expect_same_bits(run_on_cpu(tiny_shape(), 3, make), run_on_cpu(tiny_shape(), 3, make));
}

// The micro-batch is how a step is computed, not what it computes.
TEST(Training, AccumulationChangesNothingButRounding) {
  RunShape whole = tiny_shape(), parts = tiny_shape();
  whole.micro_batch = 6, whole.micro_steps = 1;
  parts.micro_batch = 1, parts.micro_steps = 6;
  HostTensors make;
  const StepsResult a = run_on_cpu(whole, 2, make), b = run_on_cpu(parts, 2, make);
  EXPECT_NEAR(a.losses[0], b.losses[0], 1e-5);
  EXPECT_NEAR(a.grad_norms[0] / b.grad_norms[0], 1, 1e-5);
  EXPECT_NEAR(a.losses[1], b.losses[1], 1e-4);
}

// What the backward computes again has the same bits.
TEST(Training, RecomputingChangesNoBit) {
  HostTensors make;
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash}) {
    const StepsResult kept = run_on_cpu(tiny_shape(attention), 3, make);
    for (const Keep keep : {kKeepAllButMlp, kKeepOutputs}) {
      RunShape shape = tiny_shape(attention);
      shape.keep = keep;
      SCOPED_TRACE(text_of(keep));
      expect_same_bits(run_on_cpu(shape, 3, make), kept);
    }
  }
}

// A chunk's losses are what they are in the whole; gradients of the classifier are summed chunk by chunk.
TEST(Training, LogitsInChunksChangeNothingButRounding) {
  HostTensors make;
  const StepsResult whole = run_on_cpu(tiny_shape(), 2, make);
  for (const int64_t chunk : {1, 7, 37, 110, 111, 1000}) {  // a micro-batch has 111 tokens
    SCOPED_TRACE(chunk);
    RunShape shape = tiny_shape();
    shape.classifier_chunk = chunk;
    const StepsResult chunked = run_on_cpu(shape, 2, make);
    EXPECT_NEAR(chunked.losses[0], whole.losses[0], 1e-6);
    EXPECT_NEAR(chunked.grad_norms[0] / whole.grad_norms[0], 1, 1e-5);
    EXPECT_NEAR(chunked.losses[1], whole.losses[1], 1e-4);
    for (size_t i = 0; i < whole.first_gradients.size(); ++i)
      EXPECT_LT(relative_error(chunked.first_gradients[i].tensor, whole.first_gradients[i].tensor), 1e-5)
          << whole.first_gradients[i].name;
  }
}

TEST(Training, NaiveAndFlashTrainAlike) {
  HostTensors make;
  const StepsResult a = run_on_cpu(tiny_shape(AttentionKind::kNaive), 3, make),
                    b = run_on_cpu(tiny_shape(AttentionKind::kFlash), 3, make);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(a.losses[i], b.losses[i], 1e-4);
}

TEST(Evaluation, IsTheLossThatTrainingSeesAndLeavesNoTrace) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  const RunShape shape = tiny_shape();
  TrainState state(*be, arena, shape);
  state.initialize(5);
  HostTensors make;
  const Tensor tokens = make.tokens({shape.tokens_per_step() + 1}, shape.model.vocab_size);
  const std::span<const int32_t> all(tokens.as<int32_t>(), static_cast<size_t>(tokens.numel()));
  const auto inputs = all.first(all.size() - 1), targets = all.last(all.size() - 1);
  const size_t half = inputs.size() / 2;
  const auto evaluate = [&](std::span<const int32_t> its_inputs, std::span<const int32_t> its_targets) {
    return state.session().evaluate({.tokens = its_inputs, .targets = its_targets}, 3);
  };
  const double evaluated =
      (evaluate(inputs.first(half), targets.first(half)) + evaluate(inputs.last(half), targets.last(half))) /
      2;
  const int64_t before = arena.ledger().current_bytes();
  state.step({.tokens = inputs, .targets = targets}, shape.tokens_per_step(),
             {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0, .max_grad_norm = 0}, 1e-3, 1);
  EXPECT_NEAR(state.finish_step().loss, evaluated, 1e-5);
  EXPECT_EQ(arena.ledger().current_bytes(), before);
}

// The loss of a sequence is the mean over its positions, and the logits of a prefix are those of its last
// position.
TEST(Sampling, LogitsOfEveryPrefixAddUpToTheLoss) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  TrainState state(*be, arena, tiny_shape());
  state.initialize(5);
  HostTensors make;
  const Tensor tokens = make.tokens({38}, 61);
  const std::span<const int32_t> all(tokens.as<int32_t>(), 38);
  double sum = 0;
  for (size_t n = 1; n <= 37; ++n) {
    const std::vector<float> logits = state.session().last_logits(all.first(n), 1);
    ASSERT_EQ(logits.size(), 61u);
    double normalizer = 0;
    for (const float l : logits) normalizer += std::exp(static_cast<double>(l));
    sum += std::log(normalizer) - logits[static_cast<size_t>(all[n])];
  }
  EXPECT_NEAR(sum / 37, state.session().evaluate({.tokens = all.first(37), .targets = all.last(37)}, 1),
              1e-5);
}

TEST(Memory, ThePlanIsTheStep) {
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash}) {
    const auto expect_exact = [&](const char* what, const auto& change) {
      SCOPED_TRACE(std::string(name_of(attention)) + ", " + what);
      RunShape shape = tiny_shape(attention);
      change(shape);
      expect_plan_is_the_step({}, shape);
    };
    expect_exact("tiny", [](RunShape&) {});
    expect_exact("one token", [](RunShape& s) { s.micro_batch = s.micro_steps = s.sequence_length = 1; });
    expect_exact("long", [](RunShape& s) { s.model.context = s.sequence_length = 300; });
    expect_exact("many micro-batches", [](RunShape& s) { s.micro_batch = 1, s.micro_steps = 9; });
    expect_exact("one layer, wide words", [](RunShape& s) { s.model.layers = 1, s.model.vocab_size = 3000; });
    expect_exact("context beyond the sequences", [](RunShape& s) { s.model.context = 900; });
    for (const Keep keep : {kKeepAllButMlp, kKeepOutputs})
      expect_exact(text_of(keep).c_str(), [&](RunShape& s) { s.keep = keep; });
    expect_exact("moments in bf16", [](RunShape& s) { s.rule = adamw(DType::kBF16); });
    expect_exact("logits in chunks", [](RunShape& s) { s.classifier_chunk = 10; });
    expect_exact("head dim 64", [](RunShape& s) {
      s.model.heads = s.model.kv_heads = 1, s.model.channels = s.model.head_dim = 64;
    });
  }
}

// Of the 16 N C that a block keeps, without the scalars a row, `mlp` leaves 7 and `block` 1; all blocks share
// the rest.
TEST(Memory, RecomputingAndChunksSpareWhatTheySay) {
  RunShape shape{.model = {.vocab_size = 512, .context = 256, .layers = 12, .heads = 2, .channels = 64},
                 .micro_batch = 8,
                 .micro_steps = 1,
                 .sequence_length = 256};
  const auto activations = [&](Keep keep, int64_t chunk) {
    shape.keep = keep;
    shape.classifier_chunk = chunk;
    return static_cast<double>(plan_memory(shape, {}).at_peak()[static_cast<int>(MemoryTag::kActivations)]);
  };
  const double nc = 8 * 256 * 64 * 4.0, all = activations(kKeepAll, 0);
  EXPECT_NEAR((all - activations(kKeepAllButMlp, 0)) / nc, 11 * 9, 2);
  EXPECT_NEAR((all - activations(kKeepOutputs, 0)) / nc, 11 * 15, 4);
  EXPECT_LT(activations(kKeepOutputs, 256), activations(kKeepOutputs, 0));
}

// 16 N C a block and four scalars a row; the embeddings, the final norm and its two scalars, the gradient of
// the residual stream; and in a block's backward, where the peak is, the gradients of attention's output and
// qkv.
TEST(Memory, AStepHoldsWhatTheManualSays) {
  constexpr int64_t L = 12, N = 8 * 256, C = 64;
  const RunShape shape{.model = {.vocab_size = 64, .context = 256, .layers = L, .heads = 2, .channels = C},
                       .micro_batch = 8,
                       .micro_steps = 1,
                       .sequence_length = 256};
  const MemoryLedger plan = plan_memory(shape, {});
  EXPECT_EQ(plan.at_peak()[static_cast<int>(MemoryTag::kActivations)],
            4 * (N * C * (16 * L + 3 + 4) + N * (4 * L + 2)));
}

TEST(Memory, NaiveSavesNSquaredAndFlashN) {
  const auto attention_bytes = [](AttentionKind kind, int64_t T) {
    RunShape shape = tiny_shape(kind);
    shape.model.context = shape.sequence_length = T;
    shape.micro_batch = shape.micro_steps = 1;
    return static_cast<double>(
        plan_memory(shape, {}).peak_of_each()[static_cast<int>(MemoryTag::kAttention)]);
  };
  // Of the growth alone: the scratch of the CPU's threads does not depend on T.
  const auto growth_ratio = [&](AttentionKind kind) {
    const double small = attention_bytes(kind, 1024), medium = attention_bytes(kind, 2048);
    return (attention_bytes(kind, 4096) - medium) / (medium - small);
  };
  EXPECT_NEAR(growth_ratio(AttentionKind::kNaive), 4, 0.01);
  EXPECT_NEAR(growth_ratio(AttentionKind::kFlash), 2, 0.01);
}

}  // namespace
}  // namespace tessera::testing
