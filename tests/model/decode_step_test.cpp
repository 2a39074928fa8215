// A decode step as one kernel: the instructions that its operations become, run here as the kernel runs
// them but in plain loops, against the operations one by one; and which steps become one kernel, and why
// others do not.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/decode_step/lower.h"
#include "model/decode.h"
#include "model/head.h"
#include "model/rope.h"
#include "tests/model_variants.h"
#include "tests/support.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

using decode_step::Args;
using decode_step::Instruction;
using decode_step::InstructionKind;
using decode_step::InstructionNorm;
using Epilogue = FusedLinear::Epilogue;

// Instructions over fp32 tensors. A value that one reads must be of the instruction that it names.
class InPlainLoops {
 public:
  explicit InPlainLoops(const Args& args) : a_(args) {}

  void run() {
    for (int i = 0; i < a_.count; ++i) {
      const Instruction& s = a_.instructions[i];
      std::vector<float> y;
      if (s.kind == InstructionKind::kEmbed) y = embed(s);
      if (s.kind == InstructionKind::kLinear) y = linear(s);
      if (s.kind == InstructionKind::kAttend) y = attend(s);
      if (s.plain) {
        std::ranges::copy(y, static_cast<float*>(s.plain));
        EXPECT_EQ(i + 1, a_.count);
      } else {
        write(s.y, y, i);
      }
    }
  }
  size_t values() const { return values_.size(); }

 private:
  static const float* floats(const void* p) { return static_cast<const float*>(p); }
  int64_t place() const { return *a_.starts; }

  void write(uint32_t first, const std::vector<float>& y, int writer) {
    EXPECT_EQ(first % 4, 0u);
    if (values_.size() < first + y.size())
      values_.resize(first + y.size()), writers_.resize(values_.size(), -1);
    std::ranges::copy(y, values_.begin() + first);
    std::fill_n(writers_.begin() + first, y.size(), writer);
  }
  std::vector<float> read(uint32_t first, int count, int writer) const {
    for (int i = 0; i < count; ++i) EXPECT_EQ(writers_.at(first + i), writer);
    return {values_.begin() + first, values_.begin() + first + count};
  }

  std::vector<float> embed(const Instruction& s) const {
    EXPECT_GE(s.tiles * 32 * decode_step::kWarps, s.O);
    std::vector<float> y(static_cast<size_t>(s.O));
    for (int c = 0; c < s.O; ++c)
      y[c] =
          floats(s.weight)[int64_t{*a_.tokens} * s.O + c] + (s.bias ? floats(s.bias)[place() * s.O + c] : 0);
    return y;
  }

  void norm(const Instruction& s, std::vector<float>& x) const {
    double mean = 0, squares = 0;
    if (s.norm == InstructionNorm::kLayerNorm) mean = std::accumulate(x.begin(), x.end(), 0.0) / s.C;
    for (const float v : x) squares += (v - mean) * (v - mean);
    const double rstd = 1 / std::sqrt(squares / s.C + s.epsilon);
    for (int c = 0; c < s.C; ++c)
      x[c] = static_cast<float>((x[c] - mean) * rstd * floats(s.norm_weight)[c] +
                                (s.norm == InstructionNorm::kLayerNorm ? floats(s.norm_bias)[c] : 0));
  }
  double product(const Instruction& s, const std::vector<float>& x, int64_t row) const {
    double sum = s.bias ? floats(s.bias)[row] : 0;
    for (int c = 0; c < s.C; ++c) sum += double{floats(s.weight)[row * s.C + c]} * x[c];
    return sum;
  }
  static double activated(Epilogue epilogue, double x) {
    switch (epilogue) {
      case Epilogue::kGelu:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
      case Epilogue::kGeluExact:
        return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
      case Epilogue::kRelu:
        return std::max(x, 0.0);
      case Epilogue::kRelu2:
        return std::max(x, 0.0) * std::max(x, 0.0);
      case Epilogue::kSwiglu:
        return x / (1 + std::exp(-x));
      case Epilogue::kNone:
        return x;
    }
    fail("no such epilogue");
  }
  std::vector<float> linear(const Instruction& s) const {
    const bool gated = s.epilogue == Epilogue::kSwiglu;
    EXPECT_LE(s.tile_outputs, gated ? decode_step::kTileRows / 2 : decode_step::kTileRows);
    std::vector<float> x = read(s.x, s.C, s.x_from), y(static_cast<size_t>(s.O));
    if (s.norm != InstructionNorm::kNone) norm(s, x);
    std::vector<float> add;
    if (s.add != decode_step::kNowhere) add = read(s.add, s.O, s.add_from);
    int outputs = 0;
    for (int tile = 0; tile < s.tiles; ++tile)
      for (int o = tile * s.tile_outputs; o < std::min((tile + 1) * s.tile_outputs, s.O); ++o, ++outputs) {
        double value = activated(s.epilogue, product(s, x, o));
        if (gated) value *= product(s, x, int64_t{s.O} + o);
        y[o] = static_cast<float>(value + (add.empty() ? 0 : add[o]));
      }
    EXPECT_EQ(outputs, s.O);
    return y;
  }

  void rotate(const Instruction& s, std::vector<float>& all, int head, const void* weight) const {
    const int D = a_.head_dim;
    float* x = all.data() + head * D;
    double squares = 0;
    for (int d = 0; d < D; ++d) squares += x[d] * x[d];
    const double rstd = 1 / std::sqrt(squares / D + s.epsilon);
    for (int d = 0; weight && d < D; ++d) x[d] = static_cast<float>(x[d] * rstd * floats(weight)[d]);
    const float* angles = a_.angles[s.angles];
    for (int i = 0; angles && i < D / 2; ++i) {
      const float* angle = angles + (place() * (D / 2) + i) * 2;
      const float low = x[i], high = x[i + D / 2];
      x[i] = low * angle[0] - high * angle[1];
      x[i + D / 2] = high * angle[0] + low * angle[1];
    }
  }
  std::vector<float> attend(const Instruction& s) const {
    const int D = a_.head_dim, K = a_.kv_heads, H = K * a_.group;
    std::vector<float> heads = read(s.x, (H + 2 * K) * D, s.x_from), y(static_cast<size_t>(H * D));
    for (int h = 0; h < H + K; ++h) rotate(s, heads, h, h < H ? s.norm_weight : s.norm_bias);
    auto *k = static_cast<float*>(const_cast<void*>(s.weight)),
         *v = static_cast<float*>(const_cast<void*>(s.bias));
    EXPECT_TRUE(s.is_ring || place() < s.C);
    const int64_t newest = s.is_ring ? place() % s.C : place();
    std::copy_n(heads.begin() + H * D, K * D, k + newest * K * D);
    std::copy_n(heads.begin() + (H + K) * D, K * D, v + newest * K * D);
    for (int h = 0; h < H; ++h) {
      double sum = 0;
      std::vector<double> o(static_cast<size_t>(D));
      for (int64_t t = 0; t < std::min<int64_t>(place() + 1, s.C); ++t) {
        const int64_t at = (t * K + h / a_.group) * D;
        double score = 0;
        for (int d = 0; d < D; ++d) score += double{heads[h * D + d]} * k[at + d];
        const double power = std::exp(score * s.scale);
        sum += power;
        for (int d = 0; d < D; ++d) o[d] += power * v[at + d];
      }
      for (int d = 0; d < D; ++d) y[h * D + d] = static_cast<float>(o[d] / sum);
    }
    return y;
  }

  const Args& a_;
  std::vector<float> values_;
  std::vector<int> writers_;
};

ModelConfig gpt2() { return {.vocab_size = 61, .context = 64, .layers = 3, .heads = 2, .channels = 32}; }
std::vector<Variant> stepped_models() {
  std::vector<Variant> all{{"gpt2", gpt2()}};
  for (const auto& [name, model] : variants_of(gpt2()))
    if (!model.experts) all.push_back({name, model});
  for (const auto& [name, model] : parts_of(gpt2())) {
    const bool has_no_operation = model.norm_place != NormPlace::kBefore || model.norm_plus_one ||
                                  model.scale_embeddings || model.norm_embeddings ||
                                  (is_gated(model.mlp) && model.mlp != Mlp::kSwiglu) || model.experts ||
                                  model.qk_norm == QkNorm::kAllHeads || model.attention_sinks ||
                                  model.attention_cap > 0 || model.positions == Positions::kAlibi;
    if (!model.dropout && model.rope.share == 1 && !has_no_operation) all.push_back({name, model});
  }
  return all;
}

// A step of a model, on the CPU or as a plan
struct Step {
  Step(Backend& backend, Arena& arena, const ModelConfig& config, DType dtype, int64_t slots)
      : stream(backend, arena.alloc(MemoryTag::kWorkspace, "workspace", DType::kF32, {1 << 16})),
        store(stream, arena, {.model = config, .dtype = dtype}),
        cache(allocate_kv_cache(arena, config, dtype, slots, config.context)),
        one(decoding({.config = config,
                      .params = &store,
                      .attention = AttentionPlan{.dtype = dtype},
                      .angles = allocate_angles(stream, arena, config, {config.context}),
                      .local_angles = allocate_local_angles(stream, arena, config, {config.context})},
                     cache, backend.traits())),
        tokens(arena.alloc(MemoryTag::kData, "tokens", DType::kI32, {slots, 1})),
        logits(arena.alloc(MemoryTag::kActivations, "logits", dtype, {slots, config.padded_vocab()})),
        step(prepare_decode(stream, arena,
                            {.model = one,
                             .cache = cache,
                             .tokens = tokens,
                             .saved = allocate_saved(arena, one, Keep::nothing()),
                             .logits = logits})) {}
  Stream stream;
  ParamStore store;
  KvCache cache;
  Model one;
  Tensor tokens, logits;
  DecodeStep step;
};

std::vector<float> values_of(const Tensor& t) { return {t.as<float>(), t.as<float>() + t.numel()}; }

double error_of(const std::vector<float>& found, const std::vector<float>& wanted) {
  double error = 0, size = 0;
  for (size_t i = 0; i < wanted.size(); ++i)
    error += std::pow(found[i] - wanted[i], 2), size += std::pow(wanted[i], 2);
  return std::sqrt(error / size);
}

TEST(FusedDecodeStep, InstructionsComputeWhatTheOperationsDo) {
  for (const auto& [name, model] : stepped_models())
    for (const int blocks : {5, 132}) {
      SCOPED_TRACE(fmt::format("{}, {} blocks", name, blocks));
      const std::unique_ptr<Backend> cpu = make_cpu_backend();
      Arena arena = Arena::host();
      Step of(*cpu, arena, model, DType::kF32, 1);
      HostTensors make;
      for (const Tensor& bucket : of.store.weights().buckets)
        std::ranges::copy(values_of(make.normal(bucket.shape, 0.2, 0.1)), bucket.as<float>());
      for (const KvCache::Layer& layer : of.cache.layers)
        for (const Tensor& t : {layer.k, layer.v})
          std::ranges::copy(values_of(make.normal(t.shape)), t.as<float>());
      for (const int32_t place : {0, 37}) {
        *of.tokens.as<int32_t>() = 11, *of.cache.starts.as<int32_t>() = place;
        EXPECT_EQ(of.step.memory.data, nullptr);  // the CPU runs them one by one
        decode(of.stream, of.step);
        const std::vector<float> logits = values_of(of.logits), key = values_of(of.cache.layers[2].k),
                                 value = values_of(of.cache.layers[2].v);
        std::fill_n(of.logits.as<float>(), of.logits.numel(), 0.0f);
        const Tensor memory = make.zeros({1 << 20});
        const Args args = decode_step::lower(of.step.operations, memory, blocks);
        InPlainLoops in_loops(args);
        in_loops.run();
        cap_logits(of.stream, model, of.logits);  // a pass of its own
        EXPECT_LE(args.values + in_loops.values(), args.parts);
        EXPECT_LT(error_of(values_of(of.logits), logits), tolerance::kCachedLogits) << "at " << place;
        EXPECT_LT(error_of(values_of(of.cache.layers[2].k), key), tolerance::kCachedLogits);
        EXPECT_LT(error_of(values_of(of.cache.layers[2].v), value), tolerance::kCachedLogits);
      }
    }
}

// Of all instructions together, blocks have equally many tiles, but for one
TEST(FusedDecodeStep, TilesGoRoundTheBlocks) {
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  Arena arena = Arena::host();
  const Step of(*cpu, arena, gpt2(), DType::kF32, 1);
  HostTensors make;
  const Args args = decode_step::lower(of.step.operations, make.zeros({1 << 20}), 9);
  std::vector<int> of_block(9);
  for (int i = 0; i < args.count; ++i)
    for (int tile = 0; tile < args.instructions[i].tiles; ++tile)
      ++of_block[(args.instructions[i].first + tile) % 9];
  EXPECT_LE(std::ranges::max(of_block) - std::ranges::min(of_block), 1);
}

struct Planned {
  int64_t bytes;
  std::string why_not;
};
Planned plan_of(const ModelConfig& model, const DeviceTraits& device, DType dtype, int64_t slots) {
  const std::unique_ptr<Backend> plan = make_plan_backend(device);
  Arena arena = Arena::plan(device.device);
  const Step of(*plan, arena, model, dtype, slots);
  const int64_t bytes = decode_step_bytes(of.step.operations, device);
  EXPECT_EQ(static_cast<int64_t>(of.step.memory.bytes()), (bytes + 3) / 4 * 4);
  EXPECT_EQ(bytes > 0, of.step.why_separate_kernels.empty()) << of.step.why_separate_kernels;
  return {bytes, of.step.why_separate_kernels};
}
const DeviceTraits kH100{Device::kCuda, 90, "H100"}, kA100{Device::kCuda, 80, "A100"};

TEST(FusedDecodeStep, OneRowOfBf16OnHopperIsOneKernel) {
  for (const auto& [name, model] : stepped_models()) {
    SCOPED_TRACE(name);
    EXPECT_GT(plan_of(model, kH100, DType::kBF16, 1).bytes, 0);
    EXPECT_EQ(plan_of(model, kH100, DType::kBF16, 2).bytes, 0);
    EXPECT_EQ(plan_of(model, kH100, DType::kF32, 1).bytes, 0);
    EXPECT_EQ(plan_of(model, kA100, DType::kBF16, 1).bytes, 0);
    EXPECT_EQ(plan_of(model, {}, DType::kF32, 1).bytes, 0);
  }
}

// Rings are as long as their window. A text is as long as the shortest of what holds all of it.
TEST(FusedDecodeStep, KnowsWhichCachesAreRings) {
  ModelConfig model = gpt2();
  model.window = Windows({{13}, {Windows::kFull}});
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  const auto lowered = [&](const ModelConfig& of) {
    Arena arena = Arena::host();
    HostTensors make;
    const Step step(*cpu, arena, of, DType::kF32, 1);
    return decode_step::lower(step.step.operations, make.zeros({1 << 20}), 5);
  };
  const auto attends = [](const Args& args) {
    std::vector<std::tuple<int, bool, int>> found;
    for (int i = 0; i < args.count; ++i)
      if (const Instruction& s = args.instructions[i]; s.kind == InstructionKind::kAttend)
        found.emplace_back(s.C, s.is_ring, s.angles);
    return found;
  };
  using Attends = std::vector<std::tuple<int, bool, int>>;
  EXPECT_EQ(attends(lowered(model)), (Attends{{13, true, 0}, {64, false, 0}, {13, true, 0}}));
  model.positions = Positions::kRope, model.rope.local_theta = 100;
  const Args two_kinds = lowered(model);
  EXPECT_EQ(attends(two_kinds), (Attends{{13, true, 0}, {64, false, 1}, {13, true, 0}}));
  EXPECT_TRUE(two_kinds.angles[0] && two_kinds.angles[1]);
  model.window = Windows(13), model.rope.local_theta = 0;
  EXPECT_EQ(lowered(model).capacity, 64) << "as many angles";
  model.positions = Positions::kLearned;
  EXPECT_EQ(lowered(model).capacity, 64) << "as many positions";
}

TEST(FusedDecodeStep, SaysWhyItIsNotOneKernel) {
  const auto why_not = [](const std::function<void(ModelConfig&)>& change, int64_t slots = 1) {
    ModelConfig model = gpt2();
    change(model);
    return plan_of(model, kH100, DType::kBF16, slots).why_not;
  };
  EXPECT_EQ(why_not([](ModelConfig&) {}), "");
  const auto expect_numbers = [](const std::string& why, int64_t found, int64_t limit) {
    EXPECT_NE(why.find(std::to_string(found)), std::string::npos) << why;
    EXPECT_NE(why.find(std::to_string(limit)), std::string::npos) << why;
  };
  expect_numbers(why_not([](ModelConfig& m) { m.head_dim = 136; }), 136, decode_step::kMostHeadDim);
  expect_numbers(why_not([](ModelConfig& m) { m.heads = 9, m.kv_heads = 1, m.head_dim = 16; }), 9,
                 decode_step::kMostGroup);
  expect_numbers(why_not([](ModelConfig& m) { m.layers = 60; }), 60, decode_step::kMostAttends);
  EXPECT_EQ(why_not([](ModelConfig& m) { m.window = Windows(m.context); }), "");  // no token is ever replaced
  expect_numbers(why_not([](ModelConfig& m) { m.channels = 4104; }), 4104, decode_step::kMostNormed);
  expect_numbers(why_not([](ModelConfig& m) { m.mlp_width = 16392; }), 16392, decode_step::kMostInputs);
  expect_numbers(
      why_not([](ModelConfig& m) { m.positions = Positions::kRope, m.head_dim = 24, m.rope.share = 0.75; }),
      18, 24);
  EXPECT_NE(why_not([](ModelConfig&) {}, 3).find("3 texts"), std::string::npos);
  EXPECT_NE(why_not([](ModelConfig& m) { m.lora = {.rank = 2}; }).find("LoRA"), std::string::npos);
  EXPECT_NE(plan_of(gpt2(), kH100, DType::kF32, 1).why_not.find("fp32"), std::string::npos);
  EXPECT_NE(plan_of(gpt2(), kA100, DType::kBF16, 1).why_not.find("8.0"), std::string::npos);
}

// Blocks write the same few buffers, however many they are.
TEST(FusedDecodeStep, TakesTheMemoryOfOneBlock) {
  ModelConfig deep = gpt2();
  deep.layers = 12;
  EXPECT_EQ(plan_of(deep, kH100, DType::kBF16, 1).bytes, plan_of(gpt2(), kH100, DType::kBF16, 1).bytes);
}

}  // namespace
}  // namespace tessera::testing
