// A trace of a training step: when each operation, kernel, copy and collective ran, and on which stream. It
// is in the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open (Google's "Trace Event Format").
// With each operation stands the least time that its bytes and its arithmetic need.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/communicator.h"
#include "kernels/device_trace.h"
#include "kernels/op_cost.h"
#include "train/bench/op_names.h"
#include "train/bench/roofline.h"

namespace tessera {

// The events of one rank, and how its device spent its time
struct TracedRank {
  std::string events;          // JSON objects, separated by commas
  int64_t activities = 0;      // kernels, copies and fills; on the CPU, operations
  double ms = 0, idle_ms = 0;  // from the first activity to the last; the part of it in which none ran
};

// Watches `backend` and `communicators` from its construction to finish(); both must outlive it. On CUDA the
// steps run without CUDA graphs while it watches. Error: as start_cuda_trace().
class StepTrace final : public WorkObserver, public CollectiveObserver {
 public:
  StepTrace(Backend& backend, const ModelConfig& model, std::vector<Communicator*> communicators);
  ~StepTrace() override;
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  using WorkObserver::after, WorkObserver::before;
  void before(const char* collective, int64_t bytes) override;
  void after() override;

  void begin();                                   // begins the trace; what came before is dropped
  int64_t begun_ms() const { return begun_ms_; }  // when, since 1970
  // `from_ms`: the time that is zero in the trace. `bounds`: the rates that bound operations
  TracedRank finish(int64_t rank, int64_t from_ms, const Roofline& bounds);

 private:
  struct Work {
    std::string name = {}, shape = {};
    OpPlace place = {};
    OpCost cost = {};
    int64_t sent = 0;                  // bytes of a collective
    int64_t begin_ns = 0, end_ns = 0;  // of the call on the host
  };
  void begin_work() override;
  void end_work(const std::string& name, const std::string& shape,
                const std::function<OpCost()>& cost) override;
  void end_call();
  void find_collectives(std::vector<DeviceActivity>& activities) const;
  void detach();

  Backend& backend_;
  std::vector<Communicator*> communicators_;
  std::unique_ptr<DeviceTrace> device_;  // null on the CPU, and before begin()
  std::vector<Work> works_;              // their numbers begin at 1
  int64_t begun_ms_ = 0;
};

// The text of the file, from the events of all ranks
std::string trace_file(std::span<const std::string> events);

}  // namespace tessera
