#include "kernels/linear_ops.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/fp8.h"
#include "kernels/op_checks.h"

namespace tessera {
namespace {

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

}  // namespace tessera
