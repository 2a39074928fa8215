// Muon updates the matrices of the blocks by the orthonormal matrix that is nearest to the mean of their
// gradients (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon). q, k and v are separate
// matrices, and so are gate and up. Updates are scaled to a root mean square of 0.2, about that of AdamW's
// updates, so that AdamW's learning rates and weight decay can be used (Liu et al., arXiv:2502.16982).
//
// Each matrix has an owner among the ranks, which makes its update. The owners have equal work, as far as
// whole matrices allow. If the optimizer is split, the ranks' parts of the buckets cut through matrices: the
// parts of the mean are sent to the owner, and the parts of the update back. Blocks are taken in groups, so
// that this needs little memory. At a time, one group is sent to its owners, the one before it is computed,
// and the one before that is sent back. Each rank does everything else for the elements of its own part. So
// the bits depend neither on the number of ranks nor on how they split the parameters.
#pragma once

#include <vector>

#include "model/store/param_store.h"
#include "model/update_rule.h"

namespace tessera {

class Muon final : public MatrixUpdate {
 public:
  Muon(Arena& arena, ParamStore& store, const MuonConfig& config);

  bool updates(size_t bucket) const override {
    return layout().is_block(bucket) && layout().buckets[bucket].decayed > 0;
  }
  void run(const Update& update) override;

 private:
  // The number of elements of a rank's part of a bucket that lie in matrices. They come first
  int64_t matrices_of(size_t bucket, int64_t part) const;
  int64_t matrices_of(size_t bucket) const { return matrices_of(bucket, store_.part().index); }
  struct Matrix {
    size_t bucket;
    int64_t first, rows, columns;  // first: the matrix's first element in the bucket
    int64_t first_row;             // among the rows of the bucket's matrices
    int owner = 0;
    int64_t numel() const { return rows * columns; }
    int64_t end() const { return first + numel(); }
  };
  // A gathered matrix has the same alignment as one that stays where it is, so that the same GEMMs serve it.
  static int64_t offset(const Matrix& matrix) { return matrix.first % 8; }
  struct Group {
    std::vector<size_t> buckets;
    std::vector<Matrix> matrices;
  };
  // The memory of a group while it is exchanged and computed
  struct Turn {
    Tensor directions;  // of this rank's parts of the buckets, one after the other
    Tensor gathered;    // the matrices that this rank owns but has only a part of
    int64_t collectives = 0;
  };

  const ParamLayout& layout() const { return store_.layout(); }
  int ranks() const { return store_.axis().size(); }
  bool is_split() const { return store_.shards().optimizer(); }
  Turn& turn_of(size_t group) { return turns_[group % turns_.size()]; }
  void find_groups(const MuonConfig& config);
  void deal();
  // The elements of a matrix that are in the part of a rank, counted from the start of the matrix
  struct Range {
    int64_t first, end;
    bool empty() const { return first >= end; }
  };
  Range part_of(const Matrix& matrix, int rank) const;
  bool has_all(const Matrix& matrix, int rank) const;
  int64_t room_for_gathered(const Group& group, int rank) const;
  // Matrices of a group that a rank owns and makes orthonormal together
  struct Batch {
    std::vector<size_t> matrices;  // indices
    int64_t room = 0;
  };
  std::vector<Batch> batches(const Group& group, int rank) const;
  Tensor directions_of(size_t group, size_t bucket);
  Tensor own_part(size_t group, const Matrix& matrix);
  Tensor squares_of(const Matrix& matrix) const;
  std::vector<Tensor> owned(size_t group);  // for each matrix of the group; none: another rank owns it

  void begin(size_t group, const Update& update);
  void compute(size_t group, const Update& update);
  void finish(size_t group, const Update& update);
  void measure(const Update& update, size_t bucket, const UpdatedPart& part, const MuonUpdate& op) const;
  void exchange(const Stream& stream, size_t group, bool to_owners);

  ParamStore& store_;
  MuonConfig config_;
  std::vector<Group> groups_;
  std::vector<Turn> turns_;
  Tensor room_;  // scratch of Orthogonalise for a batch: at most two groups' bytes, unless one matrix needs
                 // more
};

}  // namespace tessera
