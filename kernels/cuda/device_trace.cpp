// CUPTI's activities: kernels, copies and fills, and the numbers that the host pushes for what it enqueues
// (External Correlation, in the CUPTI documentation's chapter on the Activity API).
#include "kernels/device_trace.h"

#include <cuda_runtime.h>
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_check.h"

namespace tessera {
namespace {

#if CUPTI_API_VERSION >= 130000
using KernelRecord = CUpti_ActivityKernel10;
using CopyRecord = CUpti_ActivityMemcpy6;
#else
using KernelRecord = CUpti_ActivityKernel9;
using CopyRecord = CUpti_ActivityMemcpy5;
#endif
using FillRecord = CUpti_ActivityMemset4;

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr CUpti_ActivityKind kKinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET,
    // Calls have the numbers that correlate the others.
    CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};

struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&cuptiActivityEnable) enable;
  decltype(&cuptiActivityDisable) disable;
  decltype(&cuptiActivityFlushAll) flush;
  decltype(&cuptiActivityGetNextRecord) next_record;
  decltype(&cuptiActivityPushExternalCorrelationId) push;
  decltype(&cuptiActivityPopExternalCorrelationId) pop;
  decltype(&cuptiActivityRegisterTimestampCallback) use_clock;
  decltype(&cuptiGetResultString) text_of;

  void require(CUptiResult result, const char* what) const {
    const char* why = "";
    if (result == CUPTI_SUCCESS) return;
    text_of(result, &why);
    fail(
        "a trace needs NVIDIA's CUPTI, whose {} failed: {}. Another profiler may use it: run without, and "
        "outside of ncu and nsys",
        what, why);
  }
};

// Error: cannot be loaded
const Cupti& cupti() {
  static const Cupti loaded = [] {
    const std::string name = fmt::format("libcupti.so.{}", CUDART_VERSION / 1000);
    void* handle = dlopen(name.c_str(), RTLD_NOW);
    const std::string why = handle == nullptr ? dlerror() : "";
    for (const char* folder : {TESSERA_CUPTI_FOLDER, TESSERA_CUPTI_FOLDER "/../extras/CUPTI/lib64"})
      if (handle == nullptr) handle = dlopen(fmt::format("{}/{}", folder, name).c_str(), RTLD_NOW);
    check(handle != nullptr,
          "a trace needs NVIDIA's CUPTI: cannot load {} ({}). Install NVIDIA's package cuda-cupti of this "
          "version, or add the library's folder to LD_LIBRARY_PATH",
          name, why);
    Cupti c{};
    const auto find = [&]<class Function>(const char* function, Function& to) {
      to = reinterpret_cast<Function>(dlsym(handle, function));
      check(to != nullptr, "{} has no {}: install CUPTI of CUDA {}", name, function, CUDART_VERSION / 1000);
    };
    find("cuptiActivityRegisterCallbacks", c.register_callbacks);
    find("cuptiActivityEnable", c.enable);
    find("cuptiActivityDisable", c.disable);
    find("cuptiActivityFlushAll", c.flush);
    find("cuptiActivityGetNextRecord", c.next_record);
    find("cuptiActivityPushExternalCorrelationId", c.push);
    find("cuptiActivityPopExternalCorrelationId", c.pop);
    find("cuptiActivityRegisterTimestampCallback", c.use_clock);
    find("cuptiGetResultString", c.text_of);
    return c;
  }();
  return loaded;
}

std::string readable(const char* name) {
  if (!name) return "kernel";
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string found = status == 0 ? text : name;
  std::free(text);
  return found;
}

const char* name_of_copy(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy, host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy, device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "copy on the device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "copy to another device";
    default:
      return "copy";
  }
}

// What CUPTI's thread hands over, of the trace that runs
struct Records {
  std::mutex mutex;
  std::vector<std::pair<uint32_t, DeviceActivity>> activities;  // with the number of the call
  std::unordered_map<uint32_t, uint64_t> work;                  // by the number of the call

  void add(const auto& r, const std::string& name, int64_t bytes) {
    activities.push_back({r.correlationId,
                          {.name = name,
                           .stream = r.streamId,
                           .begin_ns = static_cast<int64_t>(r.start),
                           .end_ns = static_cast<int64_t>(r.end),
                           .bytes = bytes}});
  }
  void take(const CUpti_Activity* record) {
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      case CUPTI_ACTIVITY_KIND_KERNEL: {
        const auto& kernel = *reinterpret_cast<const KernelRecord*>(record);
        add(kernel, readable(kernel.name), 0);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& copy = *reinterpret_cast<const CopyRecord*>(record);
        add(copy, name_of_copy(copy.copyKind), static_cast<int64_t>(copy.bytes));
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& fill = *reinterpret_cast<const FillRecord*>(record);
        add(fill, "fill", static_cast<int64_t>(fill.bytes));
        break;
      }
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto& link = *reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
        work[link.correlationId] = link.externalId;
        break;
      }
      default:
        break;
    }
  }
};
Records& records() {
  static Records all;
  return all;
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer ? kBufferBytes : 0;
  *most_records = 0;  // as many as fit
}
void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t filled) {
  Records& all = records();
  {
    const std::lock_guard lock(all.mutex);
    CUpti_Activity* record = nullptr;
    while (cupti().next_record(buffer, filled, &record) == CUPTI_SUCCESS) all.take(record);
  }
  std::free(buffer);
}
uint64_t CUPTIAPI now_ns() {
  using namespace std::chrono;
  return static_cast<uint64_t>(duration_cast<nanoseconds>(system_clock::now().time_since_epoch()).count());
}

class CuptiTrace final : public DeviceTrace {
 public:
  CuptiTrace() : cupti_(cupti()) {
    Records& all = records();
    all.activities.clear(), all.work.clear();
    cupti_.require(cupti_.use_clock(now_ns), "clock");
    cupti_.require(cupti_.register_callbacks(give_buffer, take_buffer), "buffers");
    for (const CUpti_ActivityKind kind : kKinds) cupti_.require(cupti_.enable(kind), "activities");
    on_ = true;
  }
  ~CuptiTrace() override { end(); }
  CuptiTrace(const CuptiTrace&) = delete;
  CuptiTrace& operator=(const CuptiTrace&) = delete;

  void begin_work(uint64_t work) override {
    cupti_.require(cupti_.push(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, work), "numbers of work");
  }
  void end_work() override {
    uint64_t last = 0;
    cupti_.require(cupti_.pop(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last), "numbers of work");
  }
  std::vector<DeviceActivity> stop() override {
    TESSERA_CUDA(cudaDeviceSynchronize());
    end();
    Records& all = records();
    const std::lock_guard lock(all.mutex);
    std::vector<DeviceActivity> found;
    for (auto& [call, activity] : all.activities) {
      if (const auto at = all.work.find(call); at != all.work.end()) activity.work = at->second;
      found.push_back(std::move(activity));
    }
    all.activities.clear(), all.work.clear();
    std::ranges::sort(found, {}, &DeviceActivity::begin_ns);
    return found;
  }

 private:
  void end() {
    if (!on_) return;
    on_ = false;
    for (const CUpti_ActivityKind kind : kKinds) cupti_.disable(kind);
    cupti_.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  }

  const Cupti& cupti_;
  bool on_ = false;
};

}  // namespace

std::unique_ptr<DeviceTrace> start_cuda_trace() { return std::make_unique<CuptiTrace>(); }

}  // namespace tessera
