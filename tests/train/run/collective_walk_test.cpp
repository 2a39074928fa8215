// Walks of several ranks: all make equally many forwards, however many batches there are, and whichever rank
// gets a signal; and what they find has the bits of one rank.
#include "train/run/collective_walk.h"

#include <csignal>

#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/signals.h"
#include "tests/rank_group.h"
#include "train/run/data_loss.h"
#include "train/run/stop_signals.h"
#include "train/session/sampler.h"

namespace tessera::testing {
namespace {

constexpr ModelConfig kModel{.vocab_size = 260, .context = 32, .layers = 2, .heads = 2, .channels = 16};

// Sequence i has the numbers from 7 i on.
struct Counting : SequenceSource {
  std::vector<SequencePiece> pieces(int64_t) const override { return {}; }
  int64_t sequences_per_epoch() const override { return 1000; }
  std::vector<int64_t> document_lengths(int64_t) const override { return {32}; }
  void fetch_at(std::span<const int64_t> positions, Sequences& out) const override {
    out.tokens.clear(), out.targets.clear();
    for (const int64_t i : positions)
      for (int64_t t = 0; t < 32; ++t) {
        out.tokens.push_back(static_cast<int32_t>((7 * i + t) % 250));
        out.targets.push_back(i % 3 == 0 && t < 5 ? kNoTarget : static_cast<int32_t>((7 * i + t + 1) % 250));
      }
  }
};

Task some_task(int64_t items) {
  Task task{.name = "t", .path = "t.jsonl", .format = TaskFormat::kChoices, .items = {}};
  for (int32_t i = 0; i < items; ++i)
    task.items.push_back({.context = {i % 200, 1, 2},
                          .choices = {{.tokens = {3, i % 100}, .bytes = 2}, {.tokens = {4}, .bytes = 1}},
                          .answer = i % 2});
  return task;
}

// Counts the forwards of blocks. At the `signal_at`-th, the process gets a signal.
class Forwards : public OpObserver {
 public:
  explicit Forwards(Backend& be) : be_(be) { be_.add_observer(*this); }
  ~Forwards() override { be_.remove_observer(*this); }
  void before(const AnyOp& op, Backend&, const Launch&) override {
    if (!std::holds_alternative<const AttentionForward*>(op) &&
        !std::holds_alternative<const DecodeAttention*>(op))
      return;
    if (++count == signal_at) raise(SIGTERM);
  }
  void after(const AnyOp&, Backend&, const Launch&) override {}

  int64_t count = 0, signal_at = -1;

 private:
  Backend& be_;
};

struct CollectiveWalk : ::testing::Test {
  void SetUp() override {
    std::string why_not;
    if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  }
};

// The same text at all ranks
void expect_same(RankGroup& group, const std::string& mine) {
  EXPECT_NO_THROW(group.check_same(mine, "this"));
}

struct Model {
  std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  Session session{*be, arena, {.model = kModel, .batch = 2, .sequence_length = 32}};
  Model() { session.initialize(3); }
};

TEST_F(CollectiveWalk, AnyNumberOfBatchesIsEquallyManyForEveryRank) {
  for (const int size : {2, 3})
    on_ranks(size, [](const Ranks& ranks) {
      RankGroup group(world_of(ranks), Config{});
      for (int64_t count = 0; count <= 7; ++count) {
        Stopping stopping(group);
        int64_t runs = 0;
        const auto found = run_batches(
            stopping,
            {.count = count, .results = count, .run = [&](int64_t batch, std::span<double> results) {
               EXPECT_LT(batch, count);
               results[static_cast<size_t>(batch)] = static_cast<double>(batch) + 0.5;
               ++runs;
             }});
        EXPECT_EQ(runs, (count + ranks.size - 1) / ranks.size);
        ASSERT_TRUE(found.has_value());
        for (int64_t i = 0; i < count; ++i)
          EXPECT_EQ((*found)[static_cast<size_t>(i)], static_cast<double>(i) + 0.5) << count;
      }
      group.finish();
    });
}

TEST_F(CollectiveWalk, FindsTheBitsOfOneRank) {
  const Counting data;
  const Task task = some_task(37);
  const LossJob job{.data = data, .sequences = 13, .by_position = true};
  const auto results_of = [&](RankGroup& group) {
    Model model;
    Stopping stopping(group);
    std::vector<double> all = run_batches(stopping, loss_batches(model.session, job)).value();
    const TaskBatches choices(task, model.session.shape());
    const auto scores = run_batches(stopping, task_batches(model.session, choices)).value();
    all.insert(all.end(), scores.begin(), scores.end());
    return all;
  };
  for (const int size : {2, 3})
    on_ranks(size, [&](const Ranks& ranks) {
      RankGroup alone(World{}, Config{}), group(world_of(ranks), Config{});
      EXPECT_EQ(results_of(group), results_of(alone));
      group.finish();
    });
}

// Of an evaluation, a task, and a sample: at each rank, in the middle of each
TEST_F(CollectiveWalk, ASignalToOneRankStopsAllAfterTheSameForward) {
  const Counting data;
  const Task task = some_task(300);
  const LossJob job{.data = data, .sequences = 100};
  const auto bytes = load_tokenizer(std::string(kBytesTokenizer));
  for (const int size : {2, 3})
    on_ranks(size, [&](const Ranks& ranks) {
      catch_stop_signals(/*acknowledge=*/false);
      RankGroup group(world_of(ranks), Config{});
      Model model;
      const TaskBatches choices(task, model.session.shape());
      const std::function<bool(Stopping&)> walks[] = {
          [&](Stopping& s) { return run_batches(s, loss_batches(model.session, job)).has_value(); },
          [&](Stopping& s) { return run_batches(s, task_batches(model.session, choices)).has_value(); },
          [&](Stopping& s) {
            const Config::Sampling sampling{.prompt = "a", .tokens = 1'000'000, .temperature = 1};
            return sample_text(model.session, *bytes, sampling, 1, 1, [&](bool) { return s.goes_on(); })
                .has_value();
          }};
      for (const auto& walk : walks)
        for (int victim = 0; victim < ranks.size; ++victim) {
          forget_stop_signal();
          int told = 0;
          Stopping stopping(group, [&](int number) { told = number; });
          Forwards forwards(*model.be);
          if (ranks.rank == victim) forwards.signal_at = 9;
          walk(stopping);
          EXPECT_EQ(told, SIGTERM);
          EXPECT_GE(forwards.count, 9);
          EXPECT_LT(forwards.count, 9 + 3 * kModel.layers);
          expect_same(group, std::to_string(forwards.count));
        }
      group.finish();
    });
}

// Ranks that draw other tokens make as many forwards, too: rank 0 says where the text ends.
TEST_F(CollectiveWalk, ASampleEndsWhereThatOfRank0Does) {
  on_ranks(3, [&](const Ranks& ranks) {
    RankGroup group(world_of(ranks), Config{});
    Model model;
    const auto bytes = load_tokenizer(std::string(kBytesTokenizer));
    const Config::Sampling sampling{.prompt = "a", .tokens = 2000, .temperature = 2, .top_k = 0};
    Stopping stopping(group);
    Forwards forwards(*model.be);
    std::string text =
        sample_text(model.session, *bytes, sampling, static_cast<uint64_t>(ranks.rank), 1, [&](bool done) {
          return stopping.goes_on(done);
        }).value_or("");
    if (ranks.rank == 0) {
      EXPECT_EQ(text, sample_text(model.session, *bytes, sampling, 0, 1));
      forwards.count = 0;
      sample_text(model.session, *bytes, sampling, 0, 1);
    }
    expect_same(group, std::to_string(forwards.count));
    group.finish();
  });
}

}  // namespace
}  // namespace tessera::testing
