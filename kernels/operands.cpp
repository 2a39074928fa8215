#include "kernels/operands.h"

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

class List {
 public:
  explicit List(std::vector<Operand>& to) : to_(to) {}
  const List& operator()(const char* field, const Tensor& tensor) const {
    if (has_numbers(tensor)) to_.push_back({field, tensor});
    return *this;
  }
  const List& operator()(const char* field, const Heads& heads) const {
    if (has_numbers(heads.tensor)) to_.push_back({field, heads.tensor, heads.first, heads.count});
    return *this;
  }
  // What is read: the operand in FP8 where there is one
  const List& operator()(const char* field, const Tensor& tensor, const Fp8Matrix& fp8) const {
    return fp8 ? (*this)(field, fp8.data)("its scale", fp8.scale) : (*this)(field, tensor);
  }

 private:
  std::vector<Operand>& to_;
};

struct Lists {
  List read, written;
};

// A gradient of parameters
void gradient(const Lists& to, const char* field, const Tensor& tensor, bool accumulate) {
  if (accumulate) to.read(field, tensor);
  to.written(field, tensor);
}

void list(const FillZero& a, const Lists& to) { to.written("tensor", a.tensor); }
void list(const Copy& a, const Lists& to) {
  to.read("from", a.from);
  to.written("to", a.to);
}
void list(const SplitMasters& a, const Lists& to) {
  to.read("masters", a.masters);
  to.written("weights", a.weights);
}
void list(const JoinMasters& a, const Lists& to) {
  to.read("weights", a.weights);
  to.written("masters", a.masters);
}
void list(const Accumulate& a, const Lists& to) {
  to.read("x", a.x)("y", a.y);
  to.written("y", a.y);
}
void list(const RandomNormal& a, const Lists& to) { to.written("y", a.y); }
void list(const EmbeddingForward& a, const Lists& to) {
  to.read("token_table", a.token_table)("position_table", a.position_table);
  to.written("y", a.y);
}
void list(const EmbeddingBackward& a, const Lists& to) {
  to.read("dy", a.dy)("d_token_table", a.d_token_table)("d_position_table", a.d_position_table);
  to.written("d_token_table", a.d_token_table)("d_position_table", a.d_position_table);
}
void list(const LayerNormForward& a, const Lists& to) {
  to.read("x", a.x)("weight", a.weight)("bias", a.bias);
  to.written("y", a.y)("mean", a.mean)("rstd", a.rstd)("fp8_y", a.fp8_y.y.data);
}
void list(const LayerNormBackward& a, const Lists& to) {
  to.read("dy", a.dy)("x", a.x)("weight", a.weight)("mean", a.mean)("rstd", a.rstd)("add", a.add);
  to.written("dx", a.dx)("fp8_dx", a.fp8_dx.y.data);
  gradient(to, "dweight", a.dweight, a.accumulate);
  gradient(to, "dbias", a.dbias, a.accumulate);
  gradient(to, "dx_sum", a.dx_sum, a.accumulate);
}
void list(const RmsNormForward& a, const Lists& to) {
  to.read("x", a.x)("weight", a.weight)("add", a.add);
  to.written("y", a.y)("rstd", a.rstd)("fp8_y", a.fp8_y.y.data);
}
void list(const RmsNormBackward& a, const Lists& to) {
  to.read("dy", a.dy)("x", a.x)("weight", a.weight)("rstd", a.rstd)("add", a.add);
  to.written("dx", a.dx)("fp8_dx", a.fp8_dx.y.data);
  gradient(to, "dweight", a.dweight, a.accumulate);
  gradient(to, "dx_sum", a.dx_sum, a.accumulate);
}
void list(const HeadsNormForward& a, const Lists& to) {
  to.read("x", a.x)("weight", a.weight);
  to.written("y", a.y)("rstd", a.rstd);
}
void list(const HeadsNormBackward& a, const Lists& to) {
  to.read("dy", a.dy)("x", a.x)("weight", a.weight)("rstd", a.rstd);
  to.written("dx", a.dx);
  gradient(to, "dweight", a.dweight, a.accumulate);
}
void list(const RotaryForward& a, const Lists& to) {
  to.read("x", a.x)("angles", a.angles)("q_weight", a.q_weight)("k_weight", a.k_weight);
  to.written("y", a.y)("rstd", a.rstd);
}
void list(const RotaryBackward& a, const Lists& to) {
  to.read("dy", a.dy)("x", a.x)("q_weight", a.q_weight)("k_weight", a.k_weight)("rstd", a.rstd);
  to.written("dx", a.dx);
  gradient(to, "dq_weight", a.dq_weight, a.accumulate);
  gradient(to, "dk_weight", a.dk_weight, a.accumulate);
}
void list(const GatedForward& a, const Lists& to) {
  to.read("gate_up", a.gate_up);
  to.written("y", a.y)("fp8_y", a.fp8_y.y.data);
}
void list(const GatedBackward& a, const Lists& to) {
  to.read("dy", a.dy)("gate_up", a.gate_up);
  to.written("d_gate_up", a.d_gate_up)("fp8_d_gate_up", a.fp8_d_gate_up.y.data);
}
void list(const RouterForward& a, const Lists& to) {
  to.read("x", a.x)("weight", a.weight)("bias", a.bias);
  to.written("logits", a.logits);
}
void list(const RouterBackward& a, const Lists& to) {
  to.read("d_logits", a.d_logits)("x", a.x)("weight", a.weight)("add", a.add);
  gradient(to, "dweight", a.dweight, a.accumulate);
  gradient(to, "dbias", a.dbias, a.accumulate);
  to.written("dx", a.dx);
}
void list(const ChooseExperts& a, const Lists& to) {
  to.read("logits", a.logits);
  to.written("weights", a.weights);
}
void list(const ChooseExpertsBackward& a, const Lists& to) {
  to.read("logits", a.logits)("d_weights", a.d_weights);
  to.written("logits", a.logits);
}
void list(const AssignExperts&, const Lists&) {}  // numbers of rows
void list(const RouterSample& a, const Lists& to) {
  to.read("logits", a.logits);
  to.written("loads", a.loads)("entropy", a.entropy);
}
void list(const ExpertsForward& a, const Lists& to) {
  to.read("x", a.x)("weight", a.weight)("bias", a.bias);
  to.written("y", a.y);
}
void list(const ExpertsBackward& a, const Lists& to) {
  to.read("dy", a.dy)("x", a.x)("weight", a.weight)("weights", a.weights);
  gradient(to, "dweight", a.dweight, a.accumulate);
  gradient(to, "dbias", a.dbias, a.accumulate);
  to.written("dx", a.dx);
}
void list(const ExpertsLoraForward& a, const Lists& to) {
  to.read("x", a.x)("a", a.a)("b", a.b)("y", a.y);
  to.written("u", a.u)("y", a.y);
}
void list(const ExpertsLoraBackward& a, const Lists& to) {
  to.read("dy", a.dy)("x", a.x)("b", a.b)("u", a.u)("weights", a.weights);
  to.written("u", a.u);
  gradient(to, "da", a.da, a.accumulate);
  gradient(to, "db", a.db, a.accumulate);
}
void list(const ExpertsLoraInput& a, const Lists& to) {
  to.read("u", a.u)("a", a.a)("dx", a.dx);
  to.written("dx", a.dx);
}
void list(const GatedExpertsBackward& a, const Lists& to) {
  to.read("dy", a.dy)("gate_up", a.gate_up)("weights", a.weights)("d_sum", a.d_sum)("bias", a.bias);
  to.written("d_gate_up", a.d_gate_up)("weights", a.weights);
}
void list(const SumExperts& a, const Lists& to) {
  to.read("x", a.x)("weights", a.weights)("add", a.add);
  to.written("y", a.y);
}
void list(const AddShared& a, const Lists& to) {
  to.read("x", a.x)("logits", a.logits)("add", a.add);
  to.written("y", a.y);
}
void list(const AddSharedBackward& a, const Lists& to) {
  to.read("dy", a.dy)("x", a.x)("d_logits", a.d_logits);
  to.written("dx", a.dx)("d_logits", a.d_logits);
}
void list(const Quantise& a, const Lists& to) {
  to.read("x", a.x);
  if (!a.current && a.y) to.read("its scale", a.y.scale);
  to.written("y", a.y.data)("transposed", a.transposed);
  if (a.current) to.written("its scale", a.y.scale);
}
void list(const CountSaturated& a, const Lists& to) { to.read("x", a.x)("its scale", a.scale); }
void list(const Dequantise& a, const Lists& to) {
  to.read("x", a.x.data)("its scale", a.x.scale);
  to.written("y", a.y);
}
void list(const RoundToFourBits& a, const Lists& to) {
  to.read("x", a.x);
  to.written("y", a.y.data)("its scales", a.y.scales);
}
void list(const RoundScales& a, const Lists& to) {
  to.read("x", a.x);
  to.written("y", a.y);
}
void list(const WidenFourBits& a, const Lists& to) {
  to.read("x", a.x.data)("its scales", a.x.scales);
  to.written("y", a.y);
}
void list(const TransposeFp8& a, const Lists& to) {
  to.read("x", a.x);
  to.written("y", a.y);
}
void list(const UpdateScales& a, const Lists& to) { to.written("scale", a.scale); }
void list(const LinearForward& a, const Lists& to) {
  to.read("x", a.x, a.fp8_x)("weight", a.weight, a.fp8_weight)("bias", a.bias)("add", a.add);
  to.written("y", a.y)("pre_activation", a.pre_activation)("fp8_y", a.fp8_y.y.data);
}
void list(const LinearBackward& a, const Lists& to) {
  to.read("dy", a.dy, a.fp8_dy)("weight", a.weight, a.fp8_weight)("pre_activation", a.pre_activation);
  to.read("add", a.add);
  if (a.dweight) to.read("x", a.x, a.fp8_x_transposed);
  gradient(to, "dweight", a.dweight, a.accumulate);
  gradient(to, "dbias", a.dbias, a.accumulate);
  to.written("dx", a.dx)("fp8_dx", a.fp8_dx.y.data);
  gradient(to, "dx_sum", a.dx_sum, a.accumulate);
}
void list(const LoraForward& a, const Lists& to) {
  to.read("x", a.x)("a", a.a)("b", a.b)("add", a.add);
  to.written("u", a.u)("y", a.y);
}
void list(const LoraBackward& a, const Lists& to) {
  to.read("dy", a.dy)("x", a.x)("a", a.a)("b", a.b)("u", a.u)("add", a.add);
  to.written("u", a.u)("dx", a.dx);
  gradient(to, "da", a.da, a.accumulate);
  gradient(to, "db", a.db, a.accumulate);
}
void list(const FusedLinear& a, const Lists& to) {
  to.read("x", a.x)("weight", a.weight)("bias", a.bias)("add", a.add);
  to.read("norm_weight", a.norm_weight)("norm_bias", a.norm_bias);
  to.written("y", a.y);
}
void list(const AttentionForward& a, const Lists& to) {
  to.read("q", a.q)("k", a.k)("v", a.v)("sinks", a.sinks);
  to.written("y", a.y);
}
void list(const AttentionBackward& a, const Lists& to) {
  to.read("q", a.q)("k", a.k)("v", a.v)("y", a.y)("dy", a.dy)("sinks", a.sinks);
  to.written("dq", a.dq)("dk", a.dk)("dv", a.dv);
  gradient(to, "dsinks", a.dsinks, a.accumulate);
}
void list(const AttentionSample& a, const Lists& to) { to.read("q", a.q)("k", a.k); }
void list(const LargestScores& a, const Lists& to) { to.read("q", a.q)("k", a.k); }
void list(const DeadUnits& a, const Lists& to) {
  to.read("x", a.x)("maxima", a.maxima);
  to.written("maxima", a.maxima)("dead", a.dead);
}
void list(const MoveHeads& a, const Lists& to) {
  to.read("from", a.from);
  to.written("to", a.to);
}
void list(const CacheAppend& a, const Lists& to) { to.read("k", a.k)("v", a.v); }
void list(const RotaryAppend& a, const Lists& to) {
  list(a.rotary, to);
  list(a.append, to);
}
void list(const DecodeAttention& a, const Lists& to) {
  to.read("q", a.q)("sinks", a.sinks);
  to.written("y", a.y);
}
void list(const QuantiseCache& a, const Lists& to) {
  if (!a.starts) to.read("k", a.k)("v", a.v);  // else of a ring, of which rows may not be written yet
}
void list(const DequantiseCache& a, const Lists& to) { to.written("k", a.k)("v", a.v); }
void list(const FusedDecodeStep& a, const Lists& to) {
  for (const DecodeOp& op : a.operations) op.each_plain([&](const auto& one) { list(one, to); });
}
void list(const SampleTokens& a, const Lists& to) { to.read("logits", a.logits); }
void list(const ApplyDropout& a, const Lists& to) {
  to.read("x", a.x)("add", a.add);
  to.written("y", a.y);
}
void list(const CapLogits& a, const Lists& to) {
  to.read("logits", a.logits);
  to.written("logits", a.logits);
}
void list(const CrossEntropy& a, const Lists& to) {
  to.read("logits", a.logits)("gradient_scale", a.gradient_scale)("weights", a.weights);
  to.written("losses", a.losses);
  if (a.want_gradient) to.written("logits", a.logits)("fp8_dlogits", a.fp8_dlogits.y.data);
}
void list(const Distillation& a, const Lists& to) {
  to.read("logits", a.logits)("teacher", a.teacher)("gradient_scale", a.gradient_scale)("weights", a.weights);
  to.written("losses", a.losses);
  if (a.want_gradient) to.written("logits", a.logits);
}
void list(const LargestLogits& a, const Lists& to) {
  to.read("logits", a.logits);
  to.written("values", a.values);
}
void list(const PreferenceLoss& a, const Lists& to) {
  to.read("losses", a.losses)("reference", a.reference)("stored", a.stored);
  to.read("divergence", a.divergence)("gradient_scale", a.gradient_scale)("pair_weights", a.pair_weights);
  to.written("weights", a.weights)("figures", a.figures);
}
void list(const HeadLoss& a, const Lists& to) {
  to.read("x", a.x)("weight", a.weight)("gradient_scale", a.gradient_scale)("weights", a.weights);
  to.written("losses", a.losses)("e", a.e)("scaled_x", a.scaled_x)("factors", a.factors);
}
void list(const HeadGradient& a, const Lists& to) {
  to.read("x", a.x)("product", a.product)("factors", a.factors)("weight", a.weight)("dweight", a.dweight);
  to.written("x", a.x)("dweight", a.dweight);
}
void list(const GlobalNorm& a, const Lists& to) {
  for (const Tensor& tensor : a.tensors) to.read("tensors", tensor);
  to.written("norm", a.norm);
}
void list(const SumLosses& a, const Lists& to) {
  to.read("losses", a.losses);
  to.written("sum", a.sum);
}
void list(const JudgeStep& a, const Lists& to) {
  to.read("losses", a.losses)("grad_norm", a.grad_norm)("limits", a.limits);
  to.written("verdict", a.verdict);
}
void list(const Inspect& a, const Lists& to) { to.read("x", a.x); }
void list(const AdamW& a, const Lists& to) {
  for (const AdamW::Part& part : a.parts) {
    to.read("param", part.param)("grad", part.grad)("m", part.m)("v", part.v);
    to.written("param", part.param)("m", part.m)("v", part.v);
  }
}
void list(const AdamWNorms& a, const Lists& to) {
  for (const AdamW::Part& part : a.step.parts)
    to.read("param", part.param)("grad", part.grad)("m", part.m)("v", part.v);
  to.written("sums", a.sums);
}

void list(const MuonMomentum& a, const Lists& to) {
  to.read("gradient", a.gradient)("mean", a.mean);
  to.written("mean", a.mean)("direction", a.direction);
}
void list(const Orthogonalise& a, const Lists& to) {
  for (const Tensor& matrix : a.matrices) {
    to.read("matrix", matrix);
    to.written("matrix", matrix);
  }
}
void list(const NormaliseRows& a, const Lists& to) {
  to.read("matrix", a.matrix)("squares", a.squares);
  to.written("matrix", a.matrix)("squares", a.squares);
}
void list(const MuonNorms& a, const Lists& to) {
  to.read("param", a.step.param)("direction", a.step.direction)("gradient", a.gradient);
  to.written("sums", a.sums);
}
void list(const MuonUpdate& a, const Lists& to) {
  to.read("param", a.param)("direction", a.direction);
  to.written("param", a.param);
}
void list(const ClipHeads& a, const Lists& to) {
  to.read("param", a.param);
  to.written("param", a.param);
}

}  // namespace

Operands operands_of(const AnyOp& op) {
  Operands operands;
  const Lists to{.read = List(operands.read), .written = List(operands.written)};
  std::visit([&](const auto* a) { list(*a, to); }, op);
  return operands;
}

}  // namespace tessera
