// ./bench needle: whether a model finds a fact at any depth of texts of several lengths.
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/output.h"
#include "kernels/base/present.h"
#include "kernels/base/status_line.h"
#include "kernels/base/text.h"
#include "model/formats/folder.h"
#include "train/bench/bench.h"
#include "train/bench/needle.h"
#include "train/run/collective_walk.h"
#include "train/run/model_folder.h"
#include "train/run/rank_group.h"
#include "train/run/run_data.h"
#include "train/session/decoder.h"
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

// The test by all ranks
class NeedleTest {
 public:
  NeedleTest(const BenchNeedleOptions& options, RankGroup& ranks)
      : options_(options),
        ranks_(ranks),
        folder_(find_model_folder(options.model).path),
        model_(read_model_config(folder_, options.ignored_fields).model),
        tokenizer_(find_tokenizer(folder_, options.tokenizer, model_)),
        known_(std::min<int64_t>(tokenizer_->vocab_size(), model_.vocab_size)),
        texts_(*tokenizer_, filler_text(options, model_.context), static_cast<uint64_t>(options.seed)),
        device_(choose_device(options.device, ranks.local_rank()).traits),
        backend_(make_backend(device_)),
        arena_(make_arena(device_)) {}
  void run();

 private:
  SharedBatches batches(Session& session, StatusLine& line) const;
  std::vector<float> last_logits(Session& session, std::span<const int32_t> text, int64_t count) const;
  void add_cells(const std::vector<double>& scores);

  const BenchNeedleOptions& options_;
  RankGroup& ranks_;
  fs::path folder_;
  ModelConfig model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  int64_t known_;  // ids below it have tokens
  NeedleTexts texts_;
  DeviceTraits device_;
  std::unique_ptr<Backend> backend_;
  Arena arena_;
  std::optional<Session> session_;
  NeedleResults results_;
};

// After the last `count` tokens of a text
std::vector<float> NeedleTest::last_logits(Session& session, std::span<const int32_t> text,
                                           int64_t count) const {
  if (!is_small(options_.cache)) return session.last_logits(text, count);
  const int64_t V = model_.vocab_size, begin = std::ssize(text) - count;
  Decoder decoder(
      session, {.capacity = std::ssize(text), .prefill = CacheFormat::kGroupTokens, .cache = options_.cache});
  std::vector<float> last;
  decoder.read_through(text, [&](int64_t first, std::span<const float> logits) {
    const int64_t from = std::max(begin - first, int64_t{0}) * V;
    if (from < std::ssize(logits)) last.insert(last.end(), logits.begin() + from, logits.end());
  });
  return last;
}

// A batch is a text: needle by needle, in each cell. Its results: whether the fact is found, and the mean
// log-probability.
SharedBatches NeedleTest::batches(Session& session, StatusLine& line) const {
  const int64_t depths = std::ssize(results_.depths), needles = options_.needles;
  const int64_t cells = std::ssize(results_.contexts) * depths;
  const auto context_of = [this, depths](int64_t cell) {
    return results_.contexts[static_cast<size_t>(cell / depths)];
  };
  const auto depth_of = [this, depths](int64_t cell) {
    return results_.depths[static_cast<size_t>(cell % depths)];
  };
  return {.count = cells * needles,
          .results = 2 * cells * needles,
          .run =
              [=, this, &session](int64_t batch, std::span<double> results) {
                const int64_t cell = batch / needles;
                const NeedleText text = texts_.make(context_of(cell), depth_of(cell), batch % needles);
                // The last token of the answer is never an input.
                const std::span<const int32_t> tokens(text.tokens);
                const auto answer = tokens.last(static_cast<size_t>(text.answer));
                const NeedleScore score = score_answer(
                    last_logits(session, tokens.first(tokens.size() - 1), text.answer), answer, known_);
                results[static_cast<size_t>(2 * batch)] = score.found ? 1 : 0;
                results[static_cast<size_t>(2 * batch) + 1] = score.log_probability;
              },
          .progress =
              [=, &line](int64_t done) {
                if (done > 0 && line.due())
                  line.show({{fmt::format("{} of {} cells", done / needles, cells), 1},
                             {fmt::format("{} tokens, depth {:.0f}%", context_of(done / needles),
                                          100 * depth_of(done / needles)),
                              2}});
              }};
}

void NeedleTest::add_cells(const std::vector<double>& scores) {
  size_t at = 0;
  for (const int64_t context : results_.contexts)
    for (const double depth : results_.depths) {
      NeedleCell cell{.context = context, .depth = depth};
      for (int64_t needle = 0; needle < options_.needles; ++needle, at += 2)
        cell.add({.found = scores[at] != 0, .log_probability = scores[at + 1]});
      results_.cells.push_back(cell);
    }
}

void NeedleTest::run() {
  ranks_.check_same(folder_.string(), "the model: name a checkpoint instead of its run");
  const std::vector<int64_t> contexts = contexts_of(options_, model_, texts_);
  const int64_t longest = *std::max_element(contexts.begin(), contexts.end());
  ranks_.enter_phase("the weights", Timeout::kNone);
  Session& session = session_.emplace(
      *backend_, arena_, inference_shape(model_, device_, options_.precision, options_.attention, longest));
  checked_cache(options_.cache, session.shape().dtype);
  load_weights(folder_, session, {.ignored_fields = options_.ignored_fields});
  results_ = {.model = options_.model,
              .device = device_.name,
              .precision = name_of(session.shape().dtype),
              .tokenizer = std::string(tokenizer_->name()),
              .seed = static_cast<uint64_t>(options_.seed),
              .contexts = contexts,
              .depths = needle_depths(options_.depths),
              .cells = {}};
  StatusLine line(STDOUT_FILENO, kQuietSeconds, ranks_.is_rank_0());
  if (ranks_.is_rank_0()) {
    fmt::print("model    {}: {} parameters, context {}, tokenizer {}\n", options_.model,
               format_count(static_cast<double>(model_.parameters())), model_.context, tokenizer_->name());
    fmt::print("device   {}{}, {}, {} attention{}\n", format_ranks(ranks_.size()), device_.name,
               results_.precision, name_of(options_.attention),
               is_small(options_.cache) ? fmt::format(", a cache of {}", name_of(options_.cache)) : "");
    std::fflush(stdout);
  }
  const Clock::time_point start = Clock::now();
  ranks_.enter_phase("the needle test", Timeout::kNone);
  Stopping stopping(ranks_);  // no signal stops it: it ends the program
  add_cells(present(run_batches(stopping, batches(session, line))));
  line.clear();
  ranks_.finish();
  if (!ranks_.is_rank_0()) return;
  fmt::print("{}in {:.1f} s, seed {}\n", needle_table(results_), seconds_since(start), options_.seed);
  write_output(options_.json, to_json(results_).dump(2) + "\n");
  if (!options_.svg.empty()) write_output(options_.svg, to_svg(results_));
}

}  // namespace

void bench_needle(const BenchNeedleOptions& options, const World& world) {
  if (world.rank == 0) check_writable(options.json), check_writable(options.svg);
  RankGroup ranks(world, Config());
  std::optional<NeedleTest> test;  // outlives guard(): see RankGroup
  ranks.guard([&] { test.emplace(options, ranks).run(); });
}

}  // namespace tessera
