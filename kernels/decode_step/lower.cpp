#include "kernels/decode_step/lower.h"

#include <algorithm>
#include <climits>
#include <map>
#include <optional>

#include "kernels/backend.h"
#include "kernels/base/check.h"

namespace tessera::decode_step {
namespace {

constexpr int64_t kAlignment = 4;  // flagged values that are read together

int64_t aligned(int64_t values) { return (values + kAlignment - 1) / kAlignment * kAlignment; }
int divide_up(int value, int by) { return (value + by - 1) / by; }

// A linear layer of a step in one form; none: it is no linear layer
std::optional<FusedLinear> linear_of(const DecodeOp& op) {
  if (const auto* fused = std::get_if<FusedLinear>(&op.op)) return *fused;
  const auto* plain = std::get_if<LinearForward>(&op.op);
  if (!plain) return {};
  return FusedLinear{
      .x = plain->x, .weight = plain->weight, .y = plain->y, .bias = plain->bias, .add = plain->add};
}

const Tensor& y_of(const DecodeOp& op) {
  if (const auto* attention = std::get_if<CachedAttention>(&op.op)) return attention->attention.y;
  if (const auto* embedding = std::get_if<EmbeddingForward>(&op.op)) return embedding->y;
  if (const auto* fused = std::get_if<FusedLinear>(&op.op)) return fused->y;
  return std::get<LinearForward>(op.op).y;
}

std::string why_not_linear(const FusedLinear& a) {
  const int64_t C = a.x.shape[1];
  if (C % kInputUnit != 0)
    return fmt::format("{} inputs of a linear layer: no multiple of {}", C, kInputUnit);
  const int64_t most = a.norm_weight ? kMostNormed : kMostInputs;
  if (C > most)
    return fmt::format("{} inputs of a linear layer{}: more than {}", C,
                       a.norm_weight ? " behind a norm" : "", most);
  if (a.y.shape[1] > INT32_MAX / 2)
    return fmt::format("{} outputs of a linear layer: too many", a.y.shape[1]);
  return "";
}

std::string why_not_attention(const DecodeShape& s) {
  if (s.head_dim > kMostHeadDim) return fmt::format("head dim {}: more than {}", s.head_dim, kMostHeadDim);
  if (s.head_dim % kInputUnit != 0)
    return fmt::format("head dim {}: no multiple of {}", s.head_dim, kInputUnit);
  if (s.heads / s.kv_heads > kMostGroup)
    return fmt::format("{} query heads of a key/value head: more than {}", s.heads / s.kv_heads, kMostGroup);
  if (s.kv_heads > kMostBlocks)
    return fmt::format("{} key/value heads: more than {}", s.kv_heads, kMostBlocks);
  if (s.blocks.size > 0) return "sparse blocks of attention: it has none";
  if (s.scores != AttentionScores{}) return "sinks of attention or a bias of its scores: it has none";
  if (is_small(s.cache)) return fmt::format("a cache of {}: it reads bf16 alone", name_of(s.cache));
  if (s.capacity > INT32_MAX / 2) return fmt::format("a cache of {} tokens: too long", s.capacity);
  return "";
}

std::string why_not_rotary(const RotaryForward& a) {
  const int64_t D = a.x.tensor.shape[3], rotated = 2 * a.angles.shape[1];
  return rotated == D ? ""
                      : fmt::format("{} of a head's {} channels are rotated: it rotates all", rotated, D);
}

// Why the kernel does not serve these operations, by their shapes alone; "": it does
std::string why_not(std::span<const DecodeOp> operations) {
  if (operations.empty()) return "no operations";
  const Tensor& first = y_of(operations.front());
  if (first.dtype != DType::kBF16) return fmt::format("{}: it serves bf16 alone", name_of(first.dtype));
  if (first.shape[0] != 1) return fmt::format("{} texts at a time: it serves one", first.shape[0]);
  int attends = 0;
  for (const DecodeOp& op : operations) {
    std::string why;
    if (const std::optional<FusedLinear> linear = linear_of(op)) why = why_not_linear(*linear);
    if (const auto* attention = std::get_if<CachedAttention>(&op.op)) {
      why = why_not_attention(attention->attention.plan.shape);
      if (why.empty() && attention->rotary) why = why_not_rotary(*attention->rotary);
      ++attends;
    }
    if (!why.empty()) return why;
  }
  if (attends > kMostAttends) return fmt::format("{} layers: more than {}", attends, kMostAttends);
  if (operations.size() > kMostInstructions)
    return fmt::format("{} instructions: more than {}", operations.size(), kMostInstructions);
  return "";
}

// Where all lies in the memory of a step, in units of 32 bits: the kernel's state, then the flagged
// values, then what blocks that share a head pass on. Operations with the same buffer write the same
// values, which so stay in the L2 cache.
struct Layout {
  std::vector<uint32_t> y;  // the first value of each operation's y, but of the last one
  int64_t values = 0, parts = 0, part_lse = 0;

  explicit Layout(std::span<const DecodeOp> operations) {
    struct Buffer {
      uint32_t first;
      int64_t elements;
    };
    std::map<int, Buffer> buffers;
    for (const DecodeOp& op : operations.first(operations.size() - 1)) {
      const int64_t elements = y_of(op).numel();
      const auto [at, is_new] = buffers.try_emplace(op.buffer, static_cast<uint32_t>(values), elements);
      check(at->second.elements == elements, "a decode step writes {} elements to a buffer of {}", elements,
            at->second.elements);
      if (is_new) values += aligned(elements);
      y.push_back(at->second.first);
    }
    for (const DecodeOp& op : operations) {
      const auto* attention = std::get_if<CachedAttention>(&op.op);
      if (!attention) continue;
      const DecodeShape& s = attention->attention.plan.shape;
      const int64_t heads = kMostBlocks * (s.heads / s.kv_heads);
      parts = heads * s.head_dim * 2, part_lse = heads * 2;
      break;  // all are alike
    }
  }
  int64_t bytes() const { return (kStateSize + values + parts + part_lse) * 4; }
};

class Lowering {
 public:
  Lowering(Args& args, const Layout& layout, std::span<const DecodeOp> operations, int blocks)
      : args_(args), layout_(layout), operations_(operations), blocks_(blocks) {}

  void run() {
    args_.capacity = INT32_MAX;
    for (const DecodeOp& op : operations_) {
      if (const std::optional<FusedLinear> linear = linear_of(op))
        add(op, *linear);
      else if (const auto* attention = std::get_if<CachedAttention>(&op.op))
        add(op, *attention);
      else
        add(std::get<EmbeddingForward>(op.op));
    }
  }

 private:
  void add(const EmbeddingForward& a) {
    args_.tokens = a.tokens.as<int32_t>();
    args_.starts = a.starts.as<int32_t>();
    const auto C = static_cast<int>(a.y.numel());
    Instruction& s = next(InstructionKind::kEmbed, divide_up(C, 32 * kWarps));
    s.weight = a.token_table.data, s.bias = a.position_table.data;
    if (a.position_table) limit_places(a.position_table.shape[0]);
    s.O = C;
  }
  void add(const DecodeOp& op, const FusedLinear& a) {
    const auto C = static_cast<int>(a.x.shape[1]), O = static_cast<int>(a.y.shape[1]);
    // As many outputs a tile as make the tiles of all blocks equally many
    const bool gated = a.activation == FusedLinear::Epilogue::kSwiglu;
    const int most = gated ? kTileRows / 2 : kTileRows, rounds = divide_up(O, most * blocks_),
              outputs = divide_up(O, rounds * blocks_);
    Instruction& s = next(InstructionKind::kLinear, divide_up(O, outputs));
    s.tile_outputs = static_cast<uint8_t>(outputs);
    s.weight = a.weight.data, s.bias = a.bias.data;
    s.norm_weight = a.norm_weight.data, s.norm_bias = a.norm_bias.data;
    if (a.norm_weight) s.norm = a.norm_bias ? InstructionNorm::kLayerNorm : InstructionNorm::kRmsNorm;
    s.epsilon = a.epsilon, s.epilogue = a.activation;
    s.C = C, s.O = O;
    read(op.x, a.x, s.x, s.x_from);
    if (a.add) read(op.add, a.add, s.add, s.add_from);
    if (s.y == kNowhere) s.plain = a.y.data;
  }
  void add(const DecodeOp& op, const CachedAttention& all) {
    const DecodeAttention& a = all.attention;
    const DecodeShape& shape = a.plan.shape;
    args_.kv_heads = static_cast<int>(shape.kv_heads);
    args_.group = static_cast<int>(shape.heads / shape.kv_heads);
    args_.head_dim = static_cast<int>(shape.head_dim);
    Instruction& s = next(InstructionKind::kAttend, args_.kv_heads);
    s.cache = static_cast<uint8_t>(attends_++);
    s.weight = a.k_cache.data, s.bias = a.v_cache.data;
    s.C = static_cast<int>(shape.capacity), s.is_ring = all.append.ring;
    if (!s.is_ring) limit_places(shape.capacity);
    s.scale = a.plan.scale;
    if (all.rotary) {
      const auto* angles = all.rotary->angles.as<float>();
      s.angles = args_.angles[0] && args_.angles[0] != angles;
      check(!args_.angles[s.angles] || args_.angles[s.angles] == angles,
            "a decode step has more than two kinds of angles");
      args_.angles[s.angles] = angles;
      limit_places(all.rotary->angles.shape[0]);
      s.norm_weight = all.rotary->q_weight.data, s.norm_bias = all.rotary->k_weight.data;
      s.epsilon = all.rotary->epsilon;
    }
    read(op.x, all.heads, s.x, s.x_from);
  }

  void limit_places(int64_t places) {
    args_.capacity = static_cast<int32_t>(std::min<int64_t>(args_.capacity, places));
  }
  Instruction& next(InstructionKind kind, int tiles) {
    Instruction& s = args_.instructions[args_.count];
    s.kind = kind;
    s.x = s.add = s.y = kNowhere;
    if (static_cast<size_t>(args_.count) < layout_.y.size())
      s.y = layout_.y[static_cast<size_t>(args_.count)];
    s.tiles = tiles, s.first = first_, s.rounds = divide_up(tiles, blocks_);
    first_ = (first_ + tiles) % blocks_;
    ++args_.count;
    return s;
  }
  // `x` is the y of the operation `from`.
  void read(int from, const Tensor& x, uint32_t& first, uint16_t& writer) const {
    const int own = args_.count - 1;
    check(from >= 0 && from < own && y_of(operations_[static_cast<size_t>(from)]).numel() == x.numel(),
          "operation {} of a decode step reads {} of operation {}: expected one before it, with as many "
          "elements",
          own, x.to_string(), from);
    first = layout_.y[static_cast<size_t>(from)], writer = static_cast<uint16_t>(from);
  }

  Args& args_;
  const Layout& layout_;
  std::span<const DecodeOp> operations_;
  int blocks_, first_ = 0, attends_ = 0;
};

}  // namespace

Args lower(std::span<const DecodeOp> operations, const Tensor& memory, int blocks) {
  const Layout layout(operations);
  check(static_cast<int64_t>(memory.bytes()) >= layout.bytes(),
        "a decode step needs {} bytes of memory, found {}", layout.bytes(), memory.bytes());
  Args args{};
  args.state = memory.as<uint32_t>();
  args.values = args.state + kStateSize;
  args.parts = args.values + layout.values, args.part_lse = args.parts + layout.parts;
  Lowering(args, layout, operations, blocks).run();
  return args;
}

}  // namespace tessera::decode_step

namespace tessera {

std::string why_not_one_kernel(std::span<const DecodeOp> operations, const DeviceTraits& device) {
  if (device.device != Device::kCuda) return fmt::format("{}: it needs a GPU", device.name);
  if (device.arch < 90)
    return fmt::format("compute capability {}.{}: it needs 9.0", device.arch / 10, device.arch % 10);
  return decode_step::why_not(operations);
}

int64_t decode_step_bytes(std::span<const DecodeOp> operations, const DeviceTraits& device) {
  return why_not_one_kernel(operations, device).empty() ? decode_step::Layout(operations).bytes() : 0;
}

}  // namespace tessera
