#include "kernels/chain/translate.h"

#include <algorithm>
#include <map>
#include <optional>

#include "kernels/backend.h"
#include "kernels/base/check.h"

namespace tessera::chain {
namespace {

constexpr int64_t kAlignment = 4;  // words that are read together

int64_t aligned(int64_t words) { return (words + kAlignment - 1) / kAlignment * kAlignment; }

bool is_row(const Tensor& t) { return t.dtype == DType::kBF16 && t.shape[0] == 1; }

// The linear layers of a chain in one form
std::optional<FusedLinear> linear_of(const ChainedOp& op) {
  if (const auto* fused = std::get_if<FusedLinear>(&op)) return *fused;
  const auto* plain = std::get_if<LinearForward>(&op);
  if (!plain || plain->pre_activation) return {};
  return FusedLinear{
      .x = plain->x, .weight = plain->weight, .y = plain->y, .bias = plain->bias, .add = plain->add};
}

// What attention reads: the new heads of q, k and v in one tensor, and with rotation where q goes to
struct NewHeads {
  Heads q, k, v, rotated_q;
  const RotaryForward* rotary = nullptr;
};
std::optional<NewHeads> new_heads_of(const ChainedOp& op) {
  if (const auto* append = std::get_if<CacheAppend>(&op)) {
    const Heads q{append->k.tensor, 0, append->k.first};
    return NewHeads{.q = q, .k = append->k, .v = append->v, .rotated_q = q};
  }
  const auto* both = std::get_if<RotaryAppend>(&op);
  if (!both) return {};
  const RotaryForward& r = both->rotary;
  const int64_t H = r.query_heads;
  return NewHeads{.q = {r.x.tensor, r.x.first, H},
                  .k = {r.x.tensor, r.x.first + H, r.x.count - H},
                  .v = both->append.v,
                  .rotated_q = {r.y.tensor, r.y.first, H},
                  .rotary = &r};
}

bool serves_linear(const FusedLinear& a) {
  const int64_t C = a.x.shape[1], O = a.y.shape[1];
  return is_row(a.x) && C % 8 == 0 && C <= (a.norm_weight ? kMostNormed : kMostInputs) && O <= INT32_MAX / 2;
}

// Whether attention reads what `heads` append, all heads of one tensor in the order q, k, v
bool serves_attention(const NewHeads& heads, const DecodeAttention& a) {
  const DecodeShape& s = a.plan.shape;
  return a.plan.dtype == DType::kBF16 && s.batch == 1 && s.head_dim % 8 == 0 && s.head_dim <= kMostHeadDim &&
         s.heads / s.kv_heads <= kMostGroup && s.kv_heads <= kMostBlocks && s.capacity <= INT32_MAX / 2 &&
         heads.q.first == 0 && heads.k.first == s.heads && heads.v.first == s.heads + s.kv_heads &&
         heads.q.count == s.heads && heads.v.tensor.data == heads.q.tensor.data && a.q.first == 0 &&
         a.q.tensor.data == heads.rotated_q.tensor.data;
}

// The stages of a chain as the kernel can have them, by shapes: an embedding, then linear layers and
// attention, the last one linear; 0: not such a chain
int count_stages(std::span<const ChainedOp> operations) {
  if (operations.empty() || !linear_of(operations.back())) return 0;
  const auto* embedding = std::get_if<EmbeddingForward>(&operations[0]);
  if (!embedding || embedding->y.dtype != DType::kBF16 || embedding->tokens.numel() != 1 ||
      !embedding->starts || embedding->documents)
    return 0;
  int stages = 1, attends = 0;
  for (size_t i = 1; i < operations.size(); ++i, ++stages) {
    if (const std::optional<FusedLinear> linear = linear_of(operations[i])) {
      if (!serves_linear(*linear)) return 0;
      continue;
    }
    const std::optional<NewHeads> heads = new_heads_of(operations[i]);
    if (!heads || ++i == operations.size()) return 0;
    const auto* attention = std::get_if<DecodeAttention>(&operations[i]);
    if (!attention || !serves_attention(*heads, *attention)) return 0;
    ++attends;
  }
  return attends > 0 && attends <= kMostAttends && stages <= kMostStages ? stages : 0;
}

const DecodeShape& attention_of(std::span<const ChainedOp> operations) {
  for (const ChainedOp& op : operations)
    if (const auto* attention = std::get_if<DecodeAttention>(&op)) return attention->plan.shape;
  fail("a chain without attention");
}

// Where all lies in the memory of a chain, in words. Each y has a place, though one tensor may be the y of
// several operations: a plan has no addresses.
struct Layout {
  int64_t words = 0, parts, part_lse;

  explicit Layout(std::span<const ChainedOp> operations) {
    for (const ChainedOp& op : operations.first(operations.size() - 1)) {
      if (const auto* embedding = std::get_if<EmbeddingForward>(&op)) words += aligned(embedding->y.numel());
      if (const auto* attention = std::get_if<DecodeAttention>(&op)) words += aligned(attention->y.numel());
      if (const std::optional<FusedLinear> linear = linear_of(op)) words += aligned(linear->y.numel());
    }
    const DecodeShape& s = attention_of(operations);
    const int64_t heads = kMostBlocks * (s.heads / s.kv_heads);
    parts = heads * s.head_dim * 2, part_lse = heads * 2;
  }
  int64_t bytes() const { return (kStateWords + words + parts + part_lse) * 4; }
};

class Translator {
 public:
  Translator(Args& args, int blocks) : args_(args), blocks_(blocks) {}

  void add(const EmbeddingForward& a) {
    args_.tokens = a.tokens.as<int32_t>();
    args_.starts = a.starts.as<int32_t>();
    const auto C = static_cast<int>(a.y.numel());
    Stage& s = next(StageKind::kEmbed, (C + 32 * kWarps - 1) / (32 * kWarps));
    s.weight = a.token_table.data, s.bias = a.position_table.data;
    s.O = C;
    s.y = write(a.y);
  }
  void add(const FusedLinear& a, bool is_last) {
    const auto C = static_cast<int>(a.x.shape[1]), O = static_cast<int>(a.y.shape[1]);
    // As many outputs a tile as make the tiles of all blocks equally many
    const bool gated = a.activation == FusedLinear::Epilogue::kSwiglu;
    const int most = gated ? kTileRows / 2 : kTileRows, rounds = divide_up(O, most * blocks_),
              outputs = divide_up(O, rounds * blocks_);
    Stage& s = next(StageKind::kLinear, divide_up(O, outputs));
    s.tile_outputs = static_cast<uint8_t>(outputs);
    s.weight = a.weight.data, s.bias = a.bias.data;
    s.norm_weight = a.norm_weight.data, s.norm_bias = a.norm_bias.data;
    if (a.norm_weight) s.norm = a.norm_bias ? StageNorm::kLayerNorm : StageNorm::kRmsNorm;
    s.epsilon = a.epsilon, s.epilogue = a.activation;
    s.C = C, s.O = O;
    read(a.x, s.x, s.x_from);
    if (a.add) read(a.add, s.add, s.add_from);
    if (is_last)
      s.plain = a.y.data;
    else
      s.y = write(a.y);
  }
  void add(const NewHeads& heads, const DecodeAttention& a) {
    const DecodeShape& shape = a.plan.shape;
    args_.capacity = static_cast<int>(shape.capacity), args_.kv_heads = static_cast<int>(shape.kv_heads);
    args_.group = static_cast<int>(shape.heads / shape.kv_heads);
    args_.head_dim = static_cast<int>(shape.head_dim);
    Stage& s = next(StageKind::kAttend, args_.kv_heads);
    s.cache = static_cast<uint8_t>(attends_++);
    s.weight = a.k_cache.data, s.bias = a.v_cache.data;
    s.scale = a.plan.scale;
    if (heads.rotary) {
      args_.angles = heads.rotary->angles.as<float>();
      s.norm_weight = heads.rotary->q_weight.data, s.norm_bias = heads.rotary->k_weight.data;
      s.epsilon = heads.rotary->epsilon;
    }
    read(heads.q.tensor, s.x, s.x_from);
    s.y = write(a.y);
  }

 private:
  struct Written {
    uint32_t first;
    int64_t words;
    uint16_t stage;
  };
  static int divide_up(int value, int by) { return (value + by - 1) / by; }

  Stage& next(StageKind kind, int tiles) {
    Stage& s = args_.stages[args_.count++];
    s.kind = kind;
    s.x = s.add = s.y = kNoWords;
    s.tiles = tiles, s.first = first_, s.rounds = divide_up(tiles, blocks_);
    first_ = (first_ + tiles) % blocks_;
    return s;
  }
  // The words of a tensor; one that is written again keeps its place, so that they stay in the L2 cache.
  uint32_t write(const Tensor& y) {
    auto [at, is_new] = written_.try_emplace(y.data, Written{used_, y.numel(), 0});
    check(at->second.words == y.numel(), "a chain writes {} elements over {}", y.numel(), at->second.words);
    if (is_new) used_ += static_cast<uint32_t>(aligned(y.numel()));
    at->second.stage = static_cast<uint16_t>(args_.count - 1);
    return at->second.first;
  }
  void read(const Tensor& x, uint32_t& words, uint16_t& from) const {
    const auto at = written_.find(x.data);
    check(at != written_.end() && at->second.words == x.numel(),
          "operation {} of a chain reads {}, which none before it has written", args_.count - 1,
          x.to_string());
    words = at->second.first, from = at->second.stage;
  }

  Args& args_;
  int blocks_, first_ = 0, attends_ = 0;
  std::map<const void*, Written> written_;
  uint32_t used_ = 0;
};

}  // namespace

Args translate(std::span<const ChainedOp> operations, const Tensor& memory, int blocks) {
  const Layout layout(operations);
  check(static_cast<int64_t>(memory.bytes()) >= layout.bytes(), "a chain wants {} bytes of memory, found {}",
        layout.bytes(), memory.bytes());
  Args args{};
  args.state = memory.as<uint32_t>();
  args.words = args.state + kStateWords;
  args.parts = args.words + layout.words, args.part_lse = args.parts + layout.parts;
  Translator translator(args, blocks);
  translator.add(std::get<EmbeddingForward>(operations[0]));
  for (size_t i = 1; i < operations.size(); ++i) {
    if (const std::optional<FusedLinear> linear = linear_of(operations[i])) {
      translator.add(*linear, i + 1 == operations.size());
    } else {
      const std::optional<NewHeads> heads = new_heads_of(operations[i++]);
      translator.add(*heads, std::get<DecodeAttention>(operations[i]));
    }
  }
  return args;
}

}  // namespace tessera::chain

namespace tessera {

int64_t chain_bytes(std::span<const ChainedOp> operations, const DeviceTraits& device) {
  if (device.device != Device::kCuda || device.arch < 90 || chain::count_stages(operations) == 0) return 0;
  return chain::Layout(operations).bytes();
}

}  // namespace tessera
