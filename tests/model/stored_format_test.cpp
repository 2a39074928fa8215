// A store whose frozen matrices are in a format of half a byte an element, with a scale for each row.
#include <cmath>
#include <cstring>

#include "model/store/param_store.h"
#include "tests/support.h"

namespace tessera::testing {
namespace {

class HalfBytes final : public StoredFormat {
 public:
  const char* name() const override { return "half bytes"; }
  DType unit(Device /*device*/) const override { return DType::kU16; }
  int64_t units(int64_t elements) const override { return elements / 4; }
  int64_t scales_of(const StoredShape& matrix) const override { return matrix.shape[0]; }
  bool is_multiplied() const override { return false; }
  void round(const Stream& /*stream*/, const Tensor& plain, const StoredValues& to) const override {
    const int64_t columns = plain.shape[1];
    std::memset(to.data.data, 0, to.data.bytes());
    for (int64_t row = 0; row < plain.shape[0]; ++row) {
      const float* x = plain.as<float>() + row * columns;
      float largest = 0;
      for (int64_t c = 0; c < columns; ++c) largest = std::max(largest, std::abs(x[c]));
      const float scale = to.scales.as<float>()[row] = largest / 7;
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t i = row * columns + c;
        to.data.as<uint16_t>()[i / 4] |=
            static_cast<uint16_t>((std::lround(x[c] / scale) + 8) << 4 * (i % 4));
      }
    }
  }
  void widen(const Stream& /*stream*/, const StoredValues& from, const Tensor& plain) const override {
    for (int64_t i = 0; i < plain.numel(); ++i) {
      const int value = from.data.as<uint16_t>()[i / 4] >> 4 * (i % 4) & 15;
      plain.as<float>()[i] = static_cast<float>(value - 8) * from.scales.as<float>()[i / plain.shape[1]];
    }
  }
};

// Of two ranks, the other of which sends nothing
class OneOfTwo final : public Communicator {
 public:
  explicit OneOfTwo(int rank) : Communicator(Device::kCpu, rank, 2) {}

 private:
  void run(const AllReduce& /*a*/) override {}
  void run(const ReduceScatter& /*a*/) override {}
  void run(const AllGather& a) override {
    std::memcpy(a.whole.as<char>() + static_cast<size_t>(rank()) * a.part.bytes(), a.part.data,
                a.part.bytes());
  }
  void run(const AllToAll& /*a*/) override {}
};

// k / 4 with k of -7 to 7, the largest in each row: no rounding
std::vector<float> values_of(const ParamPlace& place) {
  std::vector<float> values;
  for (int64_t i = 0; i < place.info.shape.numel(); ++i)
    values.push_back(static_cast<float>((i * 4 + static_cast<int64_t>(place.index)) % 15 - 7) / 4);
  return values;
}

void expect_what_was_written(const Shards& shards, int rank, bool on_host) {
  static const HalfBytes format;
  constexpr ModelConfig kModel{.vocab_size = 61, .context = 16, .layers = 3, .heads = 2, .channels = 32};
  CpuStream cpu;
  Arena arena = Arena::host(), host = Arena::host();
  OneOfTwo comm(rank);
  Freeze freeze;
  freeze.add(ParamPart::kAttention), freeze.add(ParamPart::kMlp);
  ParamStore store(cpu, arena,
                   {.model = kModel,
                    .homes = {.shards = shards,
                              .axis = shards.parts > 1 ? &comm : nullptr,
                              .freeze = freeze,
                              .fp8 = {.gemm_dtype = GemmDtype::kFp8, .edges = true},
                              .weights = {.host = on_host ? &host : nullptr, .format = &format}}});
  const auto& matrices = store.weight_home().forms().matrices();
  ASSERT_EQ(matrices.size(), 12u);
  for (const StoredMatrix& one : matrices) {
    const ParamPlace& place = store.layout().places[one.place];
    EXPECT_EQ(one.values.data.bytes(), static_cast<size_t>(place.info.shape.numel()) / 2);
    std::vector<float> values = values_of(place);
    store.writer()(place, {.data = values.data(), .shape = place.info.shape});
  }
  int64_t compared = 0, all = 0;
  for (const LeaseFor use : {LeaseFor::kInference, LeaseFor::kForward, LeaseFor::kBackward})
    for (const StoredMatrix& one : matrices) {
      ParamPlace place = store.layout().places[one.place];
      const auto lease = store.lease_block(static_cast<size_t>(place.info.block), use);
      const int64_t each = store.layout().buckets[place.bucket].stored_elements / store.part().count;
      const std::vector<float> values = values_of(place);
      place.first = place.stored_first;
      const auto [first, count] = place.within(store.part().index * each, each);
      const int64_t from = store.part().index * each + first - place.first;
      for (int64_t i = from; i < from + count; ++i)
        ASSERT_EQ(one.plain.as<float>()[i], values[static_cast<size_t>(i)]) << one.layer << " " << i;
      compared += count, all += place.info.shape.numel();
    }
  EXPECT_GE(compared * shards.parts, all / 2);
}

TEST(StoredFormat, MayTakeLessThanAByteAnElement) {
  for (const bool on_host : {false, true}) {
    expect_what_was_written({}, 0, on_host);
    for (const int rank : {0, 1}) expect_what_was_written({Shard::kWeights, 2}, rank, on_host);
  }
}

}  // namespace
}  // namespace tessera::testing
