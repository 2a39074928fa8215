// A backend that times another: every call waits for the device before and after, so the sum of the times is
// more than a step takes when nothing waits. For `bench step`, not for training.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "kernels/backend.h"

namespace tessera {

struct OpTime {
  int64_t calls = 0;
  double seconds = 0;
};
using OpTimes = std::map<std::string, OpTime>;

// `times` collects, by operation. Both arguments must outlive the backend.
std::unique_ptr<Backend> make_timed_backend(Backend& inner, OpTimes& times);

}  // namespace tessera
