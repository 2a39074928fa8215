// Backend: a device that runs the operations of ops.h.
//
// run() is the one way in: it checks the arguments (Op::check_on), tells the observers, and calls the
// device's do_(). A backend keeps no scratch and no queue of its own choosing: both come with the launch.
// Callers that run many operations pass a Stream (stream.h), which keeps them together.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/ops.h"

struct CUstream_st;

namespace tessera {

class GemmLibrary;  // gemm.h

// Where an operation runs, and the scratch that it may use. Operations of one stream run one after another,
// so they can share a workspace; each begins at its first byte and leaves nothing there for the next.
struct Launch {
  Tensor workspace = {};          // on the backend's device; see workspace_bytes()
  CUstream_st* stream = nullptr;  // null on the CPU

  // The workspace from its start; fails with the numbers if it is smaller than `bytes`. A second
  // call returns the same bytes: call it again only when the first contents are no longer needed.
  char* scratch(const char* op, int64_t bytes) const;
};

class Backend;

// Where in a step the operations that follow stand
struct OpPlace {
  static constexpr int64_t kOutside = -1, kTables = -2, kHead = -3;
  int64_t block = kOutside;  // kTables: of tokens and positions; kHead: the final norm, logits and loss
  bool backward = false;
  int64_t micro_batch = kOutside;  // counted from 0
};

// Told before and after every operation of a backend, in the order of the calls. On CUDA the operation has
// then been enqueued, not done: launch.stream tells which stream to wait for.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void before(const AnyOp& op, Backend& backend, const Launch& launch) = 0;
  virtual void after(const AnyOp& op, Backend& backend, const Launch& launch) = 0;
  // Within the one operation that has parts, after each of them but the last
  virtual void after_part(LinearBackward::Part /*part*/, Backend& /*backend*/, const Launch& /*launch*/) {}
};

// A copy between the host and the device that neither of them waits for, again and again
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void start() = 0;  // enqueues it
  virtual void wait() = 0;   // until the last one is done; returns at once if there was none
};

// Copies between a device and host memory of Arena::mapped(), beside the operations of a stream: one start()
// after the other, in a queue of their own. It owns the tensors of a start() until wait_for() says that this
// is done: before, no operation may read or write them.
//
// A queue that poisons, for tests, fills with NaN what a copy will write, and what it has read unless that
// stays (kTargets). So a tensor that is read too late or too early shows as NaN, and so does, on the CPU, one
// that is written before wait_for().
class CopyQueue {
 public:
  virtual ~CopyQueue() = default;
  // Begins when the operations that the stream was given before are done. Error: two tensors of a copy differ
  // in dtype or size.
  void start(std::span<const Copy> copies);
  int64_t started() const { return started_; }
  // Operations that the stream is given later wait for the first `count` starts. Does not block the host.
  virtual void wait_for(int64_t count) = 0;

 private:
  virtual void do_start(std::span<const Copy> copies) = 0;
  int64_t started_ = 0;
};
enum class Poison : uint8_t { kNo, kTargets, kYes };

// Operations that run again and again with the same arguments, on CUDA as a CUDA graph. What changes is in
// the tensors.
class OpGraph {
 public:
  virtual ~OpGraph() = default;
  virtual void run() = 0;  // enqueues them once
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const DeviceTraits& traits() const = 0;
  Device device() const { return traits().device; }

  template <class Op>
  void run(const Op& op, const Launch& launch) {
    run(AnyOp(&op), launch);
  }
  void run(const AnyOp& op, const Launch& launch);

  virtual void synchronize(CUstream_st* stream) = 0;  // waits for what was enqueued on it
  // The stream that the backend has for its callers; null on the CPU. It lives as long as the backend.
  virtual CUstream_st* stream() const { return nullptr; }
  // Whose algorithms can be chosen; null where there is no choice
  virtual GemmLibrary* gemms() { return nullptr; }

  // What `operations` runs, all on one stream, as one unit that can be run again. On CUDA the first run()
  // that no observer watches captures a CUDA graph: its launches cost no host time, and the kernels of
  // decoding read their weights ahead, while the one before still runs. So none of the operations may
  // write what a later one takes as a weight, and none may be a Copy from or to the host. Where there are
  // observers, and on other devices, run() calls `operations`. The backend, and what they refer to, must
  // outlive it.
  std::unique_ptr<OpGraph> make_graph(CUstream_st* stream, std::function<void()> operations);

  // `to` is of Arena::pinned(device()) and as large as `from`. It gets what the operations before start()
  // write, while later ones already run: none of them may write `from` before wait() has returned. The
  // backend must outlive it.
  virtual std::unique_ptr<Transfer> fetch(CUstream_st* stream, const Tensor& from, const Tensor& to);
  // The other direction: `from` is of Arena::pinned(device()). The operations after start() read what the
  // host wrote before it. The host may write `from` again when wait() has returned.
  virtual std::unique_ptr<Transfer> send(CUstream_st* stream, const Tensor& from, const Tensor& to);

  // The backend and the tensors must outlive it. Its copies cannot be captured in a graph.
  virtual std::unique_ptr<CopyQueue> make_copy_queue(CUstream_st* stream, Poison poison);

  // The model says where it is, for observers alone.
  OpPlace& place() { return place_; }

  // From now on; the observer must outlive the backend or be removed.
  void add_observer(OpObserver& observer) { observers_.push_back(&observer); }
  void remove_observer(OpObserver& observer) { std::erase(observers_, &observer); }

 protected:
  // What a device has captured, to be enqueued again
  class DeviceGraph {
   public:
    virtual ~DeviceGraph() = default;
    virtual void launch() = 0;
  };
  void tell_part(LinearBackward::Part part, const Launch& launch);  // to the observers

 private:
  class CapturedOnFirstRun;
  // The device's implementation, of arguments that have been checked.
  virtual void do_(const AnyOp& op, const Launch& launch) = 0;
  // Null: the device captures nothing, and `operations` was not called.
  virtual std::unique_ptr<DeviceGraph> capture(CUstream_st* /*stream*/,
                                               const std::function<void()>& /*operations*/) {
    return nullptr;
  }

  std::vector<OpObserver*> observers_;
  OpPlace place_;
};

// Scratch that the operations of a device need for batches of up to `rows` = B T rows, models of `channels`,
// and linear layers with a bias of up to `features` outputs. Needs no device.
int64_t workspace_bytes(Device device, int64_t rows, int64_t channels, int64_t features);

std::unique_ptr<Backend> make_cpu_backend();
std::unique_ptr<Backend> make_cuda_backend();  // fails without a CUDA build or device
// Who is told what a queue beside a stream is asked for
struct QueueObserver {
  std::function<void(int64_t bytes)> start = {};     // that are sent or copied
  std::function<void(int64_t count)> wait_for = {};  // until the first `count` starts are done
};
// Checks arguments and does nothing: walking a step with it over Arena::plan() gives the step's memory, on a
// machine without the device.
// `see` gets every operation; `observe` gives each queue of copies, when it is made, whom to tell.
std::unique_ptr<Backend> make_plan_backend(const DeviceTraits& traits,
                                           std::function<void(const AnyOp&)> see = {},
                                           std::function<QueueObserver()> observe = {});

// Bytes of FusedDecodeStep::memory with which a device computes these operations as one kernel; 0: it runs
// them one by one. By their shapes alone.
int64_t decode_step_bytes(std::span<const DecodeOp> operations, const DeviceTraits& device);
// Why it runs them one by one: "head dim 160: more than 128"; "" where they are one kernel
std::string why_not_one_kernel(std::span<const DecodeOp> operations, const DeviceTraits& device);

// How many GPUs this process can see; 0 without a CUDA build or driver.
int count_cuda_devices();
// Makes GPU `index` of those the current one of the calling thread, and of threads that call this too.
void use_cuda_device(int index);

// The traits of the current CUDA device; false, with the reason, if there is none that can be used.
bool find_cuda_device(DeviceTraits& traits, std::string& why_not);

}  // namespace tessera
