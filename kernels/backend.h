// Backend: a device that runs the operations of ops.h.
//
// run() is the only way to run an operation. It checks the arguments (Op::check_on), tells the observers, and
// calls the device's do_(). A backend chooses neither the scratch nor the queue: both come with the launch.
// Callers that run many operations pass a Stream (stream.h), which keeps these two together with the backend.
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

// Where an operation runs, and the scratch that it may use. The operations of a stream run one after another,
// so they can share a workspace: each uses it from the first byte on and leaves nothing there for the next
// one.
struct Launch {
  Tensor workspace = {};          // on the backend's device; see workspace_bytes()
  CUstream_st* stream = nullptr;  // null on the CPU

  // The workspace from its first byte on. Error: it is smaller than `bytes`. A second call returns the same
  // bytes, so call it again only when the first contents are no longer needed.
  char* scratch(const char* op, int64_t bytes) const;
};

class Backend;

// The place in a step of the operations that follow
struct OpPlace {
  static constexpr int64_t kOutside = -1, kTables = -2, kHead = -3;
  int64_t block = kOutside;  // kTables: of tokens and positions; kHead: the final norm, logits and loss
  bool backward = false;
  int64_t micro_batch = kOutside;  // counted from 0
};

// An observer is told before and after every operation of a backend, in the order of the calls. On CUDA the
// operation has then been enqueued, but has not run: launch.stream is the stream to wait for.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void before(const AnyOp& op, Backend& backend, const Launch& launch) = 0;
  virtual void after(const AnyOp& op, Backend& backend, const Launch& launch) = 0;
  // For LinearBackward, which has parts: after each part but the last
  virtual void after_part(LinearBackward::Part /*part*/, Backend& /*backend*/, const Launch& /*launch*/) {}
};

// A copy between the host and the device that can be started again and again, and for which neither of them
// waits
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void start() = 0;  // enqueues it
  virtual void wait() = 0;   // until the last one is done; returns at once if there was none
};

// Copies between a device and host memory of Arena::mapped(), which run beside the operations of a stream.
// The copies of one start() follow those of another, in a queue of their own. A start() owns its tensors
// until wait_for() says that it is done: before that, no operation may read or write them.
//
// A queue that poisons is for tests. It fills with NaN what a copy will write, and, with kYes, also what a
// copy has read. So a tensor that is read too late or too early shows as NaN. On the CPU, so does a tensor
// that is written before wait_for().
class CopyQueue {
 public:
  virtual ~CopyQueue() = default;
  // The copies begin when the operations that the stream was given before are done. Error: the two tensors of
  // a copy differ in dtype or size.
  void start(std::span<const Copy> copies);
  int64_t started() const { return started_; }
  // Operations that the stream is given later wait until the first `count` starts are done. Does not block
  // the host.
  virtual void wait_for(int64_t count) = 0;

 private:
  virtual void do_start(std::span<const Copy> copies) = 0;
  int64_t started_ = 0;
};
enum class Poison : uint8_t { kNo, kTargets, kYes };

// Operations that run again and again with the same arguments, on CUDA as a CUDA graph. Only the contents of
// the tensors change between two runs.
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
  // The stream that the backend provides for its callers; null on the CPU. It lives as long as the backend.
  virtual CUstream_st* stream() const { return nullptr; }
  // The library of GEMMs whose algorithms can be chosen; null where there is no choice
  virtual GemmLibrary* gemms() { return nullptr; }

  // Makes one unit of what `operations` runs, all on one stream, so that it can be run again. On CUDA the
  // first run() that no observer watches captures a CUDA graph. Its launches cost no host time, and the
  // kernels of decoding read their weights ahead, while the kernel before them still runs. So no operation
  // may write what a later one takes as a weight, and none may be a Copy from or to the host. If there are
  // observers, and on other devices, run() calls `operations`. The backend, and all that `operations` refers
  // to, must outlive the unit.
  std::unique_ptr<OpGraph> make_graph(CUstream_st* stream, std::function<void()> operations);

  // Copies `from` to the host. `to` is of Arena::pinned(device()) and as large as `from`. The copy has what
  // the operations before start() wrote, and later operations already run beside it: none of them may write
  // `from` before wait() has returned. The backend must outlive the Transfer.
  virtual std::unique_ptr<Transfer> fetch(CUstream_st* stream, const Tensor& from, const Tensor& to);
  // Copies to the device; `from` is of Arena::pinned(device()). The operations after start() read what the
  // host wrote before it. The host may write `from` again when wait() has returned.
  virtual std::unique_ptr<Transfer> send(CUstream_st* stream, const Tensor& from, const Tensor& to);

  // The backend and the tensors must outlive the queue. Its copies cannot be captured in a graph.
  virtual std::unique_ptr<CopyQueue> make_copy_queue(CUstream_st* stream, Poison poison);

  // The model writes its current place here; only observers read it.
  OpPlace& place() { return place_; }

  // The observer is told from now on. It must outlive the backend or be removed.
  void add_observer(OpObserver& observer) { observers_.push_back(&observer); }
  void remove_observer(OpObserver& observer) { std::erase(observers_, &observer); }

 protected:
  // What a device has captured, to be enqueued again
  class DeviceGraph {
   public:
    virtual ~DeviceGraph() = default;
    virtual void launch() = 0;
  };
  void tell_part(LinearBackward::Part part, const Launch& launch);  // tells the observers

 private:
  class CapturedOnFirstRun;
  // The device's implementation. The arguments have been checked.
  virtual void do_(const AnyOp& op, const Launch& launch) = 0;
  // Null: the device cannot capture, and `operations` was not called.
  virtual std::unique_ptr<DeviceGraph> capture(CUstream_st* /*stream*/,
                                               const std::function<void()>& /*operations*/) {
    return nullptr;
  }

  std::vector<OpObserver*> observers_;
  OpPlace place_;
};

// The bytes of scratch that the operations of a device need, for batches of up to `rows` = B T rows, models
// of `channels`, and linear layers with a bias of up to `features` outputs. Needs no device.
int64_t workspace_bytes(Device device, int64_t rows, int64_t channels, int64_t features);

std::unique_ptr<Backend> make_cpu_backend();
std::unique_ptr<Backend> make_cuda_backend();  // fails without a CUDA build or device
// For plans: is told what each queue is asked for
struct QueueObserver {
  std::function<void(int64_t bytes)> start = {};     // the bytes that are sent or copied
  std::function<void(int64_t count)> wait_for = {};  // the number of starts that are waited for
};
// A backend that checks arguments and computes nothing. A step that runs with it over Arena::plan() gives the
// step's memory, on a machine without the device. `see` gets every operation. `observe` is called for each
// queue of copies when it is made, and returns the observer of that queue.
std::unique_ptr<Backend> make_plan_backend(const DeviceTraits& traits,
                                           std::function<void(const AnyOp&)> see = {},
                                           std::function<QueueObserver()> observe = {});

// The bytes of FusedDecodeStep::memory that the device needs to compute these operations as one kernel; 0: it
// runs them one by one. Depends only on their shapes.
int64_t decode_step_bytes(std::span<const DecodeOp> operations, const DeviceTraits& device);
// Why the device runs them one by one: "head dim 160: more than 128"; "" if they are one kernel
std::string why_not_one_kernel(std::span<const DecodeOp> operations, const DeviceTraits& device);

// How many GPUs this process can see; 0 without a CUDA build or driver.
int count_cuda_devices();
// Makes GPU `index` of these the current one of the calling thread. Other threads have to call it themselves.
void use_cuda_device(int index);

// Finds the traits of the current CUDA device. False, with the reason: no device can be used.
bool find_cuda_device(DeviceTraits& traits, std::string& why_not);

}  // namespace tessera
