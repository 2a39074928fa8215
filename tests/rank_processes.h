// Tests of several ranks, each a process of its own: this test program, started once more for each.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "train/parallel/make_communicator.h"

namespace tessera::testing {

inline constexpr unsigned kRankSeconds = 120;  // after which a rank that hangs is ended
// Exit code of a rank that went to the end of its body without a failure
inline constexpr int kRankDone = 42;
inline constexpr const char *kRankVariable = "TESSERA_TEST_RANK", *kRanksVariable = "TESSERA_TEST_RANKS",
                            *kSocketVariable = "TESSERA_TEST_SOCKET", *kCallVariable = "TESSERA_TEST_CALL";

inline bool send_all(int socket, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  for (ssize_t sent; bytes > 0; at += sent, bytes -= sent)
    if ((sent = ::send(socket, at, bytes, MSG_NOSIGNAL)) <= 0) return false;
  return true;
}
inline bool receive_all(int socket, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  for (ssize_t got; bytes > 0; at += got, bytes -= got)
    if ((got = ::recv(socket, at, bytes, 0)) <= 0) return false;
  return true;
}
inline bool send_text(int socket, std::string_view text) {
  const uint64_t bytes = text.size();
  return send_all(socket, &bytes, sizeof bytes) && send_all(socket, text.data(), bytes);
}
inline bool receive_text(int socket, std::string& text) {
  uint64_t bytes = 0;
  if (!receive_all(socket, &bytes, sizeof bytes)) return false;
  text.resize(bytes);
  return receive_all(socket, text.data(), bytes);
}

// Through the process that started the ranks, over the socket that this rank was given
inline Exchange exchange_over(int socket, int size) {
  return [socket, size](std::string_view mine) {
    std::vector<std::string> all(size);
    bool whole = send_text(socket, mine);
    for (std::string& text : all) whole = whole && receive_text(socket, text);
    check(whole, "a rank ended during an exchange");
    return all;
  };
}

// Which rank this process was started as; -1: none, it is the one that starts them
inline int rank_of_process() {
  const char* rank = std::getenv(kRankVariable);
  return rank == nullptr ? -1 : std::atoi(rank);
}

// How many calls of on_ranks() the running test has made before
inline int calls_before() {
  static const ::testing::TestInfo* of = nullptr;
  static int calls = 0;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  if (std::exchange(of, test) != test) calls = 0;
  return calls++;
}

// Runs `body` in `size` processes at once and expects that it fails in none. In each of them the test that
// called this runs again from its start, past the calls before this one, which then do nothing.
inline void on_ranks(int size, const std::function<void(const Ranks&)>& body) {
  const int call = calls_before();
  if (rank_of_process() >= 0) {
    if (std::atoi(std::getenv(kCallVariable)) != call) return;
    const int socket = std::atoi(std::getenv(kSocketVariable));
    alarm(kRankSeconds);
    body({.rank = rank_of_process(),
          .size = size,
          .exchange = exchange_over(socket, size),
          .time_limit_seconds = 30});
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : kRankDone);
  }
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter = fmt::format("--gtest_filter={}.{}", test->test_suite_name(), test->name());
  std::vector<int> sockets;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    // Ranks share the machine's processors, as under our launcher. Of two values the first counts.
    std::vector<std::string> threads = {"OMP_NUM_THREADS=1", "OMP_WAIT_POLICY=passive"};
    std::vector<std::string> environment = {
        fmt::format("{}={}", kRankVariable, rank), fmt::format("{}={}", kRanksVariable, size),
        fmt::format("{}={}", kCallVariable, call), fmt::format("{}={}", kSocketVariable, ends[1])};
    std::vector<char*> variables_of_rank{threads[0].data(), threads[1].data()};
    for (char** at = environ; *at != nullptr; ++at)  // a shard of the tests is not this test's business
      if (!std::string_view(*at).starts_with("GTEST_")) variables_of_rank.push_back(*at);
    for (std::string& variable : environment) variables_of_rank.push_back(variable.data());
    variables_of_rank.push_back(nullptr);
    const pid_t process = fork();
    if (process == 0) {
      close(ends[0]);
      for (const int socket : sockets) close(socket);
      execle("/proc/self/exe", "test", filter.c_str(), "--gtest_brief=1", nullptr, variables_of_rank.data());
      _exit(126);
    }
    close(ends[1]);
    sockets.push_back(ends[0]);
    processes.push_back(process);
  }
  // Passes on what the ranks exchange, until one of them leaves.
  for (bool together = true; together;) {
    std::vector<std::string> texts(size);
    for (int rank = 0; rank < size; ++rank) together = together && receive_text(sockets[rank], texts[rank]);
    for (int rank = 0; rank < size && together; ++rank)
      for (const std::string& text : texts) together = together && send_text(sockets[rank], text);
  }
  for (const int socket : sockets) shutdown(socket, SHUT_RDWR);
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(processes[rank], &status, 0), processes[rank]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kRankDone)
        << "rank " << rank << " of " << size << " failed";
    close(sockets[rank]);
  }
}

}  // namespace tessera::testing
