// The slots that blocks take turns in: what a block keeps comes back as it was, and a tensor that is used by
// one who has handed it over, or does not have it yet, shows as NaN.
#include "model/activation_offload.h"

#include <cmath>

#include "tests/block_patterns.h"
#include "tests/model/loud_model.h"

namespace tessera::testing {
namespace {

// Four blocks, whose tensors hold one value each, or more of which the first `blocks` are offloaded. The last
// two of those stay on the device.
struct Slots {
  explicit Slots(const ByBlock<Keep>& keep, int64_t layers = 4, size_t blocks = 4)
      : loud({.vocab_size = 29, .context = 16, .layers = layers, .heads = 2, .channels = 8},
             AttentionKind::kFlash) {
    loud.model.keep = keep;
    loud.model.offloaded_blocks = blocks;
    offload.emplace(loud.cpu, host, loud.model, Poison::kYes);
    loud.model.offload = &*offload;
    saved = allocate_saved(loud.arena, loud.model, keep);
    offload->use(saved, loud.model);
  }
  std::vector<Tensor> kept(size_t layer) {
    std::vector<Tensor> tensors;
    visit_kept(saved, loud.model, layer,
               [&](const SavedInfo&, Tensor& tensor) { tensors.push_back(tensor); });
    return tensors;
  }
  void write(size_t layer) {
    for (const Tensor& tensor : kept(layer)) std::ranges::fill(floats(tensor), value_of(layer));
  }
  void forward(size_t layer) {
    offload->begin_forward(layer);
    write(layer);
    offload->end_forward(layer);
  }
  bool has_its_values(size_t layer) {
    return all(layer, [&](float value) { return value == value_of(layer); });
  }
  bool is_nan(size_t layer) {
    return all(layer, [](float value) { return std::isnan(value); });
  }

  LoudModel loud;
  Arena host = Arena::host();
  std::optional<ActivationOffload> offload;
  Saved saved;

 private:
  static float value_of(size_t layer) { return 10 + static_cast<float>(layer); }
  bool all(size_t layer, const std::function<bool(float)>& holds) {
    return std::ranges::all_of(
        kept(layer), [&](const Tensor& tensor) { return std::ranges::all_of(floats(tensor), holds); });
  }
};

const Keep kKeeps[] = {kKeepAll, {Recomputed::kNorms}, kKeepAttention, kKeepOutputs};

TEST(ActivationSlots, BlocksTakeTurns) {
  for (const Keep keep : kKeeps) {
    SCOPED_TRACE(text_of(keep));
    Slots slots(keep);
    for (size_t l = 0; l < 4; ++l) {
      slots.forward(l);
      EXPECT_EQ(slots.is_nan(l), l < 2) << "what is handed over is not the block's any more";
    }
    EXPECT_TRUE(slots.has_its_values(2) && slots.has_its_values(3)) << "they stay";
    for (size_t l = 4; l-- > 0;) {
      EXPECT_TRUE(l > 1 || slots.is_nan(l)) << "it is not back yet";
      slots.offload->begin_backward(l);
      EXPECT_TRUE(slots.has_its_values(l)) << l;
      slots.offload->end_backward(l);
    }
  }
}

// Of six blocks. The others have tensors of their own.
TEST(ActivationSlots, OfTheFirstBlocksAlone) {
  std::vector<ByBlock<Keep>> keeps = mixed_keeps();
  keeps.insert(keeps.end(), std::begin(kKeeps), std::end(kKeeps));
  for (const ByBlock<Keep>& keep : keeps)
    for (const size_t offloaded : {1, 2, 3, 4, 5}) {
      SCOPED_TRACE(text_of(keep) + fmt::format(", {} blocks", offloaded));
      Slots slots(keep, 6, offloaded);
      const auto is_copied = [&](size_t l) { return l + 2 < offloaded; };
      for (size_t l = 0; l < 6; ++l) {
        slots.forward(l);
        EXPECT_EQ(slots.is_nan(l), is_copied(l)) << l;
      }
      for (size_t l = 6; l-- > 0;) {
        EXPECT_EQ(slots.is_nan(l), is_copied(l)) << l << " is not back yet";
        slots.offload->begin_backward(l);
        EXPECT_TRUE(slots.has_its_values(l)) << l;
        slots.offload->end_backward(l);
      }
    }
}

TEST(ActivationSlots, AWriteBeforeTheSlotIsFreeIsLost) {
  Slots slots(kKeepAll);
  slots.forward(0), slots.forward(1);
  slots.write(2);  // into the slot of block 0
  EXPECT_TRUE(slots.has_its_values(2));
  slots.offload->begin_forward(2);
  const std::vector<Tensor> tensors = slots.kept(2);
  for (size_t i = 1; i < tensors.size(); ++i) EXPECT_TRUE(std::isnan(floats(tensors[i])[0])) << i;
  EXPECT_EQ(floats(tensors[0])[0], 12) << "its input is the block below's to write";
}

// A backward writes over what the forward has kept. In the next micro-batch the blocks take the same turns.
TEST(ActivationSlots, ServeOneMicroBatchAfterTheOther) {
  Slots slots(kKeepAttention);
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    for (size_t l = 0; l < 4; ++l) slots.forward(l);
    for (size_t l = 4; l-- > 0;) {
      slots.offload->begin_backward(l);
      EXPECT_TRUE(slots.has_its_values(l)) << l;
      for (const Tensor& tensor : slots.kept(l)) std::ranges::fill(floats(tensor), 0.0f);
      slots.offload->end_backward(l);
    }
  }
}

}  // namespace
}  // namespace tessera::testing
