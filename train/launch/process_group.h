// The processes of one run, one for each rank: they exchange bytes, watch one another, and end together.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "train/launch/messages.h"
#include "train/launch/peer_failed.h"
#include "train/launch/world.h"

namespace tessera {

class Watchdog;

// Every rank holds a ProcessGroup from join() to finish(). Its watchdog, a thread, keeps a connection to rank
// 0
// open. It ends the process, wherever the main thread is (in a kernel, a collective, exchange()), if
//   - another rank fails, or its process ends (rank 0 sees that its connection closes);
//   - another rank's process sends no heartbeat for the time limit (it is stopped, or its machine is down);
//   - a rank is a straggler: it is behind the others for the time limit, in a phase with Timeout::kLimit;
//   - all ranks stay in the same such phase for 24 times the limit.
// Within the limit and a few seconds all ranks have ended, by _exit() after stdout is flushed. Files that get
// their names only when they are complete stay complete. One rank prints one error to stderr and exits with
// 1.
// This is the rank that failed, if it can; otherwise rank 0; if rank 0 is lost, rank 1 and the first rank of
// each
// other machine. Under our own launcher, which sees how processes end, the launcher prints the error. The
// other
// ranks exit with kExitPeerFailed.
class ProcessGroup {
 public:
  // The rendezvous: rank 0 listens at the master's port, and the others connect to it, all within the time
  // limit, which is also the watchdog's. Error, on every rank: a rank is missing, came twice, or has another
  // world size, build or configuration; the port is taken; the master cannot be reached or is another
  // program. Connections that do not speak this protocol are ignored.
  static std::unique_ptr<ProcessGroup> join(const World& world, const RunIdentity& run,
                                            double time_limit_seconds);
  // If finish() was not called, the others end, too, since this rank's process is about to end.
  ~ProcessGroup();

  const World& world() const;

  // Returns the bytes of every rank, in the order of ranks. All ranks call it, with calls of exchange(),
  // sum(), enter_phase() and finish() in the same order. Together the bytes may be at most kMaxMessageBytes
  // (connection.h).
  std::vector<std::string> exchange(std::string_view mine);
  // The sums over the ranks, element by element. They are added in the order of ranks in double, so every
  // rank gets equal bits. All ranks give the same number of elements.
  std::vector<double> sum(std::span<const double> mine);

  // This rank enters the phase `name` ("step 12: micro-batch 3"). All ranks enter the same phases in the same
  // order, also those in which only rank 0 works. It costs one lock. Call it just before waiting for other
  // ranks: a rank that hangs earlier is noticed once the others have entered the phase.
  void enter_phase(std::string_view name, Timeout timeout);

  // The watchdog's thread calls `check` about once a second, until `check` is replaced or finish() is called.
  // If it returns a text that is not empty (an asynchronous error of NCCL), the run fails as with fail(). It
  // must return within a second.
  void set_health_check(std::function<std::string()> check);

  // Ends this process and the others. Prints the error, unless another error is already ending the run. Call
  // it where the program would print an error and exit.
  [[noreturn]] void fail(std::string_view error);

  // Call it after success. Waits, still watched, until all ranks have called it, and then stops the watchdog.
  void finish();

 private:
  explicit ProcessGroup(std::unique_ptr<Watchdog> watchdog);
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace tessera
