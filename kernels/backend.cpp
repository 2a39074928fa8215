#include "kernels/backend.h"

#include <cstring>
#include <deque>
#include <string>

#include "kernels/base/check.h"
#include "kernels/expert_ops.h"
#include "kernels/score_ops.h"

namespace tessera {
namespace {

class PlanCopyQueue final : public CopyQueue {
 public:
  explicit PlanCopyQueue(QueueObserver observer) : observer_(std::move(observer)) {}
  void wait_for(int64_t count) override {
    if (observer_.wait_for) observer_.wait_for(count);
  }

 private:
  void do_start(std::span<const Copy> copies) override {
    int64_t bytes = 0;
    for (const Copy& copy : copies) bytes += static_cast<int64_t>(copy.to.bytes());
    if (observer_.start) observer_.start(bytes);
  }

  QueueObserver observer_;
};

class PlanBackend final : public Backend {
 public:
  PlanBackend(const DeviceTraits& traits, std::function<void(const AnyOp&)> see,
              std::function<QueueObserver()> observe)
      : traits_(traits), see_(std::move(see)), observe_(std::move(observe)) {}
  const DeviceTraits& traits() const override { return traits_; }
  void synchronize(CUstream_st*) override {}
  std::unique_ptr<CopyQueue> make_copy_queue(CUstream_st*, Poison) override {
    return std::make_unique<PlanCopyQueue>(observe_ ? observe_() : QueueObserver{});
  }

 private:
  void do_(const AnyOp& op, const Launch&) override {
    if (see_) see_(op);
  }

  DeviceTraits traits_;
  std::function<void(const AnyOp&)> see_;
  std::function<QueueObserver()> observe_;
};

}  // namespace

char* Launch::scratch(const char* op, int64_t bytes) const {
  check(static_cast<int64_t>(workspace.bytes()) >= bytes,
        "{}: needs {} bytes of workspace, found {}; give the stream workspace_bytes() for the largest batch",
        op, bytes, workspace.bytes());
  return workspace.as<char>();
}

void Backend::run(const AnyOp& op, const Launch& launch) {
  std::visit([&](const auto* a) { a->check_on(device()); }, op);
  if (launch.workspace && launch.workspace.device != device())
    fail("{}: the workspace must be on {}, found {}", name_of(op), name_of(device()),
         launch.workspace.to_string());
  for (OpObserver* observer : observers_) observer->before(op, *this, launch);
  do_(op, launch);
  for (OpObserver* observer : observers_) observer->after(op, *this, launch);
}

void Backend::tell_part(LinearBackward::Part part, const Launch& launch) {
  for (OpObserver* observer : observers_) observer->after_part(part, *this, launch);
}

class Backend::CapturedOnFirstRun final : public OpGraph {
 public:
  CapturedOnFirstRun(Backend& backend, CUstream_st* stream, std::function<void()> operations)
      : backend_(backend), stream_(stream), operations_(std::move(operations)) {}

  void run() override {
    if (!backend_.observers_.empty()) return operations_();
    if (!graph_) graph_ = backend_.capture(stream_, operations_);
    graph_ ? graph_->launch() : operations_();
  }

 private:
  Backend& backend_;
  CUstream_st* stream_;
  std::function<void()> operations_;
  std::unique_ptr<DeviceGraph> graph_;
};

namespace {

class HostCopy final : public Transfer {
 public:
  HostCopy(const Tensor& from, const Tensor& to) : from_(from), to_(to) {}
  void start() override {
    if (from_.data) std::memcpy(to_.data, from_.data, to_.bytes());  // a plan has no memory
  }
  void wait() override {}

 private:
  Tensor from_, to_;
};

}  // namespace

std::unique_ptr<Transfer> Backend::fetch(CUstream_st* /*stream*/, const Tensor& from, const Tensor& to) {
  return std::make_unique<HostCopy>(from, to);
}

std::unique_ptr<Transfer> Backend::send(CUstream_st* /*stream*/, const Tensor& from, const Tensor& to) {
  return std::make_unique<HostCopy>(from, to);
}

void CopyQueue::start(std::span<const Copy> copies) {
  for (const auto& [from, to] : copies)
    check(from && to && from.dtype == to.dtype && from.bytes() == to.bytes(),
          "a queue of copies: expected two tensors of one dtype and size, found {} and {}", from.to_string(),
          to.to_string());
  do_start(copies);
  ++started_;
}

namespace {

constexpr int kNan = 0xff;  // of a dtype's every byte

void fill_with_nan(const Tensor& tensor) { std::memset(tensor.data, kNan, tensor.bytes()); }

// Copies at once.
class HostCopyQueue final : public CopyQueue {
 public:
  void wait_for(int64_t) override {}

 private:
  void do_start(std::span<const Copy> copies) override {
    for (const auto& [from, to] : copies) std::memcpy(to.data, from.data, to.bytes());
  }
};

// Takes the values at once, and writes them as late as a device may.
class PoisoningHostCopyQueue final : public CopyQueue {
 public:
  explicit PoisoningHostCopyQueue(bool sources) : sources_(sources) {}
  void wait_for(int64_t count) override {
    for (; done_ < count; ++done_, waiting_.pop_front())
      for (const Taken& taken : waiting_.front()) {
        std::memcpy(taken.copy.to.data, taken.values.data(), taken.values.size());
        if (sources_) fill_with_nan(taken.copy.from);
      }
  }

 private:
  struct Taken {
    Copy copy;
    std::string values;
  };
  void do_start(std::span<const Copy> copies) override {
    waiting_.emplace_back();
    for (const Copy& copy : copies) {
      waiting_.back().push_back({copy, {copy.from.as<char>(), copy.from.bytes()}});
      if (sources_) fill_with_nan(copy.from);
      fill_with_nan(copy.to);
    }
  }

  bool sources_;
  std::deque<std::vector<Taken>> waiting_;  // of each start that is not done
  int64_t done_ = 0;
};

}  // namespace

std::unique_ptr<CopyQueue> Backend::make_copy_queue(CUstream_st* /*stream*/, Poison poison) {
  if (poison != Poison::kNo) return std::make_unique<PoisoningHostCopyQueue>(poison == Poison::kYes);
  return std::make_unique<HostCopyQueue>();
}

std::unique_ptr<OpGraph> Backend::make_graph(CUstream_st* stream, std::function<void()> operations) {
  return std::make_unique<CapturedOnFirstRun>(*this, stream, std::move(operations));
}

std::unique_ptr<Backend> make_plan_backend(const DeviceTraits& traits, std::function<void(const AnyOp&)> see,
                                           std::function<QueueObserver()> observe) {
  return std::make_unique<PlanBackend>(traits, std::move(see), std::move(observe));
}

}  // namespace tessera
