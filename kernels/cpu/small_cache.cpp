// Keys and values as codes, and back: the reference for the kernels of kernels/cuda/small_cache.cu, which
// give the same bits.
#include "kernels/cpu/small_cache.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {
namespace {

constexpr int kTokens = CacheFormat::kGroupTokens;
constexpr int kStepWords = CacheFormat::kLanes * CacheFormat::kLaneWords;  // of 16 channels of a tile

// Calls visit(word, shift, token, channel) for each code of a group's keys or values. Channels behind the
// head's last are among them.
template <class Word, class Visit>
void each_code(const CacheFormat& format, Word* group, bool is_value, const Visit& visit) {
  for (int tile = 0; tile < format.tiles(); ++tile) {
    Word* words =
        group + format.tile_begin(tile) + format.value_scale_words() + (is_value ? format.code_words() : 0);
    for (int in_step = 0; in_step < kStepWords; ++in_step)
      for (int code = 0; code < format.codes_of_word(); ++code) {
        const CodeOf of = format.code_of(in_step, code);
        const int token = tile * format.tile_tokens() + of.sub * 16 + (is_value ? of.column : of.row),
                  channel = is_value ? of.row : of.column;
        for (int step = 0; step < format.steps(); ++step)
          visit(words[step * kStepWords + in_step], code * format.bits(), token, channel + 16 * step);
      }
  }
}

// The least and the most of `count` numbers, and whether all are finite
struct Spread {
  float least, most;
  bool finite = true;

  explicit Spread(float x) : least(x), most(x) { add(x); }
  void add(float x) {
    least = std::min(least, x), most = std::max(most, x);
    finite = finite && cache_format::is_finite(x);
  }
};

struct Rows {
  const float* data;
  int64_t rows, row;  // of the tensor, and elements from one to the next
  const float* of(int64_t token) const { return data + token % rows * row; }
};

void quantise_keys(const CacheFormat& format, const Rows& k, int64_t first, uint32_t* group) {
  auto* scales = reinterpret_cast<uint16_t*>(group);
  std::vector<CacheScale> of_channels(static_cast<size_t>(format.steps()) * 16);
  for (int channel = 0; channel < format.head_dim; ++channel) {
    Spread spread(k.of(first)[channel]);
    for (int token = 1; token < kTokens; ++token) spread.add(k.of(first + token)[channel]);
    const CacheScale scale = format.scale_of(spread.least, spread.most, spread.finite);
    of_channels[static_cast<size_t>(channel)] = scale;
    scales[CacheFormat::key_step(channel)] = scale.step;
    scales[CacheFormat::key_step(channel) + CacheFormat::kKeyZero] = scale.zero;
  }
  each_code(format, group, false, [&](uint32_t& word, int shift, int token, int channel) {
    const uint32_t code = channel < format.head_dim ? format.code(k.of(first + token)[channel],
                                                                  of_channels[static_cast<size_t>(channel)])
                                                    : format.code_of_zero();
    word |= code << shift;
  });
}

void quantise_values(const CacheFormat& format, const Rows& v, int64_t first, uint32_t* group) {
  const int parts = format.parts(), channels = format.value_channels();
  std::vector<CacheScale> of_tokens(static_cast<size_t>(kTokens * parts));
  for (int token = 0; token < kTokens; ++token)
    for (int part = 0; part < parts; ++part) {
      const float* row = v.of(first + token);
      const int begin = part * channels, end = std::min(begin + channels, format.head_dim);
      Spread spread(row[begin]);
      for (int channel = begin + 1; channel < end; ++channel) spread.add(row[channel]);
      const CacheScale scale = format.scale_of(spread.least, spread.most, spread.finite);
      of_tokens[static_cast<size_t>(token * parts + part)] = scale;
      group[format.value_scale(token, part)] = uint32_t{scale.zero} << 16 | scale.step;
    }
  each_code(format, group, true, [&](uint32_t& word, int shift, int token, int channel) {
    const uint32_t code =
        channel < format.head_dim
            ? format.code(v.of(first + token)[channel],
                          of_tokens[static_cast<size_t>(token * parts + channel / channels)])
            : format.code_of_zero();
    word |= code << shift;
  });
}

}  // namespace

void widen_group(const CacheFormat& format, const uint32_t* group, float* k, float* v, int64_t row) {
  using cache_format::widened;
  std::array<float, 256> numbers{};
  for (uint32_t code = 0; code < 1u << format.bits(); ++code) numbers[code] = format.number(code);
  const uint32_t mask = (1u << format.bits()) - 1;
  const auto* scales = reinterpret_cast<const uint16_t*>(group);
  each_code(format, group, false, [&](uint32_t word, int shift, int token, int channel) {
    if (channel >= format.head_dim) return;
    const uint16_t* scale = scales + CacheFormat::key_step(channel);
    k[token * row + channel] =
        std::fma(widened(scale[0]), numbers[word >> shift & mask], widened(scale[CacheFormat::kKeyZero]));
  });
  each_code(format, group, true, [&](uint32_t word, int shift, int token, int channel) {
    if (channel >= format.head_dim) return;
    const uint32_t scale = group[format.value_scale(token, channel / format.value_channels())];
    v[token * row + channel] = std::fma(widened(static_cast<uint16_t>(scale)), numbers[word >> shift & mask],
                                        widened(static_cast<uint16_t>(scale >> 16)));
  });
}

void run(const QuantiseCache& a, const Launch& /*on*/) {
  const int64_t L = a.k.shape[0], B = a.k.shape[1], rows = a.k.shape[2], K = a.k.shape[3], D = a.k.shape[4];
  const int64_t G = a.groups.shape[3], words = a.groups.shape[4];
#pragma omp parallel for collapse(3) schedule(dynamic)
  for (int64_t l = 0; l < L; ++l)
    for (int64_t b = 0; b < B; ++b)
      for (int64_t head = 0; head < K; ++head) {
        int64_t first = a.first, count = a.count;
        if (a.starts) {
          const int64_t start = a.starts.as<int32_t>()[b];
          first = CacheFormat::groups_of(start);
          count = start >= 0 && CacheFormat::groups_of(start + 1) > first && first < G ? 1 : 0;
        }
        const auto rows_of = [&](const Tensor& all) {
          return Rows{all.as<float>() + (l * B + b) * rows * K * D + head * D, rows, K * D};
        };
        for (int64_t group = first; group < first + count; ++group) {
          uint32_t* to = a.groups.as<uint32_t>() + (((l * B + b) * K + head) * G + group) * words;
          std::fill_n(to, words, 0u);
          quantise_keys(a.format, rows_of(a.k), group * kTokens, to);
          quantise_values(a.format, rows_of(a.v), group * kTokens, to);
        }
      }
}

void run(const DequantiseCache& a, const Launch& /*on*/) {
  const int64_t K = a.k.shape[1], D = a.k.shape[2], G = a.groups.shape[1], words = a.groups.shape[2];
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t head = 0; head < K; ++head)
    for (int64_t group = 0; group < a.count; ++group) {
      const int64_t to = (group * kTokens * K + head) * D;
      widen_group(a.format, a.groups.as<uint32_t>() + (head * G + group) * words, a.k.as<float>() + to,
                  a.v.as<float>() + to, K * D);
    }
}

}  // namespace tessera::cpu
