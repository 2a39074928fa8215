// The thread behind a Team: it owns the connections, and ends the process when the run ends.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "train/launch/rendezvous.h"

namespace tessera {

// Progress is the number of places that a rank has come to. Rank 0 knows everyone's: the others tell theirs
// with every sign of life.
//
// One rule decides how a run ends: rank 0 takes the first cause that it hears of, tells everyone the cause
// and who prints it, and all end. So there is one message, also where many fail at once.
class Team::Watch {
 public:
  Watch(const World& world, std::vector<Member> members, double time_limit);
  ~Watch();

  const World& world() const { return world_; }
  std::vector<std::string> exchange(std::string_view mine);
  void at(std::string_view what, Pace pace);
  void set_poll(std::function<std::string()> poll);
  [[noreturn]] void fail(std::string_view message);
  void leave();

 private:
  static constexpr int kNobody = -1;  // prints: the launcher does
  struct Ending {
    int speaker;
    std::string text;
  };
  struct Place {
    int64_t progress = 0;
    Pace pace = Pace::kAlone;
    std::string what = "the start";
    std::optional<Clock::time_point> behind_since;  // another rank went ahead, after this one came here
  };

  void run();
  void hear(size_t member);
  void take(size_t member, const Message& message);
  void take_part(int rank, std::string part);
  void come_to(std::string what, Pace pace);
  void beat();
  void look_for_laggards();
  int witness() const;
  void lost(const Member& member);
  void silent(const Member& member);
  void ask_poll();
  std::string as_this_rank(std::string_view message) const;
  void fail_as_this_rank(std::string_view message);
  void decide(int speaker, std::string text);
  void say_goodbye();
  void wake() const;
  void stop();
  bool rank_0() const { return world_.rank == 0; }
  Place& here() { return places_[static_cast<size_t>(world_.rank)]; }

  const World world_;
  const double limit_;  // seconds
  const double beat_;   // seconds between two signs of life
  const std::string name_;

  std::mutex mutex_;  // of all that follows, but poll_
  std::condition_variable changed_;
  std::vector<Member> members_;
  std::vector<Clock::time_point> heard_;  // of members_
  std::vector<Place> places_;             // by rank; elsewhere than at rank 0 only the own one is kept
  std::vector<std::optional<std::string>> parts_;   // of the exchange that is under way, by rank; at rank 0
  std::optional<std::vector<std::string>> result_;  // of an exchange, for the main thread
  std::optional<Ending> ending_;
  std::string failure_;     // this rank's own, of which it has told rank 0
  bool leaving_ = false;    // leave() is waiting for the others
  bool left_ = false;       // all are leaving: the end of a connection is no loss
  bool stopping_ = false;   // the thread is to return
  bool abandoned_ = false;  // destroyed without leave(): the thread tells the others, and the process goes on
  Clock::time_point moved_ = Clock::now();  // a rank last came to another place; at rank 0
  Clock::time_point failed_at_, last_beat_, last_turn_, last_poll_;

  std::mutex poll_mutex_;
  std::function<std::string()> poll_;

  FileDescriptor wake_;  // an eventfd: the main thread has something to send
  std::thread thread_;
};

}  // namespace tessera
