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
#include "tests/emulator/tensor_map.h"

namespace {

using Work = std::vector<std::function<void()>>;
using Clock = std::chrono::steady_clock;

constexpr size_t kMemory = size_t{8} << 30;
constexpr int kSharedWithoutAsking = 48 * 1024, kReservedBytes = 1024;  // of a block's shared memory

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

std::mutex mutex;
std::map<const void*, int> shared_of_kernel;  // what was asked for
std::map<void*, size_t> allocations;
size_t allocated = 0;

}  // namespace

struct CUgraph_st {
  Work work;
};
struct CUgraphExec_st {
  Work work;
};
struct CUstream_st {
  CUgraph_st* captured = nullptr;
  bool began = false;  // the capture, rather than joined it
};
struct CUevent_st {
  Clock::time_point at;
  CUgraph_st* captured = nullptr;
};

namespace emulator {

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream && stream->captured) {
    stream->captured->work.push_back(std::move(work));
  } else {
    work();
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
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "Emulated GPU");
  properties->major = 9;
  properties->minor = 0;
  properties->totalGlobalMem = kMemory;
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
  const std::lock_guard lock(mutex);
  constexpr size_t kAlignment = 256;
  if (bytes > kMemory - allocated) return result(cudaErrorMemoryAllocation);
  *memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (!*memory) return result(cudaErrorMemoryAllocation);
  std::memset(*memory, 0xff, bytes);  // what nobody wrote is NaN
  allocations[*memory] = bytes;
  allocated += bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (!memory) return cudaSuccess;
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(memory);
  if (found == allocations.end()) return result(cudaErrorInvalidValue);
  allocated -= found->second;
  allocations.erase(found);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *memory ? cudaSuccess : result(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* memory) { return std::free(memory), cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  const std::lock_guard lock(mutex);
  *total = kMemory;
  *available = kMemory - allocated;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return emulator::enqueue(stream, [=] { std::memmove(to, from, bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return std::memmove(to, from, bytes), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return emulator::enqueue(stream, [=] { std::memset(to, value, bytes); });
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return std::memset(to, value, bytes), cudaSuccess;
}

// ---- streams and events ----

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = new CUstream_st, cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return result(stream && stream->captured ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->captured && stream && !stream->captured)
    stream->captured = event->captured;  // it joins the capture
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->captured = stream ? stream->captured : nullptr;
  event->at = Clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
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
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  for (const auto& work : exec->work) work();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }
}
