// Collectives on the CPU by Gloo, over a TCP connection between every two ranks.
//
// Gloo's ring sums each chunk of a tensor once, passing it along the ranks in order, and then passes on the
// sum: the order of additions depends only on the position in the tensor and on the number of ranks.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoallv.h>
#include <gloo/context.h>
#include <gloo/math.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/system_error.h"
#include "train/parallel/network.h"
#include "train/parallel/transports.h"

namespace tessera {
namespace {

std::shared_ptr<gloo::transport::Device> make_device(const Ranks& ranks) {
  const std::string interface =
      ranks.interface.empty() ? find_network(ranks, Device::kCpu).interface : ranks.interface;
  gloo::transport::tcp::attr attributes;
  (interface.empty() ? attributes.hostname : attributes.iface) = interface.empty() ? "127.0.0.1" : interface;
  // A device starts a thread that reads from all connections. The thread has the scheduling policy of the
  // thread that creates the device. While another thread holds the lock of a connection, it asks for events
  // again and again. Under SCHED_BATCH a message does not interrupt its sender, which holds such a lock, so
  // three ranks on two cores need only 0.6 of the processor time.
  std::shared_ptr<gloo::transport::Device> device;
  std::exception_ptr failure;
  std::thread([&] {
    const sched_param no_priority{};
    sched_setscheduler(0, SCHED_BATCH, &no_priority);  // where it is not allowed, ranks are only slower
    try {
      device = gloo::transport::tcp::CreateDevice(attributes);
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
  return device;
}

// A connection to every other rank; the ranks exchange their addresses
class Mesh final : public gloo::Context {
 public:
  Mesh(const Ranks& ranks, std::chrono::milliseconds time_limit) : gloo::Context(ranks.rank, ranks.size) {
    setTimeout(time_limit);
    device_ = make_device(ranks);
    transportContext_ = device_->createContext(rank, size);
    transportContext_->setTimeout(time_limit);
    std::string mine;  // one address for each other rank, in their order
    for (int i = 0; i < size; ++i) {
      if (i == rank) continue;
      const std::vector<char> address = transportContext_->createPair(i)->address().bytes();
      mine.append(address.begin(), address.end());
    }
    const std::vector<std::string> theirs = ranks.exchange(mine);
    const auto bytes = static_cast<std::ptrdiff_t>(mine.size()) / (size - 1);  // of one address
    for (int i = 0; i < size; ++i) {
      if (i == rank) continue;
      check(theirs[i].size() == mine.size(),
            "ranks {} and {} have different versions of Gloo. Run the same program on every machine", i,
            rank);
      const auto address = theirs[i].begin() + bytes * (rank < i ? rank : rank - 1);
      transportContext_->getPair(i)->connect({address, address + bytes});
    }
  }
};

class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(const Ranks& ranks)
      : Communicator(Device::kCpu, ranks.rank, ranks.size), time_limit_seconds_(ranks.time_limit_seconds) {
    std::signal(SIGPIPE, SIG_IGN);
    const std::chrono::milliseconds limit(static_cast<int64_t>(std::ceil(1000 * time_limit_seconds_)));
    guarded("connecting", [&] { mesh_ = std::make_shared<Mesh>(ranks, limit); });
    waited_seconds_ = 0;  // of collectives alone
  }

  double take_waited_seconds() override { return std::exchange(waited_seconds_, 0); }

 private:
  void run(const AllReduce& a) override { sum("all_reduce_sum", a.tensor); }

  void run(const ReduceScatter& a) override {
    sum("reduce_scatter_sum", a.whole);
    const float* mine = a.whole.as<float>() + rank() * a.part.numel();
    if (a.part.data != mine) std::memcpy(a.part.data, mine, a.part.bytes());
  }

  void run(const AllGather& a) override {
    char* mine = a.whole.as<char>() + static_cast<size_t>(rank()) * a.part.bytes();
    if (a.part.data != mine) std::memcpy(mine, a.part.data, a.part.bytes());
    guarded("all_gather", [&] {
      gloo::AllgatherOptions options(mesh_);
      options.setOutput(a.whole.as<char>(), a.whole.bytes());
      gloo::allgather(options);
    });
  }

  // Gloo sends one piece of memory to each rank.
  void run(const AllToAll& a) override {
    const auto ordered = [&](std::span<const AllToAll::Message> messages) {
      std::vector<AllToAll::Message> all(messages.begin(), messages.end());
      std::ranges::stable_sort(all, {}, &AllToAll::Message::rank);
      return all;
    };
    const auto counts = [&](std::span<const AllToAll::Message> messages) {
      std::vector<int64_t> bytes(size());
      for (const auto& one : messages) bytes[one.rank] += static_cast<int64_t>(one.tensor.bytes());
      return bytes;
    };
    const auto sends = ordered(a.sends), receives = ordered(a.receives);
    std::vector<int64_t> to = counts(sends), from = counts(receives);
    std::vector<char> sent(std::accumulate(to.begin(), to.end(), size_t{0})),
        received(std::accumulate(from.begin(), from.end(), size_t{0}));
    char* at = sent.data();
    for (const auto& one : sends) at = std::copy_n(one.tensor.as<char>(), one.tensor.bytes(), at);
    guarded("all_to_all", [&] {
      gloo::AlltoallvOptions options(mesh_);
      options.setInput(sent.data(), std::move(to));
      options.setOutput(received.data(), std::move(from));
      gloo::alltoallv(options);
    });
    at = received.data();
    for (const auto& one : receives) {
      std::copy_n(at, one.tensor.bytes(), one.tensor.as<char>());
      at += one.tensor.bytes();
    }
  }

  void sum(const char* op, const Tensor& tensor) {
    guarded(op, [&] {
      gloo::AllreduceOptions options(mesh_);
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      options.setOutput(tensor.as<float>(), tensor.numel());
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      gloo::allreduce(options);
    });
  }

  template <class Call>
  void guarded(const char* op, Call&& call) {
    const Clock::time_point start = Clock::now();
    try {
      call();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw failed(op, "Gloo", error.what(), time_limit_seconds_);
    }
    waited_seconds_ += seconds_since(start);
  }

  double time_limit_seconds_, waited_seconds_ = 0;
  std::shared_ptr<Mesh> mesh_;
};

}  // namespace

bool gloo_available(std::string&) { return true; }

std::unique_ptr<Communicator> make_gloo_communicator(const Ranks& ranks) {
  return std::make_unique<GlooCommunicator>(ranks);
}

}  // namespace tessera
