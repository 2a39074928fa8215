// WeightSource: brings values that are split over ranks, or lie in host memory, to the device as a whole,
// beside the operations.
#pragma once

#include <memory>
#include <span>

#include "model/store/setting.h"

namespace tessera {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Starts to bring all values to `whole`. `own`: this rank's part of them
  virtual void start(const Tensor& own, const Tensor& whole) = 0;
  virtual int64_t started() const = 0;
  virtual void wait_for(int64_t count) = 0;  // waits for the first `count` starts; does not block the host
};

class FromRanks : public WeightSource {
 public:
  explicit FromRanks(Communicator& axis) : axis_(axis) {}
  void start(const Tensor& own, const Tensor& whole) override {
    axis_.all_gather({.part = own, .whole = whole});
  }
  int64_t started() const override { return axis_.started(); }
  void wait_for(int64_t count) override { axis_.wait_for(count); }

 private:
  Communicator& axis_;
};

class FromHost : public WeightSource {
 public:
  explicit FromHost(std::unique_ptr<CopyQueue> copies) : copies_(std::move(copies)) {}
  void start(const Tensor& own, const Tensor& whole) override {
    const Copy copy{.from = own, .to = whole};
    copies_->start(std::span(&copy, 1));
  }
  int64_t started() const override { return copies_->started(); }
  void wait_for(int64_t count) override { copies_->wait_for(count); }

 private:
  std::unique_ptr<CopyQueue> copies_;
};

// A collective reads only the device's memory: each rank first copies its part to the part's place there.
class FromHostsOfRanks final : public FromRanks {
 public:
  FromHostsOfRanks(Communicator& axis, Part part, std::unique_ptr<CopyQueue> copies)
      : FromRanks(axis), part_(part), host_(std::move(copies)) {}
  void start(const Tensor& own, const Tensor& whole) override {
    const Tensor part = part_.of(whole);
    host_.start(own, part);
    host_.wait_for(host_.started());
    FromRanks::start(part, whole);
  }

 private:
  Part part_;
  FromHost host_;
};

}  // namespace tessera
