// Which parameters a run does not train. A frozen one has no gradient, no moments and no master; the backward
// still passes through it.
#pragma once

#include <string>
#include <vector>

#include "model/part.h"

namespace tessera {

class Freeze {
 public:
  struct Blocks {
    int64_t first, last;  // both included
    bool operator==(const Blocks&) const = default;
  };

  void add(ParamPart part) { parts_ |= 1u << static_cast<int>(part); }
  void add(Blocks blocks) { blocks_.push_back(blocks); }
  static Freeze all_but_adapters() {
    Freeze freeze;
    freeze.all_but_adapters_ = true;
    return freeze;
  }

  bool names(ParamPart part) const { return parts_ >> static_cast<int>(part) & 1; }
  bool freezes(const ParamInfo& info) const;
  int64_t last_block() const;  // the largest number of a named block; -1: none is named
  explicit operator bool() const { return parts_ != 0 || !blocks_.empty() || all_but_adapters_; }
  bool operator==(const Freeze&) const = default;
  const std::vector<Blocks>& blocks() const { return blocks_; }

 private:
  unsigned parts_ = 0;  // a bit for each ParamPart
  bool all_but_adapters_ = false;
  std::vector<Blocks> blocks_;
};

inline constexpr const char* kBlocksWord = "blocks:";

// "none", or words with a plus between them: "embeddings+blocks:0-5"
std::string text_of(const Freeze& freeze);

}  // namespace tessera
