// Communicator: collectives over tensors among the ranks of a data-parallel run, one process for each rank.
// NCCL on CUDA and Gloo on the CPU are its transports (train/parallel).
//
// S ranks, numbered from 0; a part has n elements. Every rank calls the same collectives in the same order,
// with tensors of the same sizes and dtypes. Tensors are on the backend's device. Every dtype can be gathered
// and sent. Sums are computed for fp32, and on CUDA for bf16 as well.
//   - On CUDA collectives run one after the other on their own stream. Each starts when all work that the
//     backend was given before it is done, and overlaps the work given later. Until wait() the backend must
//     neither read its results nor write its arguments. On the CPU a collective is done on return.
//   - Sums have the same bits on all ranks, and in every run on the same machines. On the CPU each element is
//     summed once, along the ring; on CUDA NCCL chooses the order.
// Errors: invalid arguments; CommunicationError if a rank is gone, hangs, or cannot be reached. After that
// the communicator can only be destroyed. Destroying one aborts its unfinished collectives.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/backend.h"
#include "kernels/base/check.h"

namespace tessera {

// An error whose cause is most likely at another rank
class CommunicationError : public Error {
 public:
  using Error::Error;
};

// With `sums`, a bf16 tensor is converted to fp32 there, summed, and rounded once at the end. Without `sums`,
// every addition rounds to bf16.
struct AllReduce {
  Tensor tensor;     // in place
  Tensor sums = {};  // fp32, as many elements as `tensor`; only for a bf16 tensor
};

// Each rank gets the sum of one slice: the elements rank n to (rank + 1) n of S n.
struct ReduceScatter {
  Tensor whole;      // [S n]; undefined afterwards, except for a part that lies in it
  Tensor part;       // [n], the sum of this rank's slices of all ranks; may be that slice of the summed
                     // tensor
  Tensor sums = {};  // [S n] fp32, only for a bf16 whole: it is summed there, and part is fp32
};

struct AllGather {
  Tensor part;   // [n]; may be this rank's slice of whole
  Tensor whole;  // [S n], the parts of all ranks, in their order
};

// Tensors from each rank to each other one. What a rank sends to another arrives there in the same order.
struct AllToAll {
  struct Message {
    int rank;       // the rank that it goes to or comes from
    Tensor tensor;  // contiguous, not empty
  };
  std::span<const Message> sends, receives;  // their tensors share no memory
};

// An observer is told before and after each collective is started.
class CollectiveObserver {
 public:
  virtual ~CollectiveObserver() = default;
  // `bytes`: what each rank sends, along a ring; for all_to_all what this rank sends
  virtual void before(const char* collective, int64_t bytes) = 0;
  virtual void after() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }

  void all_reduce_sum(const AllReduce& a);
  void reduce_scatter_sum(const ReduceScatter& a);
  void all_gather(const AllGather& a);
  void all_to_all(const AllToAll& a);

  // The observer is told from now on. It must outlive the communicator, or the time until the next call.
  // Null: nobody
  void observe(CollectiveObserver* observer) { observer_ = observer; }

  // The number of collectives started
  int64_t started() const { return started_; }
  // The backend's later work waits for the first `count` collectives. Does not block the host.
  virtual void wait_for(int64_t count) { (void)count; }
  void wait() { wait_for(started()); }
  // The next collective also waits for those that `other` has started. `other` is of the same device. The
  // backend does not wait.
  virtual void follow(const Communicator& other) { (void)other; }
  // Blocks the host until all collectives are done, with the backend's work that they wait for. Error: one
  // failed, or they took longer than the time limit. If a rank is gone, a wait for the backend only would
  // never end. A run has a watchdog for that; other callers call this first.
  virtual void synchronize() {}
  // The exposed communication since the last call, in seconds: how long the backend's stream (on the CPU: the
  // caller) waited for collectives. Blocks the host until these waits are over.
  virtual double take_waited_seconds() { return 0; }
  // Of those waits, the ones that are over by now. Does not block the host.
  virtual double take_past_waits() { return take_waited_seconds(); }
  // Why communication has failed, or "". Any thread may call it while this object lives.
  virtual std::string failure() { return ""; }

 protected:
  Communicator(Device device, int rank, int size);
  // The error to throw when `what` has failed; `hint`, if any, ends the message.
  CommunicationError failed(std::string_view what, std::string_view library, std::string_view why,
                            double time_limit_seconds, std::string_view hint = "") const;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

 private:
  // The arguments have been checked, and no tensor is empty.
  virtual void run(const AllReduce& a) = 0;
  virtual void run(const ReduceScatter& a) = 0;
  virtual void run(const AllGather& a) = 0;
  virtual void run(const AllToAll& a) = 0;
  template <class Collective>
  void start(const Collective& a, const char* name, int64_t bytes);

  CollectiveObserver* observer_ = nullptr;
  Device device_;
  int rank_, size_;
  int64_t started_ = 0;
};

// A communicator that checks its arguments and does nothing, for plans. The observer is told the bytes that
// each rank sends along a ring.
std::unique_ptr<Communicator> make_plan_communicator(Device device, int rank, int size,
                                                     QueueObserver observer = {});

}  // namespace tessera
