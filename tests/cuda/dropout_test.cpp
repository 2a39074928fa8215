// Dropout on CUDA: the same elements as on the CPU, at sizes that are no multiple of anything.
#include "tests/cuda/twin.h"

namespace tessera {
namespace {

using CudaDropout = CudaTest;

TEST_F(CudaDropout, DropsWhatTheCpuDrops) {
  struct Size {
    int64_t B, T, C;
  };
  constexpr Size kSizes[] = {{1, 1, 1},   {2, 3, 8},    {3, 7, 16},   {2, 5, 17},    {2, 9, 24},
                             {3, 5, 100}, {1, 65, 384}, {4, 33, 768}, {2, 129, 1600}};
  for (const DType dtype : kReal)
    for (const auto& [B, T, C] : kSizes)
      for (const int threshold : {1, 26, 128, 255}) {
        SCOPED_TRACE(fmt::format("{} B {} T {} C {} threshold {}", name_of(dtype), B, T, C, threshold));
        const Dropout dropout{.threshold = threshold,
                              .key = 0xfedcba9876543210,
                              .place = 9 * Dropout::kHeads,
                              .first_sequence = 5};
        // Values far from 0: a 0 in the result is an element that was dropped.
        const Twin x = input(dtype, {B, T, C}, 1, 100), y = output(dtype, {B, T, C});
        run_on_both({y}, [&](auto on) { return ApplyDropout{.x = on(x), .y = on(y), .dropout = dropout}; });
        expect_same(y, "y");
        const std::vector<float> got = floats_of(y.cuda);
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_EQ(got[i] == 0, y.cpu.as<float>()[i] == 0) << "element " << i;

        const Twin add = input(dtype, {B, T, C}), sum = output(dtype, {B, T, C});
        run_on_both({sum}, [&](auto on) {
          return ApplyDropout{.x = on(x), .y = on(sum), .add = on(add), .dropout = dropout};
        });
        expect_same(sum, "with add");
        for (const bool onto_add : {false, true}) {
          const Twin own = with_values(dtype, {B, T, C},
                                       [&](int64_t i) { return (onto_add ? add : x).cpu.as<float>()[i]; });
          run_on_both({own}, [&](auto on) {
            return ApplyDropout{.x = on(onto_add ? x : own),
                                .y = on(own),
                                .add = on(onto_add ? own : add),
                                .dropout = dropout};
          });
          EXPECT_EQ(bytes_of(own.cuda), bytes_of(sum.cuda)) << (onto_add ? "y is add" : "y is x");
        }
      }
}

}  // namespace
}  // namespace tessera
