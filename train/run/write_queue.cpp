#include "train/run/write_queue.h"

#include <chrono>
#include <csignal>
#include <utility>

namespace tessera {

// Signals are for the thread that trains.
WriteQueue::WriteQueue(int64_t most_bytes) : most_bytes_(most_bytes) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { work(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

WriteQueue::~WriteQueue() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void WriteQueue::push(int64_t bytes, std::function<void()> task) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || bytes_ == 0 || bytes_ + bytes <= most_bytes_; });
  if (error_) std::rethrow_exception(error_);
  tasks_.push_back({bytes, std::move(task)});
  bytes_ += bytes;
  changed_.notify_all();
}

bool WriteQueue::done_within(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return idle(); });
}

void WriteQueue::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return idle(); });
  if (error_) std::rethrow_exception(error_);
}

void WriteQueue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    busy_ = true;
    const bool skips = error_ != nullptr;
    lock.unlock();
    std::exception_ptr error;
    try {
      if (!skips) task.run();
      task.run = nullptr;  // frees what it keeps
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) error_ = error;
    bytes_ -= task.bytes;
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace tessera
