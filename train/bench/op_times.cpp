#include "train/bench/op_times.h"

namespace tessera {

OpTimer::OpTimer(Backend& backend) : backend_(backend) { backend_.add_observer(*this); }
OpTimer::~OpTimer() { backend_.remove_observer(*this); }

void OpTimer::before(const AnyOp& /*op*/, Backend& backend, const Launch& launch) {
  backend.synchronize(launch.stream);
  start_ = std::chrono::steady_clock::now();
}

void OpTimer::after(const AnyOp& op, Backend& backend, const Launch& launch) {
  backend.synchronize(launch.stream);
  OpTime& entry = times_[name_of(op)];
  ++entry.calls;
  entry.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace tessera
