#include "kernels/expert_ops.h"

#include <cmath>

#include "kernels/base/check.h"
#include "kernels/op_checks.h"

namespace tessera {
namespace {

// [N, k], which other tensors are compared with
Shape check_choices(const char* op, const char* name, const Tensor& choices, DType dtype, Device device) {
  const bool fits = choices && choices.shape.rank() == 2 && choices.numel() > 0 && choices.dtype == dtype &&
                    choices.device == device;
  if (!fits)
    fail("{}: {} must be {} [N, k] on {}, found {}", op, name, name_of(dtype), name_of(device),
         choices.to_string());
  return choices.shape;
}

Shape check_logits(const char* op, const Tensor& logits, Device device) {
  check_anchor(op, "logits", logits, 2, device);
  check_fields(op, device, {{"logits", logits, DType::kF32, logits.shape}});
  return logits.shape;
}

void check_active(const char* op, int64_t active, int64_t experts) {
  check(active >= 1 && active <= std::min(experts, ChooseExperts::kMost),
        "{}: a token must choose 1 to {} of {} experts, found {}", op,
        std::min(experts, ChooseExperts::kMost), experts, active);
}

void check_weight(const char* op, const Tensor& weight, const Tensor& offsets, Device device) {
  check_anchor(op, "weight", weight, 3, device);
  check_fields(op, device, {{"offsets", offsets, DType::kI32, {weight.shape[0] + 1}}});
}

// `rows` of tokens, which those of choices are a multiple of
void check_gathered(const char* op, const char* name, const Tensor& rows, int64_t choices) {
  check(rows.shape.rank() == 2 && rows.shape[0] > 0 && choices % rows.shape[0] == 0,
        "{}: {} must be rows of tokens, of which {} rows are a multiple, found {}", op, name, choices,
        rows.to_string());
}

}  // namespace

void RouterForward::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_anchor(kName, "weight", weight, 2, device);
  check_fields(kName, device,
               {{"weight", weight, x.dtype, {weight.shape[0], x.shape[1]}},
                {"logits", logits, DType::kF32, {x.shape[0], weight.shape[0]}},
                {"bias", bias, x.dtype, {weight.shape[0]}, true}});
}

void RouterBackward::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_anchor(kName, "weight", weight, 2, device);
  check_fields(kName, device,
               {{"weight", weight, x.dtype, {weight.shape[0], x.shape[1]}},
                {"d_logits", d_logits, DType::kF32, {x.shape[0], weight.shape[0]}},
                {"dx", dx, x.dtype, x.shape},
                {"dweight", dweight, x.dtype, weight.shape, true},
                {"dbias", dbias, x.dtype, {weight.shape[0]}, true},
                {"add", add, x.dtype, x.shape, true}});
}

void ChooseExperts::check_on(Device device) const {
  const Shape all = check_logits(kName, logits, device),
              chosen = check_choices(kName, "choices", choices, DType::kI32, device);
  check_active(kName, chosen[1], all[1]);
  check_fields(kName, device,
               {{"choices", choices, DType::kI32, {all[0], chosen[1]}},
                {"weights", weights, DType::kF32, {all[0], chosen[1]}}});
}

void ChooseExpertsBackward::check_on(Device device) const {
  const Shape all = check_logits(kName, logits, device),
              chosen = check_choices(kName, "choices", choices, DType::kI32, device);
  check_active(kName, chosen[1], all[1]);
  check_fields(
      kName, device,
      {{"choices", choices, DType::kI32, {all[0], chosen[1]}},
       {"d_weights", d_weights, DType::kF32, {all[0], chosen[1]}},
       {"counts", counts, DType::kI32, {counts ? counts.shape[0] : 1, all[1]}, balance == 0 && z == 0},
       {"counted", counted, DType::kI32, {all[0]}, true}});
  check(std::isfinite(balance) && std::isfinite(z), "{}: balance and z must be numbers, found {} and {}",
        kName, balance, z);
}

void AssignExperts::check_on(Device device) const {
  const Shape chosen = check_choices(kName, "choices", choices, DType::kI32, device);
  const int64_t experts = offsets ? offsets.shape[0] - 1 : 1;
  check_active(kName, chosen[1], experts);
  check_fields(kName, device,
               {{"offsets", offsets, DType::kI32, {experts + 1}},
                {"rows", rows, DType::kI32, {chosen.numel()}},
                {"places", places, DType::kI32, chosen},
                {"counts", counts, DType::kI32, {experts}, true},
                {"counted", counted, DType::kI32, {chosen[0]}, true}});
}

void RouterSample::check_on(Device device) const {
  const Shape all = check_logits(kName, logits, device);
  check_fields(kName, device,
               {{"offsets", offsets, DType::kI32, {all[1] + 1}},
                {"loads", loads, DType::kF32, {all[1]}},
                {"entropy", entropy, DType::kF32, {1}}});
}

void ExpertsForward::check_on(Device device) const {
  check_weight(kName, weight, offsets, device);
  check_anchor(kName, "y", y, 2, device);
  const int64_t rows = y.shape[0];
  if (x_rows) check_gathered(kName, "x", x, rows);
  check_fields(kName, device,
               {{"x", x, weight.dtype, {x_rows ? x.shape[0] : rows, weight.shape[2]}},
                {"y", y, weight.dtype, {rows, weight.shape[1]}},
                {"x_rows", x_rows, DType::kI32, {rows}, true},
                {"bias", bias, weight.dtype, {weight.shape[0], weight.shape[1]}, true}});
  check_fp8(kName, device, {"fp8_x", fp8_x.data, fp8_x.scale, DType::kE4M3, x.shape},
            {"fp8_weight", fp8_weight.data, fp8_weight.scale, DType::kE4M3, weight.shape});
}

void ExpertsBackward::check_on(Device device) const {
  check_weight(kName, weight, offsets, device);
  check_anchor(kName, "dx", dx, 2, device);
  const int64_t rows = dx.shape[0];
  check(!x_rows || !dy_rows, "{}: x_rows and dy_rows exclude each other", kName);
  if (x_rows) check_gathered(kName, "x", x, rows);
  if (dy_rows) check_gathered(kName, "dy", dy, rows);
  const int64_t of_dy = dy_rows ? dy.shape[0] : rows;
  check_fields(kName, device,
               {{"x", x, weight.dtype, {x_rows ? x.shape[0] : rows, weight.shape[2]}},
                {"dy", dy, weight.dtype, {of_dy, weight.shape[1]}},
                {"dx", dx, weight.dtype, {rows, weight.shape[2]}},
                {"dweight", dweight, weight.dtype, weight.shape, true},
                {"dbias", dbias, weight.dtype, {weight.shape[0], weight.shape[1]}, true},
                {"x_rows", x_rows, DType::kI32, {rows}, true},
                {"dy_rows", dy_rows, DType::kI32, {rows}, true},
                {"weights", weights, DType::kF32, {of_dy, rows / of_dy}, !dy_rows}});
  check_fp8(kName, device, {"fp8_dy", fp8_dy.data, fp8_dy.scale, DType::kE5M2, dy.shape},
            {"fp8_weight", fp8_weight.data, fp8_weight.scale, DType::kE4M3, transposed_shape(weight.shape)});
  check(dy_rows || !weights, "{}: weights are of rows of dy that dy_rows gathers", kName);
}

namespace {

// What the three operations of an adapter have in common. `y`: whose columns are outputs
struct LoraShape {
  int64_t rows, rank;
  Shape a, b;
};
LoraShape check_lora(const char* op, const Tensor& u, const Tensor& matrix, const Tensor& offsets,
                     Device device, int64_t inputs, int64_t outputs) {
  check_anchor(op, "u", u, 2, device);
  const int64_t rank = u.shape[1];
  if (!offsets) return {u.shape[0], rank, {rank, inputs}, {outputs, rank}};
  check_weight(op, matrix, offsets, device);
  const int64_t experts = matrix.shape[0];
  return {u.shape[0], rank, {experts, rank, inputs}, {experts, outputs, rank}};
}

}  // namespace

void ExpertsLoraForward::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_anchor(kName, "y", y, 2, device);
  const LoraShape own = check_lora(kName, u, b, offsets, device, x.shape[1], y.shape[1]);
  if (x_rows) check_gathered(kName, "x", x, own.rows);
  check_fields(kName, device,
               {{"x", x, u.dtype, {x_rows ? x.shape[0] : own.rows, x.shape[1]}},
                {"a", a, u.dtype, own.a},
                {"b", b, u.dtype, own.b},
                {"y", y, offsets ? u.dtype : DType::kF32, {own.rows, y.shape[1]}},
                {"x_rows", x_rows, DType::kI32, {own.rows}, true}});
  check(offsets || !x_rows, "{}: x_rows are of rows that offsets give to experts", kName);
  check(std::isfinite(scale), "{}: scale must be a number, found {}", kName, scale);
}

void ExpertsLoraBackward::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_anchor(kName, "dy", dy, 2, device);
  const LoraShape own = check_lora(kName, u, b, offsets, device, x.shape[1], dy.shape[1]);
  check(!x_rows || !dy_rows, "{}: x_rows and dy_rows exclude each other", kName);
  check(offsets || (!x_rows && !dy_rows), "{}: x_rows and dy_rows are of rows that offsets give to experts",
        kName);
  if (x_rows) check_gathered(kName, "x", x, own.rows);
  if (dy_rows) check_gathered(kName, "dy", dy, own.rows);
  const int64_t of_dy = dy_rows ? dy.shape[0] : own.rows;
  check_fields(kName, device,
               {{"x", x, u.dtype, {x_rows ? x.shape[0] : own.rows, x.shape[1]}},
                {"dy", dy, offsets ? u.dtype : DType::kF32, {of_dy, dy.shape[1]}},
                {"b", b, u.dtype, own.b},
                {"da", da, u.dtype, own.a},
                {"db", db, u.dtype, own.b},
                {"x_rows", x_rows, DType::kI32, {own.rows}, true},
                {"dy_rows", dy_rows, DType::kI32, {own.rows}, true},
                {"weights", weights, DType::kF32, {of_dy, own.rows / of_dy}, !dy_rows}});
  check(dy_rows || !weights, "{}: weights are of rows of dy that dy_rows gathers", kName);
  check(std::isfinite(scale), "{}: scale must be a number, found {}", kName, scale);
}

void ExpertsLoraInput::check_on(Device device) const {
  check_anchor(kName, "dx", dx, 2, device);
  const LoraShape own = check_lora(kName, u, a, offsets, device, dx.shape[1], 1);
  check_fields(kName, device, {{"a", a, u.dtype, own.a}, {"dx", dx, u.dtype, {own.rows, dx.shape[1]}}});
}

void GatedExpertsBackward::check_on(Device device) const {
  check_anchor(kName, "dy", dy, 2, device);
  const int64_t rows = dy.shape[0], width = dy.shape[1];
  const Shape chosen = check_choices(kName, "weights", weights, DType::kF32, device);
  check(chosen.numel() == rows, "{}: weights must be of {} choices, found {}", kName, rows,
        weights.to_string());
  check_fields(kName, device,
               {{"gate_up", gate_up, dy.dtype, {rows, 2 * width}},
                {"d_gate_up", d_gate_up, dy.dtype, {rows, 2 * width}},
                {"rows", this->rows, DType::kI32, {rows}}});
  check_fp8_output(kName, device, "fp8_d_gate_up", fp8_d_gate_up, DType::kE5M2, d_gate_up);
  if (!bias) return;
  check_anchor(kName, "bias", bias, 2, device);
  check_fields(kName, device,
               {{"bias", bias, dy.dtype, bias.shape},
                {"d_sum", d_sum, dy.dtype, {chosen[0], bias.shape[1]}},
                {"choices", choices, DType::kI32, chosen}});
}

void SumExperts::check_on(Device device) const {
  check_anchor(kName, "y", y, 2, device);
  const Shape chosen = check_choices(kName, "places", places, DType::kI32, device);
  check_fields(kName, device,
               {{"places", places, DType::kI32, {y.shape[0], chosen[1]}},
                {"x", x, y.dtype, {chosen.numel(), y.shape[1]}},
                {"weights", weights, DType::kF32, chosen, true},
                {"add", add, y.dtype, y.shape, true}});
}

void AddShared::check_on(Device device) const {
  check_anchor(kName, "y", y, 2, device);
  check_fields(kName, device,
               {{"x", x, y.dtype, y.shape},
                {"logits", logits, DType::kF32, {y.shape[0], 1}},
                {"add", add, y.dtype, y.shape}});
}

void AddSharedBackward::check_on(Device device) const {
  check_anchor(kName, "dy", dy, 2, device);
  check_fields(kName, device,
               {{"x", x, dy.dtype, dy.shape},
                {"d_logits", d_logits, DType::kF32, {dy.shape[0], 1}},
                {"dx", dx, dy.dtype, dy.shape}});
}

}  // namespace tessera
