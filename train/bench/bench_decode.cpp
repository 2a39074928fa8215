// ./bench decode: the time of a token where texts are continued, against the bytes that it must read.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/output.h"
#include "kernels/base/random.h"
#include "kernels/base/text.h"
#include "kernels/timer.h"
#include "train/bench/bench.h"
#include "train/bench/copy_bandwidth.h"
#include "train/bench/op_times.h"
#include "train/session/decoder.h"
#include "train/session/device.h"
#include "train/session/from_config.h"

namespace tessera {
namespace {

constexpr SamplingRule kGreedy{.temperature = 0};
constexpr int64_t kWarmup = 4, kTimedByOperation = 4;  // tokens

struct Row {
  int64_t batch, context;
  double ms = 0;          // of a step: one token of each text
  double without_ms = 0;  // of the forward over a whole text, with --without-cache
  int64_t cache_bytes = 0;
  bool one_kernel = false;
  std::string kernels = {};  // Decoder::kernels_text()
  OpTimes times = {};        // of kTimedByOperation steps
};

std::vector<int32_t> random_text(int64_t tokens, int64_t vocab_size) {
  const Philox random(1, 0);
  std::vector<int32_t> text(static_cast<size_t>(tokens));
  for (size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<int32_t>(random.bits(i)[0] % static_cast<uint32_t>(vocab_size));
  return text;
}

// That a token reads: all but tables that are only looked up
int64_t weight_bytes(const ModelConfig& model, DType dtype) {
  int64_t elements = model.parameters();
  if (!model.tied) elements -= model.vocab_size * model.channels;
  if (model.positions == Positions::kLearned) elements -= model.context * model.channels;
  return elements * static_cast<int64_t>(size_of(dtype));
}

void measure(Session& session, const BenchDecodeOptions& options, Row& row) {
  const ModelConfig& model = session.shape().model;
  const int64_t tokens = kWarmup + options.steps + kTimedByOperation;
  Decoder decoder(session, {.slots = row.batch,
                            .capacity = row.context + tokens,
                            .cache = options.cache,
                            .separate_kernels = options.separate_kernels || options.by_operation});
  row.one_kernel = decoder.is_one_kernel();
  row.kernels = decoder.kernels_text();
  const std::vector<int32_t> text = random_text(row.context, model.vocab_size);
  for (int64_t slot = 0; slot < row.batch; ++slot) decoder.start(slot, text, slot);
  for (int64_t i = 0; i < kWarmup; ++i) decoder.next(kGreedy, 1);
  session.stream().synchronize();
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < options.steps; ++i) decoder.next(kGreedy, 1);
  session.stream().synchronize();
  row.ms = 1e3 * seconds_since(start) / static_cast<double>(options.steps);
  // The mean length of the texts in the timed steps
  row.cache_bytes = row.batch * kv_cache_bytes_read(model, session.shape().dtype, row.context + tokens,
                                                    checked_cache(options.cache, session.shape().dtype),
                                                    row.context + kWarmup + options.steps / 2);
  OpTimer timer(session.stream().backend());
  for (int64_t i = 0; i < kTimedByOperation; ++i) decoder.next(kGreedy, 1);
  row.times = timer.times();
  if (!options.without_cache) return;
  const Clock::time_point begin = Clock::now();
  session.last_logits(text, 1);
  row.without_ms = 1e3 * seconds_since(begin) * static_cast<double>(row.batch);
}

// How a row's step was computed
const char* kernels_of(const Row& row) { return row.one_kernel ? "one" : "separate"; }

void print_times(const Row& row) {
  std::vector<std::pair<std::string, OpTime>> times(row.times.begin(), row.times.end());
  std::ranges::sort(times, [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  fmt::print("  batch {}, context {}, by operation, timed one at a time\n", row.batch, row.context);
  for (const auto& [op, time] : times)
    fmt::print("    {:<20} {:>9.3f} ms  {:>5} calls\n", op, 1e3 * time.seconds / kTimedByOperation,
               time.calls / kTimedByOperation);
}

}  // namespace

void bench_decode(const Config& config, const BenchDecodeOptions& options) {
  check_writable(options.json);
  const DeviceTraits device = choose_device(config.device).traits;
  ModelConfig model = model_config(config);
  const int64_t longest =
      *std::ranges::max_element(options.contexts) + kWarmup + options.steps + kTimedByOperation;
  const std::string& weights_of = config.train.init_from;
  check(weights_of.empty() || model.positions != Positions::kLearned || longest <= model.context,
        "--contexts {}: with {} tokens more, to be timed, it is longer than the {} positions of {}. Use "
        "shorter ones, or fewer --steps",
        *std::ranges::max_element(options.contexts), longest - *std::ranges::max_element(options.contexts),
        model.context, weights_of);
  model.context = std::max(model.context, longest);
  const std::unique_ptr<Backend> be = make_backend(device);
  Arena arena = make_arena(device);
  const double bandwidth = copy_bandwidth(Stream(*be), arena);
  Session session(*be, arena,
                  inference_shape(model, device, config.train.precision, config.model.attention, longest));
  weights_of.empty() ? session.initialize(1) : load_weights(weights_of, session, folder_options(config));
  const int64_t weights = weight_bytes(model, session.shape().dtype);

  std::vector<Row> rows;
  for (const int64_t batch : options.batches)
    for (const int64_t context : options.contexts) rows.push_back({.batch = batch, .context = context});
  // The largest cache first: smaller ones then find their memory in what it leaves
  std::ranges::sort(rows, std::greater{}, [](const Row& row) { return row.batch * row.context; });
  for (Row& row : rows) {
    try {
      measure(session, options, row);
    } catch (const OutOfMemory& error) {
      fmt::print("batch {}, context {}: {}\n", row.batch, row.context, error.what());
    }
  }
  std::erase_if(rows, [](const Row& row) { return row.ms == 0; });
  std::ranges::sort(rows, {}, [](const Row& row) { return std::pair(row.batch, row.context); });

  fmt::print("{} parameters, {}, on {}: {} of weights a step, memory copies at {:.1f} GB/s{}\n",
             format_count(static_cast<double>(model.parameters())), name_of(session.shape().dtype),
             device.name, format_bytes(weights), bandwidth / 1e9,
             is_small(options.cache) ? fmt::format(", a cache of {}", name_of(options.cache)) : "");
  fmt::print("  batch  context    ms a step   tokens/s       cache   of the bytes' bound   kernels{}\n",
             options.without_cache ? "   ms without a cache" : "");
  nlohmann::ordered_json json{{"device", device.name},
                              {"model", weights_of},
                              {"parameters", model.parameters()},
                              {"precision", name_of(session.shape().dtype)},
                              {"weight_bytes", weights},
                              {"copy_bytes_per_second", bandwidth},
                              {"steps", options.steps},
                              {"cache_dtype", name_of(options.cache)}};
  for (const Row& row : rows) {
    const double bound = 1e3 * static_cast<double>(weights + row.cache_bytes) / bandwidth;
    const double per_second = 1e3 * static_cast<double>(row.batch) / row.ms;
    fmt::print("  {:>5}  {:>7}  {:>11.4f}  {:>9}  {:>10}  {:>19.1f}%  {:>8}", row.batch, row.context, row.ms,
               format_count(per_second), format_bytes(row.cache_bytes), 100 * bound / row.ms,
               kernels_of(row));
    if (options.without_cache) fmt::print("  {:>11.2f} = {:.1f}x", row.without_ms, row.without_ms / row.ms);
    fmt::print("\n");
    nlohmann::ordered_json entry{{"batch", row.batch},
                                 {"context", row.context},
                                 {"ms", row.ms},
                                 {"tokens_per_second", per_second},
                                 {"cache_bytes", row.cache_bytes},
                                 {"share_of_bound", bound / row.ms},
                                 {"kernels", kernels_of(row)}};
    if (options.without_cache) entry["ms_without_cache"] = row.without_ms;
    for (const auto& [op, time] : row.times)
      entry["ms_by_operation"][op] = 1e3 * time.seconds / kTimedByOperation;
    json["rows"].push_back(entry);
  }
  std::set<std::string> said;
  for (const Row& row : rows)
    if (!row.one_kernel && said.insert(row.kernels).second)
      fmt::print("  batch {}: {}\n", row.batch, row.kernels);
  if (options.by_operation) std::ranges::for_each(rows, print_times);
  write_output(options.json, json.dump(2) + "\n");
}

}  // namespace tessera
