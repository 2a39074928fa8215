// ./bench gemm: the GEMMs of a training step, each by the algorithms that cuBLASLt has for it, and the
// products of a layer of experts.
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/output.h"
#include "train/bench/bench.h"
#include "train/bench/expert_times.h"
#include "train/bench/gemm_results.h"
#include "train/run/gemm_choices.h"
#include "train/session/device.h"
#include "train/session/from_config.h"
#include "train/session/step_gemms.h"

namespace tessera {

void bench_gemm(const Config& config, const BenchGemmOptions& options) {
  check_writable(options.json);
  const DeviceTraits device = choose_device(config.device).traits;
  const std::unique_ptr<Backend> be = make_backend(device);
  GemmLibrary* library = be->gemms();
  check(library != nullptr,
        "./bench gemm compares algorithms of cuBLASLt, and {} computes GEMMs in one way. Run it on a GPU",
        device.name);
  library->take_from(config.train.gemm_backend);
  const RunShape shape = run_shape(config, device);
  GemmResults results{.platform = library->platform(), .peak_flops = gemm_peak(*be), .rows = {}};
  fmt::print("{}, cuBLASLt {}: {} x {} tokens, {}; GEMM peak measured here {:.1f} TFLOP/s\n", device.name,
             results.platform.cublaslt, shape.micro_batch, shape.sequence_length, name_of(shape.dtype),
             results.peak_flops / 1e12);
  for (const StepGemm& gemm : step_gemms(shape, device))
    results.rows.push_back({.key = gemm.key, .calls = gemm.calls, .times = time_on(*be, gemm.key)});
  fmt::print("{}", table_of(results));
  const std::vector<ExpertTime> experts = time_experts(*be, shape);
  if (!experts.empty()) fmt::print("\n{}", table_of(experts, results.peak_flops));
  if (!options.json.empty()) {
    nlohmann::ordered_json json = to_json(results);
    if (!experts.empty()) json["experts"] = to_json(experts);
    write_output(options.json, json.dump(2) + "\n");
  }
  if (options.write.empty()) return;
  add_to_table(options.write, table_from(results));
  fmt::print("written: {}\n", options.write);
}

}  // namespace tessera
