// A rank for the tests: joins the process group that its environment describes and follows a script, its
// arguments:
//   before join: limit:SECONDS build:TEXT config:TEXT
//   of the group: join exchange:BYTES sum phase:NAME unlimited:NAME health:TEXT fail:TEXT finish
//   of the process: sleep:SECONDS hang stop kill throw:TEXT exit:CODE catch wait_signal
//   on its outputs: print:TEXT unflushed:TEXT error:TEXT show:VARIABLE pid environment
// A word R@STEP is for rank R alone. `launch:N`, first, starts N ranks of this program instead. Before it,
// `thread` gives the launcher another thread, and `no_exec` takes the right to execute it from this program's
// file.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <thread>

#include "train/launch/launcher.h"
#include "train/launch/process_group.h"

namespace {

using namespace tessera;

volatile std::sig_atomic_t g_signals = 0;

void sleep_for(double seconds) {
  for (double slept = 0; slept < seconds; slept += 0.01)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

// Different bytes from every rank, and again each time.
std::string blob(size_t bytes, int rank) {
  std::string text(bytes, 'x');
  for (size_t i = 0; i < bytes; ++i)
    text[i] = static_cast<char>((i * 31 + static_cast<size_t>(rank) * 7) % 251);
  return text;
}

void exchange(ProcessGroup& group, size_t bytes) {
  const std::vector<std::string> all = group.exchange(blob(bytes, group.world().rank));
  check(static_cast<int>(all.size()) == group.world().size, "{} parts came", all.size());
  for (size_t rank = 0; rank < all.size(); ++rank)
    check(all[rank] == blob(bytes, static_cast<int>(rank)), "the part of rank {} came wrong", rank);
}

// 0.1 and 1e17 in another order give other bits.
void sum(ProcessGroup& group) {
  const double mine[] = {group.world().rank % 2 == 0 ? 0.1 : 1e17, static_cast<double>(group.world().rank)};
  const std::vector<double> total = group.sum(mine);
  double wanted[] = {0, 0};
  for (int rank = 0; rank < group.world().size; ++rank) {
    wanted[0] += rank % 2 == 0 ? 0.1 : 1e17;
    wanted[1] += rank;
  }
  check(total == std::vector<double>(wanted, wanted + 2), "the sums are {} and {}", total[0], total[1]);
}

struct Script {
  World world;
  RunIdentity identity{.build = "build 1", .config = "a: 1\nb: 2\n"};
  double limit = 2;
  std::unique_ptr<ProcessGroup> group;

  void step(const std::string& name, const std::string& value) {
    if (name == "limit")
      limit = std::stod(value);
    else if (name == "build")
      identity.build = value;
    else if (name == "config")
      identity.config = value;
    else if (name == "join")
      group = ProcessGroup::join(world, identity, limit);
    else if (name == "exchange")
      exchange(*group, std::stoul(value));
    else if (name == "sum")
      sum(*group);
    else if (name == "phase")
      group->enter_phase(value, Timeout::kLimit);
    else if (name == "unlimited")
      group->enter_phase(value, Timeout::kNone);
    else if (name == "sleep")
      sleep_for(std::stod(value));
    else if (name == "hang")
      while (true) pause();
    else if (name == "stop")
      raise(SIGSTOP);
    else if (name == "kill")
      raise(SIGKILL);
    else if (name == "health")
      group->set_health_check([value] { return value; });
    else if (name == "fail")
      group->fail(value);
    else if (name == "throw")
      fail("{}", value);
    else if (name == "exit")
      std::exit(std::stoi(value));
    else if (name == "finish")
      group->finish();
    else if (name == "print")
      std::cout << value << std::endl;
    else if (name == "unflushed")
      std::fputs(value.c_str(), stdout);
    else if (name == "error")
      std::cerr << value << std::endl;
    else if (name == "show")
      std::cout << std::getenv(value.c_str()) << std::endl;
    else if (name == "environment")
      std::cout << std::ifstream("/proc/self/environ").rdbuf() << std::endl;
    else if (name == "pid")
      std::cout << getpid() << std::endl;
    else if (name == "catch")
      std::signal(SIGTERM, [](int) { g_signals = g_signals + 1; });
    else if (name == "wait_signal")
      while (g_signals == 0) sleep_for(0.01);
    else
      fail("the script has no step {}", name);
  }
};

int run(int argc, char** argv) {
  Script script;
  const std::optional<World> world = world_of_environment();
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    if (const size_t at = word.find('@'); at != std::string::npos) {
      if (!world || std::stoi(word) != world->rank) continue;
      word.erase(0, at + 1);
    }
    const size_t colon = std::min(word.find(':'), word.size());
    const std::string name = word.substr(0, colon), value = word.substr(std::min(colon + 1, word.size()));
    if (name == "no_exec" && !world)
      check(chmod("/proc/self/exe", 0600) == 0, "chmod failed");
    else if (name == "thread" && !world)
      std::thread([] { sleep_for(30); }).detach();
    else if (name == "launch" && !world)
      return launch(std::stoi(value), argv);
    else if (name == "launch" || name == "no_exec" || name == "thread")
      continue;
    else {
      if (world) script.world = *world;
      script.step(name, value);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  alarm(30);  // a rank that nobody ends fails its test, and does not hold it up for ever
  try {
    return run(argc, argv);
  } catch (const tessera::PeerFailed& error) {
    std::cout << "told: " << error.what() << std::endl;  // for the tests; a program says nothing
    return tessera::kExitPeerFailed;
  } catch (const std::exception& error) {
    std::cerr << "scripted_rank: error: " << error.what() << std::endl;
    return 1;
  }
}
