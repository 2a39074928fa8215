#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/bf16.h"
#include "kernels/base/check.h"
#include "kernels/base/master.h"

namespace tessera {
namespace cpu {
namespace {

// That the documents of a sequence follow one another without a gap: kernels read where they point. Not in
// check_on(), since a plan has no memory.
void check_documents(const char* op, const Tensor& documents) {
  const int64_t B = documents.shape[0], T = documents.shape[1];
  const auto* span = documents.as<int32_t>();  // of a token: where its document begins and ends
  for (int64_t b = 0; b < B; ++b)
    for (int64_t t = 0; t < T; ++t, span += 2) {
      const int64_t begin = t > 0 && t < span[-1] ? span[-2] : t;
      if (span[0] != begin || span[1] <= t || span[1] > T || (begin < t && span[1] != span[-1]))
        fail(
            "{}: documents must say for each token where its document begins and ends, found {} to {} for "
            "token {} of sequence {}, of {} tokens",
            op, span[0], span[1], t, b, T);
    }
}

// That tables of dealt queries say the same, and that nothing falls. The queries of a listed block must be
// tokens that follow one another.
void check_dealt(const char* op, const AttentionPlan& plan, const MaskTables& tables) {
  const attention::Mask of_first = mask_of(plan, tables);
  for (int64_t b = 0; b < plan.shape.batch; ++b) {
    const attention::Mask mask = of_first.of_sequence(b);
    attention::Span last{0, 0};
    int64_t pairs = 0, seen = 0;
    for (int query = 0; query < mask.queries; ++query) {
      const attention::Span keys = mask.keys_of(query);
      check(
          last.begin <= keys.begin && last.end <= keys.end && keys.begin <= keys.end && keys.end <= mask.keys,
          "{}: documents must say which of {} keys each dealt query sees, in rising order; found {} to {} "
          "for query {} of sequence {}",
          op, mask.keys, keys.begin, keys.end, query, b);
      if (const int64_t size = plan.shape.mask.blocks.size; size > 0 && query % size > 0 && !keys.empty())
        check(
            keys.end == last.end + 1,
            "{}: dealt queries of a sparse block must be tokens that follow one another, found tokens {} and "
            "{} in block {} of sequence {}",
            op, last.end - 1, keys.end - 1, query / size, b);
      pairs += keys.size();
      last = keys;
    }
    for (int key = 0; key < mask.keys; ++key) {
      const attention::Span queries = mask.queries_of(key);
      seen += queries.size();
      check(queries.empty() || (queries.begin >= 0 && queries.end <= mask.queries &&
                                mask.sees(queries.begin, key) && mask.sees(queries.end - 1, key)),
            "{}: seen_by must say which queries see each key, found {} to {} for key {} of sequence {}", op,
            queries.begin, queries.end, key, b);
    }
    check(pairs == seen, "{}: documents has {} pairs of a query and a key that it sees, and seen_by {}", op,
          pairs, seen);
  }
}

// That lists of sparse blocks rise within their blocks, and say the same by query block and by key block
void check_blocks(const char* op, const AttentionPlan& plan, const MaskTables& tables) {
  const attention::Blocks blocks = blocks_of(plan, tables);
  const auto check_list = [&](attention::BlockList list, int most, const char* what, int of) {
    for (int i = 0; i < list.count; ++i)
      check(list[i] >= (i > 0 ? list[i - 1] + 1 : 0) && list[i] < most,
            "{}: blocks must list the {} of each block in rising order, below {}; found {} in place {} of "
            "block "
            "{}",
            op, what, most, list[i], i, of);
  };
  for (int list = 0; list < blocks.lists; ++list) {
    for (int row = 0; row < blocks.query_blocks; ++row)
      check_list(blocks.keys_of(list, row), blocks.key_blocks, "key blocks", row);
    int64_t pairs = 0;
    for (int column = 0; column < blocks.key_blocks; ++column) {
      const attention::BlockList queries = blocks.queries_of(list, column);
      check_list(queries, blocks.query_blocks, "query blocks", column);
      for (int i = 0; i < queries.count; ++i) {
        const attention::BlockList keys = blocks.keys_of(list, queries[i]);
        const int place = blocks.places_of(list, column)[i];
        check(
            place >= 0 && place < keys.count && keys[place] == column,
            "{}: blocks must say the same by query block and by key block, found key block {} seen by query "
            "block {} in place {} of its list, which has {}",
            op, column, queries[i], place, keys.count);
      }
      pairs += queries.count;
    }
    for (int row = 0; row < blocks.query_blocks; ++row) pairs -= blocks.keys_of(list, row).count;
    check(pairs == 0, "{}: blocks has {} more pairs by key block than by query block, in list {}", op, pairs,
          list);
  }
}

void check_tables(const char* op, const AttentionPlan& plan, const MaskTables& tables) {
  if (tables.blocks) check_blocks(op, plan, tables);
  if (plan.shape.mask.dealt) return check_dealt(op, plan, tables);
  if (tables.documents) check_documents(op, tables.documents);
}

}  // namespace

constexpr int64_t kFewValues = 1 << 15;  // one thread converts them faster than several start

void run(const FillZero& a, const Launch& /*on*/) {
  const int64_t bytes = static_cast<int64_t>(a.tensor.bytes());
  // Bytes a task clears: one core alone does not reach the memory's bandwidth
  constexpr int64_t kChunk = 1 << 20;
#pragma omp parallel for
  for (int64_t first = 0; first < bytes; first += kChunk)
    std::memset(a.tensor.as<char>() + first, 0, std::min(kChunk, bytes - first));
}

void run(const Copy& a, const Launch& /*on*/) {
  const auto& [from, to] = a;
  const int64_t count = from.numel();
  if (from.dtype == to.dtype) {
    std::memcpy(to.data, from.data, from.bytes());
  } else if (from.dtype == DType::kF32 && to.dtype == DType::kBF16) {
    for (int64_t i = 0; i < count; ++i) to.as<uint16_t>()[i] = bf16_from_float(from.as<float>()[i]);
  } else if (from.dtype == DType::kBF16 && to.dtype == DType::kF32) {
    const auto* halves = from.as<uint16_t>();
    float* floats = to.as<float>();
#pragma omp parallel for if (count > kFewValues)
    for (int64_t i = 0; i < count; ++i) floats[i] = float_from_bf16(halves[i]);
  } else {
    fail("{}: cannot convert {} into {}", a.kName, from.to_string(), to.to_string());
  }
}

void run(const SplitMasters& a, const Launch& /*on*/) {
  const float* masters = a.masters.as<float>();
  auto *weights = a.weights.as<uint16_t>(), *low = a.low.as<uint16_t>();
  const int64_t count = a.weights.numel();
  for (int64_t i = 0; i < count; ++i) {
    const SplitMaster split = split_master(std::bit_cast<uint32_t>(masters[i]));
    weights[i] = split.weight;
    if (low) low[i] = split.low;
  }
}

void run(const JoinMasters& a, const Launch& /*on*/) {
  const auto *weights = a.weights.as<uint16_t>(), *low = a.low.as<uint16_t>();
  float* masters = a.masters.as<float>();
  const int64_t count = a.weights.numel();
  for (int64_t i = 0; i < count; ++i)
    masters[i] = std::bit_cast<float>(master_bits({.weight = weights[i], .low = low[i]}));
}

void run(const Accumulate& a, const Launch& /*on*/) {
  const float* x = a.x.as<float>();
  float* y = a.y.as<float>();
  const int64_t count = a.y.numel();
#pragma omp parallel for simd if (count > kFewValues)
  for (int64_t i = 0; i < count; ++i) y[i] += x[i];
}

void run(const AttentionForward& a, const Launch& /*on*/) {
  check_tables(a.kName, a.plan, a.tables);
  a.plan.kind == AttentionKind::kNaive ? naive_attention_forward(a) : flash_attention_forward(a);
}

void run(const AttentionBackward& a, const Launch& /*on*/) {
  check_tables(a.kName, a.plan, a.tables);
  a.plan.kind == AttentionKind::kNaive ? naive_attention_backward(a) : flash_attention_backward(a);
}

}  // namespace cpu

namespace {

class CpuBackend final : public Backend {
 public:
  const DeviceTraits& traits() const override { return traits_; }
  void synchronize(CUstream_st*) override {}

 private:
  void do_(const AnyOp& op, const Launch& on) override {
    std::visit([&](const auto* a) { cpu::run(*a, on); }, op);
  }

  DeviceTraits traits_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace tessera
