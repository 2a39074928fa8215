#include "kernels/base/present.h"
#include "model/stages/rows.h"

namespace tessera {
namespace {

// expand: pre_activation = norm2 W^T + bias, and unless the MLP is gated, hidden = activation(pre_activation)

void hidden_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  take({"MLP hidden layer", shape.plan.dtype, {shape.hidden_rows(), shape.config.mlp_width}}, s.mlp.hidden);
}
std::vector<LinearOfStage> expand_linears(const ModelConfig& c, const BlockSpec& spec) {
  const int64_t F = c.mlp_width;
  return {{.linear = {.name = "mlp.expand",
                      .part = ParamPart::kMlp,
                      .rows = spec.gated() ? LayerParts{F, F} : LayerParts{F},
                      .columns = c.channels,
                      .bias = c.has_mlp_bias(),
                      .init = Init::kNormal},
           .weights = [](const BlockParams& w) -> const LinearWeights& { return w.mlp.expand; },
           .adapter = [](const BlockSaved& s) -> const Tensor& { return s.mlp.expand_adapter; }}};
}
void expand_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  const ModelConfig& c = shape.config;
  const int64_t N = shape.hidden_rows(), F = c.mlp_width;
  const bool gated = shape.kind.spec.gated();
  const DType dtype = shape.plan.dtype;
  if (const int64_t columns = adapter_columns(shape, Stage::kExpand); columns > 0)
    take({"adapter of the MLP's first layer", dtype, {N, columns}}, s.mlp.expand_adapter);
  take({gated ? "MLP gate and up" : "MLP pre-activation", dtype, {N, gated ? 2 * F : F}},
       s.mlp.pre_activation);
  if (!gated) hidden_saved(s, shape, take);
}
const Tensor& expand_input(const Block& b) { return read_by(b, b.s.norm2.y, b.s.residual_mid); }
void expand_forward(const Block& b, const Neighbours& n) {
  LinearForward gemm{.x = expand_input(b),
                     .weight = b.w.mlp.expand.weight,
                     .y = b.spec.gated() ? b.s.mlp.pre_activation : b.s.mlp.hidden,
                     .bias = b.w.mlp.expand.bias,
                     .fp8_x = n.from_writer.x(expand_input(b)).y};
  if (!b.spec.gated()) {
    gemm.pre_activation = b.s.mlp.pre_activation, gemm.activation = activation_of(b.spec.mlp);
    gemm.fp8_y = n.to_reader.x(b.s.mlp.hidden);
  }
  linear_forward(b.stream, b.linear(Stage::kExpand), gemm);
}
// The gradient of what the GEMM writes, in the place of what the MLP's backward reads last
const Tensor& d_expanded(const Block& b) { return b.spec.gated() ? b.s.mlp.pre_activation : b.s.mlp.hidden; }
void expand_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  const Tensor& dy = d_expanded(b);
  const Tensor& x = expand_input(b);
  const LinearBackward gemm{.dy = dy,
                            .x = x,
                            .weight = b.w.mlp.expand.weight,
                            .dx = read_by(b, x, g.d),
                            .dweight = g.w.mlp.expand.weight,
                            .dbias = n.own_bias(g.w.mlp.expand.bias),
                            .add = read_by(b, {}, g.d),
                            .fp8_dy = n.from_writer.dy(dy).y,
                            .accumulate = g.accumulate};
  linear_backward(b.stream, b.linear(Stage::kExpand), {.gemm = gemm, .adapter = g.w.mlp.expand});
}
std::string activation_not_in_decode(const ModelConfig& config) {
  return epilogue_of(config.mlp) ? "" : fmt::format("model.mlp={}", name_of(config.mlp));
}
void expand_decode(const Block& b, DecodeBuilder& to) {  // with the activation, gated or not
  FusedLinear linear = to.take_norm();
  linear.x = b.s.residual_mid, linear.weight = b.w.mlp.expand.weight, linear.bias = b.w.mlp.expand.bias;
  linear.y = b.s.mlp.hidden;
  linear.activation = present(epilogue_of(b.spec.mlp)), linear.sums = b.s.mlp.pre_activation;
  to.add(linear, DecodeBuilder::Reads::kResidual, buffer_of(Stage::kExpand));
}

// activation, of a gated MLP: hidden = a(gate) up

void activation_forward(const Block& b, const Neighbours& n) {
  b.stream.run(GatedForward{.gate_up = b.s.mlp.pre_activation,
                            .y = b.s.mlp.hidden,
                            .gate = gate_of(b.spec.mlp),
                            .fp8_y = n.to_reader.x(b.s.mlp.hidden)});
}
void activation_backward(const Block& b, const BlockGradients&, const Neighbours& n) {
  b.stream.run(GatedBackward{.dy = b.s.mlp.hidden,
                             .gate_up = b.s.mlp.pre_activation,
                             .d_gate_up = d_expanded(b),
                             .gate = gate_of(b.spec.mlp),
                             .fp8_d_gate_up = n.to_reader.dy(d_expanded(b))});
}

// contract: residual_out = residual_mid + dropout(hidden W^T + bias). Unless the MLP is gated, the
// backward of the activation is a part of this GEMM's.

std::vector<LinearOfStage> contract_linears(const ModelConfig& c, const BlockSpec&) {
  return {{.linear = {.name = "mlp.contract",
                      .part = ParamPart::kMlp,
                      .rows = {c.channels},
                      .columns = c.mlp_width,
                      .bias = c.has_mlp_bias(),
                      .init = Init::kNormalResidual},
           .weights = [](const BlockParams& w) -> const LinearWeights& { return w.mlp.contract; },
           .adapter = [](const BlockSaved& s) -> const Tensor& { return s.mlp.contract_adapter; }}};
}
void contract_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  const DType dtype = shape.plan.dtype;
  if (const int64_t columns = adapter_columns(shape, Stage::kContract); columns > 0)
    take({"adapter of the MLP's second layer", dtype, {shape.rows(), columns}}, s.mlp.contract_adapter);
  const Shape rows{shape.rows(), shape.config.channels};
  if (shape.kind.spec.norms_after())
    take({"MLP branch", dtype, rows}, s.mlp_branch.x);
  else
    take({"residual after MLP", dtype, rows}, s.residual_out);
}
LinearForward contract_gemm(const Block& b, const Tensor& add) {
  return {.x = b.s.mlp.hidden,
          .weight = b.w.mlp.contract.weight,
          .y = b.spec.norms_after() ? b.s.mlp_branch.x : b.s.residual_out,
          .bias = b.w.mlp.contract.bias,
          .add = add};
}
void contract_forward(const Block& b, const Neighbours& n) {
  if (const Probe* probe = b.pass.probe)
    b.stream.run(DeadUnits{.x = b.s.mlp.hidden,
                           .maxima = probe->unit_maxima,
                           .dead = probe->dead_units.rows(static_cast<int64_t>(b.layer), 1)});
  LinearForward gemm = contract_gemm(b, residual_of(b, DropoutKind::kMlpBranch, b.s.residual_mid));
  gemm.fp8_x = n.from_writer.x(gemm.x).y;
  linear_forward(b.stream, b.linear(Stage::kContract), gemm);
}
void contract_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  LinearBackward gemm{.dy = g.branch,
                      .x = b.s.mlp.hidden,
                      .weight = b.w.mlp.contract.weight,
                      .dx = b.s.mlp.hidden,
                      .dweight = g.w.mlp.contract.weight,
                      .dbias = n.own_bias(g.w.mlp.contract.bias),
                      .fp8_dy = n.from_writer.dy(g.branch).y,
                      .accumulate = g.accumulate};
  if (!b.spec.gated()) {
    gemm.pre_activation = b.s.mlp.pre_activation, gemm.activation = activation_of(b.spec.mlp);
    gemm.dx_sum = n.to_reader.bias;
    gemm.fp8_dx = n.to_reader.dy(b.s.mlp.hidden);
  }
  linear_backward(b.stream, b.linear(Stage::kContract), {.gemm = gemm, .adapter = g.w.mlp.contract});
}
void contract_decode(const Block& b, DecodeBuilder& to) {
  to.add_to_residual(contract_gemm(b, b.s.residual_mid), buffer_of(Stage::kContract));
}

Offers offers_of_expand(const BlockSpec& spec) { return {.fp8_y = !spec.gated()}; }
Offers offers_of_activation(const BlockSpec&) { return {.fp8_y = true, .fp8_dx = true}; }
Offers offers_of_contract(const BlockSpec& spec) {
  return {.fp8_dx = !spec.gated(), .dx_sum = !spec.gated()};
}
bool has_one_mlp(const BlockSpec& spec) { return !spec.experts; }

}  // namespace

constinit const StageRow kExpandRow{
    .stage = Stage::kExpand,
    .name = "the MLP's first layer",
    .dropped_by = {Recomputed::kMlp, Recomputed::kLinear, Recomputed::kBlock},
    .exists = has_one_mlp,
    .linears = expand_linears,
    .in_chunks = true,
    .offers = offers_of_expand,
    .saved = expand_saved,
    .forward = expand_forward,
    .backward = expand_backward,
    .decode = DecodeForm{.add = expand_decode, .lacks = activation_not_in_decode}};

constinit const StageRow kActivationRow{
    .stage = Stage::kActivation,
    .name = "the activation of a gated MLP",
    .dropped_by = {Recomputed::kActivation, Recomputed::kMlp, Recomputed::kLinear, Recomputed::kBlock},
    .exists = [](const BlockSpec& spec) { return spec.gated() && !spec.experts; },
    .in_chunks = true,
    .offers = offers_of_activation,
    .saved = hidden_saved,
    .forward = activation_forward,
    .backward = activation_backward,
    .decode = DecodeForm{}};  // kExpand's GEMM computes it

constinit const StageRow kContractRow{
    .stage = Stage::kContract,
    .name = "the MLP's second layer",
    .dropped_by = {Recomputed::kLinear, Recomputed::kBlock},
    .exists = has_one_mlp,
    .linears = contract_linears,
    .in_chunks = true,
    .branch = BranchOfStage{.dropout = DropoutKind::kMlpBranch,
                            .add = [](const Block& b) -> const Tensor& { return b.s.residual_mid; },
                            .sum = [](const Block& b) -> const Tensor& { return b.s.residual_out; }},
    .offers = offers_of_contract,
    .saved = contract_saved,
    .forward = contract_forward,
    .backward = contract_backward,
    .decode = DecodeForm{.add = contract_decode}};

}  // namespace tessera
