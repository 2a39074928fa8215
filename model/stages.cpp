#include "model/stages.h"

#include <algorithm>
#include <ranges>
#include <vector>

#include "kernels/base/check.h"

namespace tessera {
namespace {

using Reads = DecodeBuilder::Reads;

constexpr int buffer_of(Stage stage) { return static_cast<int>(stage); }

// norm1: y = norm(x). In a decode step it is a part of the linear layer behind it.

void save_norm(NormSaved& saved, const SavedShape& shape, const TakeSaved& take,
               const std::array<const char*, 3>& names) {
  visit_norm_saved(saved,
                   {.kind = shape.spec.norm,
                    .shape = {shape.rows(), shape.config.channels},
                    .dtype = shape.plan.dtype,
                    .names = names},
                   take);
}
// `gradients`: of the norm's weights
void backward_of_norm(const Block& b, const Norm& norm, const NormWeights& gradients, const BlockGradients& g,
                      const Neighbours& n) {
  norm_backward(b.stream, norm,
                {.gradients = gradients,
                 .dx = g.d,
                 .add = g.d,
                 .dx_sum = n.to_reader.bias,
                 .fp8_dx = n.to_reader.dy(g.d),
                 .accumulate = g.accumulate});
}

void norm1_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  save_norm(s.norm1, shape, take, {"norm 1", "norm 1 mean", "norm 1 rstd"});
}
void norm1_forward(const Block& b, const Neighbours& n) {
  norm_forward(b.stream, b.norm1(), n.to_reader.x(b.s.norm1.y));
}
void norm1_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  backward_of_norm(b, b.norm1(), g.w.norm1, g, n);
}
void norm1_decode(const Block& b, DecodeBuilder& to) { put_norm_in(b.norm1(), to.norm()); }

// Without a norm before it a branch reads the residual stream. The gradient of what its first layer reads
// overwrites the norm's output, or is added to the gradient of the stream.
const Tensor& read_by(const Block& b, const Tensor& normed, const Tensor& stream) {
  return b.spec.norms_before() ? normed : stream;
}

// qkv: q, k, v = norm1 W^T + bias; q and k are normed and rotated; new keys and values go to the cache.

void qkv_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  const ModelConfig& c = shape.config;
  const int64_t B = shape.plan.shape.batch, T = shape.plan.shape.tokens, D = c.head_dim,
                rotated = c.heads + c.kv_heads;
  const DType dtype = shape.plan.dtype;
  if (c.lora.adapts(Adapted::kAttention))
    take({"adapter of qkv", dtype, {B * T, count_of(qkv_layers(c)) * c.lora.rank}}, s.attention.qkv_adapter);
  take({"qkv", dtype, {B, T, c.qkv_heads(), D}}, s.attention.qkv);
  if (!c.has_qk_norm()) return;
  const bool all = c.qk_norm == QkNorm::kAllHeads;
  take({"rotated q and k", dtype, {B, T, rotated, D}}, s.attention.rotated);
  take({"rstd of q and k", DType::kF32, all ? Shape{2, B * T} : Shape{B * T, rotated}},
       s.attention.head_rstd);
}
const Tensor& qkv_input(const Block& b) { return read_by(b, b.s.norm1.y, b.x); }
void qkv_forward(const Block& b, const Neighbours& n) {
  const LinearWeights& w = b.w.attention.qkv;
  const Tensor& x = qkv_input(b);
  linear_forward(b.stream, b.linear(Stage::kQkv),
                 {.x = x,
                  .weight = w.weight,
                  .y = rows_of(b.s.attention.qkv),
                  .bias = w.bias,
                  .fp8_x = n.from_writer.x(x).y});
  place_heads(b.stream, b.attention());
}
void qkv_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  const Attention attention = b.attention();
  place_heads_backward(b.stream, attention,
                       {.d_qkv = g.qkv, .gradients = g.w.attention, .accumulate = g.accumulate});
  const Tensor dy = rows_of(g.qkv), dbias = qkv_bias_to_sum(b.stream, attention, g.w.attention);
  const Tensor& x = qkv_input(b);
  const LinearBackward gemm{.dy = dy,
                            .x = x,
                            .weight = b.w.attention.qkv.weight,
                            .dx = read_by(b, x, g.d),
                            .dweight = g.w.attention.qkv.weight,
                            .dbias = n.own_bias(dbias),
                            .add = read_by(b, {}, g.d),
                            .fp8_dy = n.from_writer.dy(dy).y,
                            .accumulate = g.accumulate};
  linear_backward(b.stream, b.linear(Stage::kQkv), {.gemm = gemm, .adapter = g.w.attention.qkv});
}
void qkv_decode(const Block& b, DecodeBuilder& to) {
  FusedLinear linear = to.take_norm();
  linear.x = b.x, linear.weight = b.w.attention.qkv.weight, linear.bias = b.w.attention.qkv.bias;
  linear.y = rows_of(b.s.attention.qkv);
  to.add(linear, Reads::kResidual, buffer_of(Stage::kQkv));
}

// attention: output = softmax(scale q k^T + mask) v

void attention_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  const AttentionPlan& plan = shape.plan;
  const int64_t B = plan.shape.batch, T = plan.shape.tokens;
  take({"attention output", plan.dtype, {B, T, shape.config.heads, shape.config.head_dim}},
       s.attention.output);
  const int64_t parts = parts_of(shape.config, plan);
  const Shape rows = parts == 1 ? plan.saved_shape : Shape{parts, plan.saved_shape.numel()};
  if (rows.rank() > 0)  // else of decoding
    take({plan.saved_name, plan.saved_dtype, rows, MemoryTag::kAttention}, s.attention.row_state);
}
void attention_forward(const Block& b, const Neighbours&) {
  Attention attention = b.attention();
  if (b.pass.probe) attention.sample = b.pass.probe->attention_of(b.layer);
  attend(b.stream, attention);
}
void attention_backward(const Block& b, const BlockGradients& g, const Neighbours&) {
  attend_backward(b.stream, b.attention(),
                  {.d_output = g.attention_output,
                   .d_qkv = g.qkv,
                   .workspace = g.attention_workspace,
                   .context = g.context});
}
void attention_decode(const Block& b, DecodeBuilder& to) {
  to.add(cached_attention(b.attention()), Reads::kLast, buffer_of(Stage::kAttention));
}

// out: residual_mid = x + dropout(output W_O^T + bias)

void out_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  const LoraConfig& lora = shape.config.lora;
  const DType dtype = shape.plan.dtype;
  if (lora.adapts(Adapted::kAttention))
    take({"adapter of W_O", dtype, {shape.rows(), lora.rank}}, s.attention.out_adapter);
  const Shape rows{shape.rows(), shape.config.channels};
  if (shape.spec.norms_after())
    take({"attention branch", dtype, rows}, s.attention_branch.x);
  else
    take({"residual after attention", dtype, rows}, s.residual_mid);
}
// What a linear layer adds to the residual stream by itself: not where dropout or a norm follows
Tensor residual_of(const Block& b, DropoutKind kind, const Tensor& residual) {
  return b.dropout(kind) || b.spec.norms_after() ? Tensor{} : residual;
}
LinearForward out_gemm(const Block& b, const Tensor& add) {
  return {.x = rows_of(b.s.attention.output),
          .weight = b.w.attention.out.weight,
          .y = b.spec.norms_after() ? b.s.attention_branch.x : b.s.residual_mid,
          .bias = b.w.attention.out.bias,
          .add = add};
}
void out_forward(const Block& b, const Neighbours& n) {
  LinearForward gemm = out_gemm(b, residual_of(b, DropoutKind::kAttentionBranch, b.x));
  gemm.fp8_x = n.from_writer.x(gemm.x).y;
  linear_forward(b.stream, b.linear(Stage::kOut), gemm);
}
void out_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  linear_backward(b.stream, b.linear(Stage::kOut),
                  {.gemm = {.dy = g.branch,
                            .x = rows_of(b.s.attention.output),
                            .weight = b.w.attention.out.weight,
                            .dx = rows_of(g.attention_output),
                            .dweight = g.w.attention.out.weight,
                            .dbias = n.own_bias(g.w.attention.out.bias),
                            .fp8_dy = n.from_writer.dy(g.branch).y,
                            .accumulate = g.accumulate},
                   .adapter = g.w.attention.out});
}
void out_decode(const Block& b, DecodeBuilder& to) {
  to.add_to_residual(out_gemm(b, b.x), buffer_of(Stage::kOut));
}

// norm1 after: residual_mid = x + norm(branch), an RMSNorm. Its backward, and norm2 after's, leave d as it
// is, since that is the gradient of the residual stream below, too.

struct NormAfter {
  const NormWeights& weights;
  const BranchSaved& saved;
};
void norm_after_forward(const Block& b, const NormAfter& norm, const Tensor& add, const Tensor& y) {
  b.stream.run(RmsNormForward{.x = norm.saved.x,
                              .weight = norm.weights.weight,
                              .y = y,
                              .rstd = norm.saved.rstd,
                              .epsilon = b.config.norm_epsilon,
                              .offset = b.config.norm_offset(),
                              .add = add});
}
void norm_after_backward(const Block& b, const NormAfter& norm, const NormWeights& gradients,
                         const BlockGradients& g, const Neighbours& n) {
  b.stream.run(RmsNormBackward{.dy = g.d,
                               .x = norm.saved.x,
                               .weight = norm.weights.weight,
                               .rstd = norm.saved.rstd,
                               .offset = b.config.norm_offset(),
                               .dx = g.branch,
                               .dweight = gradients.weight,
                               .dx_sum = n.to_reader.bias,
                               .accumulate = g.accumulate,
                               .fp8_dx = n.to_reader.dy(g.branch)});
}
void norm1_after_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  take({"rstd of norm 1 after", DType::kF32, {shape.rows()}}, s.attention_branch.rstd);
  take({"residual after attention", shape.plan.dtype, {shape.rows(), shape.config.channels}}, s.residual_mid);
}
void norm1_after_forward(const Block& b, const Neighbours&) {
  norm_after_forward(b, {b.w.norm1_after, b.s.attention_branch}, b.x, b.s.residual_mid);
}
void norm1_after_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  norm_after_backward(b, {b.w.norm1_after, b.s.attention_branch}, g.w.norm1_after, g, n);
}

// norm2: y = norm(residual_mid)

void norm2_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  save_norm(s.norm2, shape, take, {"norm 2", "norm 2 mean", "norm 2 rstd"});
}
void norm2_forward(const Block& b, const Neighbours& n) {
  norm_forward(b.stream, b.norm2(), n.to_reader.x(b.s.norm2.y));
}
void norm2_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  backward_of_norm(b, b.norm2(), g.w.norm2, g, n);
}
void norm2_decode(const Block& b, DecodeBuilder& to) { put_norm_in(b.norm2(), to.norm()); }

// expand: pre_activation = norm2 W^T + bias, and unless the MLP is gated, hidden = activation(pre_activation)

void hidden_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  take({"MLP hidden layer", shape.plan.dtype, {shape.hidden_rows(), shape.config.mlp_width}}, s.mlp.hidden);
}
void expand_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  const ModelConfig& c = shape.config;
  const int64_t N = shape.hidden_rows(), F = c.mlp_width;
  const bool gated = shape.spec.gated();
  const DType dtype = shape.plan.dtype;
  if (c.lora.adapts(Adapted::kMlp))
    take({"adapter of the MLP's first layer",
          dtype,
          {N, count_of(expand_layers(c, shape.spec)) * c.lora.rank}},
         s.mlp.expand_adapter);
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
void expand_decode(const Block& b, DecodeBuilder& to) {  // with the activation, gated or not
  FusedLinear linear = to.take_norm();
  linear.x = b.s.residual_mid, linear.weight = b.w.mlp.expand.weight, linear.bias = b.w.mlp.expand.bias;
  linear.y = b.s.mlp.hidden;
  linear.activation = epilogue_of(b.spec.mlp), linear.sums = b.s.mlp.pre_activation;
  to.add(linear, Reads::kResidual, buffer_of(Stage::kExpand));
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

void contract_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  const LoraConfig& lora = shape.config.lora;
  const DType dtype = shape.plan.dtype;
  if (lora.adapts(Adapted::kMlp))
    take({"adapter of the MLP's second layer", dtype, {shape.rows(), lora.rank}}, s.mlp.contract_adapter);
  const Shape rows{shape.rows(), shape.config.channels};
  if (shape.spec.norms_after())
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

// norm2 after: residual_out = residual_mid + norm(branch)

void norm2_after_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  take({"rstd of norm 2 after", DType::kF32, {shape.rows()}}, s.mlp_branch.rstd);
  take({"residual after MLP", shape.plan.dtype, {shape.rows(), shape.config.channels}}, s.residual_out);
}
void norm2_after_forward(const Block& b, const Neighbours&) {
  norm_after_forward(b, {b.w.norm2_after, b.s.mlp_branch}, b.s.residual_mid, b.s.residual_out);
}
void norm2_after_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  norm_after_backward(b, {b.w.norm2_after, b.s.mlp_branch}, g.w.norm2_after, g, n);
}

// The table

Offers offers_of_norm(const BlockSpec&) { return {.fp8_y = true, .fp8_dx = true, .dx_sum = true}; }
Offers offers_of_norm_after(const BlockSpec&) { return {.fp8_dx = true, .dx_sum = true}; }
Offers offers_of_expand(const BlockSpec& spec) { return {.fp8_y = !spec.gated()}; }
Offers offers_of_activation(const BlockSpec&) { return {.fp8_y = true, .fp8_dx = true}; }
Offers offers_of_contract(const BlockSpec& spec) {
  return {.fp8_dx = !spec.gated(), .dx_sum = !spec.gated()};
}

using R = Recomputed;
using Config = const ModelConfig&;
using Spec = const BlockSpec&;
using Weights = const BlockParams&;

constexpr std::array kTable = {
    StageRow{.stage = Stage::kNorm1,
             .dropped_by = {R::kNorms, R::kLinear, R::kBlock},
             .exists = [](Spec spec) { return spec.norms_before(); },
             .offers = offers_of_norm,
             .saved = norm1_saved,
             .forward = norm1_forward,
             .backward = norm1_backward,
             .decode = norm1_decode},
    StageRow{
        .stage = Stage::kQkv,
        .dropped_by = {R::kAttention, R::kLinear, R::kBlock},
        .linear = {.name = "attention.qkv",
                   .weights = [](Weights w) -> const LinearWeights& { return w.attention.qkv; },
                   .parts = [](Config config, Spec) { return qkv_layers(config); },
                   .adapter = [](const BlockSaved& s) -> const Tensor& { return s.attention.qkv_adapter; }},
        .saved = qkv_saved,
        .forward = qkv_forward,
        .backward = qkv_backward,
        .decode = qkv_decode},
    StageRow{.stage = Stage::kAttention,
             .dropped_by = {R::kAttention, R::kBlock},
             .saved = attention_saved,
             .forward = attention_forward,
             .backward = attention_backward,
             .decode = attention_decode},
    StageRow{
        .stage = Stage::kOut,
        .dropped_by = {R::kAttention, R::kLinear, R::kBlock},
        .linear = {.name = "attention.out",
                   .weights = [](Weights w) -> const LinearWeights& { return w.attention.out; },
                   .parts = [](Config config, Spec) { return LayerParts{config.channels}; },
                   .adapter = [](const BlockSaved& s) -> const Tensor& { return s.attention.out_adapter; }},
        .branch = BranchOfStage{.dropout = DropoutKind::kAttentionBranch,
                                .add = [](const Block& b) -> const Tensor& { return b.x; },
                                .sum = [](const Block& b) -> const Tensor& { return b.s.residual_mid; }},
        .saved = out_saved,
        .forward = out_forward,
        .backward = out_backward,
        .decode = out_decode},
    StageRow{.stage = Stage::kNorm1After,
             .dropped_by = {R::kAttention, R::kLinear, R::kBlock},
             .exists = [](Spec spec) { return spec.norms_after(); },
             .offers = offers_of_norm_after,
             .saved = norm1_after_saved,
             .forward = norm1_after_forward,
             .backward = norm1_after_backward,
             .decode = nullptr},
    StageRow{.stage = Stage::kNorm2,
             .dropped_by = {R::kNorms, R::kMlp, R::kLinear, R::kBlock},
             .exists = [](Spec spec) { return spec.norms_before(); },
             .offers = offers_of_norm,
             .saved = norm2_saved,
             .forward = norm2_forward,
             .backward = norm2_backward,
             .decode = norm2_decode},
    StageRow{.stage = Stage::kExpand,
             .dropped_by = {R::kMlp, R::kLinear, R::kBlock},
             .linear = {.name = "mlp.expand",
                        .weights = [](Weights w) -> const LinearWeights& { return w.mlp.expand; },
                        .parts = expand_layers,
                        .adapter = [](const BlockSaved& s) -> const Tensor& { return s.mlp.expand_adapter; }},
             .offers = offers_of_expand,
             .saved = expand_saved,
             .forward = expand_forward,
             .backward = expand_backward,
             .decode = expand_decode},
    StageRow{.stage = Stage::kActivation,
             .dropped_by = {R::kActivation, R::kMlp, R::kLinear, R::kBlock},
             .exists = [](Spec spec) { return spec.gated(); },
             .offers = offers_of_activation,
             .saved = hidden_saved,
             .forward = activation_forward,
             .backward = activation_backward,
             .decode = nullptr},
    StageRow{
        .stage = Stage::kContract,
        .dropped_by = {R::kLinear, R::kBlock},
        .linear = {.name = "mlp.contract",
                   .weights = [](Weights w) -> const LinearWeights& { return w.mlp.contract; },
                   .parts = [](Config config, Spec) { return LayerParts{config.channels}; },
                   .adapter = [](const BlockSaved& s) -> const Tensor& { return s.mlp.contract_adapter; }},
        .branch = BranchOfStage{.dropout = DropoutKind::kMlpBranch,
                                .add = [](const Block& b) -> const Tensor& { return b.s.residual_mid; },
                                .sum = [](const Block& b) -> const Tensor& { return b.s.residual_out; }},
        .offers = offers_of_contract,
        .saved = contract_saved,
        .forward = contract_forward,
        .backward = contract_backward,
        .decode = contract_decode},
    StageRow{.stage = Stage::kNorm2After,
             .exists = [](Spec spec) { return spec.norms_after(); },
             .offers = offers_of_norm_after,
             .saved = norm2_after_saved,
             .forward = norm2_after_forward,
             .backward = norm2_after_backward,
             .decode = nullptr}};

constexpr bool in_their_order() {
  for (size_t i = 0; i < kTable.size(); ++i)
    if (kTable[i].stage != kStages[i]) return false;
  return kTable.size() == kStages.size();
}
static_assert(in_their_order());

// The linear layers of a block that are computed again before its backward. In FP8 they round their x into
// the place that all layers share.
bool recomputes_linear_layers(const BlockSpec& spec, Keep keep) {
  return std::ranges::any_of(
      stages_of(spec), [&](const StageRow* row) { return row->linear && !keep.keeps(row->stage, spec); });
}

// The stages of a block that run over all rows, and those that run chunk by chunk
using StageList = std::span<const StageRow* const>;
struct StageLists {
  StageList whole, chunked;
};
StageLists stage_lists(const Block& b) {
  const StageList rows = stages_of(b.spec);
  const bool chunks = b.pass.model.chunks_mlp();
  const auto first =
      std::ranges::find_if(rows, [&](const StageRow* row) { return chunks && is_of_mlp(row->stage); });
  const auto count = static_cast<size_t>(first - rows.begin());
  return {.whole = rows.first(count), .chunked = rows.subspan(count)};
}

// What the stages of the MLP read and write of some rows. The hidden layer has room for one chunk.
BlockSaved chunk_of(const BlockSaved& s, int64_t first, int64_t count) {
  const auto rows = [&](const Tensor& of, int64_t from) { return of ? of.rows(from, count) : Tensor{}; };
  BlockSaved chunk;
  chunk.norm2.y = rows(s.norm2.y, first);
  chunk.residual_mid = rows(s.residual_mid, first), chunk.residual_out = rows(s.residual_out, first);
  chunk.mlp = {.expand_adapter = rows(s.mlp.expand_adapter, 0),
               .contract_adapter = rows(s.mlp.contract_adapter, first),
               .pre_activation = rows(s.mlp.pre_activation, 0),
               .hidden = rows(s.mlp.hidden, 0)};
  chunk.mlp_branch = {.x = rows(s.mlp_branch.x, first), .rstd = rows(s.mlp_branch.rstd, first)};
  return chunk;
}

// Calls run(chunk, first, count) for the rows of a block, a chunk of its MLP at a time.
template <class Run>
void each_chunk(const Block& b, const Run& run) {
  const int64_t N = b.s.residual_out.shape[0], chunk = rows_at_a_time(b.pass.model.mlp_chunk, N);
  for (int64_t first = 0; first < N; first += chunk) {
    const int64_t count = std::min(chunk, N - first);
    const BlockSaved rows = chunk_of(b.s, first, count);
    run(Block(b, rows), first, count);
  }
}

// Beside the other stages whose results `kept` does not keep
void run_forward(const Block& b, const StageRow& row, Keep kept) {
  const StageRow* reader = stage_after(b.spec, row.stage);
  row.forward(b, {.to_reader = reader ? between(b, *reader, kept) : Handover{},
                  .from_writer = between(b, row, kept)});
}
// Those of a chunk
void run_forward(const Block& chunk, StageList rows, Keep kept) {
  for (const StageRow* row : rows)
    if (!kept.keeps(row->stage, chunk.spec)) run_forward(chunk, *row, kept);
}

void drop_branch(const Block& b, const StageRow& row) {
  if (!row.branch) return;
  const Tensor& sum = row.branch->sum(b);
  drop(b.pass, {.x = sum, .y = sum, .add = row.branch->add(b), .dropout = b.dropout(row.branch->dropout)});
}
void drop_branch_backward(const Block& b, const StageRow& row, const BlockGradients& g) {
  if (row.branch) drop(b.pass, {.x = g.d, .y = g.branch, .dropout = b.dropout(row.branch->dropout)});
}

}  // namespace

bool Keep::keeps(Stage stage, const BlockSpec& spec) const {
  if (*this == nothing()) return false;
  return (parts_ & row_of(stage).dropped_by.parts_) == 0 || stages_of(spec).back()->stage == stage;
}

bool Keep::covers(Keep other) const {
  const BlockSpec all_stages{.norm_place = NormPlace::kBoth, .mlp = Mlp::kSwiglu};
  return std::ranges::none_of(
      kStages, [&](Stage stage) { return keeps(stage, all_stages) && !other.keeps(stage, all_stages); });
}

Offers offers_of(const StageRow& row, const BlockSpec& spec) {
  return row.offers ? row.offers(spec) : Offers{};
}

const StageRow& row_of(Stage stage) { return kTable[static_cast<size_t>(stage)]; }

std::span<const StageRow* const> stages_of(const BlockSpec& spec) {
  const auto those_of = [](NormPlace norm_place, Mlp mlp) {
    std::vector<const StageRow*> rows;
    for (const StageRow& row : kTable)
      if (!row.exists || row.exists({.norm_place = norm_place, .mlp = mlp})) rows.push_back(&row);
    return rows;
  };
  static const std::vector<const StageRow*> lists[] = {
      those_of(NormPlace::kBefore, Mlp::kGelu), those_of(NormPlace::kBefore, Mlp::kSwiglu),
      those_of(NormPlace::kBoth, Mlp::kGelu),   those_of(NormPlace::kBoth, Mlp::kSwiglu),
      those_of(NormPlace::kAfter, Mlp::kGelu),  those_of(NormPlace::kAfter, Mlp::kSwiglu)};
  return lists[2 * static_cast<size_t>(spec.norm_place) + spec.gated()];
}

const StageRow* stage_before(const BlockSpec& spec, Stage stage) {
  const StageRow* before = nullptr;
  for (const StageRow* row : stages_of(spec)) {
    if (row->stage == stage) return before;
    before = row;
  }
  return nullptr;
}

const StageRow* stage_after(const BlockSpec& spec, Stage stage) {
  const std::span<const StageRow* const> rows = stages_of(spec);
  for (size_t i = 0; i + 1 < rows.size(); ++i)
    if (rows[i]->stage == stage) return rows[i + 1];
  return nullptr;
}

Handover between(const Block& block, const StageRow& reader, Keep kept) {
  const StageRow* writer = stage_before(block.spec, reader.stage);
  if (!writer || !reader.linear || !offers_of(*writer, block.spec).fp8_y) return {};
  if (kept.keeps(writer->stage, block.spec) || kept.keeps(reader.stage, block.spec))
    return {};  // one of them does not run
  // What follows in the first chunk would overwrite the x in FP8 of the others.
  if (block.pass.model.chunks_mlp() && is_of_mlp(reader.stage) && !is_of_mlp(writer->stage)) return {};
  return {.fp8 = &block.pass.model.fp8_of(block.layer, reader.stage)};
}

Handover between(const Pass& pass, const DyReader& reader) {
  const auto& [layer, gradients, row] = reader;
  if (!row.linear) return {};
  // The writer writes the gradient of the residual stream; where a dropout stands between, that is not dy.
  if (row.branch && pass.dropout.at(row.branch->dropout, layer)) return {};
  const BlockSpec spec = block_spec(pass.model.config, layer);
  const StageRow* writer = stage_after(spec, row.stage);
  // None: it is the first norm of the block above, or the final norm. The reader's block may run again
  // between the two, and would then overwrite dy in FP8. In chunks every block's MLP does.
  const Model& model = pass.model;
  const bool overwritten = !writer && recomputes_linear_layers(spec, model.keep.at(layer)) &&
                           (runs_again(model, layer) || model.chunks_mlp());
  const Offers offers = offers_of(writer ? *writer : row_of(Stage::kNorm1), spec);
  Handover match;
  if (offers.dx_sum) match.bias = row.linear.weights(gradients).bias;
  if (offers.fp8_dx && !overwritten) match.fp8 = &model.fp8_of(layer, row.stage);
  return match;
}

Handover to_block_below(const Pass& pass, size_t layer, const BlockParams* gradients) {
  if (!gradients) return {};
  const StageRow& last = *stages_of(block_spec(pass.model.config, layer - 1)).back();
  return between(pass, {.layer = layer - 1, .gradients = *gradients, .row = last});
}

Block::Block(const Pass& own, const Saved& saved, size_t number, LeaseFor use)
    : pass(own),
      stream(own.stream),
      config(own.model.config),
      layer(number),
      spec(block_spec(own.model.config, number)),
      lease(own.model.lease_block(number, use)),
      w(*lease),
      s(saved.blocks[number]),
      x(saved.block_input(number)),
      attention_workspace(saved.attention_workspace),
      context_buffers(saved.context) {
  stream.enter(static_cast<int64_t>(number), use == LeaseFor::kBackward);
}

Block::Block(const Block& whole, const BlockSaved& rows)
    : pass(whole.pass),
      stream(whole.stream),
      config(whole.config),
      layer(whole.layer),
      spec(whole.spec),
      w(whole.w),
      s(rows),
      x(whole.x),
      attention_workspace(whole.attention_workspace),
      context_buffers(whole.context_buffers) {}

Norm Block::norm1() const {
  return {spec.norm, config.norm_epsilon, config.norm_offset(), w.norm1, s.norm1, x};
}
Norm Block::norm2() const {
  return {spec.norm, config.norm_epsilon, config.norm_offset(), w.norm2, s.norm2, s.residual_mid};
}

Attention Block::attention() const {
  const Model& model = pass.model;
  Attention own{.config = config,
                .weights = w.attention,
                .saved = s.attention,
                .plan = model.attention.of(layer),
                .decode = model.attention.decode_of(layer),
                .workspace = attention_workspace,
                .angles = spec.local_angles ? model.local_angles
                          : spec.rotary     ? model.angles
                                            : Tensor{},
                .dropout = dropout(DropoutKind::kAttention),
                .positions = pass.batch.positions,
                .tables = pass.batch.mask_tables(model.attention.of(layer).shape.mask.window),
                .context = {.axis = model.context, .tables = pass.batch.context, .buffers = context_buffers}};
  if (const KvCache* cache = pass.batch.cache) {
    own.cache = cache->layers[layer], own.starts = cache->starts;
    own.unrolled = cache->unrolled;
  }
  own.plan.scale = attention_scale(config, layer, own.plan.scale);
  if (own.decode) own.decode->scale = own.plan.scale;
  return own;
}

LinearLayer Block::linear(Stage stage) const {
  const LinearOfStage& of = row_of(stage).linear;
  const Fp8Linear& fp8 = pass.model.fp8_of(layer, stage);
  return {.weights = of.weights(w),
          .fp8 = fp8,
          .parts = of.parts(config, spec),
          .u = of.adapter(s),
          .scale = config.lora ? config.lora.scale() : 0,
          .saturated_x = pass.probe ? pass.probe->saturated_x(fp8) : Tensor{},
          .saturated_dy = pass.backward_probe ? pass.backward_probe->saturated_dy(fp8) : Tensor{}};
}

void forward_stages(const Block& block, Keep kept) {
  const auto [whole, chunked] = stage_lists(block);
  if (const Probe* probe = block.pass.probe) block.stream.run(FillZero{probe->unit_maxima});
  for (const StageRow* row : whole) {
    if (kept.keeps(row->stage, block.spec)) continue;
    run_forward(block, *row, kept);
    drop_branch(block, *row);
  }
  if (chunked.empty() || kept != Keep::nothing()) return;
  each_chunk(block, [&](const Block& rows, int64_t, int64_t) { run_forward(rows, chunked, kept); });
  drop_branch(block, *chunked.back());
}

bool runs_again(const Model& model, size_t layer) {
  const Keep own = model.keep.at(layer);
  const BlockSpec spec = block_spec(model.config, layer);
  const auto writes_over = [&](Keep later) {
    return std::ranges::any_of(stages_of(spec), [&](const StageRow* row) {
      return !own.keeps(row->stage, spec) && !later.keeps(row->stage, spec);
    });
  };
  for (size_t later = layer + 1; later < static_cast<size_t>(model.config.layers); ++later)
    if (writes_over(model.keep.at(later))) return true;
  return false;
}

void backward_stages(Arena& arena, const Block& b, const BlockBackward& backward) {
  Arena::Scope scope(arena);
  const Pass& pass = b.pass;
  const BlockParams& gradients = *backward.gradients;
  const Tensor& d = backward.d;
  const AttentionSaved& s = b.s.attention;
  const auto like = [&](const char* name, const Tensor& tensor) {
    return arena.alloc(MemoryTag::kActivations, name, d.dtype, tensor.shape);
  };
  const bool apart =
      b.dropout(DropoutKind::kMlpBranch) || b.dropout(DropoutKind::kAttentionBranch) || b.spec.norms_after();
  const BlockGradients g{.w = gradients,
                         .accumulate = pass.accumulate,
                         .d = d,
                         .branch = apart ? like("gradient of a residual branch", d) : d,
                         .attention_output = like("gradient of attention's output", s.output),
                         .qkv = like("gradient of qkv", s.qkv),
                         .attention_workspace = arena.alloc(
                             MemoryTag::kAttention, "attention backward scratch", DType::kF32,
                             {(pass.model.attention.of(b.layer).backward_workspace_bytes + 3) / 4}),
                         .context = pass.model.context ? allocate_context_backward(arena, b.context_buffers)
                                                       : ContextBackward{}};
  const auto handed_to = [&](const StageRow& row) {
    return between(pass, {.layer = b.layer, .gradients = gradients, .row = row});
  };
  const auto run = [&](const Block& rows, const BlockGradients& of_rows, const StageRow& row) {
    const StageRow* reader = stage_before(b.spec, row.stage);
    row.backward(
        rows, of_rows,
        {.to_reader = reader ? handed_to(*reader) : to_block_below(pass, b.layer, backward.below.get()),
         .from_writer = handed_to(row)});
  };
  const auto [whole, chunked] = stage_lists(b);
  if (!chunked.empty()) {
    drop_branch_backward(b, *chunked.back(), g);
    each_chunk(b, [&](const Block& rows, int64_t first, int64_t count) {
      run_forward(rows, chunked, pass.model.keep.at(b.layer));
      BlockGradients of_rows = g;
      of_rows.accumulate = g.accumulate || first > 0;
      of_rows.d = g.d.rows(first, count), of_rows.branch = g.branch.rows(first, count);
      for (const StageRow* row : chunked | std::views::reverse) run(rows, of_rows, *row);
    });
  }
  for (const StageRow* row : whole | std::views::reverse) {
    drop_branch_backward(b, *row, g);
    run(b, g, *row);
  }
}

void decode_stages(const Block& block, DecodeBuilder& to) {
  for (const StageRow* row : stages_of(block.spec))
    if (row->decode) row->decode(block, to);
}

void visit_block_saved(BlockSaved& block, const SavedShape& shape,
                       const std::function<void(Stage, const SavedInfo&, Tensor&)>& visit) {
  for (const StageRow* row : stages_of(shape.spec))
    row->saved(block, shape, [&](const SavedInfo& info, Tensor& tensor) { visit(row->stage, info, tensor); });
}

void visit_norm_saved(NormSaved& norm, const NormSavedInfo& info, const TakeSaved& take) {
  const int64_t N = info.shape[0];
  take({info.names[0], info.dtype, info.shape}, norm.y);
  if (info.kind == NormKind::kLayerNorm) take({info.names[1], DType::kF32, {N}}, norm.mean);
  take({info.names[2], DType::kF32, {N}}, norm.rstd);
}

}  // namespace tessera
