// A program that gets the lines of metrics.jsonl on its standard input (train.metrics_command).
//
// A thread writes to a pipe, so the caller never waits for the program. Lines queue up to kMostBytes; lines
// that do not fit are left out. If the program ends or stops reading, the run says so once and goes on.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "kernels/base/clock.h"
#include "kernels/base/descriptor.h"

namespace tessera {

class MetricsCommand {
 public:
  static constexpr int64_t kMostBytes = int64_t{16} << 20;  // the most bytes that wait for the program
  static constexpr double kEndSeconds = 10;                 // the time that it has after the last line

  // Starts `command` by /bin/sh in a process group of its own, so that Ctrl-C does not end it. What it prints
  // is added to the file `output`. Error: it cannot be started.
  MetricsCommand(const std::string& command, std::filesystem::path output);
  ~MetricsCommand();  // finishes it
  MetricsCommand(const MetricsCommand&) = delete;

  void write(const std::string& line);  // with its line break
  // What is wrong, if anything is and it was not returned before
  std::string take_trouble();
  // Call it after the last line: closes the program's input, and waits until the program has ended, at most
  // kEndSeconds. After that the program is left running.
  void finish();

 private:
  void work();
  bool send(const std::string& line);  // false: no line after it can be sent
  void tell(std::string trouble);      // keeps only the first trouble
  std::string end_of_program();        // "ended with exit code 3"; "": it is running

  std::filesystem::path output_;
  Descriptor to_;
  pid_t program_ = 0;  // 0: it has ended, and its exit code was read
  std::mutex mutex_;   // guards what follows
  std::condition_variable changed_;
  std::deque<std::string> lines_;
  int64_t bytes_ = 0;            // of lines_
  bool closed_ = false;          // nobody reads any more
  bool ends_ = false;            // no line will follow
  Clock::time_point last_ = {};  // with ends_: lines are sent until then
  std::string trouble_;
  bool told_ = false;
  std::thread thread_;
};

}  // namespace tessera
