#include "kernels/expert_ops.h"
#include "model/stages/rows.h"

namespace tessera {
namespace {

// Rows of tokens, choices and rows of experts, of the batch
int64_t choices_of(const SavedShape& shape) { return shape.rows() * shape.config.experts.active; }
bool has_experts(const BlockSpec& spec) { return spec.experts; }
void adapter_saved(const SavedShape& shape, Stage stage, size_t which, const char* name, Tensor& tensor,
                   const TakeSaved& take) {
  const int64_t columns = adapter_columns(shape, stage, which);
  const bool of_experts = shape.kind.linears_of(stage)[which].linear.of_experts();
  if (columns > 0)
    take({name, shape.plan.dtype, {of_experts ? choices_of(shape) : shape.rows(), columns}}, tensor);
}
// [N], of the losses of routers; none: all count
Tensor counted_rows(const Block& b) {
  const Tensor& counted = b.pass.batch.counted;
  return counted ? counted.view({counted.numel()}) : Tensor{};
}

// The adapters of routers and experts, whose layers are no LinearForward. Those of a shared expert are.
void add_adapter(const Block& b, const LinearLayer& layer, const Tensor& x, const Tensor& y,
                 const Tensor& offsets = {}, const Tensor& x_rows = {}) {
  if (layer.adapted())
    b.stream.run(ExpertsLoraForward{.x = x,
                                    .a = layer.weights.lora_a,
                                    .b = layer.weights.lora_b,
                                    .scale = layer.scale,
                                    .u = layer.u,
                                    .y = y,
                                    .offsets = offsets,
                                    .x_rows = x_rows});
}
// y = x W[e]^T + bias for the rows of each expert, then the adapter's part
void experts_forward(const Block& b, const LinearLayer& layer, ExpertsForward op) {
  quantise_operands(b.stream, layer.fp8, op, layer.saturated_x);
  b.stream.run(op);
  add_adapter(b, layer, op.x, op.y, op.offsets, op.x_rows);
}
ExpertsLoraBackward of_rows(const Tensor& dy, const Tensor& x, bool accumulate) {
  return {.dy = dy, .x = x, .b = {}, .scale = 0, .u = {}, .da = {}, .db = {}, .accumulate = accumulate};
}
// Before the layer's own backward, which may overwrite x. `op`: dy, x, and what they are rows of
void adapter_gradients(const Block& b, const LinearLayer& layer, const LinearWeights& to,
                       ExpertsLoraBackward op) {
  if (!layer.adapted()) return;
  op.b = layer.weights.lora_b, op.scale = layer.scale, op.u = layer.u;
  op.da = to.lora_a, op.db = to.lora_b;
  b.stream.run(op);
}
// After it
void add_adapter_input(const Block& b, const LinearLayer& layer, const Tensor& dx,
                       const Tensor& offsets = {}) {
  if (layer.adapted())
    b.stream.run(ExpertsLoraInput{.u = layer.u, .a = layer.weights.lora_a, .dx = dx, .offsets = offsets});
}

// The backward of experts_forward(). The adapter's gradients come first, since dx may overwrite x.
void experts_backward(const Block& b, const LinearLayer& layer, const LinearWeights& to, ExpertsBackward op) {
  ExpertsLoraBackward adapter = of_rows(op.dy, op.x, op.accumulate);
  adapter.offsets = op.offsets, adapter.x_rows = op.x_rows;
  adapter.dy_rows = op.dy_rows, adapter.weights = op.weights;
  adapter_gradients(b, layer, to, adapter);
  quantise_operands(b.stream, layer.fp8, op, layer.saturated_dy);
  b.stream.run(op);
  add_adapter_input(b, layer, op.dx, op.offsets);
}

// router: logits = norm2 W^T + bias, in fp32; and the logit of the shared expert

std::vector<LinearOfStage> router_linears(const ModelConfig& c, const BlockSpec& spec) {
  std::vector<LinearOfStage> all{
      {.linear = {.name = "experts.router",
                  .part = ParamPart::kRouter,
                  .rows = {c.experts.count},
                  .columns = c.channels,
                  .bias = c.has_mlp_bias(),
                  .init = Init::kNormal},
       .weights = [](const BlockParams& w) -> const LinearWeights& { return w.experts.router; },
       .adapter = [](const BlockSaved& s) -> const Tensor& { return s.experts.router_adapter; }}};
  if (spec.shared_expert)
    all.push_back(
        {.linear = {.name = "experts.shared_gate",
                    .part = ParamPart::kRouter,
                    .rows = {1},
                    .columns = c.channels,
                    .bias = false,
                    .init = Init::kNormal},
         .weights = [](const BlockParams& w) -> const LinearWeights& { return w.experts.shared_gate; },
         .adapter = [](const BlockSaved& s) -> const Tensor& { return s.experts.shared_gate_adapter; }});
  return all;
}
void router_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  adapter_saved(shape, Stage::kRouter, 0, "adapter of the router", s.experts.router_adapter, take);
  take({"router logits", DType::kF32, {shape.rows(), shape.config.experts.count}}, s.experts.logits);
  if (!shape.kind.spec.shared_expert) return;
  adapter_saved(shape, Stage::kRouter, 1, "adapter of the shared expert's gate",
                s.experts.shared_gate_adapter, take);
  take({"logit of the shared expert", DType::kF32, {shape.rows(), 1}}, s.experts.shared_logit);
}
const Tensor& experts_input(const Block& b) { return read_by(b, b.s.norm2.y, b.s.residual_mid); }
void router_forward(const Block& b, const Neighbours&) {
  b.stream.run(RouterForward{.x = experts_input(b),
                             .weight = b.w.experts.router.weight,
                             .logits = b.s.experts.logits,
                             .bias = b.w.experts.router.bias});
  add_adapter(b, b.linear(Stage::kRouter), experts_input(b), b.s.experts.logits);
  if (!b.spec.shared_expert) return;
  b.stream.run(RouterForward{
      .x = experts_input(b), .weight = b.w.experts.shared_gate.weight, .logits = b.s.experts.shared_logit});
  add_adapter(b, b.linear(Stage::kRouter, 1), experts_input(b), b.s.experts.shared_logit);
}
// The gradient of the tokens is that of the router, those of their rows and that of the shared expert, which
// kExperts left.
void router_backward(const Block& b, const BlockGradients& g, const Neighbours&) {
  const Tensor& x = experts_input(b);
  const Tensor& dx = read_by(b, x, g.d);
  const Tensor& of_shared = b.s.experts.shared_y;
  const LinearLayer router = b.linear(Stage::kRouter);
  if (b.spec.shared_expert) {
    const LinearLayer gate = b.linear(Stage::kRouter, 1);
    adapter_gradients(b, gate, g.w.experts.shared_gate, of_rows(b.s.experts.shared_logit, x, g.accumulate));
    b.stream.run(RouterBackward{.d_logits = b.s.experts.shared_logit,
                                .x = x,
                                .weight = b.w.experts.shared_gate.weight,
                                .dx = of_shared,
                                .dweight = g.w.experts.shared_gate.weight,
                                .add = of_shared,
                                .accumulate = g.accumulate});
    add_adapter_input(b, gate, of_shared);
  }
  adapter_gradients(b, router, g.w.experts.router, of_rows(b.s.experts.logits, x, g.accumulate));
  b.stream.run(RouterBackward{.d_logits = b.s.experts.logits,
                              .x = x,
                              .weight = b.w.experts.router.weight,
                              .dx = dx,
                              .dweight = g.w.experts.router.weight,
                              .dbias = g.w.experts.router.bias,
                              .add = b.spec.shared_expert ? of_shared : read_by(b, {}, g.d),
                              .accumulate = g.accumulate});
  add_adapter_input(b, router, dx);
  b.stream.run(SumExperts{.x = b.expert_rows, .places = b.s.experts.places, .add = dx, .y = dx});
}

// choices: of each token its experts and their weights; of each expert its rows

void choices_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  const Shape per_choice{shape.rows(), shape.config.experts.active};
  take({"chosen experts", DType::kI32, per_choice}, s.experts.choices);
  take({"weights of experts", DType::kF32, per_choice}, s.experts.weights);
  take({"first rows of experts", DType::kI32, {shape.config.experts.count + 1}}, s.experts.offsets);
  take({"rows of experts", DType::kI32, {choices_of(shape)}}, s.experts.rows);
  take({"places among the rows of experts", DType::kI32, per_choice}, s.experts.places);
}
void choices_forward(const Block& b, const Neighbours&) {
  const ExpertsSaved& s = b.s.experts;
  b.stream.run(ChooseExperts{
      .logits = s.logits, .rule = b.config.experts.rule(), .choices = s.choices, .weights = s.weights});
  b.stream.run(AssignExperts{.choices = s.choices,
                             .offsets = s.offsets,
                             .rows = s.rows,
                             .places = s.places,
                             .counts = b.pass.choice_counts,
                             .counted = b.pass.choice_counts ? counted_rows(b) : Tensor{}});
  if (const Probe* probe = b.pass.probe) {
    const auto layer = static_cast<int64_t>(b.layer);
    b.stream.run(RouterSample{.logits = s.logits,
                              .offsets = s.offsets,
                              .loads = probe->expert_loads.rows(layer, 1).view({b.config.experts.count}),
                              .entropy = probe->router_entropies.rows(layer, 1)});
  }
}
void choices_backward(const Block& b, const BlockGradients&, const Neighbours&) {
  const Model& model = b.pass.model;
  const auto [balance, z] = model.router_losses;
  ChooseExpertsBackward op{.logits = b.s.experts.logits,
                           .choices = b.s.experts.choices,
                           .d_weights = b.s.experts.weights,
                           .rule = b.config.experts.rule()};
  if (model.choice_counts) {
    op.counts = model.choice_counts, op.counted = counted_rows(b);
    op.balance = static_cast<float>(balance * static_cast<double>(b.config.experts.count));
    op.z = static_cast<float>(z);
  }
  b.stream.run(op);
}

// experts: gate_up = norm2 W^T + bias of each row's expert, and of the shared one

std::vector<LinearOfStage> experts_expand_linears(const ModelConfig& c, const BlockSpec& spec) {
  const int64_t F = c.experts.width;
  std::vector<LinearOfStage> all{
      {.linear = {.name = "experts.expand",
                  .part = ParamPart::kMlp,
                  .rows = {F, F},
                  .columns = c.channels,
                  .bias = c.has_mlp_bias(),
                  .init = Init::kNormal,
                  .count = c.experts.count},
       .weights = [](const BlockParams& w) -> const LinearWeights& { return w.experts.expand; },
       .adapter = [](const BlockSaved& s) -> const Tensor& { return s.experts.expand_adapter; }}};
  if (spec.shared_expert)
    all.push_back(
        {.linear = {.name = "experts.shared_expand",
                    .part = ParamPart::kMlp,
                    .rows = {c.experts.shared_width, c.experts.shared_width},
                    .columns = c.channels,
                    .bias = false,
                    .init = Init::kNormal},
         .weights = [](const BlockParams& w) -> const LinearWeights& { return w.experts.shared_expand; },
         .adapter = [](const BlockSaved& s) -> const Tensor& { return s.experts.shared_expand_adapter; }});
  return all;
}
void experts_expand_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  adapter_saved(shape, Stage::kExperts, 0, "adapter of the experts' first layer", s.experts.expand_adapter,
                take);
  take({"gate and up of experts", shape.plan.dtype, {choices_of(shape), 2 * shape.config.experts.width}},
       s.experts.gate_up);
  if (!shape.kind.spec.shared_expert) return;
  adapter_saved(shape, Stage::kExperts, 1, "adapter of the shared expert's first layer",
                s.experts.shared_expand_adapter, take);
  take({"gate and up of the shared expert",
        shape.plan.dtype,
        {shape.rows(), 2 * shape.config.experts.shared_width}},
       s.experts.shared_gate_up);
}
void experts_expand_forward(const Block& b, const Neighbours&) {
  experts_forward(b, b.linear(Stage::kExperts),
                  {.x = experts_input(b),
                   .weight = b.w.experts.expand.weight,
                   .y = b.s.experts.gate_up,
                   .offsets = b.s.experts.offsets,
                   .x_rows = b.s.experts.rows,
                   .bias = b.w.experts.expand.bias});
  if (b.spec.shared_expert)
    linear_forward(
        b.stream, b.linear(Stage::kExperts, 1),
        {.x = experts_input(b), .weight = b.w.experts.shared_expand.weight, .y = b.s.experts.shared_gate_up});
}
void experts_expand_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  experts_backward(b, b.linear(Stage::kExperts), g.w.experts.expand,
                   {.dy = b.s.experts.gate_up,
                    .x = experts_input(b),
                    .weight = b.w.experts.expand.weight,
                    .dx = b.expert_rows,
                    .dweight = g.w.experts.expand.weight,
                    .dbias = g.w.experts.expand.bias,
                    .offsets = b.s.experts.offsets,
                    .x_rows = b.s.experts.rows,
                    .fp8_dy = n.from_writer.dy(b.s.experts.gate_up).y,
                    .accumulate = g.accumulate});
  if (!b.spec.shared_expert) return;
  const LinearBackward gemm{.dy = b.s.experts.shared_gate_up,
                            .x = experts_input(b),
                            .weight = b.w.experts.shared_expand.weight,
                            .dx = b.s.experts.shared_y,
                            .dweight = g.w.experts.shared_expand.weight,
                            .add = read_by(b, {}, g.d),
                            .accumulate = g.accumulate};
  linear_backward(b.stream, b.linear(Stage::kExperts, 1),
                  {.gemm = gemm, .adapter = g.w.experts.shared_expand});
}

// activation: hidden = a(gate, up)

void experts_hidden_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  take({"hidden layer of experts", shape.plan.dtype, {choices_of(shape), shape.config.experts.width}},
       s.experts.hidden);
  if (shape.kind.spec.shared_expert)
    take({"hidden layer of the shared expert",
          shape.plan.dtype,
          {shape.rows(), shape.config.experts.shared_width}},
         s.experts.shared_hidden);
}
void experts_activation_forward(const Block& b, const Neighbours& n) {
  b.stream.run(GatedForward{.gate_up = b.s.experts.gate_up,
                            .y = b.s.experts.hidden,
                            .gate = gate_of(b.spec.mlp),
                            .fp8_y = n.to_reader.x(b.s.experts.hidden)});
  if (b.spec.shared_expert)
    b.stream.run(GatedForward{
        .gate_up = b.s.experts.shared_gate_up, .y = b.s.experts.shared_hidden, .gate = gate_of(b.spec.mlp)});
}
void experts_activation_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  const ExpertsSaved& s = b.s.experts;
  b.stream.run(GatedExpertsBackward{.dy = s.hidden,
                                    .gate_up = s.gate_up,
                                    .d_gate_up = s.gate_up,
                                    .rows = s.rows,
                                    .weights = s.weights,
                                    .gate = gate_of(b.spec.mlp),
                                    .d_sum = g.branch,
                                    .bias = b.w.experts.contract.bias,
                                    .choices = s.choices,
                                    .fp8_d_gate_up = n.to_reader.dy(s.gate_up)});
  if (b.spec.shared_expert)
    b.stream.run(GatedBackward{.dy = s.shared_hidden,
                               .gate_up = s.shared_gate_up,
                               .d_gate_up = s.shared_gate_up,
                               .gate = gate_of(b.spec.mlp)});
}

// sum: residual_out = residual_mid + dropout(the sum over a token's rows of weight (hidden W^T + bias), and
// sigmoid(logit) hidden W^T of the shared expert)

std::vector<LinearOfStage> sum_linears(const ModelConfig& c, const BlockSpec& spec) {
  std::vector<LinearOfStage> all{
      {.linear = {.name = "experts.contract",
                  .part = ParamPart::kMlp,
                  .rows = {c.channels},
                  .columns = c.experts.width,
                  .bias = c.has_mlp_bias(),
                  .init = Init::kNormalResidual,
                  .count = c.experts.count},
       .weights = [](const BlockParams& w) -> const LinearWeights& { return w.experts.contract; },
       .adapter = [](const BlockSaved& s) -> const Tensor& { return s.experts.contract_adapter; }}};
  if (spec.shared_expert)
    all.push_back(
        {.linear = {.name = "experts.shared_contract",
                    .part = ParamPart::kMlp,
                    .rows = {c.channels},
                    .columns = c.experts.shared_width,
                    .bias = false,
                    .init = Init::kNormalResidual},
         .weights = [](const BlockParams& w) -> const LinearWeights& { return w.experts.shared_contract; },
         .adapter = [](const BlockSaved& s) -> const Tensor& { return s.experts.shared_contract_adapter; }});
  return all;
}
void sum_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  adapter_saved(shape, Stage::kExpertsSum, 0, "adapter of the experts' second layer",
                s.experts.contract_adapter, take);
  const Shape rows{shape.rows(), shape.config.channels};
  if (shape.kind.spec.norms_after())
    take({"MLP branch", shape.plan.dtype, rows}, s.mlp_branch.x);
  else
    take({"residual after MLP", shape.plan.dtype, rows}, s.residual_out);
  if (!shape.kind.spec.shared_expert) return;
  adapter_saved(shape, Stage::kExpertsSum, 1, "adapter of the shared expert's second layer",
                s.experts.shared_contract_adapter, take);
  take({"what the shared expert adds", shape.plan.dtype, rows}, s.experts.shared_y);
}
const Tensor& experts_output(const Block& b) {
  return b.spec.norms_after() ? b.s.mlp_branch.x : b.s.residual_out;
}
void sum_forward(const Block& b, const Neighbours& n) {
  const ExpertsSaved& s = b.s.experts;
  experts_forward(b, b.linear(Stage::kExpertsSum),
                  {.x = s.hidden,
                   .weight = b.w.experts.contract.weight,
                   .y = b.expert_rows,
                   .offsets = s.offsets,
                   .bias = b.w.experts.contract.bias,
                   .fp8_x = n.from_writer.x(s.hidden).y});
  b.stream.run(SumExperts{.x = b.expert_rows,
                          .places = s.places,
                          .weights = s.weights,
                          .add = residual_of(b, DropoutKind::kMlpBranch, b.s.residual_mid),
                          .y = experts_output(b)});
  if (!b.spec.shared_expert) return;
  linear_forward(b.stream, b.linear(Stage::kExpertsSum, 1),
                 {.x = s.shared_hidden, .weight = b.w.experts.shared_contract.weight, .y = s.shared_y});
  b.stream.run(
      AddShared{.x = s.shared_y, .logits = s.shared_logit, .add = experts_output(b), .y = experts_output(b)});
}
void sum_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  const ExpertsSaved& s = b.s.experts;
  experts_backward(b, b.linear(Stage::kExpertsSum), g.w.experts.contract,
                   {.dy = g.branch,
                    .x = s.hidden,
                    .weight = b.w.experts.contract.weight,
                    .dx = s.hidden,
                    .dweight = g.w.experts.contract.weight,
                    .dbias = g.w.experts.contract.bias,
                    .offsets = s.offsets,
                    .dy_rows = s.rows,
                    .weights = s.weights,
                    .fp8_dy = n.from_writer.dy(g.branch).y,
                    .accumulate = g.accumulate});
  if (!b.spec.shared_expert) return;
  b.stream.run(
      AddSharedBackward{.dy = g.branch, .x = s.shared_y, .d_logits = s.shared_logit, .dx = s.shared_y});
  const LinearBackward gemm{.dy = s.shared_y,
                            .x = s.shared_hidden,
                            .weight = b.w.experts.shared_contract.weight,
                            .dx = s.shared_hidden,
                            .dweight = g.w.experts.shared_contract.weight,
                            .accumulate = g.accumulate};
  linear_backward(b.stream, b.linear(Stage::kExpertsSum, 1),
                  {.gemm = gemm, .adapter = g.w.experts.shared_contract});
}

Offers offers_of_gates(const BlockSpec&) { return {.fp8_y = true, .fp8_dx = true}; }

}  // namespace

constinit const StageRow kRouterRow{.stage = Stage::kRouter,
                                    .name = "the router of experts",
                                    .dropped_by = {Recomputed::kMlp, Recomputed::kLinear, Recomputed::kBlock},
                                    .exists = has_experts,
                                    .linears = router_linears,
                                    .saved = router_saved,
                                    .forward = router_forward,
                                    .backward = router_backward};

constinit const StageRow kChoicesRow{.stage = Stage::kChoices,
                                     .name = "the choice of experts",
                                     .exists = has_experts,
                                     .saved = choices_saved,
                                     .forward = choices_forward,
                                     .backward = choices_backward};

constinit const StageRow kExpertsRow{
    .stage = Stage::kExperts,
    .name = "the first layers of experts",
    .dropped_by = {Recomputed::kMlp, Recomputed::kLinear, Recomputed::kBlock},
    .exists = has_experts,
    .linears = experts_expand_linears,
    .saved = experts_expand_saved,
    .forward = experts_expand_forward,
    .backward = experts_expand_backward};

constinit const StageRow kExpertsActivationRow{
    .stage = Stage::kExpertsActivation,
    .name = "the activation of experts",
    .dropped_by = {Recomputed::kActivation, Recomputed::kMlp, Recomputed::kLinear, Recomputed::kBlock},
    .exists = has_experts,
    .offers = offers_of_gates,
    .saved = experts_hidden_saved,
    .forward = experts_activation_forward,
    .backward = experts_activation_backward};

constinit const StageRow kExpertsSumRow{
    .stage = Stage::kExpertsSum,
    .name = "the sum of experts",
    .dropped_by = {Recomputed::kLinear, Recomputed::kBlock},
    .exists = has_experts,
    .linears = sum_linears,
    .branch = BranchOfStage{.dropout = DropoutKind::kMlpBranch,
                            .add = [](const Block& b) -> const Tensor& { return b.s.residual_mid; },
                            .sum = [](const Block& b) -> const Tensor& { return b.s.residual_out; }},
    .saved = sum_saved,
    .forward = sum_forward,
    .backward = sum_backward};

}  // namespace tessera
