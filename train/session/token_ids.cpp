#include "train/session/token_ids.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {
namespace {

// Kernels read and write rows of tables by these ids; on a GPU an access past the end would not be caught.
void check_ids(const char* what, std::span<const int32_t> ids, int64_t vocab_size) {
  uint32_t largest = 0;  // negative ids are the largest
  for (const int32_t id : ids) largest = std::max(largest, static_cast<uint32_t>(id));
  if (largest < static_cast<uint64_t>(vocab_size)) return;
  const auto wrong = std::find(ids.begin(), ids.end(), static_cast<int32_t>(largest));
  fail(
      "{} {} (number {} of {}) is outside the model's vocabulary of {} tokens, 0 to {}. Set model.vocab_size "
      "to that of the tokenizer that made the data, or prepare the data again",
      what, *wrong, wrong - ids.begin() + 1, ids.size(), vocab_size, vocab_size - 1);
}

}  // namespace

void copy_ids(const Stream& stream, const char* what, std::span<const int32_t> ids, int64_t vocab_size,
              const Tensor& to) {
  check(!to.data || std::ssize(ids) == to.numel(), "{}s wanted: {} for {}, found: {}", what, to.numel(),
        to.shape.to_string(), ids.size());
  check_ids(what, ids, vocab_size);
  stream.run(Copy{{const_cast<int32_t*>(ids.data()), DType::kI32, to.shape, Device::kCpu}, to});
}

}  // namespace tessera
