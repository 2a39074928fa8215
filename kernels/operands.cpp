#include "kernels/operands.h"

#include <utility>

#include "kernels/expert_ops.h"
#include "kernels/score_ops.h"

namespace tessera {
namespace {

bool has_numbers(const Tensor& tensor) {
  switch (tensor.dtype) {
    case DType::kF32:
    case DType::kBF16:
    case DType::kE4M3:
    case DType::kE5M2:
      return tensor.numel() > 0;
    case DType::kI32:
    case DType::kU16:
      break;
  }
  return false;
}

// The tensors of an operation, each once: list.reads("x", a.x)("weight", a.weight).writes("y", a.y). A call
// without a verb repeats the last one.
class OperandList {
 public:
  struct Entry {
    Operand operand;
    bool read, written;
    bool moved = true;  // whether its bytes count
  };

  template <class... Given>
  OperandList& reads(const Given&... given) {
    return read_ = true, written_ = false, (*this)(given...);
  }
  template <class... Given>
  OperandList& writes(const Given&... given) {
    return read_ = false, written_ = true, (*this)(given...);
  }
  template <class... Given>
  OperandList& changes(const Given&... given) {  // in place
    return read_ = written_ = true, (*this)(given...);
  }
  // A gradient of parameters
  template <class... Given>
  OperandList& adds_to(bool accumulate, const Given&... given) {
    return read_ = accumulate, written_ = true, (*this)(given...);
  }

  OperandList& operator()(const char* field, const Tensor& tensor) {
    return add({.operand = {field, tensor}, .read = read_, .written = written_});
  }
  OperandList& operator()(const char* field, const Heads& heads) {
    return add(
        {.operand = {field, heads.tensor, heads.first, heads.count}, .read = read_, .written = written_});
  }
  OperandList& operator()(const char* field, const Fp8Output& output) {
    return (*this)(field, output.y.data);
  }
  // What is read: the operand in FP8 where there is one
  OperandList& operator()(const char* field, const Tensor& tensor, const Fp8Matrix& fp8) {
    return fp8 ? (*this)(field, fp8.data).number("its scale", fp8.scale) : (*this)(field, tensor);
  }
  // A single number, whose bytes do not count
  OperandList& number(const char* field, const Tensor& tensor) {
    return add({.operand = {field, tensor}, .read = read_, .written = written_, .moved = false});
  }

  std::vector<Entry> entries() && { return std::move(entries_); }

 private:
  OperandList& add(const Entry& entry) {
    if (entry.operand.tensor) entries_.push_back(entry);
    return *this;
  }

  std::vector<Entry> entries_;
  bool read_ = false, written_ = false;
};

void list(const FillZero& a, OperandList& to) { to.writes("tensor", a.tensor); }
void list(const Copy& a, OperandList& to) { to.reads("from", a.from).writes("to", a.to); }
void list(const SplitMasters& a, OperandList& to) {
  to.reads("masters", a.masters).writes("weights", a.weights)("low", a.low);
}
void list(const JoinMasters& a, OperandList& to) {
  to.reads("weights", a.weights)("low", a.low).writes("masters", a.masters);
}
void list(const Accumulate& a, OperandList& to) { to.reads("x", a.x).changes("y", a.y); }
void list(const RandomNormal& a, OperandList& to) { to.writes("y", a.y)("low", a.low); }
void list(const EmbeddingForward& a, OperandList& to) {
  to.reads("token_table", a.token_table)("position_table", a.position_table).writes("y", a.y);
}
void list(const EmbeddingBackward& a, OperandList& to) {
  to.reads("dy", a.dy);
  to.changes("d_token_table", a.d_token_table)("d_position_table", a.d_position_table);
}
void list(const LayerNormForward& a, OperandList& to) {
  to.reads("x", a.x)("weight", a.weight)("bias", a.bias);
  to.writes("y", a.y)("mean", a.mean)("rstd", a.rstd)("fp8_y", a.fp8_y);
}
void list(const LayerNormBackward& a, OperandList& to) {
  to.reads("dy", a.dy)("x", a.x)("weight", a.weight)("mean", a.mean)("rstd", a.rstd)("add", a.add);
  to.writes("dx", a.dx)("fp8_dx", a.fp8_dx);
  to.adds_to(a.accumulate, "dweight", a.dweight)("dbias", a.dbias)("dx_sum", a.dx_sum);
}
void list(const RmsNormForward& a, OperandList& to) {
  to.reads("x", a.x)("weight", a.weight)("add", a.add);
  to.writes("y", a.y)("rstd", a.rstd)("fp8_y", a.fp8_y);
}
void list(const RmsNormBackward& a, OperandList& to) {
  to.reads("dy", a.dy)("x", a.x)("weight", a.weight)("rstd", a.rstd)("add", a.add);
  to.writes("dx", a.dx)("fp8_dx", a.fp8_dx);
  to.adds_to(a.accumulate, "dweight", a.dweight)("dx_sum", a.dx_sum);
}
void list(const HeadsNormForward& a, OperandList& to) {
  to.reads("x", a.x)("weight", a.weight).writes("y", a.y)("rstd", a.rstd);
}
void list(const HeadsNormBackward& a, OperandList& to) {
  to.reads("dy", a.dy)("x", a.x)("weight", a.weight)("rstd", a.rstd).writes("dx", a.dx);
  to.adds_to(a.accumulate, "dweight", a.dweight);
}
void list(const RotaryForward& a, OperandList& to) {
  to.reads("x", a.x)("angles", a.angles)("q_weight", a.q_weight)("k_weight", a.k_weight);
  to.writes("y", a.y)("rstd", a.rstd);
}
void list(const RotaryBackward& a, OperandList& to) {
  to.reads("dy", a.dy)("x", a.x)("q_weight", a.q_weight)("k_weight", a.k_weight)("rstd", a.rstd);
  to.reads("positions", a.positions).writes("dx", a.dx);
  to.adds_to(a.accumulate, "dq_weight", a.dq_weight)("dk_weight", a.dk_weight);
}
void list(const GatedForward& a, OperandList& to) {
  to.reads("gate_up", a.gate_up).writes("y", a.y)("fp8_y", a.fp8_y);
}
void list(const GatedBackward& a, OperandList& to) {
  to.reads("dy", a.dy)("gate_up", a.gate_up);
  to.writes("d_gate_up", a.d_gate_up)("fp8_d_gate_up", a.fp8_d_gate_up);
}
void list(const RouterForward& a, OperandList& to) {
  to.reads("x", a.x)("weight", a.weight)("bias", a.bias).writes("logits", a.logits);
}
void list(const RouterBackward& a, OperandList& to) {
  to.reads("d_logits", a.d_logits)("x", a.x)("weight", a.weight)("add", a.add);
  to.adds_to(a.accumulate, "dweight", a.dweight)("dbias", a.dbias).writes("dx", a.dx);
}
void list(const ChooseExperts& a, OperandList& to) {
  to.reads("logits", a.logits).writes("choices", a.choices)("weights", a.weights);
}
void list(const ChooseExpertsBackward& a, OperandList& to) {
  to.changes("logits", a.logits).reads("choices", a.choices)("d_weights", a.d_weights);
}
void list(const AssignExperts&, OperandList&) {}  // numbers of rows
void list(const RouterSample& a, OperandList& to) {
  to.reads("logits", a.logits)("offsets", a.offsets);
  to.writes("loads", a.loads).number("entropy", a.entropy);
}
void list(const ExpertsForward& a, OperandList& to) {
  to.reads("x", a.x, a.fp8_x)("weight", a.weight, a.fp8_weight)("bias", a.bias)("x_rows", a.x_rows);
  to.writes("y", a.y);
}
void list(const ExpertsBackward& a, OperandList& to) {
  to.reads("dy", a.dy, a.fp8_dy)("weight", a.weight, a.fp8_weight)("weights", a.weights);
  if (a.dweight) to.reads("x", a.x);
  to.adds_to(a.accumulate, "dweight", a.dweight)("dbias", a.dbias).writes("dx", a.dx);
}
void list(const ExpertsLoraForward& a, OperandList& to) {
  to.reads("x", a.x)("x_rows", a.x_rows)("a", a.a)("b", a.b).writes("u", a.u).changes("y", a.y);
}
void list(const ExpertsLoraBackward& a, OperandList& to) {
  to.reads("dy", a.dy)("x", a.x)("b", a.b).changes("u", a.u).reads("weights", a.weights);
  to.adds_to(a.accumulate, "da", a.da)("db", a.db);
}
void list(const ExpertsLoraInput& a, OperandList& to) { to.reads("u", a.u)("a", a.a).changes("dx", a.dx); }
void list(const GatedExpertsBackward& a, OperandList& to) {
  to.reads("dy", a.dy)("gate_up", a.gate_up)("rows", a.rows).writes("d_gate_up", a.d_gate_up);
  to.writes("fp8_d_gate_up", a.fp8_d_gate_up)
      .changes("weights", a.weights)
      .reads("d_sum", a.d_sum)("bias", a.bias);
}
void list(const SumExperts& a, OperandList& to) {
  to.reads("x", a.x)("places", a.places)("weights", a.weights)("add", a.add).writes("y", a.y);
}
void list(const AddShared& a, OperandList& to) {
  to.reads("x", a.x)("logits", a.logits)("add", a.add).writes("y", a.y);
}
void list(const AddSharedBackward& a, OperandList& to) {
  to.reads("dy", a.dy)("x", a.x).writes("dx", a.dx).changes("d_logits", a.d_logits);
}
void list(const Quantise& a, OperandList& to) {
  to.reads("x", a.x);
  if (!a.current && a.y) to.number("its scale", a.y.scale);
  to.writes("y", a.y.data)("transposed", a.transposed);
  if (a.current) to.number("its scale", a.y.scale);
}
void list(const CountSaturated& a, OperandList& to) {
  to.reads("x", a.x).number("its scale", a.scale).changes("count", a.count);
}
void list(const Dequantise& a, OperandList& to) {
  to.reads("x", a.x.data).number("its scale", a.x.scale).writes("y", a.y);
}
void list(const RoundToFourBits& a, OperandList& to) {
  to.reads("x", a.x).writes("y", a.y.data)("its scales", a.y.scales);
}
void list(const RoundScales& a, OperandList& to) { to.reads("x", a.x).writes("y", a.y); }
void list(const WidenFourBits& a, OperandList& to) {
  to.reads("x", a.x.data)("its scales", a.x.scales).writes("y", a.y);
}
void list(const TransposeFp8& a, OperandList& to) { to.reads("x", a.x).writes("y", a.y); }
void list(const UpdateScales& a, OperandList& to) { to.writes("scale", a.scale); }
void list(const LinearForward& a, OperandList& to) {
  to.reads("x", a.x, a.fp8_x)("weight", a.weight, a.fp8_weight)("bias", a.bias)("add", a.add);
  to.writes("y", a.y)("pre_activation", a.pre_activation)("fp8_y", a.fp8_y);
}
void list(const LinearBackward& a, OperandList& to) {
  to.reads("dy", a.dy, a.fp8_dy)("weight", a.weight, a.fp8_weight)("pre_activation", a.pre_activation);
  to.reads("add", a.add);
  if (a.dweight) to.reads("x", a.x, a.fp8_x_transposed);
  to.adds_to(a.accumulate, "dweight", a.dweight)("dbias", a.dbias);
  to.writes("dx", a.dx)("fp8_dx", a.fp8_dx);
  to.adds_to(a.accumulate, "dx_sum", a.dx_sum);
}
void list(const LoraForward& a, OperandList& to) {
  to.reads("x", a.x)("a", a.a)("b", a.b)("add", a.add).writes("u", a.u)("y", a.y);
}
void list(const LoraBackward& a, OperandList& to) {
  to.reads("dy", a.dy)("x", a.x)("a", a.a)("b", a.b).changes("u", a.u).reads("add", a.add);
  to.writes("dx", a.dx).adds_to(a.accumulate, "da", a.da)("db", a.db);
}
void list(const FusedLinear& a, OperandList& to) {
  to.reads("x", a.x)("weight", a.weight)("bias", a.bias)("add", a.add);
  to.reads("norm_weight", a.norm_weight)("norm_bias", a.norm_bias).writes("y", a.y);
}
void list(const AttentionForward& a, OperandList& to) {
  to.reads("q", a.q)("k", a.k)("v", a.v)("sinks", a.sinks).writes("y", a.y);
}
void list(const AttentionBackward& a, OperandList& to) {
  to.reads("q", a.q)("k", a.k)("v", a.v)("y", a.y)("dy", a.dy)("sinks", a.sinks);
  to.writes("dq", a.dq)("dk", a.dk)("dv", a.dv).adds_to(a.accumulate, "dsinks", a.dsinks);
}
void list(const AttentionSample& a, OperandList& to) { to.reads("q", a.q)("k", a.k); }
void list(const LargestScores& a, OperandList& to) {
  to.reads("q", a.q)("k", a.k).writes("largest", a.largest);
}
void list(const DeadUnits& a, OperandList& to) {
  to.reads("x", a.x).changes("maxima", a.maxima).writes("dead", a.dead);
}
void list(const MoveHeads& a, OperandList& to) {
  to.reads("from", a.from)("rows", a.rows).writes("to", a.to);
}
void list(const CacheAppend& a, OperandList& to) { to.reads("k", a.k)("v", a.v); }
void list(const RotaryAppend& a, OperandList& to) {
  list(a.rotary, to);
  list(a.append, to);
}
void list(const DecodeAttention& a, OperandList& to) {
  to.reads("q", a.q)("sinks", a.sinks).writes("y", a.y);
}
void list(const QuantiseCache& a, OperandList& to) {
  if (!a.starts) to.reads("k", a.k)("v", a.v);  // else of a ring, of which rows may not be written yet
}
void list(const DequantiseCache& a, OperandList& to) { to.writes("k", a.k)("v", a.v); }
void list(const FusedDecodeStep& a, OperandList& to) {
  for (const DecodeOp& op : a.operations) op.each_plain([&](const auto& one) { list(one, to); });
}
void list(const SampleTokens& a, OperandList& to) { to.reads("logits", a.logits); }
void list(const ApplyDropout& a, OperandList& to) { to.reads("x", a.x)("add", a.add).writes("y", a.y); }
void list(const CapLogits& a, OperandList& to) { to.changes("logits", a.logits); }
void list(const CrossEntropy& a, OperandList& to) {
  to.reads("logits", a.logits)("targets", a.targets).number("gradient_scale", a.gradient_scale);
  to.reads("weights", a.weights).writes("losses", a.losses);
  if (a.want_gradient) to.writes("logits", a.logits)("fp8_dlogits", a.fp8_dlogits);
}
void list(const Distillation& a, OperandList& to) {
  to.reads("logits", a.logits)("teacher", a.teacher)("largest_ids", a.largest_ids);
  to.reads("targets", a.targets).number("gradient_scale", a.gradient_scale)("weights", a.weights);
  to.writes("losses", a.losses);
  if (a.want_gradient) to.writes("logits", a.logits);
}
void list(const LargestLogits& a, OperandList& to) {
  to.reads("logits", a.logits).writes("ids", a.ids)("values", a.values);
}
void list(const PreferenceLoss& a, OperandList& to) {
  to.reads("documents", a.documents)("kinds", a.kinds)("targets", a.targets)("losses", a.losses);
  to.reads("reference", a.reference)("stored", a.stored).number("divergence", a.divergence);
  to.number("gradient_scale", a.gradient_scale)("pair_weights", a.pair_weights);
  to.writes("weights", a.weights)("figures", a.figures);
}
void list(const HeadLoss& a, OperandList& to) {
  to.reads("x", a.x)("weight", a.weight)("targets", a.targets).number("gradient_scale", a.gradient_scale);
  to.reads("weights", a.weights);
  to.writes("losses", a.losses)("e", a.e)("scaled_x", a.scaled_x)("factors", a.factors);
}
void list(const HeadGradient& a, OperandList& to) {
  to.changes("x", a.x).reads("product", a.product)("factors", a.factors)("weight", a.weight);
  to.changes("dweight", a.dweight);
}
void list(const GlobalNorm& a, OperandList& to) {
  for (const Tensor& tensor : a.tensors) to.reads("tensors", tensor);
  to.writes("norm", a.norm);
}
void list(const SumLosses& a, OperandList& to) { to.reads("losses", a.losses).writes("sum", a.sum); }
void list(const JudgeStep& a, OperandList& to) {
  to.reads("losses", a.losses)("grad_norm", a.grad_norm)("limits", a.limits).writes("verdict", a.verdict);
}
void list(const Inspect& a, OperandList& to) { to.reads("x", a.x); }
void list(const AdamW& a, OperandList& to) {
  for (const AdamW::Part& part : a.parts)
    to.changes("param", part.param)("low", part.low)
        .reads("grad", part.grad)
        .changes("m", part.m)("v", part.v);
}
void list(const AdamWNorms& a, OperandList& to) {
  for (const AdamW::Part& part : a.step.parts)
    to.reads("param", part.param)("grad", part.grad)("m", part.m)("v", part.v);
  to.writes("sums", a.sums);
}

void list(const MuonMomentum& a, OperandList& to) {
  to.reads("gradient", a.gradient).changes("mean", a.mean).writes("direction", a.direction);
}
void list(const Orthogonalise& a, OperandList& to) {
  for (const Tensor& matrix : a.matrices) to.changes("matrix", matrix);
}
void list(const NormaliseRows& a, OperandList& to) { to.changes("matrix", a.matrix)("squares", a.squares); }
void list(const MuonNorms& a, OperandList& to) {
  to.reads("param", a.step.param)("direction", a.step.direction)("gradient", a.gradient);
  to.writes("sums", a.sums);
}
void list(const MuonUpdate& a, OperandList& to) {
  to.changes("param", a.param)("low", a.low).reads("direction", a.direction);
}
void list(const ClipHeads& a, OperandList& to) { to.changes("param", a.param); }

std::vector<OperandList::Entry> entries_of(const AnyOp& op) {
  OperandList all;
  std::visit([&](const auto* a) { list(*a, all); }, op);
  return std::move(all).entries();
}

}  // namespace

Operands operands_of(const AnyOp& op) {
  Operands operands;
  for (const auto& [operand, read, written, moved] : entries_of(op)) {
    if (!has_numbers(operand.tensor)) continue;
    if (read) operands.read.push_back(operand);
    if (written) operands.written.push_back(operand);
  }
  return operands;
}

double bytes_moved(const AnyOp& op) {
  double bytes = 0;
  for (const auto& [operand, read, written, moved] : entries_of(op))
    if (moved) bytes += (read && written ? 2 : 1) * operand.bytes();
  return bytes;
}

double Operand::bytes() const {
  const auto all = static_cast<double>(tensor.bytes());
  return heads == 0 ? all : all / static_cast<double>(tensor.shape[-2]) * static_cast<double>(heads);
}

}  // namespace tessera
