// Measures the operations of training steps for a roofline: their time, with events on their stream, and the
// least that they need.
//
// The device must never wait for the host, because the wait would count as an operation's time. So the host
// gets a lead before each step.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/op_cost.h"
#include "kernels/timer.h"
#include "train/bench/op_names.h"
#include "train/bench/roofline.h"

namespace tessera {

class OpRecorder final : public WorkObserver {
 public:
  // Watches `backend`, which must outlive it, while it exists. GEMMs are named after the weights of `model`
  // that have the same shape.
  OpRecorder(Backend& backend, const ModelConfig& model);
  ~OpRecorder() override;
  OpRecorder(const OpRecorder&) = delete;
  OpRecorder& operator=(const OpRecorder&) = delete;

  void let_host_get_ahead();                     // gives the host a lead: enqueues large copies, which take
                                                 // the device a while
  void clear();                                  // forgets what it has measured
  std::vector<RooflineRow> rows(int64_t steps);  // per step, if so many steps were recorded; waits for the
                                                 // device

 private:
  struct Measured {
    RooflineRow row;  // the sums of all calls
    OpCost last;      // of one call
    std::vector<std::unique_ptr<Timer>> timers;
  };
  void begin_work() override;
  void end_work(const std::string& operation, const std::string& shape,
                const std::function<OpCost()>& cost) override;

  Stream stream_;
  Arena arena_;
  Tensor copied_, copy_;  // none on the CPU, where nothing is enqueued
  std::map<std::pair<std::string, std::string>, Measured> measured_;
  std::unique_ptr<Timer> running_;
  bool own_ = false;  // its own copies are running
};

}  // namespace tessera
