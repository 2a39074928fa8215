// How signals are caught: in a process of its own each, which tells by its exit code what it saw.
#include "kernels/base/signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

#include "kernels/base/descriptor.h"

namespace tessera::testing {
namespace {

constexpr int kFine = 42;

// The status, as of waitpid(), of a process that runs `body` and exits with what it returns
int status_of(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGALRM}) std::signal(number, SIG_DFL);
    _exit(body());
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

void expect_fine(const std::function<int()>& body) {
  const int status = status_of(body);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kFine);
}

TEST(StopSignals, TheFirstIsRecorded) {
  expect_fine([] {
    record_stop_signals({});
    if (stop_signal() != 0) return 1;
    raise(SIGTERM), raise(SIGINT);
    return stop_signal() == SIGTERM ? kFine : 2;
  });
}

TEST(StopSignals, OneThatIsForgottenMakesTheNextTheFirst) {
  expect_fine([] {
    record_stop_signals({});
    raise(SIGHUP);
    forget_stop_signal();
    if (stop_signal() != 0) return 1;
    raise(SIGINT);
    return stop_signal() == SIGINT ? kFine : 2;
  });
}

TEST(StopSignals, IgnoredOnesStayIgnored) {
  expect_fine([] {
    std::signal(SIGHUP, SIG_IGN);
    record_stop_signals({});
    raise(SIGHUP);
    return stop_signal() == 0 ? kFine : 1;
  });
}

TEST(StopSignals, ASecondWithinASecondIsTheFirstAgain) {
  expect_fine([] {
    record_stop_signals({.second_ends = true});
    raise(SIGINT), raise(SIGINT);
    return kFine;
  });
}

TEST(StopSignals, ALaterOneEndsTheProgramWhereAskedTo) {
  const auto twice = [](bool ends) {
    return [ends] {
      record_stop_signals({.second_ends = ends});
      raise(SIGINT);
      usleep(2'100'000);
      raise(SIGINT);
      return kFine;
    };
  };
  const int status = status_of(twice(true));
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
  expect_fine(twice(false));
}

// Slurm sends SIGUSR1 some time before the time is over, and SIGTERM when it is.
TEST(StopSignals, OneAfterSigusr1IsNoSecond) {
  const auto after = [](int second) {
    return [second] {
      record_stop_signals({.second_ends = true});
      raise(SIGUSR1);
      usleep(2'100'000);
      raise(SIGUSR1), raise(SIGTERM);
      if (second != 0) usleep(2'100'000), raise(second);
      return stop_signal() == SIGUSR1 ? kFine : 1;
    };
  };
  expect_fine(after(0));
  expect_fine(after(SIGUSR1));
  const int status = status_of(after(SIGTERM));
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

int g_seen = 0;

TEST(StopSignals, TheFirstIsToldOnceAndErrnoIsKept) {
  expect_fine([] {
    record_stop_signals({.on_first = [](int number) {
      g_seen += number;
      errno = EIO;
    }});
    errno = 0;
    raise(SIGTERM), raise(SIGTERM);
    return g_seen == SIGTERM && errno == 0 ? kFine : 1;
  });
}

// A read from a pipe that stays empty: ended by the first alarm, or waiting until the byte of the second
TEST(HandleSignals, AReadThatWaitsEndsOrGoesOn) {
  static Pipe pipe;
  static int left = 0;
  for (const BlockedCalls calls : {BlockedCalls::kEnd, BlockedCalls::kGoOn})
    expect_fine([calls] {
      pipe = make_pipe("a test");
      left = 2;
      const int numbers[] = {SIGALRM};
      handle_signals(numbers, calls, [](int) {
        if (--left == 0 && write(pipe.write.get(), "x", 1) != 1) _exit(3);
        alarm(1);
      });
      alarm(1);
      char byte = 0;
      const ssize_t count = read(pipe.read.get(), &byte, 1);
      if (calls == BlockedCalls::kEnd) return count < 0 && errno == EINTR ? kFine : 1;
      return count == 1 && left == 0 ? kFine : 2;
    });
}

TEST(Signals, HaveNames) {
  EXPECT_EQ(name_of_signal(SIGTERM), "SIGTERM");
  EXPECT_EQ(name_of_signal(999), "signal 999");
}

}  // namespace
}  // namespace tessera::testing
