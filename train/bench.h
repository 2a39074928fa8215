// The benchmarks behind `./bench`.
#pragma once

#include <string>
#include <vector>

#include "train/config.h"

namespace tessera {

struct BenchStepOptions {
  int64_t warmup = 3, steps = 10;  // optimizer steps
  std::string json;                // file to write; empty: none
};
// Tokens/s, TFLOP/s, the share of the GEMM peak and milliseconds by operation of a training step on random
// tokens.
void bench_step(const Config& config, const BenchStepOptions& options);

struct BenchMemoryOptions {
  std::vector<int64_t> sequence_lengths;
  std::vector<std::string> attention;
  std::string json;
};
// Memory and time of a training step of one sequence, by sequence length and kind of attention, as the ledger
// measured it. A length that does not fit is a row that says so.
void bench_memory(const Config& config, const BenchMemoryOptions& options);

}  // namespace tessera
