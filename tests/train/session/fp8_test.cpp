// Training in FP8 on the CPU, which rounds as a GPU does: the loss against fp32, the same bits twice,
// recordings, ranks, memory, scales.
#include "model/fp8.h"

#include "kernels/base/fp8.h"
#include "kernels/expert_ops.h"
#include "tests/block_patterns.h"
#include "tests/data_parallel.h"
#include "tests/model_families.h"
#include "tests/recorded_steps.h"

namespace tessera::testing {
namespace {

constexpr ModelConfig kFp8Model{.vocab_size = 61, .context = 32, .layers = 4, .heads = 2, .channels = 32};

RunShape fp8_shape(const ModelConfig& model = kFp8Model, Fp8Config config = {}) {
  config.gemm_dtype = GemmDtype::kFp8;
  return {.model = model, .micro_batch = 4, .micro_steps = 2, .sequence_length = 32, .fp8 = config};
}
constexpr Fp8Config kAllButDw{.edges = true, .head = true}, kAll{.edges = true, .head = true, .dw = true},
    kAllCurrent{.scaling = Fp8Scaling::kCurrent, .edges = true, .head = true, .dw = true};

// Experts in every block; experts beside a shared one, and one block without
ModelConfig fp8_experts() {
  ModelConfig model = with_experts(with_qwen3_parts(kFp8Model));
  model.kv_heads = 1;
  return model;
}
ModelConfig fp8_shared_expert() {
  ModelConfig model = with_experts(with_llama_parts(kFp8Model));
  model.experts.shared_width = 48, model.experts.dense_layers = {2};
  return model;
}

// A text with something to learn: multiples of a number that differs from sequence to sequence
void take_step(TrainState& state, int number) {
  const RunShape& shape = state.shape();
  std::vector<int32_t> tokens, targets;
  for (int64_t i = 0; i < shape.sequences_per_rank(); ++i) {
    const uint32_t by = Philox(static_cast<uint64_t>(number), static_cast<uint64_t>(i)).bits(0)[0] % 5 + 1;
    for (int64_t t = 0; t < shape.sequence_length; ++t) {
      tokens.push_back(static_cast<int32_t>(by * static_cast<uint32_t>(t) % 61));
      targets.push_back(static_cast<int32_t>(by * static_cast<uint32_t>(t + 1) % 61));
    }
  }
  state.step({.tokens = tokens, .targets = targets}, shape.tokens_per_step(), kTestOptimizer, 3e-3, number);
}

struct Trained {
  std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  TrainState state;
  explicit Trained(const RunShape& shape) : state(*be, arena, shape) { state.initialize(3); }
  double step(int number) {
    take_step(state, number);
    return state.finish_step().loss;
  }
  std::vector<double> steps(int count, int first = 1) {
    std::vector<double> losses;
    for (int i = first; i < first + count; ++i) losses.push_back(step(i));
    return losses;
  }
  Fp8Scales scales() { return state.fp8().scales(state.stream()); }
};

double mean_of_last(const std::vector<double>& losses, int count) {
  double sum = 0;
  for (size_t i = losses.size() - static_cast<size_t>(count); i < losses.size(); ++i) sum += losses[i];
  return sum / count;
}

// With every product in FP8, by either kind of scales: GPT-2's parts, Qwen3's, and two models with experts
TEST(Fp8Training, LearnsAsInFp32) {
  ModelConfig llama = with_qwen3_parts(kFp8Model);
  llama.kv_heads = 1;
  for (const ModelConfig& model : {kFp8Model, llama, fp8_experts(), fp8_shared_expert()}) {
    RunShape plain = fp8_shape(model);
    plain.fp8 = {};
    const std::vector<double> wanted = Trained(plain).steps(70);
    EXPECT_LT(mean_of_last(wanted, 5), 0.7 * wanted.front()) << "nothing was learned";
    const double allowed = tolerance::kFp8ModelLoss * wanted.front();
    for (const Fp8Config& config : {Fp8Config{}, kAllButDw, kAll, kAllCurrent}) {
      SCOPED_TRACE(fp8_text(model, config));
      const std::vector<double> losses = Trained(fp8_shape(model, config)).steps(70);
      EXPECT_NE(losses.front(), wanted.front()) << "nothing was rounded";
      EXPECT_NEAR(losses.front(), wanted.front(), allowed);
      EXPECT_NEAR(mean_of_last(losses, 5), mean_of_last(wanted, 5), allowed);
    }
  }
}

TEST(Fp8Training, HasTheSameBitsTwice) {
  const auto run = [] {
    Trained one(fp8_shape(kFp8Model, kAll));
    const std::vector<double> losses = one.steps(4);
    return std::pair(losses, weight_bytes(one.state));
  };
  EXPECT_TRUE(run() == run());
}

// With a step that is dropped, an evaluation, memory that moves
TEST(Fp8Training, OfRecordedStepsHasTheirBits) {
  for (const int64_t micro_steps : {1, 3}) {
    RunShape shape = fp8_shape(kFp8Model, kAll);
    shape.micro_batch = 2, shape.micro_steps = micro_steps, shape.cuda_graphs = true;
    HostTensors make;
    for (const ModelConfig& model : {kFp8Model, fp8_shared_expert()}) {
      shape.model = model;
      RunShape plain = shape;
      plain.cuda_graphs = false;
      expect_same_bits(varied_steps(*make_cpu_backend(), shape, make),
                       varied_steps(*make_cpu_backend(), plain, make));
    }
  }
}

// What the backward computes again has the same scale, and so the same bits.
TEST(Fp8Training, RecomputesTheSameBits) {
  std::vector<ByBlock<Keep>> keeps = mixed_keeps();
  keeps.emplace_back(kKeepOutputs);
  const std::pair<ModelConfig, int64_t> cases[] = {
      {kFp8Model, 0}, {kFp8Model, 48}, {fp8_experts(), 0}, {fp8_shared_expert(), 0}};
  for (const auto& [model, chunk] : cases) {
    RunShape first = fp8_shape(model, kAll);
    first.mlp_chunk = chunk;
    Trained kept(first);
    const std::vector<double> losses = kept.steps(3);
    for (const ByBlock<Keep>& keep : keeps) {
      SCOPED_TRACE(text_of(keep) + fmt::format(", chunks of {}, {} experts", chunk, model.experts.count));
      RunShape again = first;
      again.keep = keep;
      Trained recomputed(again);
      EXPECT_EQ(losses, recomputed.steps(3));
      EXPECT_TRUE(weight_bytes(kept.state) == weight_bytes(recomputed.state));
      if (!model.experts.dense_layers.empty()) continue;  // only blocks that are equal go to the host
      again.offload = {.activations = true, .blocks = 3}, again.poison = Poison::kYes;
      Trained offloaded(again);
      EXPECT_EQ(losses, offloaded.steps(3));
      expect_plan_is_the_step({}, again);
    }
  }
}

// Scales of the step before are those of the whole. Current ones, and those of the first step, are a chunk's.
TEST(Fp8Training, HasTheLossesOfTheWholeMlpInChunks) {
  ModelConfig llama = with_qwen3_parts(kFp8Model);
  llama.kv_heads = 1;
  for (const ModelConfig& model : {kFp8Model, llama})
    for (const Fp8Config& config : {kAllButDw, kAll, kAllCurrent}) {
      SCOPED_TRACE(fmt::format("{}, {}", name_of(model.mlp), fp8_text(model, config)));
      RunShape shape = fp8_shape(model, config);
      Trained whole(shape);
      shape.mlp_chunk = 48;  // of 128 rows
      Trained chunked(shape);
      const std::vector<double> expected = whole.steps(3), found = chunked.steps(3);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(found[i] / expected[i], 1, tolerance::kFp8LossesOfRanks);
      for (const auto& [name, exponents] : chunked.scales()) {
        EXPECT_NEAR(exponents.x, whole.scales().at(name).x, 1) << name;
        EXPECT_NEAR(exponents.dy, whole.scales().at(name).dy, 1) << name;
      }
    }
}

// Passes of Quantise over x or dy
struct CountsPasses : OpObserver {
  int count = 0;
  void before(const AnyOp& op, Backend&, const Launch&) override {
    if (const auto* const* quantise = std::get_if<const Quantise*>(&op)) count += !(*quantise)->transposed;
  }
  void after(const AnyOp&, Backend&, const Launch&) override {}
};

// Of three steps. The first has no scales yet; the passes are those of the last.
struct Passes {
  std::vector<double> losses;
  std::string weights;
  int count;
  Passes(const RunShape& shape, bool read_again) {
    Trained run(shape);
    run.state.fp8().read_again(read_again);
    losses = run.steps(2);
    CountsPasses counts;
    run.be->add_observer(counts);
    losses.push_back(run.step(3));
    run.be->remove_observer(counts);
    weights = weight_bytes(run.state);
    count = counts.count;
  }
};

// What writes x or dy rounds it, with the bits that a pass of its own finds. The passes that stay in a block
// are of the output of attention and of the gradient of q, k and v; the head has none.
TEST(Fp8Training, RoundsWhereItWritesToTheSameBits) {
  ModelConfig llama = with_qwen3_parts(kFp8Model);
  llama.kv_heads = 1;
  ModelConfig relu = kFp8Model;
  relu.mlp = Mlp::kRelu;
  struct Case {
    Keep keep;
    int passes;  // of a micro-step, in blocks that do not drop
  };
  // Three blocks of four run again. Then there are passes for the dy of the MLP's last product, where others
  // ran before it; for the x of W_O; and for the x of qkv where the norm before it is kept.
  const Case cases[] = {{{}, 8},
                        {{Recomputed::kNorms, Recomputed::kActivation}, 8},
                        {{Recomputed::kAttention}, 8 + 3 * 3},
                        {{Recomputed::kMlp}, 8 + 3},
                        {kKeepAttention, 8 + 2 * 3},
                        {kKeepOutputs, 8 + 2 * 3}};
  for (const ModelConfig& model : {kFp8Model, llama, relu})
    for (const auto& [keep, passes] : cases)
      for (const double dropped : {0.0, 0.1}) {
        SCOPED_TRACE(text_of(keep) + fmt::format(", {} layers, dropout {}", name_of(model.mlp), dropped));
        RunShape shape = fp8_shape(model, kAllButDw);
        shape.keep = keep;
        shape.model.dropout = {.embedding = dropped, .residual = dropped, .attention = dropped};
        const Passes fused(shape, false), apart(shape, true);
        EXPECT_EQ(fused.losses, apart.losses);
        EXPECT_TRUE(fused.weights == apart.weights);
        EXPECT_LT(fused.count, apart.count);
        if (dropped == 0.0) {
          EXPECT_EQ(fused.count, 2 * passes);
        }
      }
}

TEST(Fp8Training, RoundsWhereItWritesWhateverEachBlockKeeps) {
  for (const ModelConfig& model :
       {kFp8Model, with_qwen3_parts(kFp8Model), fp8_experts(), fp8_shared_expert()})
    for (const ByBlock<Keep>& keep : mixed_keeps()) {
      SCOPED_TRACE(text_of(keep));
      RunShape shape = fp8_shape(model, kAllButDw);
      shape.keep = keep;
      const Passes fused(shape, false), apart(shape, true);
      EXPECT_EQ(fused.losses, apart.losses);
      EXPECT_TRUE(fused.weights == apart.weights);
      EXPECT_LT(fused.count, apart.count);
    }
}

TEST(Fp8Training, RoundsWhereItWritesInSomeBlocksAndAChunkAtATime) {
  for (const int64_t chunk : {int64_t{0}, int64_t{48}})
    for (const Fp8Config& config :
         {Fp8Config{}, Fp8Config{.head = true}, Fp8Config{.dw = true}, kAll, kAllCurrent}) {
      SCOPED_TRACE(fp8_text(kFp8Model, config) + fmt::format(", chunks of {}", chunk));
      RunShape shape = fp8_shape(kFp8Model, config);
      shape.classifier_chunk = shape.mlp_chunk = chunk;
      const Passes fused(shape, false), apart(shape, true);
      EXPECT_EQ(fused.losses, apart.losses);
      EXPECT_TRUE(fused.weights == apart.weights);
    }
}

TEST(Fp8Training, LeavesOutTheEdgesAndTheHead) {
  const auto layers = [](const Fp8Config& config) {
    Trained run(fp8_shape(kFp8Model, config));
    run.steps(1);
    std::vector<std::string> names;
    for (const auto& [name, scales] : run.scales()) names.push_back(name);
    return names;
  };
  const std::vector<std::string> inner = layers({});
  EXPECT_EQ(inner, (std::vector<std::string>{"blocks.1.attention.out", "blocks.1.attention.qkv",
                                             "blocks.1.mlp.contract", "blocks.1.mlp.expand",
                                             "blocks.2.attention.out", "blocks.2.attention.qkv",
                                             "blocks.2.mlp.contract", "blocks.2.mlp.expand"}));
  EXPECT_EQ(layers({.edges = true}).size(), 16u);
  EXPECT_EQ(layers({.head = true}).back(), "head");
  EXPECT_EQ(layers(kAll).size(), 17u);
  EXPECT_EQ(fp8_text(kFp8Model, {}), "blocks 1 to 2 of 4; delayed scales");
  EXPECT_EQ(fp8_text(kFp8Model, kAllCurrent), "blocks 0 to 3 of 4, and the logits; current scales; dW too");
}

// Their logits are in fp32, whatever their blocks are.
TEST(Fp8Training, LeavesOutRouters) {
  const ModelConfig model = fp8_shared_expert();
  Trained run(fp8_shape(model));
  run.steps(1);
  std::vector<std::string> names;
  for (const auto& [name, scales] : run.scales()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "blocks.1.attention.out", "blocks.1.attention.qkv", "blocks.1.experts.contract",
                       "blocks.1.experts.expand", "blocks.1.experts.shared_contract",
                       "blocks.1.experts.shared_expand", "blocks.2.attention.out", "blocks.2.attention.qkv",
                       "blocks.2.mlp.contract", "blocks.2.mlp.expand"}));
  EXPECT_EQ(fp8_text(model, {}), "blocks 1 to 2 of 4; not routers; delayed scales");
  ModelConfig dense_inside = model;
  dense_inside.experts.dense_layers = {1, 2};
  EXPECT_EQ(fp8_text(dense_inside, {}), "blocks 1 to 2 of 4; delayed scales");
  for (const ParamPlace& place : run.state.store().layout().places)
    if (place.info.linear && !can_be_in_fp8(*place.info.linear)) {
      EXPECT_EQ(place.stored, StoredAs::kNo) << place.info.name;
    }
}

// The first step has each tensor's own scales; the next those of its largest elements; they stay for a step.
TEST(Fp8Training, ScalesFollowTheStepBefore) {
  Trained run(fp8_shape());
  EXPECT_TRUE(run.scales().empty());
  run.steps(1);
  const Fp8Scales first = run.scales();
  for (const auto& [name, exponents] : first) {
    EXPECT_GT(exponents.x, -40) << name;
    EXPECT_LT(exponents.x, 8) << name;
    EXPECT_LT(exponents.dy, -10) << name << ": gradients of a mean over 256 tokens are small";
  }
  // A layer whose weights are multiplied passes that on: the next step still has the old scales.
  for (const ParamPlace& place : run.state.store().layout().places)
    if (place.info.name == "blocks.1.norm1.weight") {
      HostTensors make;
      const Tensor large = make.empty(place.info.shape);
      for (float& value : floats(large)) value = 64;
      run.state.store().writer()(place, large);
    }
  run.step(2);
  const Fp8Scales second = run.scales();
  EXPECT_NEAR(second.at("blocks.1.attention.qkv").x, first.at("blocks.1.attention.qkv").x + 6, 1);
  Trained current(fp8_shape(kFp8Model, kAllCurrent));
  current.steps(2);
  EXPECT_TRUE(current.scales().empty());  // a checkpoint needs none
}

// From scales that another run had, or without them
// Of the first micro-batch, by layer: what its GEMMs in FP8 read, and how much of that is beyond the range
class CutOff final : public OpObserver {
 public:
  struct Share {
    int64_t beyond = 0, elements = 0;
    double operator()() const { return static_cast<double>(beyond) / static_cast<double>(elements); }
  };
  std::map<std::string, Share> x, dy;

  explicit CutOff(TrainState& state) : be_(state.stream().backend()) {
    const Fp8Layers& layers = *state.fp8().layers();
    for (const Fp8Place& place : state.fp8().places()) {
      const Fp8Linear& layer =
          place.name == "head" ? layers.head : layers.blocks[static_cast<size_t>(place.number)][place.linear];
      names_[layer.x_scale.data] = names_[layer.dy_scale.data] = place.name;
    }
    be_.add_observer(*this);
  }
  ~CutOff() override { be_.remove_observer(*this); }
  CutOff(const CutOff&) = delete;
  void before(const AnyOp& op, Backend& be, const Launch&) override {
    const OpPlace& at = be.place();
    if (at.micro_batch != 0) return;
    std::visit(
        [&](const auto* gemm) {
          if constexpr (requires { gemm->fp8_x; }) {
            const bool again = at.backward && at.block != OpPlace::kHead;
            if (gemm->fp8_x && !again) add(x, gemm->x, gemm->fp8_x, kE4M3);
          } else if constexpr (requires { gemm->fp8_dy; }) {
            if (gemm->fp8_dy) add(dy, gemm->dy, gemm->fp8_dy, kE5M2);
          }
        },
        op);
  }
  void after(const AnyOp&, Backend&, const Launch&) override {}

 private:
  void add(std::map<std::string, Share>& to, const Tensor& values, const Fp8Matrix& in_fp8,
           const Fp8Format& format) {
    Share& share = to[names_.at(in_fp8.scale.data)];
    for (const float value : floats(values))
      share.beyond += std::abs(value) > format.largest * *in_fp8.scale.as<float>();
    share.elements += values.numel();
  }
  Backend& be_;
  std::map<const void*, std::string> names_;  // by the addresses of their scales
};

void expect_shares(const InsideFigures& found, const CutOff& expected, int64_t layers) {
  size_t seen = 0;
  for (const InsideFigures::Saturated& part : found.saturated)
    for (size_t l = 0; l < part.x.size(); ++l) {
      const std::string name = part.x.size() == 1 ? part.name : fmt::format("blocks.{}.{}", l, part.name);
      if (!expected.x.contains(name)) {
        EXPECT_TRUE(std::isnan(part.x[l]) && std::isnan(part.dy[l])) << name;
        continue;
      }
      EXPECT_EQ(part.x[l], expected.x.at(name)()) << name;
      EXPECT_EQ(part.dy[l], expected.dy.at(name)()) << name;
      EXPECT_EQ(part.dy.size(), part.name == "head" ? 1u : static_cast<size_t>(layers));
      ++seen;
    }
  EXPECT_EQ(seen, expected.x.size());
}

// Scales of a step before that are far too small, as after a jump of 2^6: whatever runs again, in chunks, or
// is rounded by its writer, each value is counted once.
TEST(Fp8Training, CountsWhatIsCutOff) {
  struct Case {
    const char* name;
    void (*change)(RunShape& shape);
  };
  const Case cases[] = {
      {"plain", [](RunShape&) {}},
      {"middle blocks", [](RunShape& shape) { shape.fp8.edges = shape.fp8.head = false; }},
      {"recomputed", [](RunShape& shape) { shape.keep = ByBlock<Keep>(Keep{Recomputed::kBlock}); }},
      {"chunks", [](RunShape& shape) { shape.mlp_chunk = 24, shape.classifier_chunk = 40; }},
      {"graphs", [](RunShape& shape) { shape.cuda_graphs = true; }},
      {"experts", [](RunShape& shape) { shape.model = fp8_shared_expert(); }},
      {"adapters", [](RunShape& shape) {
         shape.model.lora = {.rank = 4}, shape.freeze = Freeze::all_but_adapters();
         shape.fp8.dw = false;
       }}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    RunShape shape = fp8_shape(kFp8Model, kAll);
    shape.inside_every = 2;
    one.change(shape);
    Trained run(shape);
    run.step(1);
    EXPECT_FALSE(run.state.inside());
    Fp8Scales scales = run.scales();
    for (auto& [name, exponents] : scales) exponents.x -= 6, exponents.dy -= 9;
    run.state.fp8().set_scales(run.state.stream(), scales);
    CutOff expected(run.state);
    run.step(2);
    const std::optional<InsideFigures> found = run.state.inside();
    ASSERT_TRUE(found);
    expect_shares(*found, expected, shape.model.layers);
    const size_t more = shape.model.experts ? 4 : 0;  // of experts, and of the shared one
    EXPECT_EQ(found->saturated.size(), (shape.fp8.head ? 5u : 4u) + more);
    EXPECT_GT(found->saturated[0].x[1], 0.1);
    EXPECT_GT(found->saturated[0].dy[1], 0.01);
    EXPECT_LT(found->saturated[0].x[1], 1);
  }
}

// The scales of the step before leave room, and those of the tensor itself fit it.
TEST(Fp8Training, CutsOffNothingAsARule) {
  for (const Fp8Config& config : {kAll, kAllCurrent}) {
    RunShape shape = fp8_shape(kFp8Model, config);
    shape.inside_every = 1;
    Trained run(shape);
    for (int step = 1; step <= 3; ++step) {
      run.step(step);
      const std::optional<InsideFigures> found = run.state.inside();
      ASSERT_TRUE(found);
      ASSERT_EQ(found->saturated.size(), 5u);
      for (const InsideFigures::Saturated& part : found->saturated)
        for (const std::vector<double>* shares : {&part.x, &part.dy})
          for (const double share : *shares) EXPECT_EQ(share, 0) << part.name;
    }
  }
  RunShape without = fp8_shape();
  without.fp8 = {}, without.inside_every = 1;
  Trained run(without);
  run.step(1);
  EXPECT_TRUE(run.state.inside()->saturated.empty());
}

TEST(Fp8Training, TakesScalesOfTheSameLayers) {
  Trained run(fp8_shape());
  run.steps(2);
  const Fp8Scales scales = run.scales();
  Trained other(fp8_shape());
  other.state.fp8().set_scales(other.state.stream(), scales);
  EXPECT_EQ(other.scales(), scales);
  Fp8Scales fewer = scales;
  fewer.erase("blocks.2.mlp.expand");
  other.state.fp8().set_scales(other.state.stream(), fewer);
  EXPECT_TRUE(other.scales().empty());
  Trained all(fp8_shape(kFp8Model, kAll));
  all.state.fp8().set_scales(all.state.stream(), scales);
  EXPECT_TRUE(all.scales().empty());
}

TEST(Fp8Training, PlanIsTheLedger) {
  ModelConfig untied = with_qwen3_parts(kFp8Model);
  for (const ModelConfig& model : {kFp8Model, untied, fp8_experts(), fp8_shared_expert()})
    for (const Fp8Config& config : {Fp8Config{}, kAllButDw, kAll, kAllCurrent}) {
      RunShape shape = fp8_shape(model, config);
      expect_plan_is_the_step({}, shape);
      shape.classifier_chunk = 48;
      shape.keep = kKeepOutputs;
      expect_plan_is_the_step({}, shape);
      if (model.experts) continue;  // whose rows are in no chunks
      shape.mlp_chunk = 48;
      expect_plan_is_the_step({}, shape);
    }
}

// On a GPU a weight in FP8 takes a byte, and its transpose another.
TEST(Fp8Training, PlansTwoBytesAWeight) {
  const DeviceTraits gpu{Device::kCuda, 90, "a GPU"};
  ModelConfig model = kFp8Model;
  model.channels = 256, model.heads = 4, model.head_dim = 64, model.kv_heads = 4, model.mlp_width = 1024;
  RunShape shape = fp8_shape(model, kAll);
  shape.dtype = DType::kBF16;
  RunShape plain = shape;
  plain.fp8 = {};
  const auto weights = [&](const RunShape& of) {
    return plan_memory(of, gpu).peak_of_each()[static_cast<size_t>(MemoryTag::kWeights)];
  };
  const auto expect = [&](int64_t matrices) {
    const int64_t found = weights(shape) - weights(plain);
    EXPECT_GE(found, 2 * matrices);
    EXPECT_LE(found, 2 * matrices + 3 * 1024);  // and the scales
  };
  const int64_t head = model.padded_vocab() * 256;
  expect(model.layers * 12 * 256 * 256 + head);
  model = with_experts(with_llama_parts(model));
  shape.model = plain.model = model;
  expect(model.layers * (4 * 256 + model.experts.count * 3 * model.experts.width) * 256 + head);
}

// Two ranks have the scales of one, step by step, and so its losses; optimizer whole or in parts.
TEST(Fp8Training, TwoRanksHaveTheScalesOfOne) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  const auto expect = [&](Shard shard, bool experts) {
    const auto shape = [&](int ranks) {
      RunShape own = shared_shape(ranks, shard);
      if (experts) own.model = with_experts(with_llama_parts(own.model));
      own.fp8 = kAll;
      own.fp8.gemm_dtype = GemmDtype::kFp8;
      return own;
    };
    on_ranks(2, [&](const Ranks& ranks) {
      Fp8Scales of_one, ours;
      std::string weights;
      const auto keep = [](Fp8Scales& to) {
        return [&to](TrainState& state) { to = state.fp8().scales(state.stream()); };
      };
      const std::vector<double> one = run_shared({}, {.shape = shape(1), .steps = 3, .after = keep(of_one)});
      const std::vector<double> both =
          run_shared(ranks, {.shape = shape(2), .steps = 3, .after = [&](TrainState& state) {
                               keep(ours)(state);
                               weights = weight_bytes(state);
                             }});
      EXPECT_EQ(of_one.size(), 13u);
      EXPECT_TRUE(ours == of_one);
      EXPECT_LT(largest_difference(both, one), tolerance::kFp8LossesOfRanks);
      for (const std::string& theirs : ranks.exchange(weights)) EXPECT_TRUE(theirs == weights);
    });
  };
  for (const Shard shard : kAllShards)
    for (const bool experts : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, experts {}", name_of(shard), experts));
      expect(shard, experts);
    }
}

}  // namespace
}  // namespace tessera::testing
