#include "kernels/op_checks.h"

#include "kernels/base/check.h"

namespace tessera {

void check_fields(const char* op, Device device, std::initializer_list<Field> fields) {
  for (const Field& f : fields) {
    if (f.optional && !f.tensor) continue;
    if (f.tensor && f.tensor.dtype == f.dtype && f.tensor.shape == f.shape && f.tensor.device == device)
      continue;
    fail("{}: {} must be {} {} on {}, found {}", op, f.name, name_of(f.dtype), f.shape.to_string(),
         name_of(device), f.tensor.to_string());
  }
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
bool computes_in(DType dtype, Device device) {
  return device == Device::kCuda ? is_real(dtype) : dtype == DType::kF32;
}
const char* names_of_dtypes(Device device) { return device == Device::kCuda ? "bf16 or fp32" : "fp32"; }

void check_anchor(const char* op, const char* name, const Tensor& t, int rank, Device device) {
  if (t && t.shape.rank() == rank && t.device == device && t.numel() > 0 && computes_in(t.dtype, device))
    return;
  fail("{}: {} must be a non-empty tensor of {} dimensions in {} on {}, found {}", op, name, rank,
       names_of_dtypes(device), name_of(device), t.to_string());
}

void check_range(const char* op, const char* name, const Heads& heads, int64_t count) {
  if (heads.first >= 0 && heads.count == count && heads.first + count <= heads.tensor.shape[2]) return;
  fail("{}: {} must have {} heads of {}, found {} from head {} on", op, name, count, heads.tensor.to_string(),
       heads.count, heads.first);
}

void check_heads(const char* op, const char* name, const Heads& heads, const Heads& anchor, Device device) {
  const Tensor &t = heads.tensor, &like = anchor.tensor;
  const int64_t B = like.shape[0], T = like.shape[1], D = like.shape[3];
  check_fields(op, device,
               {{name, t, like.dtype, {B, T, t.shape.rank() == 4 ? t.shape[2] : anchor.count, D}}});
  check_range(op, name, heads, anchor.count);
}

void check_sinks(const char* op, Device device, const Field& field, bool has) {
  if (has) return check_fields(op, device, {field});
  if (field.tensor)
    fail("{}: {} needs a plan with sinks: set AttentionShape::scores, found {}", op, field.name,
         field.tensor.to_string());
}

void check_scratch(const char* op, const Tensor& workspace, int64_t bytes, Device device) {
  if (workspace.as<char>() != nullptr && workspace.device != device)
    fail("{}: workspace must be on {}, found {}", op, name_of(device), workspace.to_string());
  check(static_cast<int64_t>(workspace.bytes()) >= bytes, "{}: workspace needs {} bytes, found {}", op, bytes,
        workspace.bytes());
}

bool are_same(const Heads& a, const Heads& b) {
  return a.tensor.data == b.tensor.data && a.tensor.shape == b.tensor.shape && a.first == b.first;
}

bool share_memory(const Heads& a, const Heads& b) {
  if (!a.tensor.data || a.tensor.data != b.tensor.data) return false;
  return a.tensor.shape != b.tensor.shape || (a.first < b.first + b.count && b.first < a.first + a.count);
}

void check_threshold(const char* op, const Dropout& dropout) {
  check(dropout.threshold >= 0 && dropout.threshold < Dropout::kResolution,
        "{}: dropout.threshold must be 0 to {}, found {}", op, Dropout::kResolution - 1, dropout.threshold);
}

}  // namespace tessera
