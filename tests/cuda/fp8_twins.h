// Tensors in FP8 on both devices, rounded in the same way, for tests of CUDA against the CPU
#pragma once

#include "kernels/base/fp8.h"
#include "tests/cuda/twin.h"

namespace tessera {

class Fp8Twins : public CudaTest {
 protected:
  static constexpr int kOldest = 89;  // whose tensor cores multiply in FP8

  struct Quantised {
    DType format;
    Twin data, transposed, scale;
    Fp8Matrix cpu() const { return {data.cpu, scale.cpu}; }
    Fp8Matrix cuda() const { return {data.cuda, scale.cuda}; }
    Fp8Matrix cpu_transposed() const { return {transposed.cpu, scale.cpu}; }
    Fp8Matrix cuda_transposed() const { return {transposed.cuda, scale.cuda}; }
  };

  Twin scalar(float value) {
    return with_values(DType::kF32, {1}, [=](int64_t) { return value; });
  }
  Quantised room(DType format, const Shape& shape, float scale = 1) {
    return {format, output(format, shape), output(format, transposed_shape(shape)), scalar(scale)};
  }
  // Both devices, with the scale of x itself
  Quantised quantised(const Twin& x, DType format) {
    Quantised q = room(format, x.cpu.shape);
    run_on_both({q.data, q.transposed, q.scale}, [&](auto on) {
      return Quantise{.x = on(x),
                      .format = format,
                      .y = on(q.cpu(), q.cuda()),
                      .transposed = on(q.transposed),
                      .current = true};
    });
    return q;
  }

  void expect_same_values(const Twin& data, const Twin& scale, DType format, const char* what) {
    const float by = floats_of(scale.cuda)[0];
    ASSERT_EQ(by, scale.cpu.as<float>()[0]) << what;
    const std::vector<char> bytes = bytes_of(data.cuda);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const float got = by * float_from_fp8(static_cast<uint8_t>(bytes[i]), format),
                  want = data.cpu.as<float>()[i];
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << what << "[" << i << "]";
      } else {
        ASSERT_EQ(got, want) << what << "[" << i << "] of " << data.cuda.to_string();
      }
    }
  }

  // The operation's result has the same bits with FP8 values as without. These and the largest element are
  // those that Quantise finds of it. changed: what the operation reads and overwrites, besides its result
  template <class Op>
  void expect_fp8(Op op, Tensor Op::*result, Fp8Output Op::*fp8, DType format, const Twin& changed = {}) {
    const Tensor y = op.*result;
    SCOPED_TRACE(fmt::format("{} to {}", Op::kName, y.to_string()));
    const Twin wanted = output(format, y.shape), found = output(format, y.shape), scale = scalar(0.25f),
               amax = scalar(0.125f), found_amax = scalar(0.125f);
    std::vector<char> before = bytes_of(y);  // which the operation may read
    std::vector<char> other;
    if (changed.cuda) other = bytes_of(changed.cuda);
    cuda().run(op);
    const std::vector<char> plain = bytes_of(y);
    cuda().run(Quantise{.x = y, .format = format, .y = {wanted.cuda, scale.cuda}, .amax = amax.cuda});
    const auto restore = [&](std::vector<char>& bytes, const Tensor& to) {
      cuda().run(Copy{{bytes.data(), to.dtype, to.shape, Device::kCpu}, to});
    };
    restore(before, y);
    std::vector<Twin> results = {{.cpu = {}, .cuda = y}, found, found_amax};
    if (changed.cuda) restore(other, changed.cuda), results.push_back(changed);
    op.*fp8 = {.y = {found.cuda, scale.cuda}, .amax = found_amax.cuda};
    run_twice(results, [&] { cuda().run(op); });
    EXPECT_TRUE(bytes_of(y) == plain) << "another result";
    EXPECT_TRUE(bytes_of(found.cuda) == bytes_of(wanted.cuda)) << "other FP8 values";
    EXPECT_TRUE(bytes_of(found_amax.cuda) == bytes_of(amax.cuda))
        << "largest " << floats_of(found_amax.cuda)[0] << ", wanted " << floats_of(amax.cuda)[0];
    EXPECT_FALSE(floats_of(amax.cuda)[0] <= 0.125f) << "no element is larger";
  }

  bool multiplies() { return cuda().backend().traits().arch >= kOldest; }
};

}  // namespace tessera
