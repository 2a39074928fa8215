#include "kernels/backend.h"

#include <cstring>

#include "kernels/base/check.h"

namespace tessera {
namespace {

class PlanBackend final : public Backend {
 public:
  PlanBackend(const DeviceTraits& traits, std::function<void(const AnyOp&)> see)
      : traits_(traits), see_(std::move(see)) {}
  const DeviceTraits& traits() const override { return traits_; }
  void synchronize(CUstream_st*) override {}

 private:
  void do_(const AnyOp& op, const Launch&) override {
    if (see_) see_(op);
  }

  DeviceTraits traits_;
  std::function<void(const AnyOp&)> see_;
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

std::unique_ptr<OpGraph> Backend::make_graph(CUstream_st* stream, std::function<void()> operations) {
  return std::make_unique<CapturedOnFirstRun>(*this, stream, std::move(operations));
}

std::unique_ptr<Backend> make_plan_backend(const DeviceTraits& traits,
                                           std::function<void(const AnyOp&)> see) {
  return std::make_unique<PlanBackend>(traits, std::move(see));
}

}  // namespace tessera
