// What a rendering of a template may use. A template comes with the files of a model, and is a program: its
// author may have written one that never ends, or one that takes all memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::jinja {

// While it lives, what this thread makes of values counts against it. The limits grow with the conversation.
class Budget {
 public:
  explicit Budget(int64_t input_bytes);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // Work in steps: one for a node of the template, an element, a comparison. Nothing is counted outside of a
  // rendering. Error: there are more than the limit.
  static void spend(int64_t steps) {
    if (current_) current_->count(steps);
  }
  // Bytes that are searched, compared or copied
  static void spend_bytes(size_t bytes) { spend(static_cast<int64_t>(bytes / kBytesOfStep)); }

  // Elements that are copied
  static void spend_elements(size_t count) { spend(static_cast<int64_t>(count / kElementsOfStep)); }

  // Memory that values take now. Returns what is to be released: nothing outside of a rendering.
  static size_t hold(size_t bytes) {
    if (current_) current_->take(bytes);
    return current_ ? bytes : 0;
  }
  static void release(size_t bytes) noexcept {
    if (current_) current_->held_ -= static_cast<int64_t>(bytes);
  }

 private:
  static constexpr size_t kBytesOfStep = 32, kElementsOfStep = 4;
  void count(int64_t steps) {
    if ((work_ += steps) > most_work_) refuse_work();
  }
  void take(size_t bytes) {
    if (static_cast<int64_t>(bytes) > most_bytes_ - held_) refuse_bytes();
    held_ += static_cast<int64_t>(bytes);
  }
  [[noreturn]] void refuse_work() const;
  [[noreturn]] void refuse_bytes() const;

  static inline thread_local Budget* current_ = nullptr;
  Budget* const before_;
  const int64_t input_, most_work_, most_bytes_;
  int64_t work_ = 0, held_ = 0;
};

// Counts what containers hold.
template <class T>
struct Counted {
  using value_type = T;
  Counted() = default;
  template <class Other>
  Counted(const Counted<Other>&) noexcept {}
  T* allocate(size_t count) {
    Budget::hold(count * sizeof(T));
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T* at, size_t count) noexcept {
    std::allocator<T>().deallocate(at, count);
    Budget::release(count * sizeof(T));
  }
  bool operator==(const Counted&) const = default;
};

}  // namespace tessera::jinja
