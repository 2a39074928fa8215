#include "kernels/communicator.h"

#include "kernels/base/check.h"

namespace tessera {
namespace {

struct Argument {
  const char* op;
  const char* name;
  const Tensor& tensor;
};

void check_tensor(const Argument& f, Device device, DType dtype, int64_t count) {
  check(f.tensor && f.tensor.device == device && f.tensor.dtype == dtype && f.tensor.numel() == count,
        "{}: {} must be {} elements of {} on {}, found {}", f.op, f.name, count, name_of(dtype),
        name_of(device), f.tensor.to_string());
}

// The tensor that sets the sizes and dtypes of the others
void check_summand(const Argument& f, Device device) {
  const bool takes_bf16 = device == Device::kCuda;
  const bool fits = f.tensor.dtype == DType::kF32 || (f.tensor.dtype == DType::kBF16 && takes_bf16);
  check(f.tensor && f.tensor.device == device && fits, "{}: {} must be {} on {}, found {}", f.op, f.name,
        takes_bf16 ? "bf16 or fp32" : "fp32", name_of(device), f.tensor.to_string());
}

// Whether the two share no memory. Planned tensors have no data.
bool apart(const Tensor& a, const Tensor& b) {
  if (a.data == nullptr || b.data == nullptr) return true;
  return a.as<char>() + a.bytes() <= b.as<char>() || b.as<char>() + b.bytes() <= a.as<char>();
}

void check_own_slice(const Argument& small, const Argument& large, int rank) {
  const char* slice = large.tensor.as<char>() + static_cast<size_t>(rank) * small.tensor.bytes();
  check(apart(small.tensor, large.tensor) || small.tensor.data == slice,
        "{}: {} must lie outside of {}, or be rank {}'s own slice of it", small.op, small.name, large.name,
        rank);
}

void check_sums(const Argument& sums, const Argument& summand, Device device) {
  if (!sums.tensor) return;
  check(summand.tensor.dtype == DType::kBF16, "{}: sums are for bf16 alone, found {} {}", sums.op,
        summand.name, summand.tensor.to_string());
  check_tensor(sums, device, DType::kF32, summand.tensor.numel());
  check(apart(sums.tensor, summand.tensor), "{}: sums must lie outside of {}", sums.op, summand.name);
}

// What a rank of `size` sends along a ring: all parts but its own, once for each of `passes`
int64_t sent_along_a_ring(const Tensor& whole, int64_t passes, int64_t size) {
  return passes * static_cast<int64_t>(whole.bytes()) / size * (size - 1);
}

int64_t bytes_of(std::span<const AllToAll::Message> messages) {
  int64_t bytes = 0;
  for (const AllToAll::Message& one : messages) bytes += static_cast<int64_t>(one.tensor.bytes());
  return bytes;
}

class PlanCommunicator final : public Communicator {
 public:
  PlanCommunicator(Device device, int rank, int size, QueueObserver observer)
      : Communicator(device, rank, size),
        reduce_scatter_passes_(device == Device::kCpu ? 2 : 1),
        observer_(std::move(observer)) {}
  void wait_for(int64_t count) override {
    if (observer_.wait_for) observer_.wait_for(count);
  }

 private:
  void tell(int64_t bytes) {
    if (observer_.start) observer_.start(bytes);
  }
  void tell(const Tensor& whole, int64_t passes) { tell(sent_along_a_ring(whole, passes, size())); }
  void run(const AllReduce& a) override { tell(a.sums ? a.sums : a.tensor, 2); }
  void run(const ReduceScatter& a) override { tell(a.sums ? a.sums : a.whole, reduce_scatter_passes_); }
  void run(const AllGather& a) override { tell(a.whole, 1); }
  void run(const AllToAll& a) override { tell(bytes_of(a.sends)); }

  int64_t reduce_scatter_passes_;  // on the CPU it is an all-reduce
  QueueObserver observer_;
};

}  // namespace

Communicator::Communicator(Device device, int rank, int size) : device_(device), rank_(rank), size_(size) {
  check(size >= 1 && rank >= 0 && rank < size,
        "communicator: rank must be at least 0 and below size, found rank {} of {}", rank, size);
}

CommunicationError Communicator::failed(std::string_view what, std::string_view library, std::string_view why,
                                        double time_limit_seconds, std::string_view hint) const {
  return CommunicationError(fmt::format(
      "{} failed at rank {} of {} ({}): {}. A rank has ended, hangs, or cannot be reached (time limit {} s). "
      "See the errors of the other ranks{}",
      what, rank_, size_, library, why, time_limit_seconds, hint));
}

template <class Collective>
void Communicator::start(const Collective& a, const char* name, int64_t bytes) {
  if (observer_) observer_->before(name, bytes);
  run(a);
  ++started_;
  if (observer_) observer_->after();
}

void Communicator::all_reduce_sum(const AllReduce& a) {
  const Argument tensor = {"all_reduce_sum", "tensor", a.tensor}, sums = {"all_reduce_sum", "sums", a.sums};
  check_summand(tensor, device_);
  check_sums(sums, tensor, device_);
  if (a.tensor.numel() == 0) return;
  start(a, "all-reduce", sent_along_a_ring(a.sums ? a.sums : a.tensor, 2, size_));
}

void Communicator::reduce_scatter_sum(const ReduceScatter& a) {
  const char* op = "reduce_scatter_sum";
  const Argument whole = {op, "whole", a.whole}, part = {op, "part", a.part}, sums = {op, "sums", a.sums};
  check_summand(whole, device_);
  check_sums(sums, whole, device_);
  check(a.whole.numel() % size_ == 0, "{}: whole must have a multiple of {} ranks' elements, found {}", op,
        size_, a.whole.to_string());
  const Argument& summed = a.sums ? sums : whole;
  check_tensor(part, device_, summed.tensor.dtype, a.whole.numel() / size_);
  check_own_slice(part, summed, rank_);
  if (a.whole.numel() == 0) return;
  start(a, "reduce-scatter", sent_along_a_ring(a.sums ? a.sums : a.whole, 1, size_));
}

void Communicator::all_gather(const AllGather& a) {
  const Argument whole = {"all_gather", "whole", a.whole}, part = {"all_gather", "part", a.part};
  check(a.part && a.part.device == device_, "all_gather: part must be a tensor on {}, found {}",
        name_of(device_), a.part.to_string());
  check_tensor(whole, device_, a.part.dtype, a.part.numel() * size_);
  check_own_slice(part, whole, rank_);
  if (a.whole.numel() == 0) return;
  start(a, "all-gather", sent_along_a_ring(a.whole, 1, size_));
}

void Communicator::all_to_all(const AllToAll& a) {
  const auto check_messages = [&](std::span<const AllToAll::Message> messages, const char* name) {
    for (const AllToAll::Message& one : messages) {
      check(one.rank >= 0 && one.rank < size_ && one.rank != rank_,
            "all_to_all: {} must name another one of {} ranks, found {} at rank {}", name, size_, one.rank,
            rank_);
      check(one.tensor && one.tensor.device == device_ && one.tensor.numel() > 0,
            "all_to_all: {} must have tensors with elements on {}, found {}", name, name_of(device_),
            one.tensor.to_string());
    }
  };
  check_messages(a.sends, "sends");
  check_messages(a.receives, "receives");
  if (size_ > 1) start(a, "all-to-all", bytes_of(a.sends));
}

std::unique_ptr<Communicator> make_plan_communicator(Device device, int rank, int size,
                                                     QueueObserver observer) {
  return std::make_unique<PlanCommunicator>(device, rank, size, std::move(observer));
}

}  // namespace tessera
