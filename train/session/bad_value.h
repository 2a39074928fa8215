// Finds the operation with which a step goes bad: the first that computes a NaN or an infinite value. The
// step is computed once more for this search, which looks at all that each operation reads and writes, and so
// takes far longer than a step.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/operands.h"
#include "train/session/train_state.h"

namespace tessera {

// An operand as it was when an operation began, or what the operation wrote
struct LookedAt {
  std::string field;   // "dx"
  std::string memory;  // "blocks.3.mlp.expand.weight", "MLP hidden layer"; "": not known
  Tensor tensor;       // its shape and dtype
  Inspected values;

  // "x (MLP hidden layer, fp32 [4, 1024, 768] on cpu)"
  std::string name() const;
  // "-0.4 to 2.5, largest magnitude 2.5"; "nothing finite"
  std::string range() const;
  // "17 of 4096 values are not finite, the first at [0, 3, 5]"
  std::string bad() const;
};

struct BadValue {
  int64_t number;         // the operation's number in the step; all ranks count alike
  std::string operation;  // "linear forward"
  OpPlace place;
  LookedAt found;              // what it wrote; or an operand that was bad before and that no operation wrote
  bool was_read = false;       // `found` is such an operand
  std::vector<LookedAt> read;  // all that the operation read
  // Sequences of the micro-batch with bad values, and the token of the first; empty: its rows are no tokens
  std::vector<int64_t> sequences = {};
  std::optional<int64_t> token = {};  // in the first of these; none where ranks share sequences
};

// "linear forward in block 3, in the backward, micro-batch 2 of 4"
std::string place_of(const BadValue& bad, int64_t micro_steps);

class BadValueSearch final : public OpObserver {
 public:
  // Watches the operations of `state` while it exists. Its results are in the workspace of the state's
  // stream.
  explicit BadValueSearch(TrainState& state);
  ~BadValueSearch() override;
  BadValueSearch(const BadValueSearch&) = delete;
  BadValueSearch& operator=(const BadValueSearch&) = delete;

  const std::optional<BadValue>& found() const { return found_; }

  void before(const AnyOp& op, Backend& backend, const Launch& launch) override;
  void after(const AnyOp& op, Backend& backend, const Launch& launch) override;

 private:
  Inspected inspect(const Operand& operand);
  LookedAt look_at(const Operand& operand);
  void note(const AnyOp& op, LookedAt bad, const Operand& written);
  void find_sequences(const Operand& written);

  TrainState& state_;
  std::vector<LookedAt> read_;  // by the operation that is running
  std::optional<BadValue> found_;
  int64_t number_ = 0;
  bool own_ = false;  // whether operations of this object are running
};

}  // namespace tessera
