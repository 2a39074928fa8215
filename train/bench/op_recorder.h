// Measures the operations of training steps for a roofline: their time, by events of their stream, and what
// they need at least.
//
// The device must not wait for the host, or the wait would count as an operation's time. So before each step
// the host is let get ahead.
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
  // Watches `backend`, which must outlive it, while it exists. Products are called as the weights of `model`
  // of the same shape are.
  OpRecorder(Backend& backend, const ModelConfig& model);
  ~OpRecorder() override;
  OpRecorder(const OpRecorder&) = delete;
  OpRecorder& operator=(const OpRecorder&) = delete;

  void let_host_get_ahead();                     // enqueues large copies, which take the device a while
  void clear();                                  // forgets what it has measured
  std::vector<RooflineRow> rows(int64_t steps);  // of one of so many steps; waits for the device

 private:
  struct Measured {
    RooflineRow row;  // the sums of all calls
    OpCost last;      // of a call
    std::vector<std::unique_ptr<Timer>> timers;
  };
  void begin_work() override;
  void end_work(const std::string& operation, const std::string& shape,
                const std::function<OpCost()>& cost) override;

  Stream stream_;
  Arena arena_;
  Tensor copied_, copy_;  // none on the CPU, where nothing runs ahead
  std::map<std::pair<std::string, std::string>, Measured> measured_;
  std::unique_ptr<Timer> running_;
  bool own_ = false;  // its own copies run
};

}  // namespace tessera
