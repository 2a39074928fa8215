#include "train/bench/attention_sweep.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/split.h"
#include "train/bench/attention_results.h"

namespace tessera {
namespace {

struct Sizes {
  std::vector<int64_t> seq_lens;
  int64_t tokens, channels;
};

// What is measured where the options leave it open.
Sizes sizes_of(const BenchAttentionOptions& options, Device device) {
  const bool cuda = device == Device::kCuda;
  Sizes sizes{.seq_lens = options.seq_lens, .tokens = options.tokens, .channels = options.channels};
  if (sizes.seq_lens.empty()) {
    sizes.seq_lens = cuda ? std::vector<int64_t>{512, 1024, 2048, 4096, 8192, 16384, 32768}
                          : std::vector<int64_t>{128, 256, 512, 1024};
  }
  if (sizes.tokens == 0) sizes.tokens = cuda ? 32768 : 1024;
  if (sizes.channels == 0) sizes.channels = cuda ? 2048 : 256;
  return sizes;
}

// shape: batch, tokens, heads, head dim
PlannedProblem make_problem(const std::vector<int64_t>& shape, const std::string& mask, int64_t group,
                            bool in_sweep) {
  const int64_t batch = shape[0], tokens = shape[1], heads = shape[2], head_dim = shape[3];
  check(heads % group == 0, "--group {} does not divide {} heads", group, heads);
  PlannedProblem planned{.mask = parse_mask(mask, batch, tokens), .problem = {}, .in_sweep = in_sweep};
  planned.problem = {.struct_size = sizeof(AttnProblem),
                     .dtype = ATTN_BF16,
                     .batch = batch,
                     .tokens = tokens,
                     .kv_tokens = tokens,
                     .heads = heads,
                     .kv_heads = heads / group,
                     .head_dim = static_cast<int>(head_dim),
                     .mask = planned.mask.mask,
                     .scale = 1 / std::sqrt(static_cast<float>(head_dim)),
                     .dropout = {}};
  return planned;
}

}  // namespace

std::vector<Contender> contenders_of(const std::vector<std::string>& names, const DeviceTraits& device) {
  const std::vector<Contender> all = all_contenders(device.device);
  std::vector<Contender> chosen;
  std::string known;
  for (const Contender& contender : all) known += (known.empty() ? "" : ", ") + contender.name;
  if (names.empty()) {
    if (device.device == Device::kCpu) return all;
    const std::string best = attention::best_rung(device.arch).name;
    for (const Contender& contender : all)
      if (contender.name == best || contender.name == kYardstick) chosen.push_back(contender);
    return chosen;
  }
  for (const std::string& name : names) {
    if (name == "all") return all;
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Contender& c) { return c.name == name; });
    check(found != all.end(), "unknown rung \"{}\"; on {} there are {}, and all", name, device.name, known);
    chosen.push_back(*found);
  }
  return chosen;
}

static AttentionExtra parse_extra(const std::string& text) {
  AttentionExtra extra{.name = text};
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string kind = text.substr(0, colon), number = text.substr(std::min(colon + 1, text.size()));
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  const bool has_number = colon < text.size() && error == std::errc() && end == number.data() + number.size();
  if (text == "sinks" || text == "alibi") {
    (text == "sinks" ? extra.sinks : extra.alibi) = true;
  } else if (kind == "cap" && has_number && value > 0) {
    extra.cap = static_cast<float>(value);
  } else {
    const double threshold = std::round(value * Dropout::kResolution);
    check(kind == "dropout" && has_number && threshold >= 1 && threshold < Dropout::kResolution,
          "--with must be dropout:P, a share from 1/{0} to {1}/{0}, sinks, alibi or cap:C, above 0; found "
          "\"{2}\"",
          Dropout::kResolution, Dropout::kResolution - 1, text);
    extra.dropout = {.threshold = static_cast<int>(threshold), .key = 1, .place = Dropout::kHeads};
  }
  return extra;
}

std::vector<Contender> with_extras(const std::vector<Contender>& contenders,
                                   const std::vector<std::string>& extras) {
  std::vector<Contender> all;
  for (const Contender& contender : contenders) {
    all.push_back(contender);
    for (const std::string& extra : extras) {
      if (contender.name == kYardstick) continue;
      all.push_back(contender);
      all.back().extra = parse_extra(extra);
    }
  }
  return all;
}

std::vector<PlannedProblem> problems_of(const BenchAttentionOptions& options, Device device) {
  const Sizes sizes = sizes_of(options, device);
  std::vector<PlannedProblem> problems;
  for (const std::string& mask : options.masks)
    for (const std::string& shape : options.shapes)
      problems.push_back(make_problem(parse_attention_shape(shape), mask, options.group, false));
  for (const int64_t head_dim : options.head_dims) {
    check(sizes.channels % head_dim == 0, "--channels {} is not a multiple of head dim {}", sizes.channels,
          head_dim);
    for (const std::string& mask : options.masks) {
      for (const int64_t tokens : sizes.seq_lens) {
        const int64_t batch = std::max<int64_t>(1, sizes.tokens / tokens);
        problems.push_back(
            make_problem({batch, tokens, sizes.channels / head_dim, head_dim}, mask, options.group, true));
      }
    }
  }
  return problems;
}

std::vector<int64_t> parse_attention_shape(const std::string& text) {
  constexpr int64_t kLargest = 1 << 30;
  std::vector<int64_t> sizes;
  for (const std::string_view part : split(text, ',')) {
    const bool digits =
        !part.empty() && part.size() <= 10 && part.find_first_not_of("0123456789") == part.npos;
    sizes.push_back(digits ? std::stoll(std::string(part)) : 0);
  }
  const bool good = sizes.size() == 4 &&
                    std::all_of(sizes.begin(), sizes.end(), [](int64_t s) { return s > 0 && s <= kLargest; });
  check(good, "--shape must be B,N,H,D, four positive whole numbers as in 64,1024,12,64; found \"{}\"", text);
  return sizes;
}

std::vector<AttnDecodeProblem> decode_problems_of(const BenchAttentionOptions& options, Device device) {
  check(options.rungs.empty() && options.extras.empty() && options.tokens == 0 && options.svg.empty(),
        "--decode has no use for --rungs, --with, --tokens and --svg: remove them");
  const bool cuda = device == Device::kCuda;
  std::vector<int64_t> contexts = options.seq_lens;
  if (contexts.empty())
    contexts = cuda ? std::vector<int64_t>{1024, 8192, 32768, 131072} : std::vector<int64_t>{128, 1024};
  const int64_t channels = options.channels > 0 ? options.channels : cuda ? 4096 : 256;
  std::vector<std::vector<int64_t>> shapes;  // batch, cached tokens, heads, head dim
  for (const std::string& shape : options.shapes) shapes.push_back(parse_attention_shape(shape));
  for (const int64_t head_dim : options.head_dims)
    for (const int64_t batch : options.batches)
      for (const int64_t tokens : contexts)
        shapes.push_back({batch, tokens, std::max<int64_t>(1, channels / head_dim), head_dim});
  std::vector<AttnDecodeProblem> problems;
  for (const std::vector<int64_t>& shape : shapes) {
    check(shape[2] % options.group == 0, "--group {} does not divide {} heads", options.group, shape[2]);
    problems.push_back({.struct_size = sizeof(AttnDecodeProblem),
                        .dtype = cuda ? ATTN_BF16 : ATTN_F32,
                        .batch = shape[0],
                        .capacity = shape[1],
                        .heads = shape[2],
                        .kv_heads = shape[2] / options.group,
                        .head_dim = static_cast<int>(shape[3]),
                        .scale = 1 / std::sqrt(static_cast<float>(shape[3]))});
  }
  return problems;
}

}  // namespace tessera
