// RowCheck: computes some rows of attention again on the host, in fp64, from the tensors that the kernel
// read. It needs no N x N matrix, so it works at any length. It takes the places of documents from the data,
// not from the tables that the kernel got.
//
// For a query i it computes the output y_i = sum_j P_ij v_j, the log-sum-exp, and dQ_i. For a key j it
// computes dK_j and dV_j. These use the log-sum-exp and the output of all queries that see the key, as the
// kernel wrote them, so they need a kernel that writes a log-sum-exp. Every error of a head is compared with
// the error that the roundings inside the kernel are expected to cause.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "data/sequences.h"
#include "kernels/backend.h"
#include "model/sparse.h"
#include "train/prove/proof.h"

namespace tessera {

// Copies tensors of operations to the host, in fp32. A tensor that was read is not read again before
// forget(). Memory that nobody uses any more is used for the next tensor, because large memory is slow to
// allocate.
class HostMemory {
 public:
  std::shared_ptr<const float[]> read(const Tensor& tensor, Backend& be, const Launch& on);  // waits for it
  std::shared_ptr<float[]> take(int64_t count);                                              // its values are
                                                                                             // undefined
  void forget() { read_.clear(); }

 private:
  struct Piece {
    std::shared_ptr<float[]> memory;
    int64_t count;
  };
  std::vector<Piece> pieces_;
  std::vector<std::pair<Tensor, std::shared_ptr<const float[]>>> read_;
};

// The heads of an operation, on the host and in fp32
struct HostHeads {
  std::shared_ptr<const float[]> values = {};
  int64_t tokens = 0, row = 0, head_dim = 0, first = 0;  // strides and the first head, as in Heads
  const float* at(int64_t b, int64_t t, int64_t h) const {
    return values.get() + (b * tokens + t) * row + (first + h) * head_dim;
  }
};

class RowCheck {
 public:
  struct Shape {
    int64_t blocks, sequences, sequence_length;
    double budget = 0x1p31;    // about how many multiplications all rows may take
    SparseBlocks sparse = {};  // model.sparse
  };
  RowCheck(const SequencesView& data, const Shape& shape);

  // Call it after the forward of a block, over sequences from `first` on
  void forward(int64_t block, int64_t first, const AttentionForward& op, Backend& be, const Launch& on);
  // Call these before and after the block's backward
  void before_backward(int64_t block, int64_t first, const AttentionBackward& op, Backend& be,
                       const Launch& on);
  void after_backward(int64_t block, int64_t first, const AttentionBackward& op, Backend& be,
                      const Launch& on);

  std::vector<Measure> measures() const;
  int64_t rows() const { return rows_; }  // how many queries and keys were computed again

 private:
  // The errors of one tensor of a head, and the squares of the expected errors
  struct Found {
    Difference difference = {};
    double expected = 0;
    void add(const Found& more) { difference.add(more.difference), expected += more.expected; }
  };
  struct OfHead {
    Found y, lse, dq, dk, dv;
    void add(const OfHead& more) {
      y.add(more.y), lse.add(more.lse), dq.add(more.dq), dk.add(more.dk), dv.add(more.dv);
    }
  };
  struct Inputs {
    HostHeads q, k, v, y, dy;
    std::shared_ptr<const float[]> lse;    // [B, H, T]; null: the kernel writes none
    std::shared_ptr<const float[]> sinks;  // [H]; null: none
  };
  struct Row {
    int64_t b, h, i;
  };
  struct Keys {
    int64_t begin, end;
  };
  struct Of;  // the problem of an operation
  HostHeads on_host(const Heads& heads, int64_t sequences, Backend& be, const Launch& on);
  template <class Op>
  Inputs inputs_of(const Op& op, int64_t sequences, Backend& be, const Launch& on);
  void check_rows(int64_t block, const std::vector<Row>& rows,
                  const std::function<void(const Row&, OfHead&)>& check);
  Keys seen_by(int64_t sequence, int64_t query, const AttentionPlan& plan) const;
  void list_blocks(int64_t block);
  // Whether a block of sparse attention, according to list_blocks(), sees a key
  bool shows(int64_t query, int64_t key) const;
  // The keys that a query sees: those of the blocks that it chose, or all if queries do not choose
  struct Shown {
    int64_t first, size;  // the first key; the tokens of a block; 0: all keys are seen
    std::vector<char> blocks;
    bool close;  // two scores differ by less than rounding, so the choice is uncertain
    bool has(int64_t key) const { return size == 0 || blocks[static_cast<size_t>((key - first) / size)]; }
  };
  Shown shown_to(const Of& of, const Row& row, const Keys& keys) const;
  std::vector<Row> samples(int64_t block, int64_t first, const AttentionShape& shape, int64_t heads) const;
  // The first sequences of the operation; all samples are taken from these
  int64_t sampled(int64_t block, int64_t first, const AttentionShape& shape) const;

  std::vector<int32_t> documents_;
  int64_t T_;
  Shape shape_;
  std::vector<std::vector<OfHead>> blocks_;
  HostMemory memory_;
  Inputs inputs_;
  int64_t rows_ = 0;
  SparsePattern pattern_;
  std::vector<std::vector<int64_t>> listed_;  // for each block of queries, the blocks of keys
};

}  // namespace tessera
