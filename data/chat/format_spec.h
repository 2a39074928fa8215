// One number or text as a format of Python writes it: what "%5.2f" and "{:5.2f}" share.
#pragma once

#include <charconv>
#include <string>

#include "data/chat/value.h"
#include "kernels/base/check.h"

namespace tessera::jinja {

// How one value is written
struct Spec {
  Text fill = " ";
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternative = false, zeros = false;
  int64_t width = 0, precision = -1;
  char grouping = 0;
  char type = 0;
};

// Reads a format's text from the left.
class Reader {
 public:
  explicit Reader(const Text& text) : text_(text) {}
  bool ended() const { return at_ >= text_.size(); }
  char now() const { return ended() ? '\0' : text_.bytes()[at_]; }
  char next() {
    check(!ended(), "a format is incomplete");
    return text_.bytes()[at_++];
  }
  bool take(char c) {
    if (ended() || now() != c) return false;
    ++at_;
    return true;
  }
  int64_t number(int64_t fallback) {
    int64_t value = fallback;
    const char* const first = text_.bytes().data() + at_;
    const auto read = std::from_chars(first, text_.bytes().data() + text_.size(), value);
    if (now() == '-' || read.ptr == first) return fallback;
    check(read.ec == std::errc() && value <= INT32_MAX, "a number in a format is too large");
    at_ += static_cast<size_t>(read.ptr - first);
    return value;
  }
  size_t at() const { return at_; }
  void move_to(size_t at) { at_ = at; }

 private:
  const Text& text_;
  size_t at_ = 0;
};

// `body` in the width; `sign` and prefix stay before zeros.
Text padded(const Text& body, const std::string& sign, const Spec& spec, char usual_align);
std::string sign_of(bool negative, char sign);
Text whole_number(const Value& value, const Spec& spec);
Text real_number(double x, const Spec& spec);

// x with that many digits after the point, as C's printf writes it
std::string fixed(double x, int digits);

}  // namespace tessera::jinja
