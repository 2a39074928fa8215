// With a cache of keys and values the logits are those of a forward over the whole text.
#include "model/decode.h"

#include "tests/model/loud_model.h"
#include "tests/model_families.h"
#include "tests/model_variants.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

constexpr ModelConfig kPlain{.vocab_size = 29, .context = 16, .layers = 2, .heads = 2, .channels = 16};
constexpr AttentionKind kKinds[] = {AttentionKind::kNaive, AttentionKind::kFlash};
constexpr int64_t kTexts = LoudModel::kBatch, kTokens = LoudModel::kTokens;

// GPT-2 and what its folders may ask for, the parts of other families, and every family of transformers
std::vector<Variant> decoded_variants() {
  std::vector<Variant> all = parts_of(kPlain);
  for (const Variant& each : sparse_parts_of(kPlain)) all.push_back(each);
  std::erase_if(all, [](const Variant& variant) { return static_cast<bool>(variant.model.dropout); });
  all.push_back({"gpt2", kPlain});
  for (const Variant& variant : variants_of(kPlain)) all.push_back(variant);
  for (const FamilyModel& family : family_models()) all.push_back({family.name, family.model});
  return all;
}

// Two texts and the logits after each of their tokens, by one forward
struct Whole {
  Whole(const ModelConfig& config, AttentionKind attention) : loud(config, attention) {
    Arena::Scope scope(loud.arena);
    const Saved saved = allocate_saved(loud.arena, loud.model, Keep::nothing());
    const Batch batch{.tokens = loud.tokens, .targets = {}};
    forward(loud.cpu, {.model = loud.model, .batch = batch, .saved = saved});
    logits_forward(loud.cpu, {.model = loud.model, .rows = saved.norm.y, .logits = logits});
  }

  // A cache whose rows are NaN, so that one that is read before it is written shows
  KvCache cache(int64_t slots, int64_t capacity) {
    KvCache made = allocate_kv_cache(loud.arena, loud.model.config, DType::kF32, slots, capacity);
    for (const KvCache::Layer& layer : made.layers)
      for (const Tensor& tensor : {layer.k, layer.v}) std::memset(tensor.data, 0xFF, tensor.bytes());
    std::fill_n(made.starts.as<int32_t>(), slots, -1);
    return made;
  }
  Tensor text(int64_t index, int64_t first, int64_t count) const {
    return loud.tokens.view({kTexts * kTokens, 1}).rows(index * kTokens + first, count).view({1, count});
  }
  int32_t token(int64_t text, int64_t place) const {
    return loud.tokens.as<int32_t>()[text * kTokens + place];
  }
  // `found` [1, padded V] after token `place` of a text
  void expect_logits(const Tensor& found, int64_t text, int64_t place) const {
    EXPECT_LE(relative_error(found, logits.rows(text * kTokens + place, 1)), tolerance::kCachedLogits)
        << "text " << text << ", token " << place;
  }
  void read(const KvCache& slot, int64_t index, int64_t start, int64_t count, const Tensor& found) {
    slot.starts.as<int32_t>()[0] = static_cast<int32_t>(start);
    prefill(loud.cpu, loud.arena,
            {.model = loud.model,
             .cache = slot,
             .tokens = text(index, start, count),
             .start = start,
             .logits = found});
  }

  LoudModel loud;
  Tensor logits = loud.make.poisoned({kTexts * kTokens, loud.model.config.padded_vocab()});
};

TEST(Prefill, HasTheLogitsOfAWholeForwardInAnyChunks) {
  const std::vector<std::vector<int64_t>> splits{
      {kTokens}, std::vector<int64_t>(kTokens, 1), {4, 4, 3}, {10, 1}, {1, 10}};
  for (const Variant& variant : decoded_variants())
    for (const AttentionKind kind : kKinds) {
      SCOPED_TRACE(fmt::format("{}, {}", variant.name, name_of(kind)));
      Whole whole(variant.model, kind);
      const int64_t before = whole.loud.arena.ledger().current_bytes();
      for (const std::vector<int64_t>& chunks : splits) {
        Arena::Scope scope(whole.loud.arena);
        const KvCache cache = whole.cache(1, kTokens);
        const Tensor found = whole.loud.make.poisoned({1, variant.model.padded_vocab()});
        int64_t start = 0;
        for (const int64_t count : chunks) {
          whole.read(cache, 1, start, count, found);
          start += count;
          whole.expect_logits(found, 1, start - 1);
        }
      }
      EXPECT_EQ(whole.loud.arena.ledger().current_bytes(), before);
    }
}

TEST(Prefill, RefusesMoreThanTheCacheHasRoomFor) {
  Whole whole(kPlain, AttentionKind::kFlash);
  const KvCache cache = whole.cache(1, 8);
  const Tensor found = whole.loud.make.poisoned({1, kPlain.padded_vocab()});
  whole.read(cache, 0, 0, 8, found);
  whole.expect_logits(found, 0, 7);
  EXPECT_THROW(whole.read(cache, 0, 0, 9, found), Error);
  EXPECT_THROW(whole.read(cache, 0, 8, 1, found), Error);
}

// What each of four slots does: the text that it reads, how many of its tokens as a prompt, and before which
// step. A slot is idle before that, and after the last token.
struct Job {
  int64_t text, prompt, begins;
};

TEST(Decode, HasTheLogitsOfAWholeForwardInSlotsOfDifferentLengths) {
  const std::vector<Job> jobs{{0, 3, 0}, {1, 7, 2}, {1, 1, 0}, {0, 10, 5}};
  const auto slots = static_cast<int64_t>(jobs.size());
  for (const Variant& variant : decoded_variants()) {
    SCOPED_TRACE(variant.name);
    Whole whole(variant.model, AttentionKind::kFlash);
    const KvCache cache = whole.cache(slots, kTokens);
    const Model model = decoding(whole.loud.model, cache, {});
    const Saved saved = allocate_saved(whole.loud.arena, model, Keep::nothing());
    const Tensor tokens = whole.loud.make.poisoned({slots, 1}),
                 logits = whole.loud.make.poisoned({slots, model.config.padded_vocab()});
    const Tensor ids{.data = tokens.data, .dtype = DType::kI32, .shape = tokens.shape};
    const DecodeStep all =
        prepare_decode(whole.loud.cpu, whole.loud.arena,
                       {.model = model, .cache = cache, .tokens = ids, .saved = saved, .logits = logits});
    int32_t* starts = cache.starts.as<int32_t>();
    for (int64_t step = 0; step < kTokens; ++step) {
      for (int64_t slot = 0; slot < slots; ++slot) {
        const Job& job = jobs[static_cast<size_t>(slot)];
        const int64_t place = job.prompt + step - job.begins;  // of the token to be read
        ids.as<int32_t>()[slot] = starts[slot] = -1;
        if (step < job.begins || place >= kTokens) continue;
        if (step == job.begins) whole.read(cache.slot(slot), job.text, 0, job.prompt, logits.rows(slot, 1));
        ids.as<int32_t>()[slot] = whole.token(job.text, place);
        starts[slot] = static_cast<int32_t>(place);
      }
      decode(whole.loud.cpu, all);
      for (int64_t slot = 0; slot < slots; ++slot)
        if (starts[slot] >= 0) whole.expect_logits(logits.rows(slot, 1), jobs[slot].text, starts[slot]);
    }
  }
}

// Idle slots keep what they hold, to the bit.
TEST(Decode, LeavesIdleSlotsAlone) {
  Whole whole(kPlain, AttentionKind::kFlash);
  const KvCache cache = whole.cache(2, kTokens);
  const Tensor logits = whole.loud.make.poisoned({2, kPlain.padded_vocab()});
  whole.read(cache.slot(0), 0, 0, 5, logits.rows(0, 1));
  whole.read(cache.slot(1), 1, 0, 5, logits.rows(1, 1));
  const KvCache idle = cache.slot(1);
  std::vector<KvCache::Layer> before;
  for (const KvCache::Layer& layer : idle.layers)
    before.push_back({whole.loud.make.copy_of(layer.k), whole.loud.make.copy_of(layer.v)});
  const Model model = decoding(whole.loud.model, cache, {});
  const Saved saved = allocate_saved(whole.loud.arena, model, Keep::nothing());
  const Tensor ids = whole.loud.make.tokens({2, 1}, kPlain.vocab_size);
  cache.starts.as<int32_t>()[0] = 5;
  cache.starts.as<int32_t>()[1] = -1;
  decode(whole.loud.cpu,
         prepare_decode(whole.loud.cpu, whole.loud.arena,
                        {.model = model, .cache = cache, .tokens = ids, .saved = saved, .logits = logits}));
  for (size_t l = 0; l < before.size(); ++l) {
    EXPECT_EQ(std::memcmp(idle.layers[l].k.data, before[l].k.data, before[l].k.bytes()), 0);
    EXPECT_EQ(std::memcmp(idle.layers[l].v.data, before[l].v.data, before[l].v.bytes()), 0);
  }
}

// Qwen3 0.6B: 2 x 28 x 8 x 128 elements of two bytes
TEST(KvCacheOf, TakesTwoVectorsOfEachKeyHeadAndLayerForAToken) {
  const ModelConfig qwen{.vocab_size = 151936,
                         .context = 40960,
                         .layers = 28,
                         .heads = 16,
                         .channels = 1024,
                         .kv_heads = 8,
                         .head_dim = 128};
  EXPECT_EQ(kv_cache_bytes(qwen, DType::kBF16, 1), 114688);
  Arena plan = Arena::plan(Device::kCuda);
  allocate_kv_cache(plan, qwen, DType::kBF16, 4, 4096);
  const auto cache = plan.ledger().current()[static_cast<size_t>(MemoryTag::kCache)];
  EXPECT_EQ(cache, 4 * 4096 * 114688 + Arena::kAlignment);  // and `starts`
}

}  // namespace
}  // namespace tessera::testing
