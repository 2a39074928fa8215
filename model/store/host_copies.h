// HostCopies: copies between host memory and the buffers in which gradients take turns (turns.h). Each
// direction has a queue. For each buffer it remembers the last copy that may still be under way.
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

  // Copies from the host into a buffer. The last write from that buffer must have been waited for before
  void fetch(size_t buffer, const Copy& copy) { fetches_[buffer] = started(*back_, copy); }
  // Returns whether a fetch was started since the last wait.
  bool wait_for_fetch(size_t buffer) {
    const int64_t number = std::exchange(fetches_[buffer], 0);
    if (number > 0) back_->wait_for(number);
    return number > 0;
  }

  // Copies from a buffer to the host: nothing may write to the buffer before the wait.
  void write(size_t buffer, const Copy& copy) { writes_[buffer] = started(*out_, copy); }
  void wait_for_write(size_t buffer) { out_->wait_for(writes_[buffer]); }
  void wait_for_writes() { out_->wait_for(out_->started()); }

  // For a step that was given up: waits for its fetches and forgets them.
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
