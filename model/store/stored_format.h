// StoredFormat: how a matrix is stored in few bits an element, with scales: FP8, e4m3 with one scale a
// matrix, which GEMMs read, NF4 or MXFP4. A format states what its values take, and how they are rounded and
// widened; stored_forms.h does the rest: layout, gathering and copying of the bytes, and the buffers.
#pragma once

#include <string>

#include "kernels/stream.h"

namespace tessera {

// A matrix of a block. It may be made of several matrices of the model's files, as of q, k and v: `rows` of
// each
struct StoredShape {
  Shape shape;
  LayerParts rows;
};
struct StoredValues {
  Tensor data;           // [O, C] where an element has a unit of its own, else [units]
  Tensor scales;         // [scales_of()] fp32; MXFP4 and small scales: words of four bytes
  LayerParts rows = {};  // as StoredShape::rows
};

class StoredFormat {
 public:
  virtual ~StoredFormat() = default;
  virtual const char* name() const = 0;  // "FP8", in the names of its tensors
  virtual DType unit(Device device) const = 0;
  // That `elements` take, a multiple of kParamAlignment; and words of scales of a matrix
  virtual int64_t units(int64_t elements) const = 0;
  virtual int64_t scales_of(const StoredShape& matrix) const = 0;
  // Whether GEMMs read the values, and those of a backward their transpose. Else a lease of a training step
  // widens them, as any other does.
  virtual bool is_multiplied() const = 0;
  // Of what round() takes, where the store's weights have this one
  virtual DType rounds_from(DType plain) const { return plain; }
  // Error: what it cannot store
  virtual void check_matrix(const std::string& /*name*/, const Shape& /*matrix*/) const {}
  virtual void round(const Stream& stream, const Tensor& plain, const StoredValues& to) const = 0;
  // A format may make its scales from those of the whole matrix. Then round(), called for some rows at a
  // time, writes this many fp32 scales for a matrix of this shape, and finish() makes what is stored of all
  // of them. 0: round() writes what is stored.
  virtual int64_t scales_before(const Shape& /*matrix*/) const { return 0; }
  virtual void finish(const Stream& /*stream*/, const Tensor& /*scales*/, const StoredValues& /*to*/) const {}
  virtual void widen(const Stream& stream, const StoredValues& from, const Tensor& plain) const = 0;
};

const StoredFormat& fp8_format();
// kernels/base/four_bits.h: NF4 with fp32 scales, 4.5 bits an element; MXFP4, 4.25
const StoredFormat& four_bit_format(FourBits format);
// NF4 with scales in 8 bits (kernels/base/small_scales.h), 4.127 bits an element
const StoredFormat& nf4_double_format();

}  // namespace tessera
