// WriteQueue: a thread that runs tasks in order while its caller goes on. The tasks write files from copies
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
  // `most_bytes`: the limit of the bytes that wait, so that copies do not fill the memory
  explicit WriteQueue(int64_t most_bytes);
  ~WriteQueue();  // finishes the remaining tasks; their errors are lost
  WriteQueue(const WriteQueue&) = delete;

  // Waits until there is room for a task that holds so many bytes. A task larger than the limit waits until
  // no other is left. Error: an earlier task failed; later tasks are then not run.
  void push(int64_t bytes, std::function<void()> task);
  // Whether all tasks are done, or one has failed. Waits at most so long for that.
  bool done_within(double seconds);
  void finish();  // waits until everything is done. Error: as a task

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
  int64_t bytes_ = 0;  // of tasks_ and of the task that is running
  bool busy_ = false, ends_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // declared last, because it uses the others
};

}  // namespace tessera
