#include "model/stages/rows.h"

namespace tessera {
namespace {

// qkv: q, k, v = norm1 W^T + bias; q and k are normed and rotated; new keys and values go to the cache.

std::vector<LinearOfStage> qkv_linears(const ModelConfig& c, const BlockSpec&) {
  const int64_t q = c.heads * c.head_dim, k = c.kv_heads * c.head_dim;
  return {{.linear = {.name = kQkv,
                      .part = ParamPart::kAttention,
                      .rows = {q, k, k},
                      .columns = c.channels,
                      .bias = c.has_qkv_bias(),
                      .init = Init::kNormal},
           .weights = [](const BlockParams& w) -> const LinearWeights& { return w.attention.qkv; },
           .adapter = [](const BlockSaved& s) -> const Tensor& { return s.attention.qkv_adapter; }}};
}
std::vector<VectorOfStage> qk_norm_vectors(const ModelConfig& c, const BlockSpec&) {
  if (!c.has_qk_norm()) return {};
  const bool all = c.qk_norm == QkNorm::kAllHeads;
  return {{.name = "attention.q_norm.weight",
           .size = all ? c.heads * c.head_dim : c.head_dim,
           .init = norm_init(c),
           .tensor = [](const BlockParams& w) -> const Tensor& { return w.attention.q_norm; }},
          {.name = "attention.k_norm.weight",
           .size = all ? c.kv_heads * c.head_dim : c.head_dim,
           .init = norm_init(c),
           .tensor = [](const BlockParams& w) -> const Tensor& { return w.attention.k_norm; }}};
}
void qkv_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  const ModelConfig& c = shape.config;
  const int64_t B = shape.plan.shape.batch, T = shape.plan.shape.tokens, D = c.head_dim,
                rotated = c.heads + c.kv_heads;
  const DType dtype = shape.plan.dtype;
  if (const int64_t columns = adapter_columns(shape, Stage::kQkv); columns > 0)
    take({"adapter of qkv", dtype, {B * T, columns}}, s.attention.qkv_adapter);
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
  to.add(linear, DecodeBuilder::Reads::kResidual, buffer_of(Stage::kQkv));
}

// attention: output = softmax(scale q k^T + mask) v, with a sink for each head as one more score

// A sink of 0 is as likely as a key whose score is 0, as all are about to be when training begins: heads
// start with nearly all of their probability on the keys, and where the sink has to go its gradient says.
std::vector<VectorOfStage> attention_vectors(const ModelConfig& c, const BlockSpec& spec) {
  if (!spec.scores.sinks) return {};
  return {{.name = "attention.sinks",
           .size = c.heads,
           .init = Init::kZero,
           .tensor = [](const BlockParams& w) -> const Tensor& { return w.attention.sinks; },
           .part = ParamPart::kAttention}};
}

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
  const auto of_heads = [&](const Tensor& all) {
    return all.rows(static_cast<int64_t>(b.layer), 1).view({all.shape[1]});
  };
  if (b.pass.probe) attention.entropies = of_heads(b.pass.probe->attention_entropies);
  if (b.pass.largest_scores) attention.largest_scores = of_heads(b.pass.largest_scores);
  attend(b.stream, attention);
}
void attention_backward(const Block& b, const BlockGradients& g, const Neighbours&) {
  attend_backward(b.stream, b.attention(),
                  {.d_output = g.attention_output,
                   .d_qkv = g.qkv,
                   .gradients = g.w.attention,
                   .accumulate = g.accumulate,
                   .workspace = g.attention_workspace,
                   .context = g.context});
}
std::string attention_not_in_decode(const ModelConfig& config) {
  if (!config.sparse.all_full()) return "sparse blocks of attention";
  if (config.attention_sinks) return "learned sinks of attention";
  if (config.attention_cap > 0) return "a cap of attention's scores";
  if (config.positions == Positions::kAlibi) return "a bias of scores by distance";
  switch (config.qk_norm) {
    case QkNorm::kNone:
    case QkNorm::kHeads:
      return "";
    case QkNorm::kAllHeads:
      break;
  }
  return "a norm of all heads of queries and keys together";
}
void attention_decode(const Block& b, DecodeBuilder& to) {
  to.add(cached_attention(b.attention()), DecodeBuilder::Reads::kLast, buffer_of(Stage::kAttention));
}

// out: residual_mid = x + dropout(output W_O^T + bias)

std::vector<LinearOfStage> out_linears(const ModelConfig& c, const BlockSpec&) {
  return {{.linear = {.name = "attention.out",
                      .part = ParamPart::kAttention,
                      .rows = {c.channels},
                      .columns = c.attention_width(),
                      .bias = c.has_out_bias(),
                      .init = Init::kNormalResidual},
           .weights = [](const BlockParams& w) -> const LinearWeights& { return w.attention.out; },
           .adapter = [](const BlockSaved& s) -> const Tensor& { return s.attention.out_adapter; }}};
}
void out_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  const DType dtype = shape.plan.dtype;
  if (const int64_t columns = adapter_columns(shape, Stage::kOut); columns > 0)
    take({"adapter of W_O", dtype, {shape.rows(), columns}}, s.attention.out_adapter);
  const Shape rows{shape.rows(), shape.config.channels};
  if (shape.kind.spec.norms_after())
    take({"attention branch", dtype, rows}, s.attention_branch.x);
  else
    take({"residual after attention", dtype, rows}, s.residual_mid);
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

}  // namespace

constinit const StageRow kQkvRow{
    .stage = Stage::kQkv,
    .name = "queries, keys and values",
    .dropped_by = {Recomputed::kAttention, Recomputed::kLinear, Recomputed::kBlock},
    .linears = qkv_linears,
    .vectors = qk_norm_vectors,
    .saved = qkv_saved,
    .forward = qkv_forward,
    .backward = qkv_backward,
    .decode = DecodeForm{.add = qkv_decode}};

constinit const StageRow kAttentionRow{
    .stage = Stage::kAttention,
    .name = "attention",
    .dropped_by = {Recomputed::kAttention, Recomputed::kBlock},
    .vectors = attention_vectors,
    .saved = attention_saved,
    .forward = attention_forward,
    .backward = attention_backward,
    .decode = DecodeForm{.add = attention_decode, .lacks = attention_not_in_decode}};

constinit const StageRow kOutRow{
    .stage = Stage::kOut,
    .name = "attention's projection",
    .dropped_by = {Recomputed::kAttention, Recomputed::kLinear, Recomputed::kBlock},
    .linears = out_linears,
    .branch = BranchOfStage{.dropout = DropoutKind::kAttentionBranch,
                            .add = [](const Block& b) -> const Tensor& { return b.x; },
                            .sum = [](const Block& b) -> const Tensor& { return b.s.residual_mid; }},
    .saved = out_saved,
    .forward = out_forward,
    .backward = out_backward,
    .decode = DecodeForm{.add = out_decode}};

}  // namespace tessera
