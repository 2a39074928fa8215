// Values of runs of blocks, and which blocks run again where blocks keep different things.
#include "model/by_block.h"

#include <set>

#include "model/saved.h"
#include "tests/block_patterns.h"
#include "tests/model/loud_model.h"

namespace tessera::testing {
namespace {

TEST(ByBlock, ABlockHasTheValueOfItsRun) {
  const ByBlock<Keep> keep({{kKeepAttention, 2}, {kKeepOutputs, 1}, {kKeepAll}});
  const Keep expected[] = {kKeepAttention, kKeepAttention, kKeepOutputs, kKeepAll, kKeepAll};
  for (size_t l = 0; l < 5; ++l) EXPECT_EQ(keep.at(l), expected[l]) << l;
  EXPECT_EQ(keep.counted(), 3);
  EXPECT_TRUE(keep.has_rest());
  EXPECT_EQ(text_of(keep), "linear*2,block*1,none");
  const ByBlock<Keep> all_counted({{kKeepAttention, 2}, {kKeepOutputs, 3}});
  EXPECT_FALSE(all_counted.has_rest());
  EXPECT_EQ(all_counted.at(4), kKeepOutputs);
  EXPECT_EQ(text_of(all_counted), "linear*2,block*3");
}

TEST(ByBlock, EqualNeighboursAreOneRun) {
  EXPECT_EQ(text_of(ByBlock<Keep>({{kKeepAttention, 2}, {kKeepAttention, 3}, {kKeepAll}})), "linear*5,none");
  EXPECT_EQ(ByBlock<Keep>({{kKeepAttention, 2}, {kKeepAttention}}), kKeepAttention);
  EXPECT_EQ(text_of(ByBlock<Keep>(kKeepAttention)), "linear");
  const ByBlock<Keep> changed = ByBlock<Keep>({{kKeepAll, 2}, {kKeepAllButMlp}}).changed([](Keep& keep) {
    keep.add(Recomputed::kMlp);
  });
  EXPECT_EQ(changed, kKeepAllButMlp);
  EXPECT_THROW(ByBlock<Keep>(std::vector<ByBlock<Keep>::Run>{}), Error);
  EXPECT_THROW(ByBlock<Keep>({{kKeepAll}, {kKeepOutputs, 1}}), Error);
}

// A block runs again where a later one has a tensor of those that are not kept at the same place.
TEST(ByBlock, BlocksRunAgainWhereOthersHaveWritten) {
  std::vector<ByBlock<Keep>> keeps = mixed_keeps();
  for (const Keep keep : {kKeepAll, kKeepAllButMlp, kKeepAttention, kKeepOutputs}) keeps.emplace_back(keep);
  const std::pair<Mlp, NormPlace> kBlocks[] = {
      {Mlp::kGelu, NormPlace::kBefore}, {Mlp::kSwiglu, NormPlace::kBefore},
      {Mlp::kGelu, NormPlace::kBoth},   {Mlp::kGeglu, NormPlace::kBoth},
      {Mlp::kRelu, NormPlace::kAfter},  {Mlp::kSwiglu, NormPlace::kAfter}};
  for (const auto& [mlp, norm_place] : kBlocks)
    for (const ByBlock<Keep>& keep : keeps)
      for (const size_t offloaded : {0, 2, 4, 5}) {
        SCOPED_TRACE(text_of(keep) + fmt::format(", {} offloaded, {}, norms {}", offloaded, name_of(mlp),
                                                 name_of(norm_place)));
        LoudModel loud({.vocab_size = 29,
                        .context = 16,
                        .layers = 5,
                        .heads = 2,
                        .channels = 8,
                        .norm = norm_place == NormPlace::kBefore ? NormKind::kLayerNorm : NormKind::kRmsNorm,
                        .norm_place = norm_place,
                        .mlp = mlp},
                       AttentionKind::kFlash);
        loud.model.keep = keep;
        loud.model.offloaded_blocks = offloaded;
        Saved saved = allocate_saved(loud.arena, loud.model, keep);
        const BlockKind& kind = loud.model.kind(0);
        std::vector<std::set<const void*>> dropped(5), kept(5);
        for (size_t l = 0; l < 5; ++l)
          visit_block_saved(saved.blocks[l],
                            {.config = loud.model.config, .kind = kind, .plan = loud.model.attention.of(l)},
                            [&](Stage stage, const SavedInfo&, Tensor& tensor) {
                              (kind.keeps(keep.at(l), stage) ? kept : dropped)[l].insert(tensor.data);
                            });
        const auto share = [](const std::set<const void*>& a, const std::set<const void*>& b) {
          return std::ranges::any_of(a, [&](const void* at) { return b.contains(at); });
        };
        for (size_t l = 0; l < 5; ++l) {
          bool overwritten = false;
          for (size_t later = l + 1; later < 5; ++later) {
            overwritten = overwritten || share(dropped[l], dropped[later]);
            EXPECT_FALSE(share(dropped[l], kept[later]) || share(kept[l], dropped[later])) << l << later;
            const bool in_turns = later < offloaded;
            EXPECT_TRUE(in_turns || !share(kept[l], kept[later])) << l << " and " << later;
          }
          EXPECT_EQ(runs_again(loud.model, l), overwritten) << l;
        }
      }
}

}  // namespace
}  // namespace tessera::testing
