#include "kernels/op_checks.h"

#include "kernels/base/check.h"

namespace tessera {
namespace {

// The message is built on failure only: these checks run before every launch.
struct Field {
  const char* name;
  const Tensor& tensor;
  DType dtype;
  Shape shape;
  bool optional = false;
};

void check_fields(const char* op, Device device, std::initializer_list<Field> fields) {
  for (const Field& f : fields) {
    if (f.optional && !f.tensor) continue;
    if (f.tensor && f.tensor.dtype == f.dtype && f.tensor.shape == f.shape && f.tensor.device == device)
      continue;
    fail("{}: {} wants {} {} on {}, found {}", op, f.name, name_of(f.dtype), f.shape.to_string(),
         name_of(device), f.tensor.to_string());
  }
}

// What a device computes in.
bool computes_in(DType dtype, Device device) {
  return dtype == DType::kF32 || (dtype == DType::kBF16 && device == Device::kCuda);
}
const char* names_of_dtypes(Device device) { return device == Device::kCuda ? "bf16 or fp32" : "fp32"; }

// The tensor that all other shapes of an operation are measured by.
void check_anchor(const char* op, const char* name, const Tensor& t, int rank, Device device) {
  if (t && t.shape.rank() == rank && t.device == device && t.numel() > 0 && computes_in(t.dtype, device))
    return;
  fail("{}: {} wants a non-empty tensor of {} dimensions in {} on {}, found {}", op, name, rank,
       names_of_dtypes(device), name_of(device), t.to_string());
}

void check_embedding(const char* op, const Tensor& tokens, const Tensor& rows, const Tensor& token_table,
                     const Tensor& position_table, Device device) {
  check_anchor(op, "y", rows, 3, device);
  const int64_t B = rows.shape[0], T = rows.shape[1], C = rows.shape[2];
  check_fields(
      op, device,
      {{"tokens", tokens, DType::kI32, {B, T}},
       {"token_table", token_table, rows.dtype, {token_table ? token_table.shape[0] : 0, C}},
       {"position_table", position_table, rows.dtype, {position_table ? position_table.shape[0] : 0, C}}});
  check(position_table.shape[0] >= T, "{}: {} positions cannot serve sequences of {} tokens", op,
        position_table.shape[0], T);
}

}  // namespace

void check_op(const EmbeddingForward& a, Device device) {
  check_embedding("embedding_forward", a.tokens, a.y, a.token_table, a.position_table, device);
}

void check_op(const EmbeddingBackward& a, Device device) {
  check_embedding("embedding_backward", a.tokens, a.dy, a.d_token_table, a.d_position_table, device);
}

void check_op(const LayerNormForward& a, Device device) {
  const char* op = "layernorm_forward";
  check_anchor(op, "x", a.x, 2, device);
  const int64_t N = a.x.shape[0], C = a.x.shape[1];
  const DType t = a.x.dtype;
  check_fields(op, device,
               {{"weight", a.weight, t, {C}},
                {"bias", a.bias, t, {C}},
                {"y", a.y, t, {N, C}},
                {"mean", a.mean, DType::kF32, {N}},
                {"rstd", a.rstd, DType::kF32, {N}}});
  check(a.epsilon > 0, "{}: epsilon wants a number above 0, found {}", op, a.epsilon);
}

void check_op(const LayerNormBackward& a, Device device) {
  const char* op = "layernorm_backward";
  check_anchor(op, "x", a.x, 2, device);
  const int64_t N = a.x.shape[0], C = a.x.shape[1];
  const DType t = a.x.dtype;
  check_fields(op, device,
               {{"dy", a.dy, t, {N, C}},
                {"weight", a.weight, t, {C}},
                {"mean", a.mean, DType::kF32, {N}},
                {"rstd", a.rstd, DType::kF32, {N}},
                {"dx", a.dx, t, {N, C}},
                {"dweight", a.dweight, t, {C}},
                {"dbias", a.dbias, t, {C}},
                {"add", a.add, t, {N, C}, true}});
}

void check_op(const LinearForward& a, Device device) {
  const char* op = "linear_forward";
  check_anchor(op, "x", a.x, 2, device);
  check_anchor(op, "weight", a.weight, 2, device);
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.weight.shape[0];
  const DType t = a.x.dtype;
  check_fields(op, device,
               {{"weight", a.weight, t, {O, C}},
                {"y", a.y, t, {N, O}},
                {"bias", a.bias, t, {O}, true},
                {"add", a.add, t, {N, O}, true},
                {"pre_activation", a.pre_activation, t, {N, O}, true}});
  check(!(a.add && a.pre_activation), "{}: add and pre_activation exclude each other", op);
}

void check_op(const LinearBackward& a, Device device) {
  const char* op = "linear_backward";
  check_anchor(op, "x", a.x, 2, device);
  check_anchor(op, "weight", a.weight, 2, device);
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.weight.shape[0];
  const DType t = a.x.dtype;
  check_fields(op, device,
               {{"weight", a.weight, t, {O, C}},
                {"dy", a.dy, t, {N, O}},
                {"dx", a.dx, t, {N, C}},
                {"dweight", a.dweight, t, {O, C}},
                {"dbias", a.dbias, t, {O}, true},
                {"pre_activation", a.pre_activation, t, {N, C}, true}});
  const auto check_apart = [&](const char* name, const Tensor& read) {
    check(a.dx.data != read.data, "{}: dx may be x itself, but {} is read while dx is written", op, name);
  };
  check_apart("dy", a.dy);
  check_apart("weight", a.weight);
  check_apart("pre_activation", a.pre_activation);
}

void check_op(const AttentionForwardOp& a, Device device) {
  const AttentionShape& s = a.plan.shape;
  check_fields("attention_forward", device,
               {{"qkv", a.qkv, a.plan.dtype, {s.batch, s.tokens, 3, s.heads, s.head_dim}},
                {"y", a.y, a.plan.dtype, {s.batch, s.tokens, s.heads, s.head_dim}},
                {"saved", a.saved, a.plan.saved_dtype, a.plan.saved_shape}});
  check(static_cast<int64_t>(a.workspace.bytes()) >= a.plan.forward_workspace_bytes,
        "attention_forward: workspace wants {} bytes, found {}", a.plan.forward_workspace_bytes,
        a.workspace.bytes());
}

void check_op(const AttentionBackwardOp& a, Device device) {
  const AttentionShape& s = a.plan.shape;
  const Shape packed{s.batch, s.tokens, 3, s.heads, s.head_dim},
      heads{s.batch, s.tokens, s.heads, s.head_dim};
  check_fields("attention_backward", device,
               {{"qkv", a.qkv, a.plan.dtype, packed},
                {"y", a.y, a.plan.dtype, heads},
                {"saved", a.saved, a.plan.saved_dtype, a.plan.saved_shape},
                {"dy", a.dy, a.plan.dtype, heads},
                {"dqkv", a.dqkv, a.plan.dtype, packed}});
  check(static_cast<int64_t>(a.workspace.bytes()) >= a.plan.backward_workspace_bytes,
        "attention_backward: workspace wants {} bytes, found {}", a.plan.backward_workspace_bytes,
        a.workspace.bytes());
}

void check_op(const CrossEntropy& a, Device device) {
  const char* op = "cross_entropy";
  check_anchor(op, "logits", a.logits, 2, device);
  const int64_t N = a.logits.shape[0];
  check_fields(op, device,
               {{"targets", a.targets, DType::kI32, {N}}, {"losses", a.losses, DType::kF32, {N}}});
  check(a.vocab_size > 0 && a.vocab_size <= a.logits.shape[1], "{}: vocab_size {} does not fit logits {}", op,
        a.vocab_size, a.logits.to_string());
}

void check_op(const GlobalNorm& a, Device device) {
  check_fields("global_norm", device, {{"norm", a.norm, DType::kF32, {1}}});
  for (const Tensor& t : a.tensors)
    check(t && t.device == device && t.dtype != DType::kI32,
          "global_norm: wants real tensors on {}, found {}", name_of(device), t.to_string());
}

void check_op(const AdamW& a, Device device) {
  const char* op = "adamw";
  check(a.param && computes_in(a.param.dtype, device) && a.param.device == device,
        "{}: param wants a tensor in {} on {}, found {}", op, names_of_dtypes(device), name_of(device),
        a.param.to_string());
  const Shape& s = a.param.shape;
  const DType grad = a.grad && a.grad.dtype == DType::kF32 ? DType::kF32 : a.param.dtype;
  const DType moments = a.m && a.m.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
  const int64_t parts = a.grad_norm && a.grad_norm.numel() > 0 ? a.grad_norm.numel() : 1;
  check_fields(op, device,
               {{"master", a.master, DType::kF32, s, a.param.dtype == DType::kF32},
                {"grad", a.grad, grad, s},
                {"m", a.m, moments, s},
                {"v", a.v, moments, s},
                {"grad_norm", a.grad_norm, DType::kF32, {parts}}});
  check(a.first_element >= 0 && a.first_element % 8 == 0,
        "{}: first_element wants a multiple of 8 of at least 0, found {}", op, a.first_element);
  check(a.step >= 1, "{}: step counts from 1, found {}", op, a.step);
}

}  // namespace tessera
