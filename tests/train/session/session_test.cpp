// A Session alone: the forward of a TrainState, to the bit, in the memory of the weights and the activations.
#include "train/session/session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>

#include "tests/documents.h"
#include "tests/initial_weights.h"
#include "tests/says.h"
#include "tests/train_steps.h"
#include "train/run/checkpoint.h"
#include "train/session/sampler.h"

namespace tessera::testing {
namespace {

constexpr MemoryTag kOfTrainingAlone[] = {MemoryTag::kGradients, MemoryTag::kOptimizer,
                                          MemoryTag::kCommunication};

RunShape tiny(AttentionKind attention = AttentionKind::kFlash) {
  return {.model = {.vocab_size = 61, .context = 40, .layers = 3, .heads = 2, .channels = 24},
          .micro_batch = 3,
          .micro_steps = 2,
          .sequence_length = 37,
          .attention = attention};
}

std::vector<int32_t> some_ids(int64_t count, int64_t vocab_size) {
  HostTensors make;
  const Tensor ids = make.tokens({count}, vocab_size);
  return {ids.as<int32_t>(), ids.as<int32_t>() + count};
}

void expect_same_answers(Session& a, Session& b) {
  const int64_t rows = a.shape().batch * a.shape().sequence_length;
  const std::vector<int32_t> all = some_ids(rows + 1, a.shape().model.vocab_size);
  const auto tokens = std::span(all).first(all.size() - 1), targets = std::span(all).last(all.size() - 1);
  const SequencesView whole{.tokens = tokens, .targets = targets};
  EXPECT_EQ(a.evaluate(whole, a.shape().batch), b.evaluate(whole, a.shape().batch));
  const auto T = static_cast<size_t>(a.shape().sequence_length);
  const SequencesView one{.tokens = tokens.first(T), .targets = targets.first(T)};
  EXPECT_EQ(a.evaluate(one, 1), b.evaluate(one, 1));
  for (const size_t length : {size_t{1}, size_t{17}, T})
    EXPECT_EQ(a.last_logits(tokens.first(length), 1), b.last_logits(tokens.first(length), 1));
}

TEST(Session, AnswersAsTheTrainStateOfTheSameSeedDoes) {
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash})
    for (const Keep keep : {kKeepAll, kKeepOutputs})
      for (const int64_t chunk : {0, 10}) {
        RunShape shape = tiny(attention);
        shape.keep = keep;
        shape.classifier_chunk = chunk;
        const std::unique_ptr<Backend> be = make_cpu_backend(), other = make_cpu_backend();
        Arena arena = Arena::host(), other_arena = Arena::host();
        TrainState state(*be, arena, shape);
        state.initialize(7);
        Session session(*other, other_arena, shape.session());
        session.initialize(7);
        expect_same_answers(session, state.session());
      }
}

TEST(Session, InitialWeightsAreThoseThatTheHostDraws) { expect_initial_weights({}, DType::kF32); }

TEST(Session, GivesTheLogitsOfSeveralTokensAtOnce) {
  const RunShape shape = tiny();
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  Session session(*be, arena, shape.session());
  session.initialize(7);
  const size_t V = static_cast<size_t>(shape.model.vocab_size), T = 30, count = 5;
  const std::vector<int32_t> tokens = some_ids(static_cast<int64_t>(T), shape.model.vocab_size);
  const std::vector<float> last = session.last_logits(tokens, static_cast<int64_t>(count));
  ASSERT_EQ(last.size(), count * V);
  for (size_t i = 0; i < count; ++i) {
    const std::vector<float> one = session.last_logits(std::span(tokens).first(T - count + 1 + i), 1);
    for (size_t v = 0; v < V; ++v) EXPECT_NEAR(last[i * V + v], one[v], 1e-5) << i << " " << v;
  }
}

TEST(Session, LoadsTheWeightsOfACheckpointWithoutItsOptimizer) {
  const RunShape shape = tiny();
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("tessera_session_test_{}", getpid());
  const std::unique_ptr<Backend> be = make_cpu_backend(), other = make_cpu_backend();
  Arena arena = Arena::host(), other_arena = Arena::host();
  TrainState state(*be, arena, shape);
  state.initialize(7);
  const std::vector<int32_t> ids = some_ids(shape.tokens_per_rank(), shape.model.vocab_size);
  state.step({.tokens = ids, .targets = ids}, shape.tokens_per_step(), kTestOptimizer, 1e-2, 1);
  state.finish_step();
  const std::filesystem::path saved = save_checkpoint(
      folder, state,
      {.step = 1, .data_position = 6, .micro_batch = 3, .sequence_length = 37, .data = "builtin"});
  std::filesystem::remove(saved / "optimizer.safetensors");
  Session session(*other, other_arena, shape.session());
  load_weights(saved, session);
  std::filesystem::remove_all(folder);
  expect_same_answers(session, state.session());
}

TEST(Session, ItsMemoryIsItsPlanWithoutGradientsAndOptimizer) {
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash})
    for (const int64_t sample_tokens : {0, 5}) {
      RunShape run = tiny(attention);
      run.sample_tokens = sample_tokens;
      const SessionShape shape = run.session();
      const MemoryLedger plan = plan_session(shape, {}).ledger;
      const std::unique_ptr<Backend> be = make_cpu_backend();
      Arena arena = Arena::host();
      arena.reserve(plan.peak_bytes());
      const int64_t reserved = arena.reserved_bytes();
      Session session(*be, arena, shape);
      session.initialize(7);
      const std::vector<int32_t> ids = some_ids(shape.batch * shape.sequence_length, 61);
      session.evaluate({.tokens = ids, .targets = ids}, shape.batch);
      Decoder(session, {.capacity = shape.longest_sample()})
          .start(0, some_ids(shape.longest_sample(), 61), 0);
      EXPECT_EQ(arena.ledger().peak_bytes(), plan.peak_bytes());
      EXPECT_EQ(arena.ledger().at_peak(), plan.at_peak());
      EXPECT_EQ(arena.ledger().peak_of_each(), plan.peak_of_each());
      EXPECT_EQ(arena.ledger().peak_name(), plan.peak_name());
      EXPECT_EQ(arena.ledger().current_bytes(), plan.current_bytes());
      EXPECT_EQ(arena.reserved_bytes(), reserved) << "the session reached the driver";
      for (const MemoryTag tag : kOfTrainingAlone)
        EXPECT_EQ(plan.peak_of_each()[static_cast<size_t>(tag)], 0) << name_of(tag);
      // What stays is the weights: of the same bytes as in training.
      EXPECT_EQ(plan.current()[static_cast<size_t>(MemoryTag::kWeights)],
                plan_memory(run, {}).current()[static_cast<size_t>(MemoryTag::kWeights)]);
      EXPECT_LT(plan.peak_bytes(), plan_memory(run, {}).peak_bytes());
    }
}

// GPT-2 small in bf16 on a GPU that is not there: 2 bytes a parameter, where training keeps 16.
TEST(Session, OfAGpuTakesTheWeightsInBf16) {
  const ModelConfig model{.vocab_size = 50257, .context = 1024, .layers = 12, .heads = 12, .channels = 768};
  const DeviceTraits hopper{.device = Device::kCuda, .arch = 90, .name = "H200"};
  const MemoryPlan plan =
      plan_session({.model = model, .batch = 1, .sequence_length = 1024, .dtype = DType::kBF16}, hopper);
  const auto stored =
      static_cast<double>(model.parameters() + (model.padded_vocab() - model.vocab_size) * model.channels);
  const auto weights = plan.ledger.current()[static_cast<size_t>(MemoryTag::kWeights)];
  EXPECT_NEAR(static_cast<double>(weights) / (2 * stored), 1, 0.01);
  for (const MemoryTag tag : kOfTrainingAlone)
    EXPECT_EQ(plan.ledger.peak_of_each()[static_cast<size_t>(tag)], 0) << name_of(tag);
}

TEST(Session, WantsAsManyIdsAsTheBatchHas) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  Session session(*be, arena, tiny().session());
  const std::vector<int32_t> ids(37, 1);
  EXPECT_THROW(session.evaluate({.tokens = ids, .targets = ids}, 2), Error);
  EXPECT_THROW(session.evaluate({.tokens = ids, .targets = std::span(ids).first(36)}, 1), Error);
  EXPECT_EQ(arena.ledger().current()[static_cast<size_t>(MemoryTag::kData)], 0);
}

// Without a word about documents a sequence is one, and the session has the same answers as one that has
// none.
TEST(SessionWithDocuments, ASequenceIsOneDocument) {
  const std::unique_ptr<Backend> be = make_cpu_backend(), other = make_cpu_backend();
  Arena arena = Arena::host(), other_arena = Arena::host();
  SessionShape shape = tiny().session();
  Session plain(*be, arena, shape);
  shape.documents = true;
  Session session(*other, other_arena, shape);
  plain.initialize(7), session.initialize(7);
  expect_same_answers(session, plain);
  const std::vector<int32_t> ids = some_ids(37, 61);
  const SequencesView one{.tokens = ids, .targets = ids};
  const std::vector<int32_t> documents = documents_of({{37}});
  EXPECT_EQ(session.evaluate({.tokens = ids, .targets = ids, .documents = documents}, 1),
            session.evaluate(one, 1));
}

// The mean over what counts, and losses by the position in the document
TEST(SessionWithDocuments, EvaluatesWhatCounts) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  SessionShape shape = tiny().session();
  shape.documents = true;
  Session session(*be, arena, shape);
  session.initialize(7);
  const std::vector<int32_t> tokens = some_ids(37, 61), documents = documents_of({{20, 16, 1}});
  std::vector<int32_t> targets = tokens;
  const auto evaluate = [&](std::span<double> by_position) {
    return session.evaluate({.tokens = tokens, .targets = targets, .documents = documents}, 1, by_position);
  };
  std::vector<double> all(37), some(37);
  const double mean = evaluate(all);
  EXPECT_NEAR(std::accumulate(all.begin(), all.end(), 0.0) / 37, mean, 1e-12);
  for (size_t t = 20; t < 37; ++t) EXPECT_EQ(all[t], 0);  // no document is so long
  std::fill_n(targets.begin() + 20, 17, kNoTarget);       // the second document and the third
  const double of_first = evaluate(some);
  EXPECT_NEAR(std::accumulate(some.begin(), some.end(), 0.0) / 20, of_first, 1e-12);
  for (size_t t = 16; t < 20; ++t) EXPECT_EQ(some[t], all[t]);
  EXPECT_GT(all[0] - some[0], 1.0);  // two documents more began
  std::fill(targets.begin(), targets.end(), kNoTarget);
  EXPECT_EQ(evaluate({}), 0);
}

TEST(SessionWithDocuments, RefusesWhatIsNone) {
  const std::unique_ptr<Backend> be = make_cpu_backend(), other = make_cpu_backend();
  Arena arena = Arena::host(), other_arena = Arena::host();
  SessionShape shape = tiny().session();
  Session plain(*be, arena, shape);
  shape.documents = true;
  Session session(*other, other_arena, shape);
  const std::vector<int32_t> ids(37, 1);
  const auto refusal = [&](Session& of, const std::vector<int32_t>& documents) -> std::string {
    try {
      of.evaluate({.tokens = ids, .targets = ids, .documents = documents}, 1);
    } catch (const Error& error) {
      return error.what();
    }
    return "was not refused";
  };
  const std::vector<int32_t> good = documents_of({{20, 17}});
  EXPECT_EQ(refusal(session, good), "was not refused");
  EXPECT_TRUE(says(refusal(plain, good), {"documents", "joins", "planned"}));
  EXPECT_TRUE(says(refusal(session, documents_of({{36}})), {"documents", "74", "[1, 37, 2]", "72"}));
  EXPECT_TRUE(says(refusal(session, documents_of({{20, 18}})), {"documents", "74", "76"}));
  std::vector<int32_t> bad = good;
  bad[2 * 25] = 21;
  EXPECT_TRUE(says(refusal(session, bad), {"sequence 0", "token 25", "21", "37", "20", "at 37"}));
  bad = good;
  bad[2 * 20 + 1] = 38;
  EXPECT_TRUE(says(refusal(session, bad), {"sequence 0", "token 20", "20", "38", "20", "by 37"}));
  bad = good;
  bad[2 * 20 + 1] = 20;
  EXPECT_TRUE(says(refusal(session, bad), {"sequence 0", "token 20", "20", "20", "20", "by 37"}));
}

TEST(TrainState, NeedsTheNumberOfTargetsThatCount) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  const RunShape shape = tiny();
  TrainState state(*be, arena, shape);
  state.initialize(7);
  const std::vector<int32_t> tokens = some_ids(shape.tokens_per_step(), 61);
  std::vector<int32_t> targets = tokens;
  targets[3] = kNoTarget;
  const auto refusal = [&](int64_t counted_tokens) -> std::string {
    try {
      state.step({.tokens = tokens, .targets = targets}, counted_tokens, kTestOptimizer, 1e-2, 1);
    } catch (const Error& error) {
      return error.what();
    }
    return "was not refused";
  };
  EXPECT_TRUE(says(refusal(222), {"counted_tokens", "221", "221", "222", "221", "222", "0"}));
  EXPECT_EQ(refusal(221), "was not refused");
  std::fill(targets.begin(), targets.end(), kNoTarget);
  EXPECT_TRUE(says(refusal(0), {"counted_tokens", "1 to 0", "0"}));
}

}  // namespace
}  // namespace tessera::testing
