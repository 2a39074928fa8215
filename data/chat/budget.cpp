#include "data/chat/budget.h"

#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera::jinja {
namespace {

// What published templates need of a long conversation is a hundredth of this.
constexpr int64_t kSteps = 2'000'000, kStepsOfByte = 50;
constexpr int64_t kBytes = int64_t{128} << 20, kBytesOfByte = 32;

constexpr const char* kWhy =
    "A chat template is a program that comes with a model's files: read it before you trust it";

}  // namespace

Budget::Budget(int64_t input_bytes)
    : before_(std::exchange(current_, this)),
      input_(input_bytes),
      most_work_(kSteps + kStepsOfByte * input_bytes),
      most_bytes_(kBytes + kBytesOfByte * input_bytes) {}
Budget::~Budget() { current_ = before_; }

void Budget::refuse_work() const {
  fail("the template takes more than {} steps, the limit for a conversation of {}. {}",
       format_count(static_cast<double>(most_work_)), format_bytes(input_), kWhy);
}
void Budget::refuse_bytes() const {
  fail("the template makes values of more than {}, the limit for a conversation of {}. {}",
       format_bytes(most_bytes_), format_bytes(input_), kWhy);
}

}  // namespace tessera::jinja
