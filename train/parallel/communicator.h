// Communicator: collectives over tensors among the ranks of a data-parallel run, one process a rank. NCCL on
// CUDA, Gloo on the CPU.
//
// S ranks, numbered from 0; n elements of a part. Every rank calls the same collectives in the same order
// with tensors of the same sizes and dtypes. Tensors are on the backend's device, in bf16 or fp32; on the
// CPU bf16 can be gathered, not summed.
//   - On CUDA a collective begins when everything that the backend was given before it is done, on a stream
//     of its own and one after the other, while the backend goes on. Until wait() the backend must neither
//     read its results nor write its arguments. On the CPU it is done on return.
//   - Sums have the same bits on all ranks, and each time on the same machines: on the CPU each element is
//     added up once, along the ring; on CUDA in the order that NCCL chooses.
// Errors: arguments that do not fit; CommunicationError, where a rank is gone, hangs, or cannot be reached:
// then a communicator is only good for being destroyed. Destroying one gives up what is not done.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/base/check.h"

namespace tessera {

// The cause is most likely another rank's.
class CommunicationError : public Error {
 public:
  using Error::Error;
};

// With `sums`, a bf16 tensor is converted into it, the sum is taken there in fp32, and rounded once at the
// end; without, bf16 is rounded at every addition.
struct AllReduce {
  Tensor tensor;     // in place
  Tensor sums = {};  // fp32, as many elements as `tensor`; only for a bf16 tensor
};

// A rank's slice of S n elements is those from rank n to (rank + 1) n.
struct ReduceScatter {
  Tensor whole;      // [S n]; afterwards undefined, but for a part that lies in it
  Tensor part;       // [n], the sum of everyone's slice of this rank; may be that slice of what is summed
  Tensor sums = {};  // [S n] fp32, only for a bf16 whole: what is summed; then part is fp32
};

struct AllGather {
  Tensor part;   // [n]; may be this rank's slice of whole
  Tensor whole;  // [S n], everyone's parts in the order of ranks
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }

  void all_reduce_sum(const AllReduce& a);
  void reduce_scatter_sum(const ReduceScatter& a);
  void all_gather(const AllGather& a);

  // How many collectives have begun
  int64_t begun() const { return begun_; }
  // What the backend is given afterwards comes after the first `count` of them. Does not block the host.
  virtual void wait_for(int64_t count) { (void)count; }
  void wait() { wait_for(begun()); }
  // Blocks the host until they are done. Error: that took longer than the time limit, the backend's work that
  // they wait for included, or one failed. Call it before the host reads what depends on a collective: a wait
  // for the backend alone would never end if a rank is gone.
  virtual void synchronize() {}
  // For how long the backend's stream (CPU: the caller) stood still for collectives since the last call: what
  // communication was not hidden. Waits, on the host, for what was to be waited for.
  virtual double take_waited_seconds() { return 0; }
  // Why communication has failed, or "". May be called from another thread while this object lives.
  virtual std::string failure() { return ""; }

 protected:
  Communicator(Device device, int rank, int size);
  // What to throw when `what` has failed; `hint`, if any, ends the message.
  CommunicationError failed(std::string_view what, std::string_view library, std::string_view why,
                            double time_limit_seconds, std::string_view hint = "") const;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

 private:
  // Arguments are checked, and not empty.
  virtual void run(const AllReduce& a) = 0;
  virtual void run(const ReduceScatter& a) = 0;
  virtual void run(const AllGather& a) = 0;

  Device device_;
  int rank_, size_;
  int64_t begun_ = 0;
};

// Gives this rank's bytes to all ranks; returns everyone's, in the order of ranks. All ranks call it
// together.
using Exchange = std::function<std::vector<std::string>(std::string_view mine)>;

struct Ranks {
  int rank = 0, size = 1;
  Exchange exchange = {};          // may be empty for a single rank; used by make_communicator alone
  double time_limit_seconds = 60;  // of every collective; of meeting (through Gloo, five times that)
};

// For tensors of `backend`, which must outlive it. All ranks call this together. Error: they could not meet;
// two ranks on one GPU; no NCCL, or no Gloo, where there are several ranks. A single rank needs neither.
// Where there are several ranks on the CPU the process ignores SIGPIPE from then on: Gloo writes to sockets
// whose other end may be gone.
std::unique_ptr<Communicator> make_communicator(Backend& backend, const Ranks& ranks);

// Checks its arguments and does nothing, for plans.
std::unique_ptr<Communicator> make_plan_communicator(Device device, int rank, int size);

// Whether several ranks can communicate in this build; else `why_not` says what to install. On CUDA NCCL's
// library is looked for.
bool can_communicate(Device device, std::string& why_not);

}  // namespace tessera
