#include "model/muon.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tessera {
namespace {

constexpr double kRms = 0.2;  // of an update, over the learning rate

// Polar Express: each is the best for what the ones before it leave of singular values of 0.001 to 1 (Amsel,
// Persson, Musco and Gower, arXiv:2505.16932, their values). Results of all but a last one that changes
// nothing are taken to be up to 1.01 times too large, since roundings may make them so.
using Polynomial = Orthogonalise::Polynomial;
constexpr double kMargin = 1.01;
constexpr Polynomial with_margin(double a, double b, double c) {
  constexpr double kCubed = kMargin * kMargin * kMargin;
  return {a / kMargin, b / kCubed, c / (kCubed * kMargin * kMargin)};
}
constexpr std::array kPolarExpress = {
    with_margin(8.28721201814563, -23.595886519098837, 17.300387312530933),
    with_margin(4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    with_margin(3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    with_margin(3.3184196573706015, -2.488488024314874, 0.51004894012372),
    with_margin(2.300652019954817, -1.6689039845747493, 0.4188073119525673)};

// Newton-Schulz with the coefficients that Muon came with: singular values of 0.001 to 1 become 0.47 to 1.2
constexpr Polynomial kQuintic = {3.4445, -4.7750, 2.0315};
constexpr std::array kNewtonSchulz = {kQuintic, kQuintic, kQuintic, kQuintic, kQuintic};

double work_of(int64_t rows, int64_t columns) {
  const auto least = static_cast<double>(std::min(rows, columns));
  return least * static_cast<double>(rows) * static_cast<double>(columns) * 4 + 2 * least * least * least;
}

}  // namespace

Muon::Muon(Arena& arena, ParamStore& store, const MuonConfig& config) : store_(store), config_(config) {
  find_groups(config);
  deal();
  // Every rank allocates what the one with the most needs, so that plans are alike.
  int64_t directions = 0, gathered = 0, room = 0;
  for (const Group& group : groups_) {
    int64_t own = 0;
    for (const size_t bucket : group.buckets) own += Orthogonalise::piece(matrices_of(bucket, 0));
    directions = std::max(directions, own);
    for (int rank = 0; rank < ranks(); ++rank) {
      gathered = std::max(gathered, room_for_gathered(group, rank));
      for (const Batch& batch : batches(group, rank)) room = std::max(room, batch.room);
    }
  }
  const auto take = [&](const char* name, int64_t elements) {
    return elements == 0 ? Tensor{} : arena.alloc(MemoryTag::kOptimizer, name, store.dtype(), {elements});
  };
  turns_.resize(ranks() == 1 ? 1 : std::min<size_t>(3, groups_.size()));
  for (Turn& turn : turns_)
    turn = {.directions = take("directions of matrices", directions),
            .gathered = take("gathered matrices", gathered)};
  room_ = take("room for an orthogonal matrix", room);
}

void Muon::find_groups(const MuonConfig& config) {
  const auto bytes = static_cast<int64_t>(size_of(store_.dtype()));
  int64_t of_group = 0;
  for (size_t b = 0; b < layout().buckets.size(); ++b) {
    if (!updates(b)) continue;
    const int64_t own = matrices_of(b, 0) * bytes;
    if (groups_.empty() || of_group + own > config.group_bytes) groups_.emplace_back(), of_group = 0;
    groups_.back().buckets.push_back(b);
    of_group += own;
    for (const ParamPlace& place : layout().places) {
      if (place.bucket != b || !place.trained || !place.info.decay) continue;
      int64_t first = place.first, row = config.variance ? store_.kept().first_row(kRowSquares, place) : 0;
      const int64_t layers = place.info.linear ? place.info.linear->layers() : 1;
      for (int64_t layer = 0; layer < layers; ++layer)
        for (const int64_t rows : place.info.matrices) {
          if (rows == 0) continue;
          groups_.back().matrices.push_back(
              {.bucket = b, .first = first, .rows = rows, .columns = place.info.shape[-1], .first_row = row});
          first = groups_.back().matrices.back().end(), row += rows;
        }
    }
  }
}

// Of each group the largest first, each to the rank that has the least work so far
void Muon::deal() {
  std::vector<double> work(static_cast<size_t>(ranks()));
  for (Group& group : groups_) {
    std::vector<Matrix*> by_work;
    for (Matrix& one : group.matrices) by_work.push_back(&one);
    const auto own = [](const Matrix* one) { return work_of(one->rows, one->columns); };
    std::ranges::stable_sort(by_work, std::greater<>(), own);
    for (Matrix* one : by_work) {
      const auto least = std::ranges::min_element(work);
      one->owner = static_cast<int>(least - work.begin());
      *least += own(one);
    }
  }
}

int64_t Muon::matrices_of(size_t bucket, int64_t part) const {
  const ParamBucket& sizes = layout().buckets[bucket];
  const int64_t each = store_.part_elements(bucket);
  return layout().is_block(bucket) ? std::clamp<int64_t>(sizes.decayed - part * each, 0, each) : 0;
}

Muon::Range Muon::part_of(const Matrix& matrix, int rank) const {
  if (!is_split()) return {0, matrix.numel()};
  const int64_t each = store_.part_elements(matrix.bucket), begins = rank * each;
  return {std::max(matrix.first, begins) - matrix.first,
          std::min(matrix.end(), begins + each) - matrix.first};
}

bool Muon::has_all(const Matrix& matrix, int rank) const {
  const Range part = part_of(matrix, rank);
  return part.first == 0 && part.end == matrix.numel();
}

int64_t Muon::room_for_gathered(const Group& group, int rank) const {
  int64_t elements = 0;
  for (const Matrix& one : group.matrices)
    if (one.owner == rank && !has_all(one, rank)) elements += Orthogonalise::piece(offset(one) + one.numel());
  return elements;
}

std::vector<Muon::Batch> Muon::batches(const Group& group, int rank) const {
  const int64_t most = 2 * config_.group_bytes / static_cast<int64_t>(size_of(store_.dtype()));
  std::vector<Batch> all;
  for (size_t i = 0; i < group.matrices.size(); ++i) {
    const Matrix& one = group.matrices[i];
    if (one.owner != rank) continue;
    const int64_t room = Orthogonalise::room_for(one.rows, one.columns);
    if (all.empty() || all.back().room + room > most || all.back().matrices.size() == Orthogonalise::kMost)
      all.emplace_back();
    all.back().matrices.push_back(i);
    all.back().room += room;
  }
  return all;
}

Tensor Muon::directions_of(size_t group, size_t bucket) {
  int64_t first = 0;
  for (const size_t b : groups_[group].buckets) {
    if (b == bucket) break;
    first += Orthogonalise::piece(matrices_of(b));
  }
  return turn_of(group).directions.rows(first, matrices_of(bucket));
}

// Of the directions; none: this rank's part has nothing of the matrix
Tensor Muon::own_part(size_t group, const Matrix& matrix) {
  const Range part = part_of(matrix, store_.axis().rank());
  if (part.empty()) return {};
  const int64_t begins = store_.part().index * store_.part_elements(matrix.bucket);
  return directions_of(group, matrix.bucket).rows(matrix.first + part.first - begins, part.end - part.first);
}

std::vector<Tensor> Muon::owned(size_t group) {
  const int rank = store_.axis().rank();
  std::vector<Tensor> all;
  int64_t used = 0;
  for (const Matrix& one : groups_[group].matrices) {
    Tensor whole;
    if (one.owner == rank && has_all(one, rank)) {
      whole = own_part(group, one);
    } else if (one.owner == rank) {
      whole = turn_of(group).gathered.rows(used + offset(one), one.numel());
      used += Orthogonalise::piece(offset(one) + one.numel());
    }
    all.push_back(whole);
  }
  return all;
}

Tensor Muon::squares_of(const Matrix& matrix) const {
  return store_.kept().of(kRowSquares, matrix.bucket).rows(matrix.first_row, matrix.rows);
}

void Muon::run(const Update& update) {
  // One rank has nothing to send, and takes a group after the other.
  const size_t count = groups_.size(), lag = ranks() == 1 ? 0 : 1;
  for (size_t i = 0; i < count + 2 * lag; ++i) {
    if (i < count) begin(i, update);
    if (i >= lag && i - lag < count) compute(i - lag, update);
    if (i >= 2 * lag && i - 2 * lag < count) finish(i - 2 * lag, update);
  }
}

void Muon::begin(size_t group, const Update& update) {
  const UpdateStep& step = update.step;
  for (const size_t bucket : groups_[group].buckets) {
    if (matrices_of(bucket) == 0) continue;
    const UpdatedPart part = update.part(bucket);
    update.stream.run(MuonMomentum{.gradient = part.gradient,
                                   .mean = part.state[0],
                                   .direction = directions_of(group, bucket),
                                   .grad_norm = step.grad_norm,
                                   .max_norm = step.config.max_grad_norm,
                                   .momentum = config_.momentum,
                                   .step = step.number,
                                   .random_key = part.random_key,
                                   .first_element = part.first_element,
                                   .verdict = step.verdict});
  }
  if (is_split()) exchange(update.stream, group, /*to_owners=*/true);
}

void Muon::compute(size_t group, const Update& update) {
  store_.axis().wait_for(turn_of(group).collectives);
  const std::vector<Tensor> whole = owned(group);
  const bool polar = config_.method == Orthogonal::kPolarExpress;
  for (const Batch& batch : batches(groups_[group], store_.axis().rank())) {
    std::vector<Tensor> matrices;
    for (const size_t i : batch.matrices) {
      const Matrix& one = groups_[group].matrices[i];
      matrices.push_back(whole[i].view({one.rows, one.columns}));
    }
    update.stream.run(
        Orthogonalise{.matrices = matrices,
                      .room = room_,
                      .polynomials = polar ? std::span<const Polynomial>(kPolarExpress) : kNewtonSchulz,
                      .margin = polar ? kMargin : 1,
                      .rms = kRms});
    for (size_t i = 0; config_.variance && i < matrices.size(); ++i)
      update.stream.run(NormaliseRows{.matrix = matrices[i],
                                      .squares = squares_of(groups_[group].matrices[batch.matrices[i]]),
                                      .beta = config_.beta2,
                                      .rms = kRms,
                                      .grad_norm = update.step.grad_norm,
                                      .verdict = update.step.verdict});
  }
  if (ranks() > 1) exchange(update.stream, group, /*to_owners=*/false);
}

void Muon::finish(size_t group, const Update& update) {
  store_.axis().wait_for(turn_of(group).collectives);
  const UpdateStep& step = update.step;
  for (const size_t bucket : groups_[group].buckets) {
    if (matrices_of(bucket) > 0) {
      const UpdatedPart part = update.part(bucket);
      const MuonUpdate op{.param = part.weights,
                          .low = part.low,
                          .direction = directions_of(group, bucket),
                          .grad_norm = step.grad_norm,
                          .learning_rate = step.learning_rate,
                          .weight_decay = step.config.weight_decay,
                          .cautious = config_.cautious_decay,
                          .verdict = step.verdict};
      if (update.norms) measure(update, bucket, part, op);
      update.stream.run(op);
    }
    update.done(bucket);
  }
}

void Muon::measure(const Update& update, size_t bucket, const UpdatedPart& part, const MuonUpdate& op) const {
  const int64_t begins = store_.part().index * store_.part_elements(bucket);
  int64_t trained = 0;
  for (const ParamPlace& place : layout().places) {
    if (!place.trained) continue;
    const Tensor sums = update.norms.rows(trained++, 1).view({3});
    if (place.bucket != bucket || !is_matrix_of_block(place.info)) continue;
    const auto [first, count] = place.within(begins, part.weights.numel());
    update.stream.run(MuonNorms{.step = op,
                                .gradient = part.gradient,
                                .max_norm = update.step.config.max_grad_norm,
                                .first = first,
                                .count = count,
                                .sums = sums});
  }
}

// Parts of matrices between those that have them and the owners. All ranks walk the matrices in one order.
void Muon::exchange(const Stream& stream, size_t group, bool to_owners) {
  const int mine = store_.axis().rank();
  const std::vector<Tensor> whole = owned(group);
  std::vector<AllToAll::Message> of_parts, of_owned;  // what this rank has as a part, and as an owner
  for (size_t i = 0; i < whole.size(); ++i) {
    const Matrix& one = groups_[group].matrices[i];
    const Tensor own = own_part(group, one);
    const Tensor squares = config_.variance && !to_owners ? squares_of(one) : Tensor{};
    if (!whole[i]) {
      if (own) of_parts.push_back({.rank = one.owner, .tensor = own});
      if (squares) of_parts.push_back({.rank = one.owner, .tensor = squares});
      continue;
    }
    for (int rank = 0; rank < ranks(); ++rank) {
      const Range part = part_of(one, rank);
      const Tensor values = part.empty() ? Tensor{} : whole[i].rows(part.first, part.end - part.first);
      if (rank != mine) {
        if (values) of_owned.push_back({.rank = rank, .tensor = values});
        if (squares) of_owned.push_back({.rank = rank, .tensor = squares});
      } else if (values && !has_all(one, rank)) {
        stream.run(to_owners ? Copy{own, values} : Copy{values, own});
      }
    }
  }
  if (to_owners)
    store_.axis().all_to_all({.sends = of_parts, .receives = of_owned});
  else
    store_.axis().all_to_all({.sends = of_owned, .receives = of_parts});
  turn_of(group).collectives = store_.axis().started();
}

}  // namespace tessera
