// The functions of the CUDA runtime that the project calls, for the emulated GPU.
#include "tests/emulator/runtime.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/emulator/gpu.h"
#include "tests/emulator/memory.h"
#include "tests/emulator/races.h"
#include "tests/emulator/tensor_map.h"

namespace {

using Work = std::vector<std::function<void()>>;
using Clock = std::chrono::steady_clock;

constexpr int kSharedWithoutAsking = 48 * 1024, kReservedBytes = 1024;  // of a block's shared memory

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

std::mutex mutex;
std::map<const void*, int> shared_of_kernel;  // what was asked for

}  // namespace

struct CUgraph_st {
  Work work;
};
struct CUgraphExec_st {
  Work work;
};
struct CUstream_st {
  CUgraph_st* captured = nullptr;
  bool began = false;         // the capture, rather than joined it
  bool waits_for_all = true;  // for the default stream, as that for it
  emulator::Runner runner;
  uint64_t given = 0, done = 0;  // what the host does before, and what it may see after it waited
};
struct CUevent_st {
  Clock::time_point at;
  CUgraph_st* captured = nullptr;
};

namespace {

uint64_t all_done = 0, of_default_stream = 0, of_its_others = 0;  // for acquire() and release()

CUstream_st& of(cudaStream_t stream) {
  static auto* const by_default = new CUstream_st;
  return stream ? *stream : *by_default;
}
void run_on(CUstream_st& stream, const std::function<void()>& work) {
  const bool is_default = &stream == &of(nullptr);
  emulator::release(&stream.given);
  const emulator::Access access;  // its lock is the host's: it orders no streams
  const emulator::Turn turn(stream.runner);
  emulator::acquire(&stream.given);
  if (stream.waits_for_all) emulator::acquire(is_default ? &of_its_others : &of_default_stream);
  work();
  if (stream.waits_for_all) emulator::release(is_default ? &of_default_stream : &of_its_others);
  emulator::release(&stream.done);
  emulator::release(&all_done);
}

}  // namespace

namespace emulator {

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  if (of(stream).captured) {
    of(stream).captured->work.push_back(std::move(work));
  } else {
    const Unseen unseen;  // the host frees the work, and has waited for nothing
    const auto kept = std::make_unique<const std::function<void()>>(std::move(work));
    run_on(of(stream), *kept);
  }
  return cudaSuccess;
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread) {
  Grid grid{.blocks = {config.gridDim.x, config.gridDim.y, config.gridDim.z},
            .threads = {config.blockDim.x, config.blockDim.y, config.blockDim.z},
            .shared_bytes = config.dynamicSmemBytes};
  bool cooperative = false;  // all blocks must run at a time
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension)
      grid.cluster = static_cast<int>(config.attrs[i].val.clusterDim.x);
    cooperative |=
        config.attrs[i].id == cudaLaunchAttributeCooperative && config.attrs[i].val.cooperative != 0;
  }
  int shared = kSharedWithoutAsking;
  {
    const std::lock_guard lock(mutex);
    if (const auto asked = shared_of_kernel.find(kernel); asked != shared_of_kernel.end())
      shared = std::max(shared, asked->second);
  }
  if (grid.blocks.count() == 0 || grid.threads.count() == 0 || grid.threads.count() > 1024 ||
      grid.blocks.y > 65535 || grid.blocks.z > 65535)
    return result(cudaErrorInvalidConfiguration);
  if (grid.shared_bytes > static_cast<size_t>(shared)) return result(cudaErrorInvalidValue);
  if (cooperative && grid.blocks.count() > kMultiprocessors)
    return result(cudaErrorCooperativeLaunchTooLarge);
  if (grid.cluster > kMultiprocessors || grid.blocks.x % static_cast<unsigned>(grid.cluster) != 0)
    return result(cudaErrorInvalidClusterSize);
  return enqueue(config.stream, [grid, thread = std::move(thread)] { run(grid, thread); });
}

}  // namespace emulator

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    default:
      return "an error of the emulated GPU";
  }
}
const char* cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "cudaError"; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

// ---- the device ----

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return result(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
cudaError_t cudaDeviceSynchronize() { return emulator::acquire(&all_done), cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "Emulated GPU");
  properties->major = 9;
  properties->minor = 0;
  properties->totalGlobalMem = emulator::kMemory;
  properties->multiProcessorCount = emulator::kMultiprocessors;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = emulator::kMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = emulator::kSharedBytes;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = emulator::kSharedBytes + kReservedBytes;
      return cudaSuccess;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = kReservedBytes;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrCooperativeLaunch:
      *value = 1;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = 50 << 20;
      return cudaSuccess;
    default:
      return result(cudaErrorInvalidValue);
  }
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int) {
  std::strncpy(id, "0000:00:00.0", static_cast<size_t>(length));
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(emulator::encode_tensor_map) : nullptr;
  if (found) *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// ---- kernels ----

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value > emulator::kSharedBytes) return result(cudaErrorInvalidValue);
  const std::lock_guard lock(mutex);
  shared_of_kernel[kernel] = value;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  return *blocks = 1, cudaSuccess;
}

// ---- memory ----

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = emulator::allocate(bytes);
  return *memory ? cudaSuccess : result(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
  if (!memory) return cudaSuccess;
  cudaDeviceSynchronize();
  return emulator::deallocate(memory) ? cudaSuccess : result(cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = emulator::allocate_pinned(bytes);
  return *memory ? cudaSuccess : result(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* memory) {
  cudaDeviceSynchronize();
  return emulator::deallocate_pinned(memory), cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *total = emulator::kMemory;
  *available = emulator::kMemory - emulator::allocated();
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return emulator::enqueue(stream, [=] { std::memmove(to, from, bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return emulator::enqueue(stream, [=] { std::memset(to, value, bytes); });
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

// ---- streams and events ----

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = new CUstream_st, cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  cudaStreamCreate(stream);
  (*stream)->waits_for_all = (flags & cudaStreamNonBlocking) == 0;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  emulator::acquire(&of(stream).done);
  return result(of(stream).captured ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->captured && stream && !stream->captured)
    stream->captured = event->captured;  // it joins the capture
  if (!of(stream).captured) run_on(of(stream), [&] { emulator::acquire(event); });
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->captured = of(stream).captured;
  event->at = Clock::now();
  if (!event->captured) run_on(of(stream), [&] { emulator::release(event); });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return emulator::acquire(event), cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return cudaSuccess;
}

// ---- graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (!stream || stream->captured) return result(cudaErrorStreamCaptureUnsupported);
  stream->captured = new CUgraph_st;
  stream->began = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = stream->captured;
  if (!stream->captured || !stream->began) return result(cudaErrorStreamCaptureUnmatched);
  stream->captured = nullptr;
  stream->began = false;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  run_on(of(stream), [&] {
    for (const auto& work : exec->work) work();
  });
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }
}
