// Collectives on CUDA by NCCL, on their own stream.
//
// Events order the two streams: a collective waits for the work that the backend's stream holds when the
// collective starts, and wait() makes the backend's stream wait for the last collective. NCCL runs in its
// nonblocking mode, so that the host can stop waiting when a rank is missing.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/pointwise.h"
#include "train/parallel/nccl_library.h"
#include "train/parallel/nccl_stream.h"
#include "train/parallel/network.h"
#include "train/parallel/transports.h"

namespace tessera {
namespace {

constexpr auto kPollPause = std::chrono::microseconds(50);
constexpr double kFinalizeSeconds = 10;  // for all ranks to close their connections

// What the ranks exchange before they connect
struct RankDevice {
  cudaUUID_t gpu;
  char bus_id[16], host[64];  // for people
  ncclUniqueId id;            // rank 0's is used
};

RankDevice device_of_this_rank() {
  RankDevice own{};
  int device = 0;
  cudaDeviceProp properties{};
  TESSERA_CUDA(cudaGetDevice(&device));
  TESSERA_CUDA(cudaGetDeviceProperties(&properties, device));
  own.gpu = properties.uuid;
  TESSERA_CUDA(cudaDeviceGetPCIBusId(own.bus_id, sizeof own.bus_id, device));
  gethostname(own.host, sizeof own.host - 1);
  return own;
}

ncclDataType_t type_of(const Tensor& tensor) {
  switch (tensor.dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI32:
    case DType::kU16:
    case DType::kE4M3:
    case DType::kE5M2:
      break;
  }
  fail("sums are of fp32 or bf16, found {}", tensor.to_string());
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Backend& backend, const Ranks& ranks)
      : Communicator(Device::kCuda, ranks.rank, ranks.size),
        nccl_(nccl_library()),
        time_limit_seconds_(ranks.time_limit_seconds),
        backend_stream_(backend.stream()) {
    if (!ranks.interface.empty()) setenv(kNcclInterface, ("=" + ranks.interface).c_str(), /*replace=*/0);
    const ncclUniqueId id = agree_on_id(ranks.exchange);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    try {
      settle("connecting", [&] { return nccl_.init(&comm_, size(), id, rank(), &config); });
    } catch (...) {
      close();
      throw;
    }
  }

  ~NcclCommunicator() override { close(); }

  void wait_for(int64_t count) override {
    if (count <= waited_for_) return;
    waited_for_ = count;
    waits_.push_back(next_wait());
    waits_.back()->before.record(backend_stream_);
    done(count).hold(backend_stream_);
    waits_.back()->after.record(backend_stream_);
  }

  void follow(const Communicator& other) override {
    if (const auto* nccl = dynamic_cast<const NcclCommunicator*>(&other); nccl && nccl->started() > 0)
      nccl->done(nccl->started()).hold(stream_);
  }

  void synchronize() override {
    const Clock::time_point deadline = deadline_in(time_limit_seconds_);
    while (started() > 0 && !done(started()).is_done()) {
      if (const std::string why = failure(); !why.empty()) give_up("a collective", why);
      if (Clock::now() > deadline) give_up("a collective", "it did not end within the time limit");
      std::this_thread::sleep_for(kPollPause);
    }
  }

  double take_waited_seconds() override {
    synchronize();
    for (const auto& wait : waits_) {
      wait->after.synchronize();
      waited_seconds_ += wait->after.seconds_since(wait->before);
    }
    waits_.clear();
    return std::exchange(waited_seconds_, 0);
  }

  double take_past_waits() override {
    while (std::unique_ptr<Wait> past = past_wait()) spare_.push_back(std::move(past));
    return std::exchange(waited_seconds_, 0);
  }

  std::string failure() override {
    const std::lock_guard lock(mutex_);
    ncclResult_t result = ncclSuccess;
    if (const ncclResult_t asked = nccl_.async_error(comm_, &result); asked != ncclSuccess) result = asked;
    return result == ncclSuccess || result == ncclInProgress ? "" : describe(result);
  }

 private:
  static constexpr size_t kEvents = 256;

  struct Wait {
    CudaEvent before{cudaEventDefault}, after{cudaEventDefault};
  };

  void run(const AllReduce& a) override {
    begin();
    const Tensor& summed = convert_into(a.sums, a.tensor);
    settle("all_reduce_sum", [&] {
      return nccl_.all_reduce(summed.data, summed.data, summed.numel(), type_of(summed), ncclSum, comm_,
                              stream_);
    });
    if (a.sums) convert(a.sums, a.tensor);
    end();
  }

  void run(const ReduceScatter& a) override {
    begin();
    const Tensor& summed = convert_into(a.sums, a.whole);
    settle("reduce_scatter_sum", [&] {
      return nccl_.reduce_scatter(summed.data, a.part.data, a.part.numel(), type_of(summed), ncclSum, comm_,
                                  stream_);
    });
    end();
  }

  void run(const AllGather& a) override {
    begin();
    settle("all_gather", [&] {
      return nccl_.all_gather(a.part.data, a.whole.data, a.part.bytes(), ncclUint8, comm_, stream_);
    });
    end();
  }

  void run(const AllToAll& a) override {
    begin();
    settle("all_to_all", [&] {
      ncclResult_t first = nccl_.group_start();
      const auto also = [&](ncclResult_t result) {
        if (first == ncclSuccess && result != ncclInProgress) first = result;
      };
      for (const AllToAll::Message& one : a.sends)
        also(nccl_.send(one.tensor.data, one.tensor.bytes(), ncclUint8, one.rank, comm_, stream_));
      for (const AllToAll::Message& one : a.receives)
        also(nccl_.receive(one.tensor.data, one.tensor.bytes(), ncclUint8, one.rank, comm_, stream_));
      const ncclResult_t ended = nccl_.group_end();
      return first == ncclSuccess ? ended : first;
    });
    end();
  }

  void begin() {
    ready_.record(backend_stream_);
    ready_.hold(stream_);
  }
  void end() {
    const auto slot = static_cast<size_t>(started()) % kEvents;  // started() does not count this one yet
    if (slot == done_.size()) done_.push_back(std::make_unique<CudaEvent>(cudaEventDisableTiming));
    done_[slot]->record(stream_);
  }
  // Recorded after the collective of that number, counted from 1, or after a later one
  CudaEvent& done(int64_t number) const { return *done_[static_cast<size_t>(number - 1) % kEvents]; }
  void convert(const Tensor& from, const Tensor& to) {
    cuda::convert(from.dtype, from.data, to.dtype, to.data, from.numel(), stream_);
  }
  const Tensor& convert_into(const Tensor& sums, const Tensor& tensor) {
    if (!sums) return tensor;
    convert(tensor, sums);
    return sums;
  }

  // Error, at every rank: two ranks use one GPU. Returns the id with which NCCL's ranks connect.
  ncclUniqueId agree_on_id(const Exchange& exchange) {
    RankDevice mine = device_of_this_rank();
    if (rank() == 0) settle("ncclGetUniqueId", [&] { return nccl_.get_unique_id(&mine.id); });
    const std::vector<std::string> theirs = exchange({reinterpret_cast<const char*>(&mine), sizeof mine});
    std::vector<RankDevice> all(size());
    for (int i = 0; i < size(); ++i) {
      check(theirs[i].size() == sizeof mine,
            "ranks {} and {} are different builds of this program. Run the same program on every machine", i,
            rank());
      std::memcpy(&all[i], theirs[i].data(), sizeof mine);
      for (int j = 0; j < i; ++j)
        check(std::memcmp(&all[i].gpu, &all[j].gpu, sizeof all[i].gpu) != 0,
              "ranks {} and {} use the same GPU, {} of {}. Give each rank its own GPU, or start fewer ranks",
              j, i, all[i].bus_id, all[i].host);
    }
    return all[0].id;
  }

  // The result of `call`, once NCCL has finished it on the host; ncclInProgress if that takes too long.
  template <class Call>
  ncclResult_t result_within(double seconds, Call&& call) {
    const Clock::time_point deadline = deadline_in(seconds);
    std::unique_lock lock(mutex_);
    ncclResult_t result = call();
    while (result == ncclInProgress && Clock::now() < deadline) {
      lock.unlock();
      std::this_thread::sleep_for(kPollPause);
      lock.lock();
      if (const ncclResult_t asked = nccl_.async_error(comm_, &result); asked != ncclSuccess) result = asked;
    }
    return result;
  }

  template <class Call>
  void settle(const char* what, Call&& call) {
    const ncclResult_t result = result_within(time_limit_seconds_, call);
    if (result == ncclInProgress) give_up(what, "it could not start within the time limit");
    if (result != ncclSuccess) give_up(what, describe(result));
  }

  std::string describe(ncclResult_t result) const {
    const char* detail = nccl_.last_error(comm_);
    return fmt::format("{}{}{}", nccl_.error_string(result), detail != nullptr && *detail != 0 ? ": " : "",
                       detail != nullptr ? detail : "");
  }

  [[noreturn]] void give_up(const char* what, const std::string& why) {
    failed_ = true;
    throw failed(what, "NCCL", why, time_limit_seconds_, ". NCCL_DEBUG=WARN prints more");
  }

  // Events that are no longer in use, else new ones
  std::unique_ptr<Wait> next_wait() {
    if (std::unique_ptr<Wait> past = past_wait()) return past;
    if (spare_.empty()) return std::make_unique<Wait>();
    std::unique_ptr<Wait> last = std::move(spare_.back());
    spare_.pop_back();
    return last;
  }

  // The first one, if it is over; then it is in waited_seconds_
  std::unique_ptr<Wait> past_wait() {
    if (waits_.empty() || !waits_.front()->after.is_done()) return nullptr;
    std::unique_ptr<Wait> first = std::move(waits_.front());
    waits_.pop_front();
    waited_seconds_ += first->after.seconds_since(first->before);
    return first;
  }

  // Closes the connections together with the other ranks, or alone if a collective may never end.
  void close() noexcept {
    if (comm_ == nullptr) return;
    const bool orderly =
        !failed_ && cudaStreamQuery(stream_) == cudaSuccess &&
        result_within(kFinalizeSeconds, [&] { return nccl_.finalize(comm_); }) == ncclSuccess;
    cudaGetLastError();
    orderly ? nccl_.destroy(comm_) : nccl_.abort(comm_);
    comm_ = nullptr;
  }

  const NcclLibrary& nccl_;
  double time_limit_seconds_;
  cudaStream_t backend_stream_;
  CudaStream stream_;
  CudaEvent ready_{cudaEventDisableTiming};  // the backend's work that the last collective waits for is done
  std::vector<std::unique_ptr<CudaEvent>> done_;  // of the newest kEvents collectives
  int64_t waited_for_ = 0;                        // collectives
  bool failed_ = false;
  std::deque<std::unique_ptr<Wait>> waits_;   // not yet in waited_seconds_
  std::vector<std::unique_ptr<Wait>> spare_;  // events for later ones
  double waited_seconds_ = 0;
  std::mutex mutex_;  // of every call of NCCL: another thread may call failure()
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Backend& backend, const Ranks& ranks) {
  return std::make_unique<NcclCommunicator>(backend, ranks);
}

}  // namespace tessera
