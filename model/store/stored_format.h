// StoredFormat: how a matrix is stored in few bits a number, with scales. The formats are FP8 (e4m3 with one
// scale for a matrix, which GEMMs read), NF4 and MXFP4. A format says how much memory its values take, and
// how numbers are rounded to them and widened again. stored_forms.h does the rest: layout, gathering and
// copying of the bytes, and the buffers.
#pragma once

#include <string>

#include "kernels/stream.h"

namespace tessera {

// A matrix of a block. If it consists of several matrices of the model's files, such as q, k and v, `rows`
// are the rows of each
struct StoredShape {
  Shape shape;
  LayerParts rows;
};
struct StoredValues {
  Tensor data;           // [O, C], of experts [E, O, C], if each number has a unit of its own, else [units]
  Tensor scales;         // [scales_of()] fp32; for MXFP4 and scales in 8 bits: words of four bytes
  LayerParts rows = {};  // as StoredShape::rows
};

class StoredFormat {
 public:
  virtual ~StoredFormat() = default;
  virtual const char* name() const = 0;         // "FP8"; part of the names of its tensors
  virtual DType unit(Device device) const = 0;  // the dtype of StoredValues::data
  // The units that `elements` numbers take, where `elements` is a multiple of kParamAlignment; and the words
  // that the scales of a matrix take
  virtual int64_t units(int64_t elements) const = 0;
  virtual int64_t scales_of(const StoredShape& matrix) const = 0;
  // Whether GEMMs read the values, and in a backward their transpose. If not, a lease of a training step
  // widens them, as any other lease does.
  virtual bool is_multiplied() const = 0;
  // The dtype from which round() rounds, if the store's weights have the dtype `plain`
  virtual DType rounds_from(DType plain) const { return plain; }
  // Error: the format cannot store this matrix
  virtual void check_matrix(const std::string& /*name*/, const Shape& /*matrix*/) const {}
  virtual void round(const Stream& stream, const Tensor& plain, const StoredValues& to) const = 0;
  // A format may need the scales of the whole matrix to make what it stores. Then round(), which is called
  // for some rows at a time, writes fp32 scales, this many for a matrix of this shape, and finish() turns all
  // of them into what is stored. 0: round() itself writes what is stored.
  virtual int64_t scales_before(const Shape& /*matrix*/) const { return 0; }
  virtual void finish(const Stream& /*stream*/, const Tensor& /*scales*/, const StoredValues& /*to*/) const {}
  virtual void widen(const Stream& stream, const StoredValues& from, const Tensor& plain) const = 0;
};

const StoredFormat& fp8_format();
// kernels/base/four_bits.h: NF4 with fp32 scales, 4.5 bits a number, or MXFP4, 4.25 bits
const StoredFormat& four_bit_format(FourBits format);
// NF4 with scales in 8 bits (kernels/base/small_scales.h), 4.127 bits a number
const StoredFormat& nf4_double_format();

}  // namespace tessera
