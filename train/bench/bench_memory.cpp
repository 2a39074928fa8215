#include <chrono>
#include <nlohmann/json.hpp>

#include "train/bench/bench.h"
#include "train/bench/output.h"
#include "train/device.h"
#include "train/metrics.h"

namespace tessera {

void bench_memory(const Config& config, const BenchMemoryOptions& options) {
  const DeviceTraits device = choose_device(config.device).traits;
  const std::unique_ptr<Backend> be = make_backend(device);
  fmt::print("one sequence through a training step: {} layers, {} heads, {} channels, on {}\n",
             config.model.layers, config.model.heads, config.model.channels, device.name);
  fmt::print("{:>10}  {:<10} {:>14} {:>12} {:>14} {:>12}\n", "tokens", "attention", "its memory", "a token",
             "all memory", "step");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const int64_t T : options.sequence_lengths) {
    for (const std::string& kind : options.attention) {
      Config at = config;
      at.model.attention = kind;
      at.model.context = std::max(T, config.model.context);
      at.train.sequence_length = at.train.tokens_per_step = T;
      at.train.micro_batch = 1;
      const RunShape shape = run_shape(at, device);
      const std::vector<int32_t> tokens(static_cast<size_t>(T), 1);
      try {
        Arena arena = make_arena(device);
        TrainState state(*be, arena, shape);
        state.initialize(1);
        double seconds = 0;
        for (int i = 0; i < 2; ++i) {  // the first touches the memory, the second is timed
          const auto start = std::chrono::steady_clock::now();
          state.step(tokens, tokens, optimizer_config(at), 0, i + 1);
          state.finish_step();
          seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        }
        const MemoryLedger& ledger = arena.ledger();
        const int64_t attention = ledger.peak_of_each()[static_cast<int>(MemoryTag::kAttention)];
        fmt::print("{:>10}  {:<10} {:>14} {:>12} {:>14} {:>9.1f} ms\n", T, kind, format_bytes(attention),
                   format_bytes(attention / T), format_bytes(ledger.peak_bytes()), 1e3 * seconds);
        rows.push_back({{"tokens", T},
                        {"attention", kind},
                        {"attention_bytes", attention},
                        {"peak_bytes", ledger.peak_bytes()},
                        {"step_ms", 1e3 * seconds}});
      } catch (const OutOfMemory&) {
        fmt::print("{:>10}  {:<10} does not fit: a step plans {}\n", T, kind,
                   format_bytes(plan_memory(shape, device).peak_bytes()));
        rows.push_back({{"tokens", T}, {"attention", kind}, {"out_of_memory", true}});
      }
      std::fflush(stdout);
    }
  }
  write_output(options.json, nlohmann::ordered_json{{"device", device.name}, {"rows", rows}}.dump(2) + "\n");
}

}  // namespace tessera
