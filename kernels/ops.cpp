#include "kernels/ops.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/fp8.h"
#include "kernels/expert_ops.h"
#include "kernels/op_checks.h"
#include "kernels/score_ops.h"

namespace tessera {
namespace {

void check_embedding(const char* op, const Tensor& tokens, const Tensor& rows, const Tensor& token_table,
                     const Tensor& position_table, const Tensor& positions, Device device,
                     const Tensor& starts = {}) {
  check_anchor(op, "y", rows, 3, device);
  const int64_t B = rows.shape[0], T = rows.shape[1], C = rows.shape[2];
  check_fields(op, device,
               {{"tokens", tokens, DType::kI32, {B, T}},
                {"token_table", token_table, rows.dtype, {token_table ? token_table.shape[0] : 0, C}},
                {"position_table",
                 position_table,
                 rows.dtype,
                 {position_table ? position_table.shape[0] : 0, C},
                 true},
                {"positions", positions, DType::kI32, {B, T}, true},
                {"starts", starts, DType::kI32, {B}, true}});
  check(!positions || !starts, "{}: positions and starts exclude each other", op);
  check(!position_table || position_table.shape[0] >= T,
        "{}: {} positions are too few for sequences of {} tokens", op, position_table.shape[0], T);
}

// Heads of one tensor may be the same ones or have none in common.
bool are_same(const Heads& a, const Heads& b) {
  return a.tensor.data == b.tensor.data && a.tensor.shape == b.tensor.shape && a.first == b.first;
}
bool share_memory(const Heads& a, const Heads& b) {
  if (!a.tensor.data || a.tensor.data != b.tensor.data) return false;
  return a.tensor.shape != b.tensor.shape || (a.first < b.first + b.count && b.first < a.first + a.count);
}

// What forward and backward have in common. `heads` is the anchor.
void check_rotary(const char* op, const char* name, const Heads& heads, int64_t query_heads,
                  const Tensor& angles, const Tensor& positions, Device device, const Tensor& starts = {}) {
  check_anchor(op, name, heads.tensor, 4, device);
  const int64_t B = heads.tensor.shape[0], T = heads.tensor.shape[1], D = heads.tensor.shape[3];
  check(heads.count > 0, "{}: {} must have at least one head, found {}", op, name, heads.count);
  check_heads(op, name, heads, heads, device);
  check(D % 2 == 0, "{}: the head dim must be even, found {}", op, D);
  check(query_heads >= 0 && query_heads <= heads.count, "{}: query_heads must be 0 to {}, found {}", op,
        heads.count, query_heads);
  const bool has_share = angles && angles.shape.rank() == 3 && angles.shape[1] > 0 && angles.shape[1] < D / 2;
  check_fields(op, device,
               {{"angles",
                 angles,
                 DType::kF32,
                 {angles ? angles.shape[0] : T, has_share ? angles.shape[1] : D / 2, 2}},
                {"positions", positions, DType::kI32, {B, T}, true},
                {"starts", starts, DType::kI32, {B}, true}});
  check(!positions || !starts, "{}: positions and starts exclude each other", op);
  check(angles.shape[0] >= T, "{}: angles of {} positions are too few for sequences of {} tokens", op,
        angles.shape[0], T);
}

// `count` heads of a tensor [B, tokens, heads, D] of a planned attention
struct HeadsField {
  const char* name;
  const Heads& heads;
  int64_t tokens, count;
};

void check_attention_heads(const char* op, const AttentionPlan& plan, Device device,
                           std::initializer_list<HeadsField> fields) {
  const AttentionShape& s = plan.shape;
  for (const HeadsField& f : fields) {
    const Tensor& t = f.heads.tensor;
    const bool fits = t.shape.rank() == 4 && t.shape == Shape{s.batch, f.tokens, t.shape[2], s.head_dim};
    if (!fits || t.dtype != plan.dtype || t.device != device)
      fail("{}: {} must be {} [{}, {}, heads, {}] on {}, found {}", op, f.name, name_of(plan.dtype), s.batch,
           f.tokens, s.head_dim, name_of(device), t.to_string());
    check_range(op, f.name, f.heads, f.count);
  }
}

void check_mask_tables(const char* op, const AttentionPlan& plan, Device device, const MaskTables& tables,
                       const Dropout& dropout) {
  const AttentionShape& s = plan.shape;
  const auto& [documents, seen_by, query_tokens, blocks] = tables;
  if (s.mask.has_tables()) {
    check_fields(op, device, {{"documents", documents, DType::kI32, {s.batch, s.tokens, 2}}});
  } else if (documents) {
    fail(
        "{}: documents needs a plan within documents (AttentionMask::documents), found {} and a plan of "
        "mask: {}",
        op, documents.to_string(), to_string(s.mask));
  }
  if (s.mask.dealt)
    check_fields(op, device,
                 {{"seen_by", seen_by, DType::kI32, {s.batch, s.kv_tokens, 2}},
                  {"query_tokens", query_tokens, DType::kI32, {s.batch, s.tokens}, !dropout}});
  check(s.mask.dealt || !(seen_by || query_tokens),
        "{}: seen_by and query_tokens need a plan of dealt queries, found a plan of mask: {}", op,
        to_string(s.mask));
  if (s.mask.blocks.size > 0) {
    check_fields(op, device, {{"blocks", blocks, DType::kI32, {s.mask.blocks.numbers()}}});
  } else {
    check(!blocks,
          "{}: blocks needs a plan of sparse blocks (AttentionMask::blocks), found {} and a plan of "
          "mask: {}",
          op, blocks.to_string(), to_string(s.mask));
  }
}

void check_attention_inputs(const char* op, const AttentionPlan& plan, Device device, const Heads& q,
                            const Heads& k, const Heads& v, const MaskTables& tables,
                            const Dropout& dropout) {
  const AttentionShape& s = plan.shape;
  check_attention_heads(
      op, plan, device,
      {{"q", q, s.tokens, s.heads}, {"k", k, s.kv_tokens, s.kv_heads}, {"v", v, s.kv_tokens, s.kv_heads}});
  check_mask_tables(op, plan, device, tables, dropout);
}

struct NamedTensor {
  const char* name;
  const Tensor& tensor;
};
// That no byte belongs to both. A plan's tensors have no memory.
void check_apart(const char* op, const NamedTensor& a, const NamedTensor& b) {
  const auto first = [](const Tensor& t) { return static_cast<const char*>(t.data); };
  const auto end = [&](const Tensor& t) { return first(t) + t.bytes(); };
  check(!a.tensor.data || !b.tensor.data || end(a.tensor) <= first(b.tensor) ||
            end(b.tensor) <= first(a.tensor),
        "{}: {} must have memory of its own, found that of {}", op, a.name, b.name);
}

void check_threshold(const char* op, const Dropout& dropout) {
  check(dropout.threshold >= 0 && dropout.threshold < Dropout::kResolution,
        "{}: dropout.threshold must be 0 to {}, found {}", op, Dropout::kResolution - 1, dropout.threshold);
}
void check_attention_dropout(const char* op, const AttentionPlan& plan, const Dropout& dropout) {
  check_threshold(op, dropout);
  check(!dropout || plan.dropout, "{}: dropout needs a plan with dropout: set AttentionRequest::dropout", op);
  const int64_t heads = plan.shape.heads, first = dropout.place % Dropout::kHeads;  // what head 0 counts as
  check(
      !dropout || first + heads <= Dropout::kHeads,
      "{}: dropout.place must have room for {} heads before the next multiple of {}, found {} with room for "
      "{}",
      op, heads, Dropout::kHeads, dropout.place, Dropout::kHeads - first);
}

// No element is written twice.
void check_written_apart(const char* op, std::initializer_list<HeadsField> written) {
  for (const HeadsField* a = written.begin(); a != written.end(); ++a)
    for (const HeadsField* b = a + 1; b != written.end(); ++b)
      check(
          !share_memory(a->heads, b->heads),
          "{}: {} and {} must have heads of their own, found {} from {} on and {} from {} on, of one tensor",
          op, a->name, b->name, a->heads.count, a->heads.first, b->heads.count, b->heads.first);
}

bool is_real(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kBF16:
      return true;
    case DType::kI32:
    case DType::kU16:
    case DType::kE4M3:
    case DType::kE5M2:
      break;
  }
  return false;
}

// What forward and backward of an adapter have in common
void check_lora(const char* op, Device device, const Tensor& x, const Tensor& a, const Tensor& b,
                const LayerParts& parts, float scale, std::initializer_list<Field> others) {
  check_anchor(op, "x", x, 2, device);
  check_anchor(op, "b", b, 2, device);
  const int64_t C = x.shape[1], O = b.shape[0], r = b.shape[1], P = count_of(parts);
  check_fields(op, device, {{"a", a, x.dtype, {P * r, C}}, {"b", b, x.dtype, {O, r}}});
  check_fields(op, device, others);
  int64_t outputs = 0;
  for (const int64_t rows : parts) outputs += rows;
  const bool in_front = std::ranges::is_partitioned(parts, [](int64_t rows) { return rows > 0; });
  check(outputs == O && in_front, "{}: parts must have {} outputs together, found {}, {} and {}", op, O,
        parts[0], parts[1], parts[2]);
  check(std::isfinite(scale), "{}: scale must be a number, found {}", op, scale);
}

}  // namespace

const char* name_of(const AnyOp& op) {
  return std::visit([](const auto* a) { return a->kName; }, op);
}

void FillZero::check_on(Device device) const {
  if (!tensor || tensor.device != device)
    fail("{}: tensor must be on {}, found {}", kName, name_of(device), tensor.to_string());
}

void Copy::check_on(Device device) const {
  // CUDA copies from and to the host, too; what it never sees is the CPU's.
  const bool here = device == Device::kCuda ? from.device == device || to.device == device
                                            : from.device == device && to.device == device;
  if (!(from && to && from.numel() == to.numel() && here))
    fail("{}: expected equal element counts and {} on {}, found {} and {}", kName,
         device == Device::kCuda ? "at least one side" : "both sides", name_of(device), from.to_string(),
         to.to_string());
  if (!(from.dtype == to.dtype || (is_real(from.dtype) && is_real(to.dtype))))
    fail("{}: cannot convert {} into {}", kName, from.to_string(), to.to_string());
}

namespace {

// As check_fields(), but that masters may be on the host of `device`
void check_masters(const char* op, Device device, const Tensor& masters, const Tensor& weights,
                   const Tensor& low, bool low_is_optional) {
  const int64_t count = weights.numel();
  const bool here = masters.device == device || masters.device == Device::kCpu;
  if (!(masters && masters.dtype == DType::kF32 && masters.numel() == count && here))
    fail("{}: masters must be {} elements of fp32 on {} or the host, found {}", op, count, name_of(device),
         masters.to_string());
  check_fields(
      op, device,
      {{"weights", weights, DType::kBF16, {count}}, {"low", low, DType::kU16, {count}, low_is_optional}});
}

}  // namespace

void SplitMasters::check_on(Device device) const {
  check_masters(kName, device, masters, weights, low, /*low_is_optional=*/true);
}

void JoinMasters::check_on(Device device) const {
  check_masters(kName, device, masters, weights, low, /*low_is_optional=*/false);
}

void Accumulate::check_on(Device device) const {
  check_anchor(kName, "y", y, 1, device);
  check_fields(kName, device, {{"x", x, y.dtype, y.shape}});
}

void RandomNormal::check_on(Device device) const {
  if (!y || y.numel() == 0 || y.device != device || !is_real(y.dtype))
    fail("{}: y must be a non-empty tensor in bf16 or fp32 on {}, found {}", kName, name_of(device),
         y.to_string());
  check_fields(kName, device, {{"low", low, DType::kU16, y.shape, true}});
  check(!low || y.dtype == DType::kBF16, "{}: low is for a bf16 y alone, found {}", kName, y.to_string());
  check(std::isfinite(deviation) && deviation > 0, "{}: deviation must be a number above 0, found {}", kName,
        deviation);
  check(first >= 0, "{}: first must be a number of at least 0, found {}", kName, first);
}

void EmbeddingForward::check_on(Device device) const {
  check_embedding(kName, tokens, y, token_table, position_table, positions, device, starts);
}

void EmbeddingBackward::check_on(Device device) const {
  check_embedding(kName, tokens, dy, d_token_table, d_position_table, positions, device);
}

void LayerNormForward::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  const int64_t N = x.shape[0], C = x.shape[1];
  const DType t = x.dtype;
  check_fields(kName, device,
               {{"weight", weight, t, {C}},
                {"bias", bias, t, {C}},
                {"y", y, t, {N, C}},
                {"mean", mean, DType::kF32, {N}},
                {"rstd", rstd, DType::kF32, {N}}});
  check(epsilon > 0, "{}: epsilon must be a number above 0, found {}", kName, epsilon);
  check_fp8_output(kName, device, "fp8_y", fp8_y, DType::kE4M3, y);
}

void LayerNormBackward::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  const int64_t N = x.shape[0], C = x.shape[1];
  const DType t = x.dtype;
  check_fields(kName, device,
               {{"dy", dy, t, {N, C}},
                {"weight", weight, t, {C}},
                {"mean", mean, DType::kF32, {N}},
                {"rstd", rstd, DType::kF32, {N}},
                {"dx", dx, t, {N, C}},
                {"dweight", dweight, t, {C}},
                {"dbias", dbias, t, {C}},
                {"add", add, t, {N, C}, true},
                {"dx_sum", dx_sum, t, {C}, true}});
  check_fp8_output(kName, device, "fp8_dx", fp8_dx, DType::kE5M2, dx);
}

void RmsNormForward::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  const int64_t N = x.shape[0], C = x.shape[1];
  const DType t = x.dtype;
  check_fields(kName, device,
               {{"weight", weight, t, {C}},
                {"y", y, t, {N, C}},
                {"rstd", rstd, DType::kF32, {N}},
                {"add", add, t, {N, C}, true}});
  check(epsilon > 0, "{}: epsilon must be a number above 0, found {}", kName, epsilon);
  check_fp8_output(kName, device, "fp8_y", fp8_y, DType::kE4M3, y);
  check(!add || !fp8_y, "{}: add and fp8_y exclude each other", kName);
}

void RmsNormBackward::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  const int64_t N = x.shape[0], C = x.shape[1];
  const DType t = x.dtype;
  check_fields(kName, device,
               {{"dy", dy, t, {N, C}},
                {"weight", weight, t, {C}},
                {"rstd", rstd, DType::kF32, {N}},
                {"dx", dx, t, {N, C}},
                {"dweight", dweight, t, {C}},
                {"add", add, t, {N, C}, true},
                {"dx_sum", dx_sum, t, {C}, true}});
  check_fp8_output(kName, device, "fp8_dx", fp8_dx, DType::kE5M2, dx);
}

void HeadsNormForward::check_on(Device device) const {
  check_anchor(kName, "x", x.tensor, 4, device);
  check_heads(kName, "x", x, x, device);
  check_heads(kName, "y", y, x, device);
  const int64_t N = x.tensor.shape[0] * x.tensor.shape[1], C = x.count * x.tensor.shape[3];
  check_fields(kName, device, {{"weight", weight, x.tensor.dtype, {C}}, {"rstd", rstd, DType::kF32, {N}}});
  check(epsilon > 0, "{}: epsilon must be a number above 0, found {}", kName, epsilon);
  check(!share_memory(x, y), "{}: y may not be x, which the backward reads", kName);
}

void HeadsNormBackward::check_on(Device device) const {
  check_anchor(kName, "x", x.tensor, 4, device);
  check_heads(kName, "x", x, x, device);
  check_heads(kName, "dy", dy, x, device);
  check_heads(kName, "dx", dx, x, device);
  const int64_t N = x.tensor.shape[0] * x.tensor.shape[1], C = x.count * x.tensor.shape[3];
  const DType t = x.tensor.dtype;
  check_fields(kName, device,
               {{"weight", weight, t, {C}}, {"rstd", rstd, DType::kF32, {N}}, {"dweight", dweight, t, {C}}});
  check(!share_memory(dy, dx) || are_same(dy, dx), "{}: dx may be dy itself, but not some of its heads",
        kName);
  check(!share_memory(dx, x), "{}: dx may be dy itself, but x is read while dx is written", kName);
}

void RotaryForward::check_on(Device device) const {
  check_rotary(kName, "x", x, query_heads, angles, positions, device, starts);
  check_heads(kName, "y", y, x, device);
  check(!share_memory(x, y) || are_same(x, y), "{}: y may be x itself, but not some of its heads", kName);
  if (!q_weight && !k_weight && !rstd) return;
  const int64_t N = x.tensor.shape[0] * x.tensor.shape[1], D = x.tensor.shape[3];
  check_fields(kName, device,
               {{"q_weight", q_weight, x.tensor.dtype, {D}},
                {"k_weight", k_weight, x.tensor.dtype, {D}},
                {"rstd", rstd, DType::kF32, {N, x.count}}});
  check(epsilon > 0, "{}: epsilon must be a number above 0, found {}", kName, epsilon);
  check(!share_memory(x, y), "{}: with weights y may not be x, which the backward reads", kName);
}

void RotaryBackward::check_on(Device device) const {
  check_rotary(kName, "dy", dy, query_heads, angles, positions, device);
  check_heads(kName, "dx", dx, dy, device);
  check(!share_memory(dy, dx) || are_same(dy, dx), "{}: dx may be dy itself, but not some of its heads",
        kName);
  if (!x && !q_weight && !k_weight && !rstd && !dq_weight && !dk_weight) return;
  const int64_t N = dy.tensor.shape[0] * dy.tensor.shape[1], D = dy.tensor.shape[3];
  const DType t = dy.tensor.dtype;
  check_heads(kName, "x", x, dy, device);
  check_fields(kName, device,
               {{"q_weight", q_weight, t, {D}},
                {"k_weight", k_weight, t, {D}},
                {"rstd", rstd, DType::kF32, {N, x.count}},
                {"dq_weight", dq_weight, t, {D}},
                {"dk_weight", dk_weight, t, {D}}});
  check(!share_memory(dx, x), "{}: dx may be dy itself, but x is read while dx is written", kName);
}

void GatedForward::check_on(Device device) const {
  check_anchor(kName, "y", y, 2, device);
  check_fields(kName, device, {{"gate_up", gate_up, y.dtype, {y.shape[0], 2 * y.shape[1]}}});
  check_fp8_output(kName, device, "fp8_y", fp8_y, DType::kE4M3, y);
}

void GatedBackward::check_on(Device device) const {
  check_anchor(kName, "dy", dy, 2, device);
  const Shape both{dy.shape[0], 2 * dy.shape[1]};
  check_fields(kName, device,
               {{"gate_up", gate_up, dy.dtype, both}, {"d_gate_up", d_gate_up, dy.dtype, both}});
  check_fp8_output(kName, device, "fp8_d_gate_up", fp8_d_gate_up, DType::kE5M2, d_gate_up);
}

void LinearForward::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_anchor(kName, "weight", weight, 2, device);
  const int64_t N = x.shape[0], C = x.shape[1], O = weight.shape[0];
  const DType t = x.dtype;
  check_fields(kName, device,
               {{"weight", weight, t, {O, C}},
                {"y", y, t, {N, O}},
                {"bias", bias, t, {O}, true},
                {"add", add, t, {N, O}, true},
                {"pre_activation", pre_activation, t, {N, O}, true}});
  check_fp8(kName, device, {"fp8_x", fp8_x.data, fp8_x.scale, DType::kE4M3, {N, C}},
            {"fp8_weight", fp8_weight.data, fp8_weight.scale, DType::kE4M3, {O, C}});
  check_fp8_output(kName, device, "fp8_y", fp8_y, DType::kE4M3, y);
  check(!fp8_y || (fp8_x && pre_activation), "{}: fp8_y needs fp8_x and a pre_activation beside it", kName);
  check_apart(kName, {"fp8_y", fp8_y.y.data}, {"fp8_x", fp8_x.data});
  check(!(add && pre_activation) || add.data == pre_activation.data,
        "{}: add must be pre_activation itself if there is one", kName);
}

void FusedLinear::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_anchor(kName, "weight", weight, 2, device);
  check_anchor(kName, "y", y, 2, device);
  const int64_t N = x.shape[0], C = x.shape[1], O = y.shape[1];
  const int64_t rows = activation == Epilogue::kSwiglu ? 2 * O : O;
  const DType t = x.dtype;
  check_fields(kName, device,
               {{"weight", weight, t, {rows, C}},
                {"y", y, t, {N, O}},
                {"bias", bias, t, {rows}, true},
                {"add", add, t, {N, O}, true},
                {"norm_weight", norm_weight, t, {C}, true},
                {"norm_bias", norm_bias, t, {C}, true},
                {"normed", normed, t, {N, C}, !norm_weight},
                {"mean", mean, DType::kF32, {N}, !norm_bias},
                {"rstd", rstd, DType::kF32, {N}, !norm_weight},
                {"sums", sums, t, {N, rows}, activation == Epilogue::kNone}});
  check(norm_weight || !norm_bias, "{}: norm_bias needs a norm_weight beside it, found none", kName);
  check(!norm_weight || epsilon > 0, "{}: epsilon must be a number above 0, found {}", kName, epsilon);
  check(!add || activation == Epilogue::kNone, "{}: add and activation exclude each other", kName);
  check(!x.data || x.data != y.data, "{}: x is read while y is written", kName);
}

void LinearBackward::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_anchor(kName, "weight", weight, 2, device);
  const int64_t N = x.shape[0], C = x.shape[1], O = weight.shape[0];
  const int64_t summed = dbias && dbias.shape.rank() == 1 ? std::min(dbias.shape[0], O) : O;
  const DType t = x.dtype;
  check_fields(kName, device,
               {{"weight", weight, t, {O, C}},
                {"dy", dy, t, {N, O}},
                {"dx", dx, t, {N, C}},
                {"dweight", dweight, t, {O, C}, true},
                {"dbias", dbias, t, {summed}, true},
                {"dx_sum", dx_sum, t, {C}, true},
                {"pre_activation", pre_activation, t, {N, C}, true},
                {"add", add, t, {N, C}, true}});
  check_fp8(kName, device, {"fp8_dy", fp8_dy.data, fp8_dy.scale, DType::kE5M2, {N, O}},
            {"fp8_weight", fp8_weight.data, fp8_weight.scale, DType::kE4M3, {C, O}});
  check_fp8(kName, device,
            {"fp8_dy_transposed", fp8_dy_transposed.data, fp8_dy_transposed.scale, DType::kE5M2, {O, N}},
            {"fp8_x_transposed", fp8_x_transposed.data, fp8_x_transposed.scale, DType::kE4M3, {C, N}});
  check_fp8_output(kName, device, "fp8_dx", fp8_dx, DType::kE5M2, dx);
  check_apart(kName, {"fp8_dx", fp8_dx.y.data}, {"fp8_dy", fp8_dy.data});
  check(!fp8_dx || (fp8_dy && pre_activation), "{}: fp8_dx needs fp8_dy and a pre_activation beside it",
        kName);
  check(dweight || !dbias, "{}: dbias needs a dweight beside it, found none", kName);
  check(!dweight || !add || !dx.data || dx.data != x.data, "{}: with add and dweight dx may not be x", kName);
  const auto check_apart = [&](const char* name, const Tensor& read) {
    check(!dx.data || dx.data != read.data, "{}: dx may be x itself, but {} is read while dx is written",
          kName, name);
  };
  check_apart("dy", dy);
  check_apart("weight", weight);
  check_apart("pre_activation", pre_activation);
}

void LoraForward::check_on(Device device) const {
  const int64_t N = x.shape[0], O = b.shape[0], r = b.shape[1], P = count_of(parts);
  check_lora(kName, device, x, a, b, parts, scale,
             {{"u", u, x.dtype, {N, P * r}}, {"y", y, x.dtype, {N, O}}, {"add", add, x.dtype, {N, O}, true}});
}

void LoraBackward::check_on(Device device) const {
  const int64_t N = x.shape[0], C = x.shape[1], O = b.shape[0], r = b.shape[1], P = count_of(parts);
  check_lora(kName, device, x, a, b, parts, scale,
             {{"dy", dy, x.dtype, {N, O}},
              {"u", u, x.dtype, {N, P * r}},
              {"dx", dx, x.dtype, {N, C}},
              {"da", da, x.dtype, {P * r, C}},
              {"db", db, x.dtype, {O, r}},
              {"add", add, x.dtype, {N, C}, true}});
  check(!add || !dx.data || dx.data != x.data, "{}: with add dx may not be x", kName);
  check(!dx.data || dx.data != dy.data, "{}: dx may be x itself, but dy is read after it", kName);
}

void AttentionForward::check_on(Device device) const {
  const AttentionShape& s = plan.shape;
  check_attention_inputs(kName, plan, device, q, k, v, tables, dropout);
  check_attention_heads(kName, plan, device, {{"y", y, s.tokens, s.heads}});
  check_fields(kName, device, {{"saved", saved, plan.saved_dtype, plan.saved_shape}});
  check_scratch(kName, workspace, plan.forward_workspace_bytes, device);
  check_attention_dropout(kName, plan, dropout);
  check_sinks(kName, device, {"sinks", sinks, plan.dtype, {s.heads}}, s.scores.sinks);
}

void AttentionSample::check_on(Device device) const {
  const AttentionShape& s = plan.shape;
  check_attention_heads(kName, plan, device,
                        {{"q", q, s.tokens, s.heads}, {"k", k, s.kv_tokens, s.kv_heads}});
  check_mask_tables(kName, plan, device, tables, {});
  check_fields(kName, device, {{"entropy", entropy, DType::kF32, {s.heads}}});
}

void LargestScores::check_on(Device device) const {
  const AttentionShape& s = plan.shape;
  check_attention_heads(kName, plan, device,
                        {{"q", q, s.tokens, s.heads}, {"k", k, s.kv_tokens, s.kv_heads}});
  check_mask_tables(kName, plan, device, tables, {});
  check_fields(kName, device, {{"largest", largest, DType::kI32, {s.heads}}});
}

void DeadUnits::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_fields(kName, device,
               {{"maxima", maxima, DType::kF32, {x.shape[1]}}, {"dead", dead, DType::kF32, {1}}});
}

void AttentionBackward::check_on(Device device) const {
  const AttentionShape& s = plan.shape;
  check_attention_inputs(kName, plan, device, q, k, v, tables, dropout);
  check_attention_heads(kName, plan, device, {{"y", y, s.tokens, s.heads}, {"dy", dy, s.tokens, s.heads}});
  check_fields(kName, device, {{"saved", saved, plan.saved_dtype, plan.saved_shape}});
  const std::initializer_list<HeadsField> gradients = {{"dq", dq, s.tokens, s.heads},
                                                       {"dk", dk, s.kv_tokens, s.kv_heads},
                                                       {"dv", dv, s.kv_tokens, s.kv_heads}};
  check_attention_heads(kName, plan, device, gradients);
  check_written_apart(kName, gradients);
  check_scratch(kName, workspace, plan.backward_workspace_bytes, device);
  check_attention_dropout(kName, plan, dropout);
  check_sinks(kName, device, {"sinks", sinks, plan.dtype, {s.heads}}, s.scores.sinks);
  check_sinks(kName, device, {"dsinks", dsinks, plan.dtype, {s.heads}, true}, s.scores.sinks);
}

void ApplyDropout::check_on(Device device) const {
  check_anchor(kName, "x", x, 3, device);
  check_fields(kName, device,
               {{"y", y, x.dtype, x.shape},
                {"add", add, x.dtype, x.shape, true},
                {"rows", rows, DType::kI32, {x.shape[0], x.shape[1]}, true}});
  check_threshold(kName, dropout);
  check(dropout.place % Dropout::kHeads == 0, "{}: dropout.place must be a multiple of {}, found {}", kName,
        Dropout::kHeads, dropout.place);
}

void MoveHeads::check_on(Device device) const {
  for (const auto& [name, heads] : {std::pair{"from", from}, std::pair{"to", to}}) {
    check_anchor(kName, name, heads.tensor, 4, device);
    check_range(kName, name, heads, to.count);
  }
  const Shape &given = from.tensor.shape, &made = to.tensor.shape;
  check(given[3] == made[3], "{}: from and to must have one head dim, found {} and {}", kName,
        from.tensor.to_string(), to.tensor.to_string());
  check(rows || given[0] * given[1] == made[0] * made[1],
        "{}: without rows, from and to must have as many, found {} and {}", kName, from.tensor.to_string(),
        to.tensor.to_string());
  check_fields(kName, device, {{"rows", rows, DType::kI32, {made[0] * made[1]}, true}});
}

void CapLogits::check_on(Device device) const {
  check_anchor(kName, "logits", logits, 2, device);
  check(cap > 0, "{}: cap must be above 0, found {}", kName, cap);
}

void CrossEntropy::check_on(Device device) const {
  check_anchor(kName, "logits", logits, 2, device);
  const int64_t N = logits.shape[0];
  check_fields(kName, device,
               {{"targets", targets, DType::kI32, {N}},
                {"losses", losses, DType::kF32, {N}},
                {"gradient_scale", gradient_scale, DType::kF32, {1}, true},
                {"weights", weights, DType::kF32, {N}, true}});
  if (vocab_size <= 0 || vocab_size > logits.shape[1])
    fail("{}: vocab_size {} does not fit logits {}", kName, vocab_size, logits.to_string());
  check(cap >= 0, "{}: cap must be at least 0, found {}", kName, cap);
  check(z_loss >= 0, "{}: z_loss must be at least 0, found {}", kName, z_loss);
  check(label_smoothing >= 0 && label_smoothing < 1,
        "{}: label_smoothing must be at least 0 and below 1, found {}", kName, label_smoothing);
  check(want_gradient || !fp8_dlogits, "{}: fp8_dlogits needs want_gradient", kName);
  check_fp8_output(kName, device, "fp8_dlogits", fp8_dlogits, DType::kE5M2, logits);
}

void Distillation::check_on(Device device) const {
  check_anchor(kName, "logits", logits, 2, device);
  const char* const its = teacher ? "teacher" : "largest_ids";
  const Tensor& given = teacher ? teacher : largest_ids;
  check(given && given.shape.rank() == 2, "{}: {} must have 2 dimensions, found {}", kName, its,
        given.to_string());
  const int64_t N = logits.shape[0], columns = given.shape[1];
  check(!teacher || !largest_ids, "{}: teacher and largest_ids exclude each other", kName);
  check_fields(kName, device,
               {{its, given, teacher ? logits.dtype : DType::kI32, {N, columns}},
                {"largest", largest, DType::kF32, {N, columns + 1}, static_cast<bool>(teacher)},
                {"targets", targets, DType::kI32, {N}},
                {"losses", losses, DType::kF32, {N}},
                {"gradient_scale", gradient_scale, DType::kF32, {1}, true},
                {"weights", weights, DType::kF32, {N}, true}});
  const int64_t most = teacher ? std::min(logits.shape[1], columns) : logits.shape[1];
  if (vocab_size <= 0 || vocab_size > most || (!teacher && columns > vocab_size))
    fail("{}: vocab_size {} does not fit logits {} and {} {}", kName, vocab_size, logits.to_string(), its,
         given.to_string());
  check(temperature > 0, "{}: temperature must be above 0, found {}", kName, temperature);
  check(cross_entropy >= 0 && cross_entropy <= 1, "{}: cross_entropy must be 0 to 1, found {}", kName,
        cross_entropy);
  check(reverse >= 0 && reverse <= 1, "{}: reverse must be 0 to 1, found {}", kName, reverse);
}

void LargestLogits::check_on(Device device) const {
  check_anchor(kName, "logits", logits, 2, device);
  check(ids && ids.shape.rank() == 2, "{}: ids must have 2 dimensions, found {}", kName, ids.to_string());
  const int64_t N = logits.shape[0], K = ids.shape[1];
  check_fields(kName, device,
               {{"ids", ids, DType::kI32, {N, K}}, {"values", values, DType::kF32, {N, K + 1}}});
  if (K < 1 || K > vocab_size || vocab_size > logits.shape[1])
    fail("{}: ids {} and vocab_size {} do not fit logits {}", kName, ids.to_string(), vocab_size,
         logits.to_string());
  check(temperature > 0, "{}: temperature must be above 0, found {}", kName, temperature);
}

void PreferenceLoss::check_on(Device device) const {
  check_anchor(kName, "losses", losses, 1, device);
  check(kinds && kinds.shape.rank() == 2, "{}: kinds must have 2 dimensions, found {}", kName,
        kinds.to_string());
  const int64_t B = kinds.shape[0], T = kinds.shape[1], N = B * T;
  const int given = (reference ? 1 : 0) + (stored ? 1 : 0), needed = rule.needs_reference() ? 1 : 0;
  check(!divergence || (rule.has_labels() && gradient_scale),
        "{}: divergence is of a rule with labels, and needs gradient_scale", kName);
  check(given == needed, "{}: of reference and stored {} are given, and the rule needs {}", kName, given,
        needed);
  check_fields(kName, device,
               {{"kinds", kinds, DType::kI32, {B, T}},
                {"documents", documents, DType::kI32, {B, T, 2}},
                {"targets", targets, DType::kI32, {N}},
                {"losses", losses, DType::kF32, {N}},
                {"reference", reference, DType::kF32, {N}, true},
                {"stored", stored, DType::kF32, {N, 2}, true},
                {"divergence", divergence, DType::kF32, {1}, true},
                {"gradient_scale", gradient_scale, DType::kF32, {1}, true},
                {"pair_weights", pair_weights, DType::kF32, {N}, true},
                {"weights", weights, DType::kF32, {N}},
                {"figures", figures, DType::kF32, {PreferenceFigures::kCount, N}}});
}

void HeadLoss::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_anchor(kName, "weight", weight, 2, device);
  const int64_t N = x.shape[0], C = x.shape[1], padded = weight.shape[0];
  check_fields(kName, device,
               {{"weight", weight, x.dtype, {padded, C}},
                {"targets", targets, DType::kI32, {N}},
                {"gradient_scale", gradient_scale, DType::kF32, {1}, true},
                {"weights", weights, DType::kF32, {N}, true},
                {"e", e, x.dtype, {N, padded}},
                {"losses", losses, DType::kF32, {N}},
                {"scaled_x", scaled_x, x.dtype, {N, C}},
                {"factors", factors, DType::kF32, {2, N}},
                {"sums", sums, DType::kF32, {(padded + kSumColumns - 1) / kSumColumns, N}}});
  if (vocab_size <= 0 || vocab_size > padded)
    fail("{}: vocab_size {} does not fit weight {}", kName, vocab_size, weight.to_string());
}

void HeadGradient::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_anchor(kName, "weight", weight, 2, device);
  const int64_t N = x.shape[0], C = x.shape[1], padded = weight.shape[0];
  check_fields(kName, device,
               {{"product", product, x.dtype, {N, C}},
                {"targets", targets, DType::kI32, {N}},
                {"factors", factors, DType::kF32, {2, N}},
                {"weight", weight, x.dtype, {padded, C}},
                {"dweight", dweight, x.dtype, {padded, C}}});
}

void GlobalNorm::check_on(Device device) const {
  check_fields(kName, device, {{"norm", norm, DType::kF32, {1}}});
  for (const Tensor& t : tensors)
    if (!(t && t.device == device && is_real(t.dtype)))
      fail("{}: tensors must be real tensors on {}, found {}", kName, name_of(device), t.to_string());
}

void SumLosses::check_on(Device device) const {
  check(losses && losses.dtype == DType::kF32 && losses.device == device,
        "{}: losses must be in fp32 on {}, found {}", kName, name_of(device), losses.to_string());
  check_fields(kName, device, {{"sum", sum, DType::kF32, {1}}});
}

void JudgeStep::check_on(Device device) const {
  check_anchor(kName, "losses", losses, 1, device);
  check_anchor(kName, "grad_norm", grad_norm, 1, device);
  check_fields(kName, device,
               {{"losses", losses, DType::kF32, losses.shape},
                {"grad_norm", grad_norm, DType::kF32, grad_norm.shape},
                {"limits", limits, DType::kF32, {2}},
                {"verdict", verdict, DType::kF32, {1}}});
}

void Inspect::check_on(Device device) const {
  check(x && x.device == device && (is_real(x.dtype) || is_fp8(x.dtype)),
        "{}: x must be a tensor of numbers on {}, found {}", kName, name_of(device), x.to_string());
  check(row == 0 || (row > 0 && first >= 0 && count > 0 && first + count <= row && x.numel() % row == 0),
        "{}: {} elements from {} on of each {} do not fit x {}", kName, count, first, row, x.to_string());
  check_fields(kName, device, {{"result", result, DType::kI32, {kInspectedWords}}});
}

void AdamW::check_on(Device device) const {
  for (const Part& part : parts) {
    const Tensor& param = part.param;
    if (!(param && computes_in(param.dtype, device) && param.device == device))
      fail("{}: param must be a tensor in {} on {}, found {}", kName, names_of_dtypes(device),
           name_of(device), param.to_string());
    const Part& first = parts.front();
    const Shape& s = param.shape;
    const DType of_grad = first.grad && first.grad.dtype == DType::kF32 ? DType::kF32 : first.param.dtype;
    const DType moments = first.m && first.m.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
    check_fields(kName, device,
                 {{"param", param, first.param.dtype, s},
                  {"low", part.low, DType::kU16, s, param.dtype == DType::kF32},
                  {"grad", part.grad, of_grad, s},
                  {"m", part.m, moments, s},
                  {"v", part.v, moments, s}});
    const int64_t count = param.numel();
    check(part.decayed >= 0 && part.decayed <= count && (part.decayed % 8 == 0 || part.decayed == count),
          "{}: decayed must be a multiple of 8 up to {}, or that, found {}", kName, count, part.decayed);
    check(part.first_element >= 0 && part.first_element % 8 == 0,
          "{}: first_element must be a multiple of 8 of at least 0, found {}", kName, part.first_element);
  }
  const int64_t norms = grad_norm && grad_norm.numel() > 0 ? grad_norm.numel() : 1;
  check_fields(
      kName, device,
      {{"grad_norm", grad_norm, DType::kF32, {norms}}, {"verdict", verdict, DType::kF32, {1}, true}});
  check(step >= 1, "{}: step counts from 1, found {}", kName, step);
}

void AdamWNorms::check_on(Device device) const {
  step.check_on(device);
  check_fields(kName, device, {{"sums", sums, DType::kF32, {std::ssize(ranges), 3}}});
  for (const Range& range : ranges) {
    check(range.part < step.parts.size(), "{}: part must be one of {}, found {}", kName, step.parts.size(),
          range.part);
    const int64_t count = step.parts[range.part].param.numel();
    check(range.first >= 0 && range.first % 8 == 0 && range.count >= 0 && range.first + range.count <= count,
          "{}: a range must begin at a multiple of 8 and lie within {} elements, found {} from {} on", kName,
          count, range.count, range.first);
  }
}

void MuonMomentum::check_on(Device device) const {
  check(direction && computes_in(direction.dtype, device) && direction.device == device,
        "{}: direction must be a tensor in {} on {}, found {}", kName, names_of_dtypes(device),
        name_of(device), direction.to_string());
  const Shape& s = direction.shape;
  check_fields(
      kName, device,
      {{"gradient", gradient, gradient && gradient.dtype == DType::kF32 ? DType::kF32 : direction.dtype, s},
       {"mean", mean, mean && mean.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32, s},
       {"grad_norm", grad_norm, DType::kF32, {grad_norm ? grad_norm.numel() : 1}},
       {"verdict", verdict, DType::kF32, {1}, true}});
  check(first_element >= 0 && first_element % 8 == 0,
        "{}: first_element must be a multiple of 8 of at least 0, found {}", kName, first_element);
}

void Orthogonalise::check_on(Device device) const {
  check(!matrices.empty() && matrices.size() <= kMost, "{}: there must be 1 to {} matrices, found {}", kName,
        kMost, matrices.size());
  const DType dtype = matrices.front().dtype;
  int64_t wanted = 0;
  for (const Tensor& matrix : matrices) {
    check(matrix && computes_in(matrix.dtype, device) && matrix.dtype == dtype && matrix.device == device &&
              matrix.shape.rank() == 2,
          "{}: matrices must be [m, n] each, in one of {} on {}, found {}", kName, names_of_dtypes(device),
          name_of(device), matrix.to_string());
    wanted += room_for(matrix);
  }
  check(room && room.dtype == dtype && room.device == device && room.numel() >= wanted,
        "{}: room must have {} elements of {}, found {}", kName, wanted, name_of(dtype), room.to_string());
  check(polynomials.size() % 2 == 1, "{}: the number of polynomials must be odd, found {}", kName,
        polynomials.size());
  check(margin >= 1, "{}: margin must be at least 1, found {}", kName, margin);
}

void MuonUpdate::check_on(Device device) const {
  check(param && computes_in(param.dtype, device) && param.device == device,
        "{}: param must be a tensor in {} on {}, found {}", kName, names_of_dtypes(device), name_of(device),
        param.to_string());
  const Shape& s = param.shape;
  check_fields(kName, device,
               {{"low", low, DType::kU16, s, param.dtype == DType::kF32},
                {"direction", direction, param.dtype, s},
                {"grad_norm", grad_norm, DType::kF32, {grad_norm ? grad_norm.numel() : 1}},
                {"verdict", verdict, DType::kF32, {1}, true}});
}

void NormaliseRows::check_on(Device device) const {
  check(matrix && computes_in(matrix.dtype, device) && matrix.device == device && matrix.shape.rank() == 2,
        "{}: matrix must be [m, n] in {} on {}, found {}", kName, names_of_dtypes(device), name_of(device),
        matrix.to_string());
  check_fields(kName, device,
               {{"squares", squares, DType::kF32, {matrix.shape[0]}},
                {"grad_norm", grad_norm, DType::kF32, {grad_norm ? grad_norm.numel() : 1}},
                {"verdict", verdict, DType::kF32, {1}, true}});
}

void MuonNorms::check_on(Device device) const {
  step.check_on(device);
  const int64_t n = step.param.numel();
  check(first >= 0 && count >= 0 && first + count <= n,
        "{}: a range must lie within {} elements, found {} from {} on", kName, n, count, first);
  check_fields(
      kName, device,
      {{"gradient", gradient, gradient && gradient.dtype == DType::kF32 ? DType::kF32 : step.param.dtype,
        step.param.shape},
       {"sums", sums, DType::kF32, {3}}});
}

void ClipHeads::check_on(Device device) const {
  check(param && computes_in(param.dtype, device) && param.device == device,
        "{}: param must be a tensor in {} on {}, found {}", kName, names_of_dtypes(device), name_of(device),
        param.to_string());
  check(largest && largest.dtype == DType::kI32 && largest.device == device && largest.shape.rank() == 3,
        "{}: largest must be [ranks, layers, heads] in int32 on {}, found {}", kName, name_of(device),
        largest.to_string());
  check_fields(kName, device,
               {{"low", low, DType::kU16, param.shape, param.dtype == DType::kF32},
                {"grad_norm", grad_norm, DType::kF32, {grad_norm ? grad_norm.numel() : 1}},
                {"verdict", verdict, DType::kF32, {1}, true}});
  const int64_t H = largest.shape[2];
  check(kv_heads > 0 && H % kv_heads == 0, "{}: the heads of keys must divide {} of queries, found {}", kName,
        H, kv_heads);
  check(layer >= 0 && layer < largest.shape[1], "{}: there are {} layers, found layer {}", kName,
        largest.shape[1], layer);
  const int64_t all = (H + 2 * kv_heads) * head_dim * columns;
  check(first_element >= 0 && first_element + param.numel() <= all,
        "{}: a slice must lie within {} elements, found {} from {} on", kName, all, param.numel(),
        first_element);
  check(most > 0, "{}: the largest score that stays must be above 0, found {}", kName, most);
}

}  // namespace tessera
