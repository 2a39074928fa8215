// How the workers of a product share its sums: every step of every tile once, and equally.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kernels/gemm/sm90/split.h"

namespace tessera::gemm {
namespace {

constexpr int kMostPartials = 128;

struct Sizes {
  int tiles, steps, workers;
};

std::vector<Piece> pieces_of(const Split& split, int worker) {
  std::vector<Piece> pieces;
  for (Split::PiecesOf of(split, worker); of.next();) pieces.push_back(of.piece());
  return pieces;
}

// The pieces of each tile by their partials, one after another, are all its steps.
void expect_whole(const Sizes& sizes) {
  SCOPED_TRACE(::testing::Message() << sizes.tiles << " tiles, " << sizes.steps << " steps, "
                                    << sizes.workers);
  const Split split(sizes.tiles, sizes.steps, sizes.workers, kMostPartials);
  std::map<int, Piece> by_slot;
  std::set<int> whole;
  for (int worker = 0; worker < sizes.workers; ++worker)
    for (const Piece& piece : pieces_of(split, worker)) {
      ASSERT_LT(piece.begin, piece.end);
      if (piece.partial == Piece::kNoPartial) {
        EXPECT_TRUE(piece.begin == 0 && piece.end == sizes.steps);
        EXPECT_LT(piece.tile, split.whole_tiles());
        EXPECT_TRUE(whole.insert(piece.tile).second);
      } else {
        EXPECT_TRUE(by_slot.emplace(piece.partial, piece).second);
      }
    }
  ASSERT_EQ(static_cast<int>(whole.size()), split.whole_tiles());
  EXPECT_EQ(static_cast<int>(by_slot.size()), split.partials());
  EXPECT_LE(split.partials(), kMostPartials);
  EXPECT_TRUE(by_slot.empty() || by_slot.rbegin()->first == split.partials() - 1);
  for (int tile = 0; tile < sizes.tiles; ++tile) {
    int step = 0;
    for (Split::PartialsOf partials(split, tile); partials.next();) {
      const auto found = by_slot.find(partials.partial());
      ASSERT_NE(found, by_slot.end());
      EXPECT_EQ(found->second.tile, tile);
      EXPECT_EQ(found->second.begin, step);
      step = found->second.end;
    }
    ASSERT_EQ(step, tile < split.whole_tiles() ? 0 : sizes.steps) << tile;
  }
}

TEST(Split, HasEveryStepOfEveryTileOnce) {
  for (const int workers : {1, 2, 57, 66, 72, 128})
    for (const int steps : {1, 2, 3, 64, 1000})
      for (int tiles = 1; tiles < 300; tiles += tiles < 80 ? 1 : 37) expect_whole({tiles, steps, workers});
}

TEST(Split, SharesEqually) {
  constexpr Sizes kSizes[] = {{27, 1024, 66}, {9, 1024, 66}, {36, 1024, 66}, {133, 256, 66}, {591, 1024, 66}};
  for (const auto& [tiles, steps, workers] : kSizes) {
    const Split split(tiles, steps, workers, kMostPartials);
    const double share = static_cast<double>(tiles) * steps / workers;
    for (int worker = 0; worker < workers; ++worker) {
      int sum = 0;
      for (const Piece& piece : pieces_of(split, worker)) sum += piece.end - piece.begin;
      EXPECT_LT(sum, 1.06 * share) << tiles << " tiles, worker " << worker;
    }
  }
}

// What small pieces would cost is more than what they would save.
TEST(Split, LeavesAWorkerOutRatherThanCutSmall) {
  const Split split(65, 256, 66, kMostPartials);
  EXPECT_EQ(split.whole_tiles(), 65);
  EXPECT_TRUE(pieces_of(split, 65).empty());
}

}  // namespace
}  // namespace tessera::gemm
