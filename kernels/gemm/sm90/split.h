// Split-K: how workers share a GEMM with few tiles and long sums. Each has an equal part of the work,
// which may be a part of a sum. Plain C++.
//
// The work is a rectangle, tiles by steps of the summed dimension. It is cut as in Euclid's algorithm:
//   more workers than tiles: a number of workers that is a multiple of the number of tiles share the first
//     steps of all tiles; the other workers get the remaining steps
//   more tiles than workers: each worker takes the same number of whole tiles; all workers share the rest
// So workers that run at the same time read the same steps of different tiles, mostly from L2.
// Partial sums go to memory, and are added up in their order.
//
// Each cut makes smaller pieces, and each piece costs some time of its own. So the number of cuts is the one
// with which the slowest worker is the fastest.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera::gemm {

struct Piece {
  static constexpr int kNoPartial = -1;  // it has all steps of its tile

  int tile, begin, end;  // steps
  int partial;
};

class Split {
  // tiles x parts pieces: the steps are divided into parts, and a piece is one part of one tile. Worker
  // first_worker + j takes piece j and then every `workers`-th piece.
  struct Cut {
    int first_tile, tiles, first_worker, workers;
    int first_step, steps, parts;
    int first_partial;

    TESSERA_HOST_DEVICE int pieces() const { return tiles * parts; }
    TESSERA_HOST_DEVICE bool has_partials_of(int tile) const {
      return first_partial != Piece::kNoPartial && tile >= first_tile && tile < first_tile + tiles;
    }
    TESSERA_HOST_DEVICE int step_of(int part) const {
      return first_step + static_cast<int>(int64_t{steps} * part / parts);
    }
  };

 public:
  // All arguments are at least 1, and most_partials is enough for all workers.
  Split(int tiles, int steps, int workers, int most_partials) {
    int64_t least = INT64_MAX;
    for (int cuts = 1; cuts <= kMostCuts; ++cuts) {
      Split other;
      other.cut(tiles, steps, workers, cuts);
      const int64_t cost = other.cost_of_slowest(workers);
      if (other.partials_ > most_partials || cost >= least) continue;
      *this = other;
      least = cost;
    }
  }

  // The pieces of a worker, in the order in which it computes them:
  //   for (PiecesOf pieces(split, worker); pieces.next();) ... pieces.piece() ...
  class PiecesOf {
   public:
    TESSERA_HOST_DEVICE PiecesOf(const Split& split, int worker) : split_(split), worker_(worker) {}
    TESSERA_HOST_DEVICE bool next() {
      if (cut_ >= 0) at_ += cut().workers;
      while (cut_ < 0 || at_ < 0 || at_ >= cut().pieces()) {
        if (++cut_ == split_.count_) return false;
        at_ = worker_ - cut().first_worker;
      }
      return true;
    }
    TESSERA_HOST_DEVICE Piece piece() const {
      const Cut& c = cut();
      const int part = at_ / c.tiles;
      return {.tile = c.first_tile + at_ % c.tiles,
              .begin = c.step_of(part),
              .end = c.step_of(part + 1),
              .partial = c.first_partial == Piece::kNoPartial ? Piece::kNoPartial : c.first_partial + at_};
    }

   private:
    TESSERA_HOST_DEVICE const Cut& cut() const { return split_.cuts_[cut_]; }

    const Split& split_;
    int worker_, cut_ = -1, at_ = 0;
  };

  // The partials of a tile, in the order in which they are added up: the same loop with partial()
  class PartialsOf {
   public:
    TESSERA_HOST_DEVICE PartialsOf(const Split& split, int tile) : split_(split), tile_(tile) {}
    TESSERA_HOST_DEVICE bool next() {
      ++part_;
      while (cut_ < 0 || part_ >= cut().parts || !cut().has_partials_of(tile_)) {
        if (++cut_ == split_.count_) return false;
        part_ = 0;
      }
      return true;
    }
    TESSERA_HOST_DEVICE int partial() const {
      return cut().first_partial + part_ * cut().tiles + tile_ - cut().first_tile;
    }

   private:
    TESSERA_HOST_DEVICE const Cut& cut() const { return split_.cuts_[cut_]; }

    const Split& split_;
    int tile_, cut_ = -1, part_ = 0;
  };

  int partials() const { return partials_; }
  TESSERA_HOST_DEVICE int whole_tiles() const {
    return whole_tiles_;
  }  // the first ones; they have no partials

 private:
  static constexpr int kMostCuts = 4;
  static constexpr int kPieceCost = 8;  // in steps

  Split() = default;

  // The last of `cuts` leaves no rest.
  void cut(int tiles, int steps, int workers, int cuts) {
    Cut rest{.first_tile = 0,
             .tiles = tiles,
             .first_worker = 0,
             .workers = workers,
             .first_step = 0,
             .steps = steps,
             .parts = 1,
             .first_partial = 0};
    for (int left = cuts; left > 0 && rest.tiles > 0 && rest.steps > 0; --left) {
      Cut next = rest;
      if (rest.workers < rest.tiles) {
        if (left > 1) next.tiles = rest.tiles / rest.workers * rest.workers;
        rest.first_tile += next.tiles, rest.tiles -= next.tiles;
      } else {
        next.parts = std::min(rest.workers / rest.tiles, rest.steps);
        const int workers_of_it = next.parts * rest.tiles;
        if (left > 1)
          next.steps =
              std::max(next.parts, static_cast<int>(int64_t{rest.steps} * workers_of_it / rest.workers));
        rest.first_worker += workers_of_it, rest.workers -= workers_of_it;
        rest.first_step += next.steps, rest.steps -= next.steps;
      }
      if (next.steps == steps && next.parts == 1) {
        next.first_partial = Piece::kNoPartial;
        whole_tiles_ += next.tiles;
      } else {
        next.first_partial = partials_;
        partials_ += next.tiles * next.parts;
      }
      cuts_[count_++] = next;
    }
  }

  int64_t cost_of_slowest(int workers) const {
    int64_t most = 0;
    for (int worker = 0; worker < workers; ++worker) {
      int64_t cost = 0;
      for (PiecesOf pieces(*this, worker); pieces.next();)
        cost += pieces.piece().end - pieces.piece().begin + kPieceCost;
      most = std::max(most, cost);
    }
    return most;
  }

  Cut cuts_[kMostCuts] = {};
  int count_ = 0, partials_ = 0, whole_tiles_ = 0;
};

}  // namespace tessera::gemm
