// WriteQueue: a thread that does what it is given, in order, beside the caller: it writes files from copies
// in memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace tessera {

class WriteQueue {
 public:
  // `most_bytes`: of what waits, so that copies do not fill the memory
  explicit WriteQueue(int64_t most_bytes);
  ~WriteQueue();  // does the rest; errors are lost
  WriteQueue(const WriteQueue&) = delete;

  // Waits until there is room for a task that keeps so many bytes; one that is larger than all room waits
  // until it is alone. Error: of an earlier task; the later ones are then not done.
  void push(int64_t bytes, std::function<void()> task);
  // Whether everything was done, or failed. Waits for it at most so long.
  bool done_within(double seconds);
  void finish();  // waits until everything is done. Error: of a task

 private:
  struct Task {
    int64_t bytes;
    std::function<void()> run;
  };
  void work();
  bool idle() const { return tasks_.empty() && !busy_; }

  const int64_t most_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  int64_t bytes_ = 0;  // of tasks_ and of the one that runs
  bool busy_ = false, ends_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace tessera
