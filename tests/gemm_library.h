// A library of matrix products for tests: its algorithms take the time that a test says, and compute nothing.
#pragma once

#include <chrono>
#include <map>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/gemm/table.h"

namespace tessera::testing {

// a[m, k] b[n, k]^T, as y = x weight^T
inline GemmKey product(int64_t m, int64_t n, int64_t k, DType dtype = DType::kBF16) {
  return key_of({.dtype = dtype,
                 .m = m,
                 .n = n,
                 .k = k,
                 .a = {.ld = k},
                 .b = {.ld = k, .transposed = true},
                 .d = {.ld = n}});
}

inline GemmAlgorithm algorithm(int id) { return {.id = id, .tile = 20 + id, .cluster_shape = 2}; }

class FakeGemms final : public GemmLibrary {
 public:
  GemmPlatform name{.device = "Test GPU 80GB", .cublaslt = 130100, .cudart = 13000};
  std::vector<std::pair<int, double>> milliseconds = {{1, 1.0}};  // of its algorithms, in its order
  GemmTable used;
  std::map<int, int> calls;  // by algorithm

  GemmPlatform platform() const override { return name; }
  std::vector<GemmAlgorithm> algorithms(const GemmKey&, int) override {
    std::vector<GemmAlgorithm> all;
    for (const auto& [id, ms] : milliseconds) all.push_back(algorithm(id));
    return all;
  }
  bool supports(const GemmKey&, const GemmAlgorithm& of) override {
    for (const auto& [id, ms] : milliseconds)
      if (of == algorithm(id)) return true;
    return false;
  }
  std::function<void()> prepare(const Gemm&, const GemmAlgorithm& of, const Launch&) override {
    for (const auto& [id, ms] : milliseconds)
      if (of.id == id)
        return [this, id = id, ms = ms] {
          ++calls[id];
          using Clock = std::chrono::steady_clock;
          const auto end = Clock::now() + std::chrono::duration<double, std::milli>(ms);
          while (Clock::now() < end) {
          }
        };
    fail("the test's library has no algorithm {}", of.id);
  }
  void use(const GemmTable& table) override { used = table; }
};

}  // namespace tessera::testing
