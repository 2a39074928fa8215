// ./bench attention --decode: one query of each sequence over a full cache, beside the time that reading the
// cache takes at the bandwidth of this run, and cuDNN. On
// the CPU its own kernel alone.
//
// The protocol of a time is that of bench_attention.cpp. What bounds a call is bandwidth: that of device
// memory is the better of a copy and a sum of squares over much more than any cache holds.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/attention/cudnn.h"
#include "kernels/attention/decode.h"
#include "kernels/base/check.h"
#include "kernels/base/output.h"
#include "kernels/base/status_line.h"
#include "kernels/timer.h"
#include "train/bench/attention_run.h"
#include "train/bench/attention_sweep.h"
#include "train/bench/bench.h"
#include "train/bench/decode_results.h"
#include "train/session/device.h"

namespace tessera {
namespace {

constexpr int kDecodeWarmupCalls = 2;
constexpr int64_t kBandwidthBytes = int64_t{512} << 20;

std::vector<CacheDtype> caches_of(const BenchAttentionOptions& options) {
  std::vector<CacheDtype> caches;
  for (const std::string& word : options.caches) {
    const std::optional<CacheDtype> cache = from_word<CacheDtype>(word);
    check(cache && (is_small(*cache) || *cache == CacheDtype::kAuto),
          "--cache-dtypes are auto, fp8, int8 and int4, found {}", word);
    caches.push_back(*cache);
  }
  return caches.empty() ? std::vector{CacheDtype::kAuto} : caches;
}

struct DecodeTensors {
  Tensor q, k, v, y, starts, groups = {}, workspace = {}, cudnn_workspace = {};
};

class DecodeBench {
 public:
  DecodeBench(const BenchAttentionOptions& options, const DeviceTraits& device)
      : options_(options),
        device_(device),
        backend_(make_backend(device)),
        arena_(make_arena(device)),
        stream_(*backend_, arena_.alloc(MemoryTag::kWorkspace, "kernel workspace", DType::kF32,
                                        {workspace_bytes(device.device, 1, 1, 1) / 4})) {}

  DecodeResults run() {
    DecodeResults results{.device = device_.name, .cudnn = "", .repeats = options_.repeats, .cells = {}};
    if (on_gpu()) {
      std::string why;
      if (attention::cudnn_available(why)) {
        cudnn_ = std::make_unique<attention::CudnnAttention>();
        results.cudnn = attention::cudnn_version();
      }
      flush_ = arena_.alloc(MemoryTag::kWorkspace, "what is read between calls", DType::kF32,
                            {kColdCacheBytes / 4});
      norm_ = arena_.alloc(MemoryTag::kWorkspace, "norm", DType::kF32, {1});
      stream_.run(FillZero{flush_});
      results.bandwidth = bandwidth();
    }
    fmt::print("decode attention on {}{}{}; median of {}\n\n", device_.name,
               results.cudnn.empty() ? "" : ", beside cuDNN " + results.cudnn,
               on_gpu() ? fmt::format("; {:.2f} TB/s of device memory", results.bandwidth / 1e12) : "",
               options_.repeats);
    for (const AttnDecodeProblem& problem : decode_problems_of(options_, device_.device))
      for (const CacheDtype cache : caches_of(options_)) results.cells.push_back(measure(problem, cache));
    fmt::print("{}", table_of(results));
    return results;
  }

 private:
  bool on_gpu() const { return device_.device == Device::kCuda; }

  template <class Call>
  double median(Call&& call) {
    std::unique_ptr<Timer> timer = make_timer(stream_);
    std::vector<double> samples;
    for (int64_t repeat = -kDecodeWarmupCalls; repeat < options_.repeats; ++repeat) {
      if (flush_) stream_.run(GlobalNorm{.tensors = {&flush_, 1}, .norm = norm_});
      timer->start();
      call();
      timer->stop();
      const double ms = timer->milliseconds();
      if (repeat >= 0) samples.push_back(ms);
    }
    std::ranges::sort(samples);
    return samples[samples.size() / 2];
  }

  double bandwidth() {
    Arena arena = make_arena(device_);
    const auto alloc = [&] {
      return arena.alloc(MemoryTag::kData, "bandwidth", DType::kF32, {kBandwidthBytes / 4});
    };
    const Tensor from = alloc(), to = alloc();
    stream_.run(FillZero{from});
    const double read = median([&] { stream_.run(GlobalNorm{.tensors = {&from, 1}, .norm = norm_}); });
    const double copy = median([&] { stream_.run(Copy{from, to}); });
    return std::max(kBandwidthBytes / read, 2 * kBandwidthBytes / copy) * 1e3;
  }

  // Random keys and values as codes, and random newest tokens
  void quantise(DecodeTensors& t, const DecodeShape& shape, Arena& arena) {
    const Shape text = t.k.shape;  // [B, tokens, K, D]
    const CacheFormat format = shape.format();
    const int64_t groups = CacheFormat::groups_of(text[1]);
    t.groups =
        arena.alloc(MemoryTag::kData, "codes", DType::kI32, {text[0], text[2], groups, format.group_words()});
    const auto as_layer = [](const Tensor& x) {
      return x.view({1, x.shape[0], x.shape[1], x.shape[2], x.shape[3]});
    };
    stream_.run(QuantiseCache{.format = format,
                              .k = as_layer(t.k),
                              .v = as_layer(t.v),
                              .groups = as_layer(t.groups),
                              .count = groups});
    for (Tensor* newest : {&t.k, &t.v}) {
      *newest = arena.alloc(MemoryTag::kData, "newest", newest->dtype,
                            {text[0], shape.cache_rows(), text[2], text[3]});
      fill_random(stream_, *newest);
    }
  }

  DecodeCell measure(const AttnDecodeProblem& p, CacheDtype cache) {
    DecodeCell cell{.problem = p, .cache = cache, .bytes = 0};
    const attention::Traffic traffic = attention::decode_traffic(p, p.capacity);
    cell.bytes = traffic.read + traffic.written;
    if (CacheFormat::groups_of(p.capacity) == 0) cell.cache = CacheDtype::kAuto;
    if (is_small(cell.cache)) {
      const CacheFormat format{.dtype = cache, .head_dim = p.head_dim};
      const int64_t element = p.dtype == ATTN_BF16 ? 2 : 4;
      cell.bytes +=
          static_cast<double>(p.batch * p.kv_heads *
                              (format.bytes_of(p.capacity, element) - 2 * p.capacity * p.head_dim * element));
    }
    Arena arena = make_arena(device_);
    const DType dtype = p.dtype == ATTN_BF16 ? DType::kBF16 : DType::kF32;
    const DecodePlan plan = choose_decode({.batch = p.batch,
                                           .heads = p.heads,
                                           .head_dim = p.head_dim,
                                           .kv_heads = p.kv_heads,
                                           .capacity = p.capacity,
                                           .cache = cell.cache},
                                          dtype, device_);
    const auto alloc = [&](const char* name, int64_t tokens, int64_t heads) {
      const Tensor tensor = arena.alloc(MemoryTag::kData, name, dtype, {p.batch, tokens, heads, p.head_dim});
      fill_random(stream_, tensor);
      return tensor;
    };
    DecodeTensors t{.q = alloc("query", 1, p.heads),
                    .k = alloc("keys", p.capacity, p.kv_heads),
                    .v = alloc("values", p.capacity, p.kv_heads),
                    .y = alloc("output", 1, p.heads),
                    .starts = arena.alloc(MemoryTag::kData, "starts", DType::kI32, {p.batch})};
    if (is_small(cell.cache)) quantise(t, plan.shape, arena);
    std::vector<int32_t> starts(static_cast<size_t>(p.batch), static_cast<int32_t>(p.capacity - 1));
    const Tensor host{starts.data(), DType::kI32, t.starts.shape, Device::kCpu};
    if (on_gpu()) {
      stream_.run(Copy{host, t.starts});
    } else {
      std::ranges::copy(starts, t.starts.as<int32_t>());
    }
    if (plan.workspace_bytes > 0)
      t.workspace = arena.alloc(MemoryTag::kWorkspace, "parts", DType::kF32, {plan.workspace_bytes / 4});
    cell.ms = median([&] {
      stream_.run(DecodeAttention{.plan = plan,
                                  .q = {t.q, 0, p.heads},
                                  .k_cache = t.k,
                                  .v_cache = t.v,
                                  .starts = t.starts,
                                  .y = t.y,
                                  .workspace = t.workspace,
                                  .groups = t.groups});
    });
    if (is_small(cell.cache))
      cell.why_no_cudnn = "not served";
    else
      measure_cudnn(cell, t, arena);
    return cell;
  }

  void measure_cudnn(DecodeCell& cell, const DecodeTensors& t, Arena& arena) {
    cell.why_no_cudnn = "not available";
    if (!cudnn_) return;
    cell.why_no_cudnn = "not served";
    if (attention::cudnn_decode_refusal(cell.problem, device_.arch) != nullptr) return;
    AttnDecode args{.q = attn_tensor(t.q),
                    .k = attn_tensor(t.k),
                    .v = attn_tensor(t.v),
                    .out = attn_tensor(t.y),
                    .starts = t.starts.as<int32_t>(),
                    .workspace = nullptr,
                    .workspace_bytes = 0,
                    .problem = cell.problem};
    try {
      const int64_t bytes = cudnn_->decode_workspace(args);
      const Tensor workspace =
          arena.alloc(MemoryTag::kWorkspace, "cuDNN's workspace", DType::kF32, {bytes / 4 + 1});
      args.workspace = workspace.data;
      args.workspace_bytes = workspace.bytes();
      cell.cudnn_ms = median([&] { cudnn_->decode(args, stream_.queue()); });
      cell.why_no_cudnn.clear();
    } catch (const Error& error) {  // its refusal is not ours
      print_stderr(fmt::format("bench: cudnn on {}: {}\n", to_string(cell.problem), error.what()));
    }
  }

  const BenchAttentionOptions& options_;
  DeviceTraits device_;
  std::unique_ptr<Backend> backend_;
  Arena arena_;
  Stream stream_;
  Tensor flush_, norm_;
  std::unique_ptr<attention::CudnnAttention> cudnn_;
};

}  // namespace

void bench_decode_attention(const BenchAttentionOptions& options) {
  check_writable(options.json);
  const DeviceTraits device = choose_device(options.device).traits;
  const DecodeResults results = DecodeBench(options, device).run();
  write_output(options.json, to_json(results).dump(2) + "\n");
}

}  // namespace tessera
