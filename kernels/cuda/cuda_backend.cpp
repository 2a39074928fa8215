#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/attention/cudnn.h"
#include "kernels/base/check.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/gemm/sm90/problem.h"
#include "kernels/workspace.h"

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
                  ? "there is no CUDA driver, or it is too old for this build"
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
  traits = {.device = Device::kCuda, .arch = arch, .name = properties.name, .own_gemms = gemm::available()};
  return true;
}

std::unique_ptr<Backend> make_cuda_backend() { return std::make_unique<CudaBackend>(); }

CudaBackend::CudaBackend() {
  std::string why_not;
  check(find_cuda_device(traits_, why_not), "no CUDA device can be used here: {}", why_not);
  multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount);
  max_shared_bytes_ = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  TESSERA_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  TESSERA_CUDA(cudaStreamCreateWithFlags(&fetch_stream_, cudaStreamNonBlocking));
}

CudaBackend::~CudaBackend() {
  cudnn_.reset();  // its handle still knows the stream
  cudaStreamDestroy(fetch_stream_);
  cudaStreamDestroy(stream_);
}

void CudaBackend::do_(const AnyOp& op, const Launch& on) {
  std::visit([&](const auto* a) { run_op(*a, on); }, op);
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

bool CudaBackend::try_gemm(const Gemm& gemm, const Launch& on) {
  return gemms_.try_run(gemm, on.scratch("GEMM", cuda::kGemmWorkspaceBytes), on.stream);
}

void CudaBackend::gemm(const Gemm& gemm, const Launch& on) {
  gemms_.run(gemm, on.scratch("GEMM", cuda::kGemmWorkspaceBytes), on.stream);
}

attention::CudnnAttention& CudaBackend::cudnn() {
  if (!cudnn_) cudnn_ = std::make_unique<attention::CudnnAttention>();
  return *cudnn_;
}

void CudaBackend::run_op(const Accumulate& a, const Launch& on) { cuda::accumulate(a.x, a.y, on.stream); }

void CudaBackend::run_op(const FillZero& a, const Launch& on) {
  TESSERA_CUDA(cudaMemsetAsync(a.tensor.data, 0, a.tensor.bytes(), on.stream));
}

namespace {

Tensor flat(const Tensor& tensor) { return tensor.view({tensor.numel()}); }

void copy(const Tensor& from, const Tensor& to, cudaStream_t stream) {
  TESSERA_CUDA(cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDefault, stream));
}
void convert(const Tensor& from, const Tensor& to, cudaStream_t stream) {
  cuda::convert(from.dtype, from.data, to.dtype, to.data, from.numel(), stream);
}

// Of a tensor on the host, as large as the workspace: there it lies as it is, and is converted on the device.
struct Piece {
  int64_t first;
  Tensor host, staged;
  Tensor of(const Tensor& other) const { return other.rows(first, host.numel()); }
};

template <class Use>
void in_pieces(const char* op, const Tensor& host, const Launch& on, const Use& use) {
  const int64_t count = host.numel(), size = static_cast<int64_t>(size_of(host.dtype)),
                room = static_cast<int64_t>(on.workspace.bytes()) / size,
                most = std::max<int64_t>(1, std::min(count, room));
  const Tensor staged{on.scratch(op, most * size), host.dtype, {most}, Device::kCuda};
  for (int64_t first = 0; first < count; first += most) {
    const int64_t rows = std::min(most, count - first);
    use({.first = first, .host = host.rows(first, rows), .staged = staged.rows(0, rows)});
  }
}

}  // namespace

void CudaBackend::run_op(const Copy& a, const Launch& on) {
  const bool from_host = a.from.device == Device::kCpu, to_host = a.to.device == Device::kCpu;
  if (a.from.numel() == 0) return;
  const Tensor from = flat(a.from), to = flat(a.to);
  if (from.dtype == to.dtype) {
    copy(from, to, on.stream);
  } else if (!from_host && !to_host) {
    convert(from, to, on.stream);
  } else {
    in_pieces(a.kName, from_host ? from : to, on, [&](const Piece& piece) {
      if (from_host) {
        copy(piece.host, piece.staged, on.stream);
        convert(piece.staged, piece.of(to), on.stream);
      } else {
        convert(piece.of(from), piece.staged, on.stream);
        copy(piece.staged, piece.host, on.stream);
      }
    });
  }
  // Host memory may be reused or read by the caller at once, whether or not it is pinned.
  if (from_host || to_host) synchronize(on.stream);
}

void CudaBackend::run_op(const SplitMasters& a, const Launch& on) {
  if (a.masters.device == Device::kCuda) return cuda::split_masters(a, on.stream);
  in_pieces(a.kName, flat(a.masters), on, [&](const Piece& piece) {
    copy(piece.host, piece.staged, on.stream);
    cuda::split_masters(
        {.masters = piece.staged, .weights = piece.of(a.weights), .low = a.low ? piece.of(a.low) : Tensor{}},
        on.stream);
  });
  synchronize(on.stream);  // as after a Copy
}

void CudaBackend::run_op(const JoinMasters& a, const Launch& on) {
  if (a.masters.device == Device::kCuda) return cuda::join_masters(a, on.stream);
  in_pieces(a.kName, flat(a.masters), on, [&](const Piece& piece) {
    cuda::join_masters({.weights = piece.of(a.weights), .low = piece.of(a.low), .masters = piece.staged},
                       on.stream);
    copy(piece.staged, piece.host, on.stream);
  });
  synchronize(on.stream);
}

namespace {

class CudaEvent {
 public:
  CudaEvent() { TESSERA_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~CudaEvent() { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// A copy in the queue `own`. Where that is another queue than `stream`, it waits for what was enqueued there
// before, and nothing there waits for it.
class CudaTransfer final : public Transfer {
 public:
  CudaTransfer(cudaStream_t stream, cudaStream_t own, const Tensor& from, const Tensor& to)
      : stream_(stream), own_(own), from_(from), to_(to) {}

  void start() override {
    if (own_ != stream_) {
      TESSERA_CUDA(cudaEventRecord(before_, stream_));
      TESSERA_CUDA(cudaStreamWaitEvent(own_, before_, 0));
    }
    TESSERA_CUDA(cudaMemcpyAsync(to_.data, from_.data, to_.bytes(), cudaMemcpyDefault, own_));
    TESSERA_CUDA(cudaEventRecord(done_, own_));
  }
  void wait() override { TESSERA_CUDA(cudaEventSynchronize(done_)); }

 private:
  cudaStream_t stream_, own_;
  Tensor from_, to_;
  CudaEvent before_, done_;
};

// In a stream of its own. Events order the two streams: a start waits for the operations that the backend's
// stream holds, and wait_for() makes that stream wait for a start.
class CudaCopyQueue final : public CopyQueue {
 public:
  CudaCopyQueue(cudaStream_t stream, Poison poison) : stream_(stream), poison_(poison) {
    TESSERA_CUDA(cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking));
  }
  ~CudaCopyQueue() override { cudaStreamDestroy(own_); }
  CudaCopyQueue(const CudaCopyQueue&) = delete;
  CudaCopyQueue& operator=(const CudaCopyQueue&) = delete;

  void wait_for(int64_t count) override {
    if (count <= waited_for_) return;
    waited_for_ = count;
    TESSERA_CUDA(cudaStreamWaitEvent(stream_, done_[static_cast<size_t>(count - 1) % kEvents], 0));
  }

 private:
  static constexpr size_t kEvents = 16;

  void do_start(std::span<const Copy> copies) override {
    TESSERA_CUDA(cudaEventRecord(before_, stream_));
    TESSERA_CUDA(cudaStreamWaitEvent(own_, before_, 0));
    for (const auto& [from, to] : copies) {
      if (poison_ != Poison::kNo) fill_with_nan(to);
      TESSERA_CUDA(cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDefault, own_));
      if (poison_ == Poison::kYes) fill_with_nan(from);
    }
    TESSERA_CUDA(cudaEventRecord(done_[static_cast<size_t>(started()) % kEvents], own_));
  }
  void fill_with_nan(const Tensor& tensor) {
    TESSERA_CUDA(cudaMemsetAsync(tensor.data, 0xff, tensor.bytes(), own_));
  }

  cudaStream_t stream_, own_ = nullptr;
  Poison poison_;
  CudaEvent before_;
  std::array<CudaEvent, kEvents> done_;  // of start number n at n mod kEvents, or of a later one
  int64_t waited_for_ = 0;
};

}  // namespace

std::unique_ptr<CopyQueue> CudaBackend::make_copy_queue(CUstream_st* stream, Poison poison) {
  return std::make_unique<CudaCopyQueue>(stream, poison);
}

std::unique_ptr<Transfer> CudaBackend::fetch(CUstream_st* stream, const Tensor& from, const Tensor& to) {
  return std::make_unique<CudaTransfer>(stream, fetch_stream_, from, to);
}

std::unique_ptr<Transfer> CudaBackend::send(CUstream_st* stream, const Tensor& from, const Tensor& to) {
  return std::make_unique<CudaTransfer>(stream, stream, from, to);
}

class CudaBackend::CapturedGraph final : public DeviceGraph {
 public:
  CapturedGraph(cudaStream_t stream, cudaGraph_t graph) : stream_(stream) {
    const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    TESSERA_CUDA(status);
  }
  ~CapturedGraph() override { cudaGraphExecDestroy(graph_); }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  void launch() override { TESSERA_CUDA(cudaGraphLaunch(graph_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

std::unique_ptr<Backend::DeviceGraph> CudaBackend::capture(CUstream_st* stream,
                                                           const std::function<void()>& operations) {
  check(!capturing_, "a CUDA graph cannot be captured within the capture of another");
  TESSERA_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  capturing_ = true;
  try {
    operations();
  } catch (...) {
    capturing_ = false;
    cudaStreamEndCapture(stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();  // the operation's error is the one to report
    throw;
  }
  capturing_ = false;
  TESSERA_CUDA(cudaStreamEndCapture(stream, &graph));
  return std::make_unique<CapturedGraph>(stream, graph);
}

void CudaBackend::synchronize(CUstream_st* stream) { TESSERA_CUDA(cudaStreamSynchronize(stream)); }

}  // namespace tessera
