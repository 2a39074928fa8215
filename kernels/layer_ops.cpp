#include "kernels/layer_ops.h"

#include <cmath>

#include "kernels/base/check.h"
#include "kernels/op_checks.h"

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

}  // namespace

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

void DeadUnits::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_fields(kName, device,
               {{"maxima", maxima, DType::kF32, {x.shape[1]}}, {"dead", dead, DType::kF32, {1}}});
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

}  // namespace tessera
