#include "kernels/op_cost.h"

#include "kernels/attention/traffic.h"
#include "kernels/expert_ops.h"
#include "kernels/operands.h"
#include "kernels/score_ops.h"

namespace tessera {
namespace {

double bytes_of(const Tensor& tensor) { return static_cast<double>(tensor.bytes()); }
double bytes_of(const Heads& heads) { return Operand{"", heads.tensor, heads.first, heads.count}.bytes(); }

OpCost operator+(OpCost a, const OpCost& b) { return a += b; }

// A tensor that is read and written is named twice.
template <class... Tensors>
OpCost moved(const Tensors&... tensors) {
  return {.bytes = (0 + ... + bytes_of(tensors))};
}

// All tensors of the operation, as its list in operands.cpp says
template <class Op>
OpCost moved_by(const Op& a) {
  return {.bytes = bytes_moved(&a)};
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

// The operations that have GEMMs, move some tensors in part or several times, or know better than their list
// of tensors. The others cost what moved_by() says.
OpCost cost(const Copy& a) {
  const auto on_device = [](const Tensor& t) { return t.device == Device::kCpu ? Tensor{} : t; };
  const bool on_host = a.from.device == a.to.device;  // all of a copy within the host
  return on_host ? moved(a.from, a.to) : moved(on_device(a.from), on_device(a.to));
}
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
OpCost cost(const RotaryForward& a) { return moved(a.x, a.y, a.q_weight, a.k_weight, a.rstd, a.positions); }
OpCost cost(const RouterForward& a) { return gemm(a.x, a.weight) + moved_by(a); }
OpCost cost(const RouterBackward& a) {
  OpCost one = gemm(a.x, a.weight) + moved(a.d_logits, a.weight, a.dx, a.add);
  if (a.dweight) one += gemm(a.x, a.weight) + moved(a.d_logits, a.x) + gradients(a.accumulate, a.dweight);
  if (a.dbias) one += moved(a.d_logits) + gradients(a.accumulate, a.dbias);
  return one;
}
OpCost cost(const AssignExperts& a) { return moved(a.choices, a.choices, a.rows, a.places); }
const Tensor& read_of(const Tensor& matrix, const Fp8Matrix& fp8) { return fp8 ? fp8.data : matrix; }
// Each row goes through one expert.
OpCost gemm_of_rows(const Tensor& rows, const Tensor& weight, const Fp8Matrix& fp8 = {}) {
  const double flops =
      2 * static_cast<double>(rows.shape[0]) * static_cast<double>(weight.numel() / weight.shape[0]);
  return {.flops = flops, .fp8_flops = fp8 ? flops : 0};
}
OpCost cost(const ExpertsForward& a) { return gemm_of_rows(a.y, a.weight, a.fp8_x) + moved_by(a); }
OpCost cost(const ExpertsBackward& a) {
  OpCost one = gemm_of_rows(a.dx, a.weight, a.fp8_dy) +
               moved(read_of(a.dy, a.fp8_dy), read_of(a.weight, a.fp8_weight), a.dx);
  if (a.dweight) one += gemm_of_rows(a.dx, a.weight) + moved(a.dy, a.x) + gradients(a.accumulate, a.dweight);
  if (a.dbias) one += moved(a.dy) + gradients(a.accumulate, a.dbias);
  return one;
}
// Every row goes through the A and the B of one expert.
OpCost lora_gemms(const Tensor& u, int64_t columns) {
  return {.flops = 2 * static_cast<double>(u.numel()) * static_cast<double>(columns)};
}
OpCost cost(const ExpertsLoraForward& a) {
  return lora_gemms(a.u, a.x.shape[1] + a.y.shape[1]) + moved_by(a);
}
OpCost cost(const ExpertsLoraBackward& a) {
  return lora_gemms(a.u, a.x.shape[1] + 2 * a.dy.shape[1]) + moved(a.dy, a.x, a.b, a.u, a.u) +
         gradients(a.accumulate, a.da, a.db);
}
OpCost cost(const ExpertsLoraInput& a) { return lora_gemms(a.u, a.dx.shape[1]) + moved_by(a); }
OpCost cost(const RoundScales& a) { return moved(a.x, a.x, a.x, a.y); }
OpCost cost(const UpdateScales& a) { return moved(a.amax, a.scale); }
OpCost cost(const LinearForward& a) { return gemm(a.x, a.weight, a.fp8_x) + moved_by(a); }
OpCost cost(const LinearBackward& a) {
  OpCost all;
  for (const auto part : {LinearBackward::Part::kWeight, LinearBackward::Part::kInput})
    all += cost_of(a, part);
  return all;
}
OpCost cost(const FusedLinear& a) { return gemm(a.x, a.weight) + moved_by(a); }
OpCost cost(const LoraForward& a) { return gemm(a.x, a.a) + gemm(a.x, a.b) + moved_by(a); }
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
  return moved_by(a) + OpCost{.bytes = 0, .flops = attention_product(a.plan)};
}
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
  for (const DecodeOp& op : a.operations) op.each_plain([&](const auto& one) { all += cost_of(&one); });
  return all;
}
OpCost cost(const Distillation& a) { return moved_by(a) + moved(a.largest); }
OpCost cost(const HeadLoss& a) { return gemm(a.x, a.weight) + moved_by(a); }
OpCost cost(const HeadGradient& a) { return moved(a.x, a.x, a.product, a.targets, a.factors); }
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

// A polynomial is three GEMMs, of which A and A A are symmetric: half of each would do.
OpCost cost(const Orthogonalise& a) {
  OpCost all = moved_by(a);
  for (const Tensor& matrix : a.matrices) {
    const auto rows = static_cast<double>(matrix.shape[0]), columns = static_cast<double>(matrix.shape[1]),
               least = std::min(rows, columns);
    all.flops +=
        static_cast<double>(a.polynomials.size()) * (3 * least * rows * columns + least * least * least);
  }
  return all;
}
OpCost cost(const MuonNorms& a) {
  const auto of = [&](const Tensor& tensor) { return tensor ? tensor.rows(a.first, a.count) : Tensor{}; };
  return moved(of(a.step.param), of(a.step.low), of(a.step.direction), of(a.gradient), a.sums);
}
OpCost cost(const ClipHeads& a) { return moved(a.largest); }  // as a rule no head is clipped

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
                   a.fp8_dx.y.data) +
             gradients(a.accumulate, a.dx_sum);
  }
  return {};
}

OpCost cost_of(const AnyOp& op) {
  return std::visit(
      [](const auto* a) {
        if constexpr (requires { cost(*a); })
          return cost(*a);
        else
          return moved_by(*a);
      },
      op);
}

}  // namespace tessera
