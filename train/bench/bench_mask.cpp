#include "train/bench/bench_mask.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "kernels/base/check.h"
#include "kernels/base/random.h"
#include "model/sparse.h"

namespace tessera {
namespace {

// The number behind "window:" or "documents:"; 0: it is none
int64_t number_in(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && number <= (int64_t{1} << 30) ? std::max<int64_t>(number, 0) : 0;
}

// Documents that follow one another from the first sequence to the last; length(d) of document d
std::shared_ptr<const std::vector<int32_t>> documents_of(int64_t batch, int64_t tokens,
                                                         const std::function<int64_t(int64_t)>& length) {
  auto table = std::make_shared<std::vector<int32_t>>();
  table->reserve(static_cast<size_t>(2 * batch * tokens));
  int64_t document = 0;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t begin = 0; begin < tokens;) {
      const int64_t end = std::min(tokens, begin + length(document++));
      for (; static_cast<int64_t>(table->size()) < 2 * (b * tokens + end);) {
        table->push_back(static_cast<int32_t>(begin));
        table->push_back(static_cast<int32_t>(end));
      }
      begin = end;
    }
  }
  return table;
}

int64_t mixed_length(int64_t document) {
  static const Philox random(1, 0);
  const double mu = std::log(kMeanLength) - kSigmaOfLength * kSigmaOfLength / 2;
  const double length = std::exp(mu + kSigmaOfLength * random.normal(static_cast<uint64_t>(document)));
  return std::max<int64_t>(1, std::llround(length));
}

// "8+2+3": the last 8 blocks, the first 2, 3 at random; without the last, or the last two: 0 of them
std::shared_ptr<const BlockLists> blocks_of(std::string_view text, int64_t tokens) {
  int64_t numbers[3] = {};
  for (int64_t& number : numbers) {
    if (text.empty()) break;
    const size_t plus = std::min(text.find('+'), text.size());
    number = number_in(text.substr(0, plus));
    text.remove_prefix(std::min(plus + 1, text.size()));
  }
  const SparsePattern pattern{.window = numbers[0], .global = numbers[1], .random = numbers[2]};
  if (!pattern || !text.empty()) return nullptr;
  return std::make_shared<const BlockLists>(pattern.lists(tokens));
}

}  // namespace

BenchMask parse_mask(const std::string& name, int64_t batch, int64_t tokens) {
  BenchMask made{.name = name};
  made.mask.causal = name != "full";
  if (name == "full" || name == "causal") return made;
  const size_t colon = std::min(name.find(':'), name.size());
  const std::string kind = name.substr(0, colon), size = name.substr(std::min(colon + 1, name.size()));
  const int64_t number = number_in(size);
  if (kind == "window" && number > 0) {
    made.mask.window = number;
    return made;
  }
  if (kind == "blocks") made.blocks = blocks_of(size, tokens);
  if (made.blocks) {
    made.mask.blocks = made.blocks->blocks();
    return made;
  }
  if (const size_t times = size.find('x'); kind == "chosen" && times != size.npos) {
    const int64_t count = number_in(size.substr(0, times)),
                  tokens_of_block = number_in(size.substr(times + 1));
    check(count > 0 && tokens_of_block > 0, "expected chosen:KxN, as in chosen:8x512, found \"{}\"", name);
    made.mask.choice = {.size = static_cast<int>(tokens_of_block), .count = static_cast<int>(count)};
    return made;
  }
  check(kind == "documents" && (number > 0 || size == "mixed"),
        "unknown mask \"{}\"; known: causal, full, window:N, documents:N (N tokens, as in window:1024), "
        "documents:mixed, blocks:W+G+R (blocks of 128, as in blocks:8+2) and chosen:KxN (K blocks of N "
        "tokens, as "
        "in chosen:8x512)",
        name);
  made.documents = number > 0 ? documents_of(batch, tokens, [&](int64_t) { return number; })
                              : documents_of(batch, tokens, mixed_length);
  made.mask.documents = made.documents->data();
  return made;
}

}  // namespace tessera
