// What operations need at least, the rows of a roofline, and what ./bench step --roofline writes.
#include "train/bench/roofline.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "model/presets.h"
#include "tests/train_program.h"
#include "tests/train_steps.h"
#include "train/bench/op_recorder.h"
#include "train/bench/time_steps.h"

namespace tessera::testing {
namespace {

Tensor bf16(Shape shape) { return {nullptr, DType::kBF16, shape, Device::kCuda}; }
Tensor fp32(Shape shape) { return {nullptr, DType::kF32, shape, Device::kCuda}; }

template <class Op>
OpCost cost(const Op& op) {
  return cost_of(AnyOp(&op));
}

TEST(OpCost, OfAProductIsThatOfItsTensors) {
  const LinearForward forward{
      .x = bf16({4, 6}), .weight = bf16({5, 6}), .y = bf16({4, 5}), .bias = bf16({5}), .add = bf16({4, 5})};
  EXPECT_EQ(cost(forward), (OpCost{.bytes = 2 * (24 + 30 + 20 + 5 + 20), .flops = 2 * 4 * 6 * 5}));

  using Part = LinearBackward::Part;
  LinearBackward backward{.dy = bf16({4, 5}),
                          .x = bf16({4, 6}),
                          .weight = bf16({5, 6}),
                          .dx = bf16({4, 6}),
                          .dweight = bf16({5, 6}),
                          .dbias = bf16({5}),
                          .pre_activation = bf16({4, 6})};
  EXPECT_EQ(cost_of(backward, Part::kWeight),
            (OpCost{.bytes = 2 * (20 + 24 + 30 + 30 + 5 + 5), .flops = 240}));
  EXPECT_EQ(cost_of(backward, Part::kInput), (OpCost{.bytes = 2 * (20 + 30 + 24 + 24), .flops = 240}));
  EXPECT_EQ(cost(backward).flops, 480);
  EXPECT_EQ(cost(backward).fp8_flops, 0);
  const Fp8Matrix fp8{.data = {nullptr, DType::kE5M2, {4, 5}, Device::kCuda}, .scale = fp32({1})},
      fp8_weight{.data = {nullptr, DType::kE4M3, {6, 5}, Device::kCuda}, .scale = fp32({1})};
  backward.fp8_dy = fp8, backward.fp8_weight = fp8_weight;
  EXPECT_EQ(cost_of(backward, Part::kInput), (OpCost{20 + 30 + 2 * (24 + 24), 240, 240}));
  EXPECT_EQ(cost_of(backward, Part::kWeight).fp8_flops, 0);
  backward.fp8_dy = backward.fp8_weight = {};
  backward.dweight = backward.dbias = {};  // frozen
  EXPECT_EQ(cost(backward), cost_of(backward, Part::kInput));

  const LoraForward adapter{.x = bf16({4, 6}),
                            .a = bf16({2 * 3, 6}),
                            .b = bf16({5, 3}),
                            .parts = {4, 1},
                            .scale = 1,
                            .u = bf16({4, 6}),
                            .y = bf16({4, 5})};
  EXPECT_EQ(cost(adapter).flops, 2 * 4 * 6 * 6 + 2 * 4 * 5 * 3);
}

TEST(OpCost, OfAttentionCountsThePairsThatSeeEachOther) {
  AttentionPlan plan{
      .shape = {.batch = 3, .tokens = 5, .heads = 4, .head_dim = 8, .kv_heads = 2, .kv_tokens = 5},
      .dtype = DType::kBF16};
  const Tensor qkv = bf16({3, 5, 8, 8}), y = bf16({3, 5, 4, 8});
  const PackedHeads heads(qkv, plan.shape);
  const double pairs = 3 * 15, product = 2 * 4 * 8 * pairs, q = 2 * 3 * 5 * 4 * 8, k = q / 2,
               lse = 4 * 3 * 4 * 5;
  const AttentionForward forward{
      .plan = plan, .q = heads.q, .k = heads.k, .v = heads.v, .y = all_heads(y), .saved = fp32({3, 4, 5})};
  EXPECT_EQ(cost(forward), (OpCost{.bytes = 2 * q + 2 * k + lse, .flops = 2 * product}));
  const AttentionBackward backward{.plan = plan,
                                   .q = heads.q,
                                   .k = heads.k,
                                   .v = heads.v,
                                   .y = all_heads(y),
                                   .saved = fp32({3, 4, 5}),
                                   .dy = all_heads(y),
                                   .dq = heads.q,
                                   .dk = heads.k,
                                   .dv = heads.v};
  EXPECT_EQ(cost(backward), (OpCost{.bytes = 4 * q + 4 * k + lse, .flops = 5 * product}));
  plan.shape.mask.window = 2;  // the first query sees one key, the others two
  EXPECT_EQ(cost(forward).flops, 2 * 2 * 4 * 8 * 3 * 9);
  EXPECT_EQ(shape_text(&forward), "3 x 4 x 5 x 8, 2 of keys, window 2");
  plan.shape.mask.window = 0;
  plan.shape.mask.blocks = {.size = 128, .causal_pairs = 3};  // of 15
  EXPECT_EQ(shape_text(&forward), "3 x 4 x 5 x 8, 2 of keys, sparse: 20.0% of the pairs");
  plan.shape.mask.blocks = {};
  EXPECT_EQ(shape_text(&forward), "3 x 4 x 5 x 8, 2 of keys");
  // Of ten queries half were dealt to this rank, and a window is in their tables.
  plan.shape.mask = AttentionMask::of_dealt_queries();
  plan.shape.kv_tokens = 10;
  EXPECT_EQ(cost(forward).flops, 2 * 2 * 4 * 8 * 3 * 55 / 2);
  plan.shape.mask.window = 2;
  EXPECT_EQ(cost(forward).flops, 2 * 2 * 4 * 8 * 3 * 19 / 2);
  plan.shape.mask = {/*is_causal=*/false};
  plan.shape.kv_tokens = 5;
  EXPECT_EQ(cost(forward).flops, 2 * 2 * 4 * 8 * 3 * 25);
}

TEST(OpCost, OfAPassIsItsBytes) {
  const LayerNormForward norm{.x = bf16({7, 16}),
                              .weight = bf16({16}),
                              .bias = bf16({16}),
                              .y = bf16({7, 16}),
                              .mean = fp32({7}),
                              .rstd = fp32({7})};
  EXPECT_EQ(cost(norm), (OpCost{.bytes = 2 * 7 * 16 * 2 + 2 * 16 * 2 + 2 * 7 * 4, .flops = 0}));
  CrossEntropy loss{.logits = bf16({7, 128}),
                    .targets = {nullptr, DType::kI32, {7}, Device::kCuda},
                    .losses = fp32({7}),
                    .vocab_size = 100,
                    .want_gradient = false};
  EXPECT_EQ(cost(loss).bytes, 7 * 128 * 2 + 7 * 8);
  loss.want_gradient = true;
  EXPECT_EQ(cost(loss).bytes, 2 * 7 * 128 * 2 + 7 * 8);
  loss.fp8_dlogits = {.y = {{nullptr, DType::kE5M2, {7, 128}, Device::kCuda}, fp32({1})}, .amax = fp32({1})};
  EXPECT_EQ(cost(loss).bytes, 2 * 7 * 128 * 2 + 7 * 128 + 7 * 8);
  const auto adamw = [](const Tensor& param, const Tensor& low, const Tensor& grad, const Tensor& moment) {
    return cost(AdamW{.parts = {{.param = param, .low = low, .grad = grad, .m = moment, .v = moment}},
                      .grad_norm = fp32({1}),
                      .max_norm = 1,
                      .learning_rate = 1,
                      .beta1 = 0.9,
                      .beta2 = 0.9,
                      .epsilon = 1e-8,
                      .weight_decay = 0,
                      .step = 1})
        .bytes;
  };
  // The weight, the lower bits of its master, the gradient, the moments
  const Tensor low{nullptr, DType::kU16, {64}, Device::kCuda};
  EXPECT_EQ(adamw(bf16({64}), low, bf16({64}), fp32({64})), 64 * (2 * 2 + 2 * 2 + 2 + 2 * 4 + 2 * 4));
  EXPECT_EQ(adamw(fp32({64}), {}, fp32({64}), bf16({64})), 64 * (2 * 4 + 4 + 2 * 2 + 2 * 2));
  EXPECT_EQ(cost(Copy{{nullptr, DType::kF32, {9}, Device::kCpu}, fp32({9})}).bytes, 36);  // the device's side
}

// The products of a step: 6 operations for each weight of a matrix and token, padding included, and of
// attention 2 products forward and 5 backward. The formula that tokens/s are turned into TFLOP/s with counts
// every parameter but padding, attention's backward as two forwards, and as many pairs as T^2 / 2.
TEST(OpCost, OfAStepIsTheFormulaAndAKnownRest) {
  struct Sum final : OpObserver {
    void before(const AnyOp& op, Backend&, const Launch&) override { all += cost_of(op); }
    void after(const AnyOp&, Backend&, const Launch&) override {}
    OpCost all;
  };
  ModelConfig windowed = preset_model(Preset::kQwen3_06b);
  windowed.window = Windows({{64, 5}, {Windows::kFull}});
  const ModelConfig gpt2 = preset_model(Preset::kGpt2Small);
  for (const ModelConfig& model :
       {gpt2, preset_model(Preset::kQwen3_06b), preset_model(Preset::kSmollm2_135m), windowed}) {
    SCOPED_TRACE(fmt::format("{} layers, window {}", model.layers, text_of(model.window)));
    const RunShape shape{
        .model = model, .micro_batch = 2, .micro_steps = 1, .sequence_length = 512, .dtype = DType::kBF16};
    const std::unique_ptr<Backend> be =
        make_plan_backend({.device = Device::kCuda, .arch = 90, .name = "planned"});
    Arena arena = Arena::plan(Device::kCuda);
    TrainState state(*be, arena, shape);
    Sum sum;
    be->add_observer(sum);
    state.walk_step();

    double multiplied = 0, counted_parameters = static_cast<double>(model.parameters());
    for (const ParamPlace& place : state.store().layout().places) {
      const bool looked_up =
          place.info.name == kPositionTable || (place.info.name == kTokenTable && !model.tied);
      if (place.info.decay && !looked_up) multiplied += static_cast<double>(place.info.shape.numel());
    }
    if (!model.tied) counted_parameters -= static_cast<double>(model.vocab_size * model.channels);
    const double tokens = static_cast<double>(shape.tokens_per_step()), T = model.attention_span(512);
    const double width = static_cast<double>(model.layers * model.attention_width());
    // The gradient of a bias of the values is one row times W_O.
    const double of_biases = model == gpt2 ? 2 * 12 * 768 * 768 : 0;
    EXPECT_DOUBLE_EQ(sum.all.flops, 6 * multiplied * tokens + 7 * width * (T + 1) * tokens + of_biases);
    EXPECT_DOUBLE_EQ(sum.all.flops, shape.flops_per_token() * tokens +
                                        6 * (multiplied - counted_parameters) * tokens +
                                        (7 * (T + 1) - 6 * T) * width * tokens + of_biases);
  }
}

// 100 pairs in 20 ms of full blocks, 50 in 14 within windows, where 10 would do: 4 ms too many
TEST(Roofline, ComparesPairsWithinWindowsWithThoseOfOtherBlocks) {
  Roofline roofline{.what = "", .device = "", .step_ms = 84};
  const auto add = [&](const char* operation, const char* shape, double ms, double flops) {
    roofline.rows.push_back({.operation = operation, .shape = shape, .calls = 1, .ms = ms, .flops = flops});
  };
  add("attention forward", "1 x 2 x 3 x 4", 20, 100);
  add("attention backward", "1 x 2 x 3 x 4", 20, 100);
  add("copy", "", 30, 0);
  EXPECT_EQ(roofline.cost_of_windows(), 0);
  EXPECT_EQ(table_of(roofline).find("window"), std::string::npos);
  add("attention forward", "1 x 2 x 3 x 4, window 9", 14, 50);
  EXPECT_DOUBLE_EQ(roofline.cost_of_windows(), 84.0 / 80);
  EXPECT_NE(table_of(roofline).find("1.050"), std::string::npos);
  EXPECT_NE(to_markdown(roofline).find("1.050"), std::string::npos);
  EXPECT_EQ(to_json(roofline)["cost_of_windows"], roofline.cost_of_windows());
}

Roofline made_up_roofline() {
  Roofline roofline{
      .what = "a <made-up> model",
      .device = "a GPU",
      .bytes_per_second = 2e12,
      .flop_per_second = 5e14,
      .step_ms = 12,
      .rows = {{"norm", "8 x 4", 25, 2, 2e9, 0}, {"qkv, forward", "8 x 4 x 12", 12, 8, 4e9, 2e12}}};
  sort_by_time(roofline);
  return roofline;
}

TEST(Roofline, BoundIsTheLargerOfTwoTimes) {
  const Roofline r = made_up_roofline();
  EXPECT_EQ(r.rows[0].operation, "qkv, forward");  // the longest first
  EXPECT_DOUBLE_EQ(r.bound_ms(r.rows[0]), 4);      // 2e12 / 5e14 s, and 2 ms of bytes
  EXPECT_DOUBLE_EQ(r.bound_ms(r.rows[1]), 1);
  EXPECT_DOUBLE_EQ(r.sum_of_bounds(), 5);
  EXPECT_DOUBLE_EQ(r.sum().ms, 10);
  EXPECT_EQ(r.sum().calls, 37);
  EXPECT_DOUBLE_EQ(r.gap_ms(), 2);
}

TEST(Roofline, ProductsInFp8HaveABoundOfTheirOwn) {
  Roofline r = made_up_roofline();
  r.fp8_flop_per_second = 1e15;
  r.rows[0].flops = 6e12, r.rows[0].fp8_flops = 5e12;
  EXPECT_DOUBLE_EQ(r.bound_ms(r.rows[0]), 2 + 5);
  EXPECT_NE(to_markdown(r).find("500.00 TFLOP/s (1000.00 in FP8)"), std::string::npos);
  EXPECT_EQ(to_json(r)["rows"][0]["fp8_flops"], 5e12);
}

TEST(Roofline, TablesHaveTheRowsTheirSumAndTheGap) {
  const std::string markdown = to_markdown(made_up_roofline());
  EXPECT_EQ(markdown,
            "a <made-up> model, on a GPU.\n"
            "2000.0 GB/s of a copy, 500.00 TFLOP/s of the GEMM peak, both measured in this run.\n\n"
            "| Operation | Shape | Calls | ms | GB | TFLOP | Bound, ms | Share |\n"
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
            "| qkv, forward | 8 x 4 x 12 | 12 | 8.000 | 4.000 | 2.000 | 4.000 | 50.0% |\n"
            "| norm | 8 x 4 | 25 | 2.000 | 2.000 |  | 1.000 | 50.0% |\n"
            "| sum |  | 37 | 10.000 | 6.000 | 2.000 | 5.000 | 50.0% |\n"
            "| gap: launches, the host |  |  | 2.000 |  |  |  |  |\n"
            "| step |  |  | 12.000 |  |  | 5.000 | 41.7% |\n");
  const std::string table = table_of(made_up_roofline());
  EXPECT_EQ(std::ranges::count(table, '\n'), 7);
  for (const char* part : {"qkv, forward", "8 x 4 x 12", "500.00 TFLOP/s", "41.7%"})
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  const nlohmann::ordered_json json = to_json(made_up_roofline());
  EXPECT_EQ(json["rows"][0]["share"], 0.5);
  EXPECT_EQ(json["gap_ms"], 2.0);
}

TEST(OpRecorder, HasARowForEachProductAndThePartsOfItsBackward) {
  const ModelConfig model{.vocab_size = 130, .context = 16, .layers = 3, .heads = 2, .channels = 32};
  const RunShape shape{.model = model, .micro_batch = 2, .micro_steps = 1, .sequence_length = 16};
  const std::unique_ptr<Backend> be = make_cpu_backend();
  OpRecorder recorder(*be, model);
  Arena arena = Arena::host();
  const StepTimes times = time_steps(*be, arena, shape, kTestOptimizer,
                                     {.warmup = 1, .steps = 2, .before_step = [&](int64_t step) {
                                        if (step == 0) recorder.clear();
                                        recorder.let_host_get_ahead();
                                      }});
  double ms = 0, flops = 0;
  std::map<std::string, RooflineRow> rows;
  for (const RooflineRow& row : recorder.rows(2)) {
    EXPECT_TRUE(rows.emplace(row.operation, row).second) << row.operation << " has two rows";
    EXPECT_GT(row.ms, 0) << row.operation;
    ms += row.ms, flops += row.flops;
  }
  EXPECT_LT(ms, 1e3 * (times.seconds[0] + times.seconds[1]) / 2);
  const std::map<std::string, int64_t> products{{"attention.qkv", 3 * 32 * 32},
                                                {"attention.out", 32 * 32},
                                                {"mlp.expand", 4 * 32 * 32},
                                                {"mlp.contract", 4 * 32 * 32},
                                                {"head", 32 * 256}};
  double of_products = 0;
  for (const auto& [name, weights] : products) {
    const RooflineRow &forward = rows[name + ", forward"], &backward = rows[name + ", backward"];
    const int64_t calls = name == "head" ? 1 : 3;
    EXPECT_EQ(forward.calls, calls) << name;
    EXPECT_EQ(backward.calls, calls) << name;
    EXPECT_EQ(forward.flops, 2.0 * 32 * static_cast<double>(weights * calls)) << name;
    EXPECT_EQ(backward.flops, 2 * forward.flops) << name;
    of_products += forward.flops + backward.flops;
  }
  EXPECT_EQ(rows["attention.qkv, forward"].shape, "32 x 32 x 96");
  EXPECT_EQ(rows["attention forward"].shape, "2 x 2 x 16 x 16");
  EXPECT_EQ(rows["layernorm forward"].calls, 7);
  const double attention = rows["attention forward"].flops + rows["attention backward"].flops;
  EXPECT_GT(attention, 0);
  const double of_biases = 3 * 2 * 32 * 32;  // of the values: one row times W_O
  EXPECT_EQ(flops, of_products + attention + of_biases);
}

// A device tells the parts of a backward.
TEST(OpRecorder, TimesThePartsThatADeviceTells) {
  class Telling final : public Backend {
   public:
    const DeviceTraits& traits() const override { return traits_; }
    void synchronize(CUstream_st*) override {}

   private:
    void do_(const AnyOp& op, const Launch& launch) override {
      if (!std::holds_alternative<const LinearBackward*>(op)) return;
      tell_part(LinearBackward::Part::kWeight, launch);
    }
    DeviceTraits traits_;
  } be;
  OpRecorder recorder(be, {.vocab_size = 130, .context = 16, .layers = 3, .heads = 2, .channels = 32});
  HostTensors make;
  const Tensor x = make.zeros({4, 32}), dy = make.zeros({4, 96}), weight = make.zeros({96, 32});
  Stream(be).run(LinearBackward{
      .dy = dy, .x = x, .weight = weight, .dx = x, .dweight = weight, .dbias = make.zeros({96})});
  std::vector<std::string> names;
  for (const RooflineRow& row : recorder.rows(1)) names.push_back(row.operation);
  EXPECT_EQ(names, (std::vector<std::string>{"attention.qkv, dW", "attention.qkv, dX"}));
}

struct BenchRoofline : TrainProgram {
  BenchRoofline()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 32\n  layers: 2\n  heads: 2\n  channels: 32\n"
            "train:\n  micro_batch: 2\n  tokens_per_step: 64\n") {}
  ProcessResult step(std::vector<std::string> words) const {
    words.insert(words.begin(), {"step", "small.yaml", "--steps", "2", "--warmup", "1"});
    return run_process(BENCH_BINARY, words, {.folder = folder});
  }
};

// One that is timed as a whole, and one by operation
TEST_F(BenchRoofline, OneStepWithoutWarmUpMakesTwo) {
  const ProcessResult result =
      run_process(BENCH_BINARY, {"step", "small.yaml", "--steps", "1", "--warmup", "0"}, {.folder = folder});
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_NE(result.out.find("for the 2 steps that are made"), std::string::npos) << result.out;
}

// A timed step makes only a few of many micro-batches; the figures describe the whole step.
TEST_F(BenchRoofline, AStepIsTheOneThatTheConfigurationDescribes) {
  for (const int64_t micro_batches : {1, 2, 3, 8}) {
    const int64_t tokens = 64 * micro_batches;
    const ProcessResult result =
        step({"--set", fmt::format("train.tokens_per_step={}", tokens), "--json", "step.json", "--roofline"});
    ASSERT_EQ(result.status, 0) << result.error;
    const nlohmann::json json = nlohmann::json::parse(read_file(folder / "step.json"));
    EXPECT_EQ(json["tokens_per_step"], tokens);
    EXPECT_EQ(json["micro_batches"], micro_batches);
    const int64_t timed = json["timed_micro_batches"];
    EXPECT_EQ(timed, std::min<int64_t>(micro_batches, 4));
    const double step_ms = json["step_ms"], each = json["micro_batch_ms"], update = json["update_ms"];
    EXPECT_GT(each, 0);
    EXPECT_GT(update, 0);
    EXPECT_GT(step_ms, static_cast<double>(micro_batches - timed) * each);
    EXPECT_DOUBLE_EQ(json["tokens_per_second"], static_cast<double>(tokens) / (step_ms / 1e3));
    EXPECT_EQ(json["gemm_peak_dtype"], "fp32");
    EXPECT_NE(result.out.find(" ms    update\n"), std::string::npos) << result.out;
  }
}

TEST_F(BenchRoofline, AStepInFp8IsComparedWithThePeakOfFp8) {
  const ProcessResult result =
      step({"--set", "train.gemm_dtype=fp8", "--set", "train.fp8.edges=true", "--json", "step.json"});
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(nlohmann::json::parse(read_file(folder / "step.json"))["gemm_peak_dtype"], "fp8");
  EXPECT_NE(result.out.find("of the FP8 GEMM peak"), std::string::npos) << result.out;
}

TEST_F(BenchRoofline, PrintsAndWritesTheTable) {
  const ProcessResult result = step({"--roofline", "--json", "step.json", "--markdown", "roofline.md"});
  ASSERT_EQ(result.status, 0) << result.error;
  for (const char* part : {"roofline: ", "mlp.expand, forward", "head, backward", "adamw", "gap: launches"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  const nlohmann::json json = nlohmann::json::parse(read_file(folder / "step.json"));
  const nlohmann::json& roofline = json["roofline"];
  double sum = 0;
  for (const nlohmann::json& row : roofline["rows"]) sum += row["ms"].get<double>();
  EXPECT_DOUBLE_EQ(roofline["sum_ms"].get<double>(), sum);
  EXPECT_DOUBLE_EQ(roofline["gap_ms"].get<double>(), json["step_ms"].get<double>() - sum);
  const std::string markdown = read_file(folder / "roofline.md");
  EXPECT_EQ(static_cast<size_t>(std::ranges::count(markdown, '\n')), roofline["rows"].size() + 8);
  EXPECT_NE(markdown.find("| mlp.expand, forward | 64 x 32 x 128 | 2 |"), std::string::npos) << markdown;

  const ProcessResult refused = step({"--markdown", "roofline.md"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.error.find("--roofline"), std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
