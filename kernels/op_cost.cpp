#include "kernels/op_cost.h"

#include "kernels/attention/traffic.h"
#include "kernels/expert_ops.h"
#include "kernels/score_ops.h"

namespace tessera {
namespace {

double bytes_of(const Tensor& tensor) { return static_cast<double>(tensor.bytes()); }

double bytes_of(const Heads& heads) {
  if (!heads) return 0;
  const int64_t all = heads.tensor.numel() / heads.tensor.shape[-1] / heads.tensor.shape[-2];
  return static_cast<double>(all * heads.count * heads.tensor.shape[-1]) *
         static_cast<double>(size_of(heads.tensor.dtype));
}

OpCost operator+(OpCost a, const OpCost& b) { return a += b; }

// A tensor that is read and written is named twice.
template <class... Tensors>
OpCost moved(const Tensors&... tensors) {
  return {.bytes = (0 + ... + bytes_of(tensors))};
}

// Gradients of parameters: written, and read where they are added to
template <class... Tensors>
OpCost gradients(bool accumulate, const Tensors&... tensors) {
  OpCost all = moved(tensors...);
  if (accumulate) all += all;
  return all;
}

// Two operations for each row of x and element of the weight
OpCost gemm(const Tensor& x, const Tensor& weight, const Fp8Matrix& fp8 = {}) {
  const double rows = static_cast<double>(x.numel()) / static_cast<double>(x.shape[-1]);
  const double flops = 2 * rows * static_cast<double>(weight.numel());
  return {.flops = flops, .fp8_flops = fp8 ? flops : 0};
}

// Pairs of a query and a key that it sees. Where only a call knows them: all of a causal mask within its
// window, and of dealt queries the mean of all ways to deal
double visible_pairs(const AttentionPlan& plan) {
  const AttentionShape& s = plan.shape;
  if (const BlockShape& blocks = s.mask.blocks; blocks.size > 0) {
    const auto size = static_cast<double>(blocks.size);
    const double all = static_cast<double>(blocks.pairs) / static_cast<double>(blocks.lists) * size * size;
    return static_cast<double>(s.batch) * (s.mask.causal ? blocks.causal_pairs : all);
  }
  if (!s.mask.dealt) return attention::visible_pairs(attn_problem(plan));
  AttentionPlan whole = plan;  // of all queries
  whole.shape.mask.dealt = false;
  whole.shape.tokens = s.kv_tokens;
  const double share = static_cast<double>(s.tokens) / static_cast<double>(s.kv_tokens);
  return share * attention::visible_pairs(attn_problem(whole));
}

// A GEMM of queries and keys that see each other: 2 D operations for each query head and pair
double attention_product(const AttentionPlan& plan) {
  const AttentionShape& s = plan.shape;
  return 2 * static_cast<double>(s.heads * s.head_dim) * visible_pairs(plan);
}

double query_statistics(const AttentionPlan& plan) {  // the log-sum-exp of every row
  return 4 * static_cast<double>(plan.shape.batch * plan.shape.heads * plan.shape.tokens);
}

OpCost cost(const FillZero& a) { return moved(a.tensor); }
OpCost cost(const Copy& a) {
  const auto on_device = [](const Tensor& t) { return t.device == Device::kCpu ? Tensor{} : t; };
  const bool on_host = a.from.device == a.to.device;  // all of a copy within the host
  return on_host ? moved(a.from, a.to) : moved(on_device(a.from), on_device(a.to));
}
OpCost cost(const SplitMasters& a) { return moved(a.masters, a.weights, a.low); }
OpCost cost(const JoinMasters& a) { return moved(a.masters, a.weights, a.low); }
OpCost cost(const Accumulate& a) { return moved(a.x, a.y, a.y); }
OpCost cost(const RandomNormal& a) { return moved(a.y, a.low); }
OpCost cost(const EmbeddingForward& a) {
  OpCost one = moved(a.tokens, a.y, a.y, a.positions);  // a row of the table for each of y
  if (a.position_table) one += moved(a.position_table.rows(0, a.tokens.shape[1]));
  return one;
}
OpCost cost(const EmbeddingBackward& a) {
  OpCost one = moved(a.tokens, a.dy, a.positions);
  if (!a.d_position_table) return one;
  const Tensor positions = a.d_position_table.rows(0, a.tokens.shape[1]);
  return one + moved(positions, positions);
}
const Tensor& fp8_values(const Fp8Output& output) { return output.y.data; }
OpCost cost(const LayerNormForward& a) {
  return moved(a.x, a.weight, a.bias, a.y, a.mean, a.rstd, fp8_values(a.fp8_y));
}
OpCost cost(const LayerNormBackward& a) {
  return moved(a.dy, a.x, a.weight, a.mean, a.rstd, a.dx, a.add, fp8_values(a.fp8_dx)) +
         gradients(a.accumulate, a.dweight, a.dbias, a.dx_sum);
}
OpCost cost(const RmsNormForward& a) { return moved(a.x, a.weight, a.add, a.y, a.rstd, fp8_values(a.fp8_y)); }
OpCost cost(const RmsNormBackward& a) {
  return moved(a.dy, a.x, a.weight, a.rstd, a.dx, a.add, fp8_values(a.fp8_dx)) +
         gradients(a.accumulate, a.dweight, a.dx_sum);
}
OpCost cost(const HeadsNormForward& a) { return moved(a.x, a.y, a.weight, a.rstd); }
OpCost cost(const HeadsNormBackward& a) {
  return moved(a.dy, a.x, a.dx, a.weight, a.rstd) + gradients(a.accumulate, a.dweight);
}
OpCost cost(const RotaryForward& a) { return moved(a.x, a.y, a.q_weight, a.k_weight, a.rstd, a.positions); }
OpCost cost(const RotaryBackward& a) {
  return moved(a.dy, a.dx, a.x, a.q_weight, a.k_weight, a.rstd, a.positions) +
         gradients(a.accumulate, a.dq_weight, a.dk_weight);
}
OpCost cost(const GatedForward& a) { return moved(a.gate_up, a.y, fp8_values(a.fp8_y)); }
OpCost cost(const GatedBackward& a) {
  return moved(a.dy, a.gate_up, a.d_gate_up, fp8_values(a.fp8_d_gate_up));
}
OpCost cost(const RouterForward& a) { return gemm(a.x, a.weight) + moved(a.x, a.weight, a.bias, a.logits); }
OpCost cost(const RouterBackward& a) {
  OpCost one = gemm(a.x, a.weight) + moved(a.d_logits, a.weight, a.dx, a.add);
  if (a.dweight) one += gemm(a.x, a.weight) + moved(a.d_logits, a.x) + gradients(a.accumulate, a.dweight);
  if (a.dbias) one += moved(a.d_logits) + gradients(a.accumulate, a.dbias);
  return one;
}
OpCost cost(const ChooseExperts& a) { return moved(a.logits, a.choices, a.weights); }
OpCost cost(const ChooseExpertsBackward& a) { return moved(a.logits, a.logits, a.choices, a.d_weights); }
OpCost cost(const AssignExperts& a) { return moved(a.choices, a.choices, a.rows, a.places); }
OpCost cost(const RouterSample& a) { return moved(a.logits, a.offsets, a.loads); }
// Each row goes through one expert.
OpCost gemm_of_rows(const Tensor& rows, const Tensor& weight) {
  return {.flops =
              2 * static_cast<double>(rows.shape[0]) * static_cast<double>(weight.numel() / weight.shape[0])};
}
OpCost cost(const ExpertsForward& a) {
  return gemm_of_rows(a.y, a.weight) + moved(a.x, a.weight, a.bias, a.y, a.x_rows);
}
OpCost cost(const ExpertsBackward& a) {
  OpCost one = gemm_of_rows(a.dx, a.weight) + moved(a.dy, a.weight, a.dx);
  if (a.dweight) one += gemm_of_rows(a.dx, a.weight) + moved(a.dy, a.x) + gradients(a.accumulate, a.dweight);
  if (a.dbias) one += moved(a.dy) + gradients(a.accumulate, a.dbias);
  return one;
}
// Every row goes through the A and the B of one expert.
OpCost lora_gemms(const Tensor& u, int64_t columns) {
  return {.flops = 2 * static_cast<double>(u.numel()) * static_cast<double>(columns)};
}
OpCost cost(const ExpertsLoraForward& a) {
  return lora_gemms(a.u, a.x.shape[1] + a.y.shape[1]) + moved(a.x, a.a, a.b, a.u, a.y, a.y, a.x_rows);
}
OpCost cost(const ExpertsLoraBackward& a) {
  return lora_gemms(a.u, a.x.shape[1] + 2 * a.dy.shape[1]) + moved(a.dy, a.x, a.b, a.u, a.u) +
         gradients(a.accumulate, a.da, a.db);
}
OpCost cost(const ExpertsLoraInput& a) {
  return lora_gemms(a.u, a.dx.shape[1]) + moved(a.u, a.a, a.dx, a.dx);
}
OpCost cost(const GatedExpertsBackward& a) {
  return moved(a.dy, a.gate_up, a.d_gate_up, a.rows, a.weights, a.weights, a.d_sum, a.bias);
}
OpCost cost(const SumExperts& a) { return moved(a.x, a.places, a.weights, a.add, a.y); }
OpCost cost(const AddShared& a) { return moved(a.x, a.logits, a.add, a.y); }
OpCost cost(const AddSharedBackward& a) { return moved(a.dy, a.x, a.dx, a.d_logits, a.d_logits); }
// x is read once, whether or not its scale is found first
OpCost cost(const Quantise& a) { return moved(a.x, a.y.data, a.transposed); }
OpCost cost(const CountSaturated& a) { return moved(a.x, a.count, a.count); }
OpCost cost(const Dequantise& a) { return moved(a.x.data, a.y); }
OpCost cost(const RoundToFourBits& a) { return moved(a.x, a.y.data, a.y.scales); }
OpCost cost(const RoundScales& a) { return moved(a.x, a.x, a.x, a.y); }
OpCost cost(const WidenFourBits& a) { return moved(a.x.data, a.x.scales, a.y); }
OpCost cost(const TransposeFp8& a) { return moved(a.x, a.y); }
OpCost cost(const UpdateScales& a) { return moved(a.amax, a.scale); }
const Tensor& read_of(const Tensor& matrix, const Fp8Matrix& fp8) { return fp8 ? fp8.data : matrix; }
OpCost cost(const LinearForward& a) {
  return gemm(a.x, a.weight, a.fp8_x) + moved(read_of(a.x, a.fp8_x), read_of(a.weight, a.fp8_weight), a.y,
                                              a.bias, a.add, a.pre_activation, fp8_values(a.fp8_y));
}
OpCost cost(const LinearBackward& a) {
  OpCost all;
  for (const auto part : {LinearBackward::Part::kWeight, LinearBackward::Part::kInput})
    all += cost_of(a, part);
  return all;
}
OpCost cost(const FusedLinear& a) {
  return gemm(a.x, a.weight) + moved(a.x, a.weight, a.y, a.bias, a.add, a.norm_weight, a.norm_bias);
}
OpCost cost(const LoraForward& a) {
  return gemm(a.x, a.a) + gemm(a.x, a.b) + moved(a.x, a.a, a.b, a.u, a.y, a.add);
}
OpCost cost(const LoraBackward& a) {
  OpCost gemms = gemm(a.x, a.a) + gemm(a.x, a.b);
  gemms.flops *= 2;  // with respect to the input, and to the weights
  return gemms + moved(a.dy, a.x, a.a, a.b, a.u, a.dx, a.add) + gradients(a.accumulate, a.da, a.db);
}
OpCost cost(const AttentionForward& a) {
  OpCost one = moved(a.q, a.k, a.v, a.y);
  if (a.sinks) one += moved(a.y, a.y);  // scaled in place
  one += {.bytes = query_statistics(a.plan), .flops = 2 * attention_product(a.plan)};
  return one;
}
OpCost cost(const AttentionBackward& a) {
  OpCost one = moved(a.q, a.k, a.v, a.y, a.dy, a.dq, a.dk, a.dv) + gradients(a.accumulate, a.dsinks);
  if (a.dsinks) one += moved(a.y, a.dy);
  one += {.bytes = query_statistics(a.plan), .flops = 5 * attention_product(a.plan)};
  return one;
}
// K is read about once for each head of keys, the products are a few
OpCost cost(const AttentionSample& a) { return moved(a.k, a.entropy); }
OpCost cost(const LargestScores& a) {
  return moved(a.q, a.k, a.largest) + OpCost{.bytes = 0, .flops = attention_product(a.plan)};
}
OpCost cost(const DeadUnits& a) { return moved(a.x, a.maxima, a.maxima, a.dead); }
OpCost cost(const MoveHeads& a) { return moved(a.from, a.to, a.rows); }
OpCost cost(const CacheAppend& a) { return moved(a.k, a.v, a.k, a.v); }
OpCost cost(const RotaryAppend& a) { return cost(a.rotary) + cost(a.append); }
OpCost cost(const DecodeAttention& a) { return moved(a.q, a.y); }
// With `starts` a group now and then
OpCost cost(const QuantiseCache& a) {
  if (a.starts) return {};
  const double tokens = static_cast<double>(a.count) * CacheFormat::kGroupTokens;
  const double of_group = static_cast<double>(a.groups.shape[4]) * 4;
  const double heads = static_cast<double>(a.k.shape[0] * a.k.shape[1] * a.k.shape[3]);
  return {.bytes = heads * (2 * tokens * a.format.head_dim * static_cast<double>(size_of(a.k.dtype)) +
                            static_cast<double>(a.count) * of_group)};
}
OpCost cost(const DequantiseCache& a) {
  const double tokens = static_cast<double>(a.count) * CacheFormat::kGroupTokens;
  const double of_group = static_cast<double>(a.groups.shape[2]) * 4;
  return {.bytes = static_cast<double>(a.k.shape[1]) *
                   (2 * tokens * a.format.head_dim * static_cast<double>(size_of(a.k.dtype)) +
                    static_cast<double>(a.count) * of_group)};
}
OpCost cost(const FusedDecodeStep& a) {
  OpCost all;
  for (const DecodeOp& op : a.operations) op.each_plain([&](const auto& one) { all += cost(one); });
  return all;
}
OpCost cost(const SampleTokens& a) { return moved(a.logits); }
OpCost cost(const ApplyDropout& a) { return moved(a.x, a.y, a.add); }
OpCost cost(const CapLogits& a) { return moved(a.logits, a.logits); }
OpCost cost(const CrossEntropy& a) {
  return moved(a.logits, a.targets, a.weights, a.losses, a.want_gradient ? a.logits : Tensor{},
               fp8_values(a.fp8_dlogits));
}
OpCost cost(const Distillation& a) {
  return moved(a.logits, a.teacher, a.largest_ids, a.largest, a.targets, a.weights, a.losses,
               a.want_gradient ? a.logits : Tensor{});
}
OpCost cost(const LargestLogits& a) { return moved(a.logits, a.ids, a.values); }
OpCost cost(const PreferenceLoss& a) {
  return moved(a.documents, a.kinds, a.targets, a.losses, a.reference, a.stored, a.pair_weights, a.weights,
               a.figures);
}
OpCost cost(const HeadLoss& a) {
  return gemm(a.x, a.weight) +
         moved(a.x, a.weight, a.targets, a.weights, a.e, a.losses, a.scaled_x, a.factors);
}
OpCost cost(const HeadGradient& a) { return moved(a.x, a.x, a.product, a.targets, a.factors); }
OpCost cost(const GlobalNorm& a) {
  OpCost all = moved(a.norm);
  for (const Tensor& tensor : a.tensors) all += moved(tensor);
  return all;
}
OpCost cost(const SumLosses& a) { return moved(a.losses, a.sum); }
OpCost cost(const JudgeStep& a) { return moved(a.losses, a.grad_norm, a.limits, a.verdict); }
OpCost cost(const Inspect& a) { return moved(a.x); }
OpCost cost(const AdamW& a) {
  OpCost all;
  for (const AdamW::Part& part : a.parts)
    all += moved(part.param, part.param, part.low, part.low, part.grad, part.m, part.m, part.v, part.v);
  return all;
}
OpCost cost(const AdamWNorms& a) {
  OpCost all = moved(a.sums);
  for (const AdamWNorms::Range& range : a.ranges) {
    const AdamW::Part& part = a.step.parts[range.part];
    const auto of = [&](const Tensor& tensor) {
      return tensor ? tensor.rows(range.first, range.count) : Tensor{};
    };
    all += moved(of(part.param), of(part.low), of(part.grad), of(part.m), of(part.v));
  }
  return all;
}

OpCost cost(const MuonMomentum& a) { return moved(a.gradient, a.mean, a.mean, a.direction); }
// A polynomial is three GEMMs, of which A and A A are symmetric: half of each would do.
OpCost cost(const Orthogonalise& a) {
  OpCost all;
  for (const Tensor& matrix : a.matrices) {
    const auto rows = static_cast<double>(matrix.shape[0]), columns = static_cast<double>(matrix.shape[1]),
               least = std::min(rows, columns);
    all += moved(matrix, matrix);
    all.flops +=
        static_cast<double>(a.polynomials.size()) * (3 * least * rows * columns + least * least * least);
  }
  return all;
}
OpCost cost(const NormaliseRows& a) { return moved(a.matrix, a.matrix, a.squares, a.squares); }
OpCost cost(const MuonNorms& a) {
  const auto of = [&](const Tensor& tensor) { return tensor ? tensor.rows(a.first, a.count) : Tensor{}; };
  return moved(of(a.step.param), of(a.step.low), of(a.step.direction), of(a.gradient), a.sums);
}
OpCost cost(const ClipHeads& a) { return moved(a.largest); }  // as a rule no head is clipped
OpCost cost(const MuonUpdate& a) { return moved(a.param, a.param, a.low, a.low, a.direction); }

}  // namespace

OpCost cost_of(const LinearBackward& a, LinearBackward::Part part) {
  switch (part) {
    case LinearBackward::Part::kWeight:
      if (!a.dweight) return {};
      return gemm(a.x, a.weight, a.fp8_x_transposed) +
             moved(read_of(a.dy, a.fp8_dy_transposed), read_of(a.x, a.fp8_x_transposed)) +
             gradients(a.accumulate, a.dweight, a.dbias);
    case LinearBackward::Part::kInput:
      return gemm(a.x, a.weight, a.fp8_dy) +
             moved(read_of(a.dy, a.fp8_dy), read_of(a.weight, a.fp8_weight), a.dx, a.pre_activation, a.add,
                   fp8_values(a.fp8_dx)) +
             gradients(a.accumulate, a.dx_sum);
  }
  return {};
}

OpCost cost_of(const AnyOp& op) {
  return std::visit([](const auto* a) { return cost(*a); }, op);
}

}  // namespace tessera
