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
// 0 open and ends the process, wherever the main thread is (in a kernel, a collective, exchange()), when
//   - another rank fails, or its process ends (rank 0 sees its connection close);
//   - another rank's process sends no heartbeat for the time limit (stopped, or its machine is down);
//   - a rank is a straggler: behind the others for the time limit, in a phase with Timeout::kLimit;
//   - all ranks stay in the same such phase for 24 times the limit.
// Within the limit and a few seconds all ranks have ended, by _exit() after stdout is flushed: files that get
// their names when they are whole stay whole. One rank prints one error to stderr and exits with 1: the one
// that failed; else rank 0; when rank 0 is lost, rank 1 and the first rank of each other machine. Under our
// own launcher, which sees how processes end, the launcher prints it. The rest exit with kExitPeerFailed.
class ProcessGroup {
 public:
  // The rendezvous: rank 0 listens at the master's port, the others connect, all within the time limit, which
  // is the watchdog's too. Error, at every rank: a rank is missing, came twice, or has another world size,
  // build or configuration; the port is taken; the master cannot be reached or is another program.
  // Connections that do not speak this protocol are ignored.
  static std::unique_ptr<ProcessGroup> join(const World& world, const RunIdentity& run,
                                            double time_limit_seconds);
  // Without finish(): the others end, as this rank's process is about to.
  ~ProcessGroup();

  const World& world() const;

  // The bytes of every rank, in the order of ranks. All ranks call it, in the same order among the calls of
  // exchange(), sum(), enter_phase() and finish(). At most kMaxMessageBytes (connection.h) together.
  std::vector<std::string> exchange(std::string_view mine);
  // The sums over the ranks, element by element, added in the order of ranks in double: equal bits at every
  // rank. All ranks give the same number of elements.
  std::vector<double> sum(std::span<const double> mine);

  // This rank enters the phase `name` ("step 12: micro-batch 3"). All ranks enter the same phases in the same
  // order, also those in which only rank 0 works. Costs a lock. Enter a phase just before what waits for the
  // other ranks: a rank that hangs earlier is found once the others have entered the phase.
  void enter_phase(std::string_view name, Timeout timeout);

  // `check` is called about once a second by the watchdog's thread, until it is replaced or finish(); a text
  // that is not empty (an asynchronous error of NCCL) fails as fail() does. It must return within a second.
  void set_health_check(std::function<std::string()> check);

  // Ends this process and the others. Prints the error, unless the run already ends for another one. Call it
  // where the program would print an error and exit.
  [[noreturn]] void fail(std::string_view error);

  // After success: waits, watched, until all ranks are here; then stops the watchdog.
  void finish();

 private:
  explicit ProcessGroup(std::unique_ptr<Watchdog> watchdog);
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace tessera
