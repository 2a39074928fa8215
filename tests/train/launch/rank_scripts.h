// Runs several processes of scripted_rank as the ranks of one world.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>

#include "tests/data/support.h"
#include "tests/process.h"
#include "train/launch/connection.h"
#include "train/launch/process_group.h"

namespace tessera::testing {

using Words = std::vector<std::string>;

class RankScripts : public InTempFolder {
 protected:
  int port = port_of(listen_at("127.0.0.1", 0, Reach::kThisMachine));  // free, when it is asked

  // A rank as torchrun would start it, with its script.
  void start(int rank, int size, const Words& script, const Words& environment = {}) {
    Words words = {"RANK=" + std::to_string(rank),
                   "WORLD_SIZE=" + std::to_string(size),
                   "LOCAL_RANK=" + std::to_string(rank),
                   "LOCAL_WORLD_SIZE=" + std::to_string(size),
                   "MASTER_ADDR=127.0.0.1",
                   "MASTER_PORT=" + std::to_string(port)};
    words.insert(words.end(), environment.begin(), environment.end());
    run(words, SCRIPTED_RANK_BINARY, script);
  }
  void start_all(int size, const Words& script) {
    for (int rank = 0; rank < size; ++rank) start(rank, size, script);
  }

  // Any program with changes to the environment. The functions below call it rank n if it was started as
  // the n-th, counted from 0.
  void run(const Words& environment, const std::string& program, const Words& arguments) {
    const std::filesystem::path own = folder_ / std::to_string(processes_.size());
    std::filesystem::create_directory(own);
    Words words = environment;
    words.push_back(program);
    words.insert(words.end(), arguments.begin(), arguments.end());
    processes_.emplace_back("/usr/bin/env", words, Process::Options{.folder = own});
  }

  const Process& process(size_t rank) const { return processes_.at(rank); }

  const ProcessResult& result(size_t rank) {
    if (!results_.contains(rank)) results_[rank] = processes_.at(rank).finish();
    return results_[rank];
  }

  // What a rank that still runs has printed, once it has `lines` lines.
  std::string printed(size_t rank, int lines) const {
    std::string text;
    wait_until([&] {
      text = read_file((folder_ / std::to_string(rank)).string() + "_stdout");
      return std::count(text.begin(), text.end(), '\n') >= lines;
    });
    return text;
  }

  // `reporter` ended with 1 and an error of these parts; the `silent` ones with kExitPeerFailed and no
  // output.
  void expect_ending(size_t reporter, std::initializer_list<std::string_view> parts,
                     std::initializer_list<size_t> silent) {
    expect_error(reporter, parts);
    for (const size_t rank : silent) {
      EXPECT_EQ(result(rank).status, kExitPeerFailed) << rank << ": " << result(rank).error;
      EXPECT_EQ(result(rank).error, "") << rank;
    }
  }
  void expect_error(size_t rank, std::initializer_list<std::string_view> parts) {
    EXPECT_EQ(result(rank).status, 1) << rank << ": " << result(rank).error;
    for (const std::string_view part : parts) expect_in(part, result(rank).error);
    EXPECT_EQ(std::count(result(rank).error.begin(), result(rank).error.end(), '\n'), 1)
        << result(rank).error;
  }
  static void expect_in(std::string_view part, const std::string& text) {
    EXPECT_NE(text.find(part), std::string::npos) << "wanted: " << part << "\nfound:  " << text;
  }

  // A connection of the test itself to rank 0's port, once rank 0 listens.
  static Connection connect_raw(int at_port) {
    std::optional<Connection> connection;
    wait_until([&] {
      connection = std::move(connect_to("127.0.0.1", at_port, 1).connection);
      return connection.has_value();
    });
    if (!connection) fail("no process listens at port {}", at_port);
    return std::move(*connection);
  }
  // The other end closes it, in spite of what is still to be sent or read.
  static bool is_dropped(Connection& connection) {
    return wait_until([&] {
      connection.flush();
      connection.receive();
      return connection.ended();
    });
  }
  // The hello of a rank, without a secret.
  static std::string hello(int rank, int size) {
    return fmt::format(R"({{"rank":{},"size":{},"name":"forged","build":"build 1","config":"a: 1\nb: 2\n"}})",
                       rank, size);
  }

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::vector<Process> processes_;
  std::map<size_t, ProcessResult> results_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tessera::testing
