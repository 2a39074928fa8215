// A tensor of a file: its name, its shape and the format of its numbers.
#pragma once

#include <string>

#include "model/formats/number_format.h"

namespace tessera {

struct FileTensor {
  std::string name;
  Shape shape;
  NumberFormat format = NumberFormat::kF32;

  int64_t bytes() const { return bytes_of(format, shape.numel()); }
};

}  // namespace tessera
