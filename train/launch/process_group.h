// The ranks of one run: they meet, exchange bytes, watch one another, and end together.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "train/launch/world.h"

namespace tessera {

// The exit code of a rank that ends only because another rank, or the launcher, has said why the run ends.
inline constexpr int kEndedWithOthers = 3;

// Thrown by Team::join() where rank 0 refuses the meeting and says so itself: print nothing, exit with
// kEndedWithOthers. what() is what rank 0 says.
class EndedWithOthers : public Error {
 public:
  using Error::Error;
};

// What every rank must have in common.
struct Introduction {
  std::string build;   // names the program's version
  std::string config;  // lines of `key: value`
};

enum class Pace {
  kTogether,  // every rank gets on from here within the time limit once another has
  kAlone      // this rank may take as long as it needs: a checkpoint, a sample
};

// All ranks hold a Team from join() to leave(). A thread of its own holds the connections to rank 0 open and
// ends the process, wherever its main thread is (in a kernel, in a collective, in exchange()), when
//   - another rank fails, or its process ends (rank 0 sees its connection close);
//   - another rank's process does not answer for the time limit (stopped, or its machine is gone);
//   - a rank stays behind the others for the time limit in a place of Pace::kTogether;
//   - all stay in the same such place for 24 times the limit.
// Within the limit and a few seconds all ranks have ended, by _exit() after stdout is flushed: files that get
// their names when they are whole stay whole. One rank prints one message to stderr and exits with 1: the one
// that failed, or else rank 0, or, when rank 0 is lost, rank 1 and the first rank of each other machine.
// Under our own launcher, which sees how processes end, it tells of lost ones. The rest exit with
// kEndedWithOthers.
class Team {
 public:
  // Rank 0 listens at the master's port, the others connect, all within the limit, which is that of the watch
  // too. Error, at every rank: a rank that never came, one that came twice, another world size, build or
  // configuration, a port that is taken, a master that cannot be reached or is another program. Connections
  // that do not speak this protocol are ignored.
  static std::unique_ptr<Team> join(const World& world, const Introduction& introduction,
                                    double time_limit_seconds);
  // Without leave(): the others end, as this rank's process is about to.
  ~Team();

  const World& world() const;

  // The bytes of every rank, in the order of ranks. All ranks call it, in the same order among the calls of
  // exchange(), sum(), at() and leave(). At most kMostMessageBytes (connection.h) together.
  std::vector<std::string> exchange(std::string_view mine);
  // The sums over the ranks, element by element, added in the order of ranks in double: equal bits at every
  // rank. As many numbers everywhere.
  std::vector<double> sum(std::span<const double> mine);

  // This rank has come to `what` ("step 12: micro-batch 3"). All ranks pass the same places in the same
  // order, those of rank 0 alone too. Costs a lock. Name a place just before whatever waits for the other
  // ranks: who hangs before it is seen when the others have passed it.
  void at(std::string_view what, Pace pace);

  // `poll` is called about once a second by the team's thread, until it is replaced or leave(); a text that
  // is not empty (an asynchronous error of NCCL) fails as fail() does. It must return within a second or so.
  void set_poll(std::function<std::string()> poll);

  // Ends this process and the others: this rank's message is printed, unless the run ends for another cause
  // already. Call it where the program would print an error and exit.
  [[noreturn]] void fail(std::string_view message);

  // After success: waits until all ranks are here; the watch goes on until then, and then ends.
  void leave();

 private:
  class Watch;
  explicit Team(std::unique_ptr<Watch> watch);
  std::unique_ptr<Watch> watch_;
};

}  // namespace tessera
