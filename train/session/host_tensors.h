// Tensors of a step that have a twin on the host, in memory that the device copies by itself: the host fills
// one, or reads one, while the device is at work on other operations.
#pragma once

#include <cstring>
#include <memory>
#include <span>

#include "kernels/stream.h"

namespace tessera {

// Filled by the host. None if it was made of no tensor.
class SentTensor {
 public:
  SentTensor() = default;
  SentTensor(const Stream& stream, Arena& host, const Tensor& to) : device_(to) {
    if (!to) return;
    host_ = host.alloc(MemoryTag::kData, "sent to the device", to.dtype, to.shape);
    transfer_ = stream.backend().send(stream.queue(), host_, to);
  }

  const Tensor& device() const { return device_; }

  // Operations of the stream from now on find `values` on the device. As many as the tensor has elements.
  template <class T>
  void send(std::span<const T> values) {
    if (!host_.data) return;  // a plan has no memory
    transfer_->wait();
    std::memcpy(host_.data, values.data(), host_.bytes());
    transfer_->start();
  }

 private:
  Tensor device_, host_;
  std::unique_ptr<Transfer> transfer_;
};

// Read by the host
class FetchedTensor {
 public:
  FetchedTensor() = default;
  FetchedTensor(const Stream& stream, Arena& host, const Tensor& from)
      : device_(from),
        host_(host.alloc(MemoryTag::kData, "fetched from the device", from.dtype, from.shape)),
        transfer_(stream.backend().fetch(stream.queue(), from, host_)) {}

  const Tensor& device() const { return device_; }

  // Copies what the operations before it write. No later one may write the tensor before values() returned.
  void start() { transfer_->start(); }
  // Waits for the last start(); valid until the next
  template <class T = float>
  std::span<const T> values() {
    transfer_->wait();
    return {host_.as<T>(), host_.bytes() / sizeof(T)};
  }

 private:
  Tensor device_, host_;
  std::unique_ptr<Transfer> transfer_;
};

}  // namespace tessera
