// The thread behind a ProcessGroup: it owns the connections, and ends the process when the run ends.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/descriptor.h"
#include "train/launch/messages.h"
#include "train/launch/rendezvous.h"
#include "train/launch/world.h"

namespace tessera {

// Rank 0 knows how far every rank is: each heartbeat tells it.
//
// How a run ends follows one rule. Rank 0 takes the first error that it learns of, and sends it to everyone
// together with the rank that prints it; then all end. So there is one message, even if many ranks fail at
// once.
class Watchdog {
 public:
  Watchdog(const World& world, std::vector<Peer> peers, double time_limit);
  ~Watchdog();

  // As in ProcessGroup.
  const World& world() const { return world_; }
  std::vector<std::string> exchange(std::string_view mine);
  void enter_phase(std::string_view name, Timeout timeout);
  void set_health_check(std::function<std::string()> check);
  [[noreturn]] void fail(std::string_view error);
  void finish();

 private:
  struct Progress {
    Heartbeat last;
    std::optional<Clock::time_point> behind_since;  // since when another rank is known to be in a later phase
  };

  void run();
  std::vector<pollfd> events();
  void forgive_own_pause();
  bool end_if_over();
  void receive_from(size_t peer);
  void handle(size_t peer, const Message& message);
  void add_contribution(int rank, std::string bytes);
  void update_progress(int rank, const Heartbeat& heartbeat);
  void set_phase(std::string name, Timeout timeout);
  void send_heartbeats();
  void check_stragglers();
  void check_stall();
  int reporter_for_peers() const;
  void connection_lost(const Peer& peer);
  void heartbeat_lost(const Peer& peer);
  void run_health_check();
  std::string with_name(std::string_view error) const;
  void report_failure(std::string_view error);
  void shut_down(int reporter, std::string error);
  void drain_connections();
  void wake() const;
  void stop();
  bool is_rank_0() const { return world_.rank == 0; }
  Progress& own_progress() { return progress_[static_cast<size_t>(world_.rank)]; }

  const World world_;
  const double time_limit_;          // seconds
  const double heartbeat_interval_;  // seconds
  const std::string name_;

  std::mutex mutex_;  // guards all that follows except health_check_
  std::condition_variable exchanged_;
  std::vector<Peer> peers_;
  std::vector<Clock::time_point> last_received_;           // of peers_
  std::vector<Progress> progress_;                         // by rank; only rank 0 knows those of others
  std::vector<std::optional<std::string>> contributions_;  // to the exchange in progress, by rank; on rank 0
  std::optional<std::vector<std::string>> gathered_;       // the result of an exchange, for the main thread
  std::optional<Shutdown> shutdown_;
  std::string failure_;     // this rank's own failure, which it has told rank 0
  bool finishing_ = false;  // finish() is waiting for the others
  bool finished_ = false;   // all ranks are in finish(): from now on a connection may end
  bool stopping_ = false;   // the thread has to return
  bool abandoned_ = false;  // destroyed without finish(): the thread tells the others, and the process goes
                            // on
  Clock::time_point last_progress_ = Clock::now();  // when a rank last entered a phase; on rank 0
  Clock::time_point failed_at_, last_heartbeat_, last_turn_, last_health_check_;

  std::mutex health_check_mutex_;
  std::function<std::string()> health_check_;

  Descriptor wake_;  // an eventfd, signalled when the main thread has something to send
  std::thread thread_;
};

}  // namespace tessera
