// ./bench needle: whether a model finds a fact at any depth of texts of several lengths.
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/output.h"
#include "kernels/base/status_line.h"
#include "kernels/base/text.h"
#include "model/formats/folder.h"
#include "train/bench/bench.h"
#include "train/bench/needle.h"
#include "train/run/model_folder.h"
#include "train/run/run_data.h"
#include "train/session/device.h"
#include "train/session/from_config.h"
#include "train/session/session.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFillerBytesPerToken = 16;  // more than any tokenizer's mean
constexpr double kQuietSeconds = 60;

// The beginning of the file: as much as the longest text can need
std::string filler_text(const BenchNeedleOptions& options, int64_t longest) {
  const fs::path path = options.filler.empty() ? builtin_corpus() : fs::path(options.filler);
  const MappedFile file(path);
  std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  text = text.substr(0, kFillerBytesPerToken * static_cast<size_t>(longest));
  return std::string(text.substr(0, utf8_prefix(text)));
}

// Default: the model's context, and of its half, quarter and eighth those that hold every needle
std::vector<int64_t> contexts_of(const BenchNeedleOptions& options, const ModelConfig& model,
                                 const NeedleTexts& texts) {
  std::vector<int64_t> contexts = options.contexts;
  int64_t shortest = 0;
  for (int64_t needle = 0; needle < options.needles; ++needle)
    shortest = std::max(shortest, texts.shortest(needle));
  for (int64_t share = 8; options.contexts.empty() && share > 0; share /= 2)
    if (share == 1 || model.context / share >= shortest) contexts.push_back(model.context / share);
  for (const int64_t context : contexts) {
    check(context <= model.context,
          "--contexts {}: the model of {} reads at most {} tokens. docs/finetune.md shows how to train it on "
          "more",
          context, options.model, model.context);
    check(context >= shortest,
          "--contexts {}: the fact, the question and the answer take up to {} tokens of this tokenizer; name "
          "longer contexts",
          context, shortest);
  }
  return contexts;
}

}  // namespace

void bench_needle(const BenchNeedleOptions& options) {
  check_writable(options.json);
  check_writable(options.svg);
  const fs::path folder = find_model_folder(options.model).path;
  const ModelConfig model = read_model_config(folder).model;
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(folder, options.tokenizer, model);
  const int64_t known = std::min<int64_t>(tokenizer->vocab_size(), model.vocab_size);
  const NeedleTexts texts(*tokenizer, filler_text(options, model.context),
                          static_cast<uint64_t>(options.seed));
  const std::vector<int64_t> contexts = contexts_of(options, model, texts);
  const int64_t longest = *std::max_element(contexts.begin(), contexts.end());

  const DeviceTraits device = choose_device(options.device).traits;
  const std::unique_ptr<Backend> be = make_backend(device);
  Arena arena = make_arena(device);
  Session session(*be, arena, inference_shape(model, device, options.precision, options.attention, longest));
  load_weights(folder, session);

  NeedleResults results{.model = options.model,
                        .device = device.name,
                        .precision = name_of(session.shape().dtype),
                        .tokenizer = std::string(tokenizer->name()),
                        .seed = static_cast<uint64_t>(options.seed),
                        .contexts = contexts,
                        .depths = needle_depths(options.depths),
                        .cells = {}};
  fmt::print("model    {}: {} parameters, context {}, tokenizer {}\n", options.model,
             format_count(static_cast<double>(model.parameters())), model.context, tokenizer->name());
  fmt::print("device   {}, {}, {} attention\n", device.name, results.precision, name_of(options.attention));
  std::fflush(stdout);
  StatusLine line(STDOUT_FILENO, kQuietSeconds);
  const Clock::time_point start = Clock::now();
  const size_t all = contexts.size() * results.depths.size();
  for (const int64_t context : contexts) {
    for (const double depth : results.depths) {
      NeedleCell cell{.context = context, .depth = depth};
      for (int64_t needle = 0; needle < options.needles; ++needle) {
        const NeedleText text = texts.make(context, depth, needle);
        // The last token of the answer is never an input.
        const std::span<const int32_t> tokens(text.tokens);
        const auto answer = tokens.last(static_cast<size_t>(text.answer));
        cell.add(
            score_answer(session.last_logits(tokens.first(tokens.size() - 1), text.answer), answer, known));
      }
      results.cells.push_back(cell);
      line.show({{fmt::format("{} of {} cells", results.cells.size(), all), 1},
                 {fmt::format("{} tokens, depth {:.0f}%", context, 100 * depth), 2}});
    }
  }
  line.clear();
  fmt::print("{}in {:.1f} s, seed {}\n", needle_table(results), seconds_since(start), options.seed);
  write_output(options.json, to_json(results).dump(2) + "\n");
  if (!options.svg.empty()) write_output(options.svg, to_svg(results));
}

}  // namespace tessera
