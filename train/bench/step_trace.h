// A trace of a training step: when each operation, kernel, copy and collective ran, on which stream, in the
// JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open (Google's "Trace Event Format"). Each
// operation has the time that its bytes and its arithmetic need at least.
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

// The events of one rank, and how its device spent the time
struct TracedRank {
  std::string events;          // JSON objects with a comma between them
  int64_t activities = 0;      // kernels, copies and fills; on the CPU operations
  double ms = 0, idle_ms = 0;  // from the first to the last, and without any
};

// Watches `backend` and `communicators` from its making to finish(); both must outlive it. On CUDA the steps
// run without CUDA graphs meanwhile. Error: as start_cuda_trace().
class StepTrace final : public WorkObserver, public CollectiveObserver {
 public:
  StepTrace(Backend& backend, const ModelConfig& model, std::vector<Communicator*> communicators);
  ~StepTrace() override;
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  using WorkObserver::after, WorkObserver::before;
  void before(const char* collective, int64_t bytes) override;
  void after() override;

  void begin();                                   // what came before is forgotten
  int64_t begun_ms() const { return begun_ms_; }  // when, since 1970
  // `from_ms`: the zero of the trace's time. `bounds`: the rates that bound operations
  TracedRank finish(int64_t rank, int64_t from_ms, const Roofline& bounds);

 private:
  struct Work {
    std::string name = {}, shape = {};
    OpPlace place = {};
    OpCost cost = {};
    int64_t sent = 0;                  // bytes of a collective
    int64_t begin_ns = 0, end_ns = 0;  // of the host's call
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
  std::vector<Work> works_;              // numbered from 1
  int64_t begun_ms_ = 0;
};

// The file, of the events of all ranks
std::string trace_file(std::span<const std::string> events);

}  // namespace tessera
