// Documents that share a sequence are what they are alone, and tokens without a target are as if they had
// none.
#include "tests/model/loud_model.h"
#include "tests/model_variants.h"
#include "tests/tolerances.h"
#include "tests/train_steps.h"

namespace tessera::testing {
namespace {

constexpr ModelConfig kPacked{.vocab_size = 29, .context = 16, .layers = 2, .heads = 2, .channels = 16};
constexpr AttentionKind kPackedKinds[] = {AttentionKind::kNaive, AttentionKind::kFlash};

// GPT-2, the parts of other families and the families; a packed sequence drops other elements than its
// documents alone would.
std::vector<Variant> packed_variants() {
  std::vector<Variant> all = parts_of(kPacked);
  all.insert(all.begin(), {{"gpt2", kPacked}, variants_of(kPacked).back()});
  std::erase_if(all, [](const Variant& variant) { return static_cast<bool>(variant.model.dropout); });
  return all;
}

// Loss and gradients of packed documents, some without a target, against each document alone in fp64
TEST(PackedDocuments, HaveTheLossAndTheGradientsOfEachAlone) {
  const DocumentLengths lengths{{4, 1, 6}, {3, 8}};
  std::vector<Variant> all = packed_variants();
  for (const Variant& each : sparse_parts_of(kPacked))  // whose blocks are counted in the sequence
    if (!each.model.dropout) all.push_back(each);
  for (const Variant& variant : all) {
    SCOPED_TRACE(variant.name);
    LoudModel naive(variant.model, AttentionKind::kNaive, lengths),
        flash(variant.model, AttentionKind::kFlash, lengths);
    for (const LoudModel* loud : {&naive, &flash}) {
      const std::span<int32_t> targets = LoudModel::ids(loud->targets);
      for (const size_t n : {0, 2, 7}) targets[n] = kNoTarget;
      std::fill_n(targets.begin() + 11, 3, kNoTarget);  // a whole document, as padding is
    }
    expect_fp64(naive, flash);
  }
}

constexpr int64_t kPackedTokens = 15, kSequences = 4;

// Of four sequences: documents of several lengths, some tokens without a target, and padding
struct Text {
  DocumentLengths lengths{{15}, {4, 11}, {1, 2, 3, 9}, {7, 5, 3}};
  Sequences packed;

  Text() {
    HostTensors make;
    const auto ids = [&] {
      const Tensor t = make.tokens({kSequences * kPackedTokens}, kPacked.vocab_size);
      return std::vector<int32_t>(t.as<int32_t>(), t.as<int32_t>() + t.numel());
    };
    packed = {.tokens = ids(), .targets = ids(), .documents = documents_of(lengths)};
    for (size_t n = 0; n < packed.targets.size(); ++n)
      if (n % 5 == 1 || n >= packed.targets.size() - 3) packed.targets[n] = kNoTarget;
  }

  // Each document in a sequence of its own, followed by padding without targets: a causal model does not see
  // what comes later.
  Sequences alone() const {
    Sequences all;
    size_t first = 0;
    for (const std::vector<int64_t>& sequence : lengths)
      for (const int64_t length : sequence) {
        const size_t begin = all.tokens.size(), end = begin + kPackedTokens;
        all.tokens.resize(end, 0), all.targets.resize(end, kNoTarget);
        std::copy_n(packed.tokens.begin() + static_cast<int64_t>(first), length,
                    all.tokens.begin() + static_cast<int64_t>(begin));
        std::copy_n(packed.targets.begin() + static_cast<int64_t>(first), length,
                    all.targets.begin() + static_cast<int64_t>(begin));
        first += static_cast<size_t>(length);
      }
    return all;
  }
};

RunShape shape_of(const ModelConfig& model, const Sequences& sequences, int64_t micro_batch) {
  return {.model = model,
          .micro_batch = micro_batch,
          .micro_steps = std::ssize(sequences.tokens) / kPackedTokens / micro_batch,
          .sequence_length = kPackedTokens,
          .documents = !sequences.documents.empty()};
}

// Two steps over the same sequences
StepsResult run(const RunShape& shape, const Sequences& sequences, HostTensors& make) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  TrainState state(*be, arena, shape);
  state.initialize(3);
  StepsResult result;
  for (int step = 1; step <= 2; ++step) {
    state.step(sequences, counted(sequences.targets), kTestOptimizer, 1e-2, step);
    const TrainState::StepResult r = state.finish_step();
    result.losses.push_back(r.loss), result.grad_norms.push_back(r.grad_norm);
    if (step == 1) result.first_gradients = on_host(state.stream(), state.grads(), shape.model, make);
  }
  result.weights = masters_on_host(state, make);
  return result;
}

TEST(PackedDocuments, TrainAsInSequencesOfTheirOwn) {
  const Text text;
  const Sequences alone = text.alone();
  for (const Variant& variant : packed_variants())
    for (const AttentionKind attention : kPackedKinds) {
      SCOPED_TRACE(fmt::format("{}, {}", variant.name, name_of(attention)));
      HostTensors make;
      const auto steps = [&](const Sequences& sequences, int64_t micro_batch) {
        RunShape shape = shape_of(variant.model, sequences, micro_batch);
        shape.attention = attention;
        return run(shape, sequences, make);
      };
      const StepsResult apart = steps(alone, 1);
      for (const int64_t micro_batch : {1, 2, 4}) {
        const StepsResult packed = steps(text.packed, micro_batch);
        EXPECT_NEAR(packed.losses[0] / apart.losses[0], 1, 1e-6);
        EXPECT_NEAR(packed.grad_norms[0] / apart.grad_norms[0], 1, tolerance::kCpuAgainstPyTorch);
        EXPECT_NEAR(packed.losses[1] / apart.losses[1], 1, 1e-4);
        for (size_t i = 0; i < apart.first_gradients.size(); ++i)
          EXPECT_LT(relative_error(packed.first_gradients[i].tensor, apart.first_gradients[i].tensor),
                    tolerance::kCpuAgainstPyTorch)
              << apart.first_gradients[i].name;
      }
    }
}

TEST(PackedDocuments, RecomputingChangesNoBit) {
  const Text text;
  for (const Variant& variant : packed_variants())
    for (const AttentionKind attention : kPackedKinds) {
      HostTensors make;
      RunShape shape = shape_of(variant.model, text.packed, 2);
      shape.attention = attention;
      const StepsResult kept = run(shape, text.packed, make);
      for (const Keep keep : {kKeepAllButMlp, kKeepAttention, kKeepOutputs, Keep{Recomputed::kAttention}}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", variant.name, name_of(attention), text_of(keep)));
        shape.keep = keep;
        expect_same_bits(run(shape, text.packed, make), kept);
      }
    }
}

TEST(PackedDocuments, ThePlanIsTheStep) {
  const Text text;
  for (const AttentionKind attention : kPackedKinds) {
    RunShape shape = shape_of(kPacked, text.packed, 2);
    shape.attention = attention;
    expect_plan_is_the_step({}, shape);
    const auto data_bytes = [&](bool documents) {
      shape.documents = documents;
      return plan_memory(shape, {}).current()[static_cast<size_t>(MemoryTag::kData)];
    };
    EXPECT_GE(data_bytes(true) - data_bytes(false), kSequences * kPackedTokens * 2 * 4);
  }
}

// The gradient is the sum over the tokens that count, over their number: those that do not count change
// nothing.
TEST(Uncounted, TokensChangeNothing) {
  const Text text;
  HostTensors make;
  Sequences sequences = text.packed, other = sequences;
  sequences.documents = other.documents = {};
  // In the last place of a causal sequence the token itself is seen by nobody else either.
  for (size_t n = kPackedTokens - 1; n < sequences.targets.size(); n += kPackedTokens) {
    sequences.targets[n] = other.targets[n] = kNoTarget;
    other.tokens[n] = (other.tokens[n] + 7) % 29;
  }
  const StepsResult a = run(shape_of(kPacked, sequences, 2), sequences, make),
                    b = run(shape_of(kPacked, other, 2), other, make);
  expect_same_bits(a, b);
}

}  // namespace
}  // namespace tessera::testing
