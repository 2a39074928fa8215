#include "kernels/memory_ops.h"

#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/fp8.h"
#include "kernels/op_checks.h"

namespace tessera {
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

void FillZero::check_on(Device device) const {
  if (!tensor || tensor.device != device)
    fail("{}: tensor must be on {}, found {}", kName, name_of(device), tensor.to_string());
}

void Copy::check_on(Device device) const {
  // CUDA also copies from and to the host. A copy between host tensors is the CPU's.
  const bool here = device == Device::kCuda ? from.device == device || to.device == device
                                            : from.device == device && to.device == device;
  if (!(from && to && from.numel() == to.numel() && here))
    fail("{}: expected equal element counts and {} on {}, found {} and {}", kName,
         device == Device::kCuda ? "at least one side" : "both sides", name_of(device), from.to_string(),
         to.to_string());
  if (!(from.dtype == to.dtype || (is_real(from.dtype) && is_real(to.dtype))))
    fail("{}: cannot convert {} into {}", kName, from.to_string(), to.to_string());
}

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

void Inspect::check_on(Device device) const {
  check(x && x.device == device && (is_real(x.dtype) || is_fp8(x.dtype)),
        "{}: x must be a tensor of numbers on {}, found {}", kName, name_of(device), x.to_string());
  check(row == 0 || (row > 0 && first >= 0 && count > 0 && first + count <= row && x.numel() % row == 0),
        "{}: {} elements from {} on of each {} do not fit x {}", kName, count, first, row, x.to_string());
  check_fields(kName, device, {{"result", result, DType::kI32, {kInspectedWords}}});
}

}  // namespace tessera
