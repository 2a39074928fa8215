// HostCopies: copies between host memory and the buffers in which gradients take turns (turns.h), in a queue
// for each direction, and of each buffer the last copy that may still be under way.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/stream.h"

namespace tessera {

class HostCopies {
 public:
  HostCopies(const Stream& stream, size_t buffers, Poison poison)
      : back_(stream.backend().make_copy_queue(stream.queue(), poison)),
        out_(stream.backend().make_copy_queue(stream.queue(), poison)),
        fetches_(buffers),
        writes_(buffers) {}

  // From the host into a buffer, whose last write has to be waited for before
  void fetch(size_t buffer, const Copy& copy) { fetches_[buffer] = started(*back_, copy); }
  // Whether there was one since the last wait
  bool wait_for_fetch(size_t buffer) {
    const int64_t number = std::exchange(fetches_[buffer], 0);
    if (number > 0) back_->wait_for(number);
    return number > 0;
  }

  // From a buffer to the host: nothing may be written to it before the wait.
  void write(size_t buffer, const Copy& copy) { writes_[buffer] = started(*out_, copy); }
  void wait_for_write(size_t buffer) { out_->wait_for(writes_[buffer]); }
  void wait_for_writes() { out_->wait_for(out_->started()); }

  // What a step that was dropped had under way
  void drop_fetches() {
    back_->wait_for(back_->started());
    fetches_.assign(fetches_.size(), 0);
  }

 private:
  static int64_t started(CopyQueue& queue, const Copy& copy) {
    queue.start(std::span(&copy, 1));
    return queue.started();
  }

  std::unique_ptr<CopyQueue> back_, out_;
  std::vector<int64_t> fetches_, writes_;  // their numbers in the queues, by buffer; 0: none
};

}  // namespace tessera
