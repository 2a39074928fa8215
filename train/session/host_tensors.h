// Tensors of a step that have a twin on the host, in memory from which the device copies by itself. The host
// fills or reads a twin while the device works on other operations.
#pragma once

#include <cstring>
#include <memory>
#include <span>

#include "kernels/stream.h"

namespace tessera {

// A tensor that the host fills. Made without a tensor, it is none.
class SentTensor {
 public:
  SentTensor() = default;
  SentTensor(const Stream& stream, Arena& host, const Tensor& to) : device_(to) {
    if (!to) return;
    host_ = host.alloc(MemoryTag::kData, "sent to the device", to.dtype, to.shape);
    transfer_ = stream.backend().send(stream.queue(), host_, to);
  }

  const Tensor& device() const { return device_; }

  // Operations that are enqueued after this find `values` on the device. There are as many values as the
  // tensor has elements.
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

// A tensor that the host reads
class FetchedTensor {
 public:
  FetchedTensor() = default;
  FetchedTensor(const Stream& stream, Arena& host, const Tensor& from)
      : device_(from),
        host_(host.alloc(MemoryTag::kData, "fetched from the device", from.dtype, from.shape)),
        transfer_(stream.backend().fetch(stream.queue(), from, host_)) {}

  const Tensor& device() const { return device_; }

  // Copies what earlier operations wrote to the tensor. No later operation may write it before values() has
  // returned.
  void start() { transfer_->start(); }
  // Waits for the last start(). The result is valid until the next start().
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
