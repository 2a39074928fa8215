// Chosen algorithms of GEMMs, in memory and as a text file.
//
// The file has a JSON object on each line. The first one says for which platform the choices hold. Each other
// one is a GEMM with its algorithm, and the milliseconds of this algorithm and of the library's first. A
// field that is left out has its usual value: no transpose, no padding between rows, addresses at multiples
// of 16 bytes, no batch, no epilogue, nothing added.
//
//   {"file": "Tessera's matrix products", "version": 1, "device": "...", "cublaslt": 130100, "cudart": 13000}
//   {"m": 65536, "n": 2304, "k": 768, "a": {"dtype": "bf16"}, "b": {"dtype": "bf16", "transposed": true},
//    "d": {"dtype": "bf16"}, "epilogue": "bias", "algorithm": {"id": 66, ...}, "ms": 0.32, "first_ms": 0.34}
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "kernels/gemm/gemm.h"

namespace tessera {

struct GemmChoice {
  GemmAlgorithm algorithm;
  double ms = 0, first_ms = 0;  // medians, when it was chosen
  bool operator==(const GemmChoice&) const = default;
};

struct GemmTable {
  GemmPlatform platform;
  std::map<GemmKey, GemmChoice> choices;
  bool operator==(const GemmTable&) const = default;
};

std::string text_of(const GemmTable& table);
// Error, with file and line: the file is not a table, or has an unknown version; a GEMM is listed twice, is
// impossible, or has an unknown field; an algorithm adds partial sums in another type than fp32.
GemmTable read_gemm_table(const std::filesystem::path& path);
// `name` is the file's name for messages.
GemmTable parse_gemm_table(std::string_view text, const std::string& name);

// "nvidia_h100_80gb_hbm3-130100-13000.jsonl": one file for each platform
std::string table_file_name(const GemmPlatform& platform);

}  // namespace tessera
