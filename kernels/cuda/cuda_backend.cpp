#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cstdint>

#include "kernels/attention/cudnn.h"
#include "kernels/base/check.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/workspace.h"

namespace tessera {
namespace {

constexpr int kOldestArch = 80;  // bf16 arithmetic and asynchronous copies begin here

int current_device() {
  int device = 0;
  TESSERA_CUDA(cudaGetDevice(&device));
  return device;
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  TESSERA_CUDA(cudaDeviceGetAttribute(&value, which, current_device()));
  return value;
}

}  // namespace

int count_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // find_cuda_device() gives the reason; it must not surface at the next launch
  return 0;
}

void use_cuda_device(int index) { TESSERA_CUDA(cudaSetDevice(index)); }

bool find_cuda_device(DeviceTraits& traits, std::string& why_not) {
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess || count == 0) {
    cudaGetLastError();  // the refusal is reported here; it must not surface at the next launch
    why_not = status == cudaSuccess || status == cudaErrorNoDevice ? "the CUDA driver reports no device"
              : status == cudaErrorInsufficientDriver
                  ? "there is no CUDA driver, or it is older than this build needs"
                  : cudaGetErrorString(status);
    return false;
  }
  cudaDeviceProp properties{};
  TESSERA_CUDA(cudaGetDeviceProperties(&properties, current_device()));
  const int arch = 10 * properties.major + properties.minor;
  if (arch < kOldestArch) {
    why_not = fmt::format("{} has compute capability {}.{}; 8.0 or newer is needed", properties.name,
                          properties.major, properties.minor);
    return false;
  }
  if (!cuda::kernels_fit_device()) {
    why_not = fmt::format("this build has no kernels for {} (compute capability {}.{})", properties.name,
                          properties.major, properties.minor);
    return false;
  }
  traits = {Device::kCuda, arch, properties.name};
  return true;
}

std::unique_ptr<Backend> make_cuda_backend() { return std::make_unique<CudaBackend>(); }

CudaBackend::CudaBackend() {
  std::string why_not;
  check(find_cuda_device(traits_, why_not), "no CUDA device can be used here: {}", why_not);
  multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount);
  max_shared_bytes_ = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  TESSERA_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

CudaBackend::~CudaBackend() {
  cudnn_.reset();  // its handle still knows the stream
  cudaStreamDestroy(stream_);
}

void CudaBackend::lend_workspace(Tensor workspace) {
  check(workspace.device == Device::kCuda &&
            static_cast<int64_t>(workspace.bytes()) >= cuda::kGemmWorkspaceBytes,
        "lend_workspace: wants at least {} bytes on cuda, found {}", cuda::kGemmWorkspaceBytes,
        workspace.to_string());
  workspace_ = workspace;
}

char* CudaBackend::scratch(const char* op, int64_t bytes) const {
  check(static_cast<int64_t>(workspace_.bytes()) >= bytes,
        "{}: wants {} bytes of workspace, lent are {}; lend workspace_bytes() for the largest batch", op,
        bytes, workspace_.bytes());
  return workspace_.as<char>();
}

void CudaBackend::check_aligned(const char* op, std::initializer_list<Named> tensors) const {
  for (const auto& [name, tensor] : tensors) {
    if (reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0) continue;
    fail("{}: {} must begin at a multiple of 16 bytes, found {} at address {}", op, name, tensor.to_string(),
         tensor.data);
  }
}

void CudaBackend::check_packs(const char* op, std::initializer_list<Named> tensors) const {
  check_aligned(op, tensors);
  for (const auto& [name, tensor] : tensors) {
    const int64_t width = 16 / static_cast<int64_t>(size_of(tensor.dtype));
    if (!tensor || tensor.shape[-1] % width == 0) continue;
    fail("{}: the last dimension of {} must be a multiple of {} in {}, found {}", op, name, width,
         name_of(tensor.dtype), tensor.to_string());
  }
}

bool CudaBackend::try_gemm(const cuda::Gemm& gemm) {
  return gemms_.try_run(gemm, scratch("matrix product", cuda::kGemmWorkspaceBytes), stream_);
}

attention::CudnnAttention& CudaBackend::cudnn() {
  if (!cudnn_) cudnn_ = std::make_unique<attention::CudnnAttention>();
  return *cudnn_;
}

void CudaBackend::gemm(const cuda::Gemm& gemm) {
  gemms_.run(gemm, scratch("matrix product", cuda::kGemmWorkspaceBytes), stream_);
}

void CudaBackend::fill_zero(Tensor tensor) {
  check(tensor && tensor.device == Device::kCuda, "fill_zero: wants a tensor on cuda, found {}",
        tensor.to_string());
  TESSERA_CUDA(cudaMemsetAsync(tensor.data, 0, tensor.bytes(), stream_));
}

void CudaBackend::copy(Tensor from, Tensor to) {
  const bool from_host = from.device == Device::kCpu, to_host = to.device == Device::kCpu;
  check(from.numel() == to.numel() && !(from_host && to_host),
        "copy: wants equal element counts and at least one side on cuda, found {} and {}", from.to_string(),
        to.to_string());
  if (from.numel() == 0) return;
  if (from.dtype == to.dtype) {
    TESSERA_CUDA(cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDefault, stream_));
  } else {
    check(from.dtype != DType::kI32 && to.dtype != DType::kI32, "copy: cannot convert {} into {}",
          from.to_string(), to.to_string());
    if (!from_host && !to_host) {
      cuda::convert(from.dtype, from.data, to.dtype, to.data, from.numel(), stream_);
    } else {
      // The host's side goes through the workspace as it is, and is converted on the device.
      const DType host_dtype = from_host ? from.dtype : to.dtype;
      const auto host_size = static_cast<int64_t>(size_of(host_dtype));
      const int64_t chunk = std::min(from.numel(), static_cast<int64_t>(workspace_.bytes()) / host_size);
      char* staged = scratch("copy", chunk * host_size);
      check(chunk > 0, "copy: converting {} into {} wants a lent workspace", from.to_string(),
            to.to_string());
      for (int64_t at = 0; at < from.numel(); at += chunk) {
        const int64_t count = std::min(chunk, from.numel() - at);
        char* source = from.as<char>() + at * static_cast<int64_t>(size_of(from.dtype));
        char* target = to.as<char>() + at * static_cast<int64_t>(size_of(to.dtype));
        if (from_host) {
          TESSERA_CUDA(cudaMemcpyAsync(staged, source, count * host_size, cudaMemcpyDefault, stream_));
          cuda::convert(from.dtype, staged, to.dtype, target, count, stream_);
        } else {
          cuda::convert(from.dtype, source, to.dtype, staged, count, stream_);
          TESSERA_CUDA(cudaMemcpyAsync(target, staged, count * host_size, cudaMemcpyDefault, stream_));
        }
      }
    }
  }
  // Host memory may be reused or read by the caller at once, whether or not it is pinned.
  if (from_host || to_host) synchronize();
}

void CudaBackend::synchronize() { TESSERA_CUDA(cudaStreamSynchronize(stream_)); }

}  // namespace tessera
