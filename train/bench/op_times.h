// The time of each operation of a backend. It waits for the device before and after every operation, so the
// sum is larger than the time of an undisturbed step. Used by `./bench step`, not for training.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "kernels/backend.h"

namespace tessera {

struct OpTime {
  int64_t calls = 0;
  double seconds = 0;
};
using OpTimes = std::map<std::string, OpTime>;  // by the operation's name

// Times the operations of a backend while it exists.
class OpTimer final : public OpObserver {
 public:
  explicit OpTimer(Backend& backend);  // `backend` must outlive it
  ~OpTimer() override;
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

  void before(const AnyOp& op, Backend& backend, const Launch& launch) override;
  void after(const AnyOp& op, Backend& backend, const Launch& launch) override;

  const OpTimes& times() const { return times_; }
  void clear() { times_.clear(); }

 private:
  Backend& backend_;
  OpTimes times_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace tessera
