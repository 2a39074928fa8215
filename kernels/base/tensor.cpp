#include "kernels/base/tensor.h"

#include "kernels/base/check.h"

namespace tessera {

size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kU16:
      return 2;
    case DType::kE4M3:
    case DType::kE5M2:
      return 1;
  }
  fail("a dtype without a size: {}", static_cast<int>(dtype));
}

Shape::Shape(std::initializer_list<int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  check(dims.size() <= kMaxRank, "a shape has at most {} dimensions, found {}", kMaxRank, dims.size());
  int i = 0;
  for (int64_t dim : dims) {
    check(dim >= 0, "a dimension cannot be negative, found {}", dim);
    dims_[i++] = dim;
  }
}

int64_t Shape::numel() const {
  int64_t count = 1;
  for (int i = 0; i < rank_; ++i) count *= dims_[i];
  return count;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += fmt::format("{}{}", i ? ", " : "", dims_[i]);
  return text + "]";
}

Tensor Tensor::view(Shape other) const {
  if (other.numel() != numel()) fail("cannot view {} as {}", to_string(), other.to_string());
  return {data, dtype, other, device};
}

Tensor Tensor::rows(int64_t first, int64_t count) const {
  if (shape.rank() < 1 || first < 0 || count < 0 || first + count > shape[0])
    fail("rows {} to {} do not exist in {}", first, first + count, to_string());
  const int64_t row = shape[0] ? numel() / shape[0] : 0;
  Tensor slice = *this;
  if (data) slice.data = static_cast<char*>(data) + first * row * static_cast<int64_t>(size_of(dtype));
  switch (shape.rank()) {
    case 1:
      slice.shape = {count};
      break;
    case 2:
      slice.shape = {count, shape[1]};
      break;
    case 3:
      slice.shape = {count, shape[1], shape[2]};
      break;
    default:
      fail("rows() supports up to three dimensions, found {}", to_string());
  }
  return slice;
}

std::string Tensor::to_string() const {
  return *this ? fmt::format("{} {} on {}", name_of(dtype), shape.to_string(), name_of(device)) : "no tensor";
}

}  // namespace tessera
