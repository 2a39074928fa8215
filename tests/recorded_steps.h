// Training steps that differ from one another in all that may differ: tokens, how many of them count,
// documents, the learning rate. Some run from recordings.
#pragma once

#include "tests/documents.h"
#include "tests/frozen_steps.h"
#include "tests/lora_steps.h"

namespace tessera::testing {

struct NamedShape {
  const char* name;
  RunShape shape;
};

// Of two blocks: with one micro-step and with several, and all that changes what a micro-step runs
inline std::vector<NamedShape> recorded_shapes(DType dtype) {
  const ModelConfig gpt2{.vocab_size = 61, .context = 24, .layers = 2, .heads = 2, .channels = 128};
  ModelConfig qwen3 = gpt2;
  qwen3.norm = NormKind::kRmsNorm;
  qwen3.positions = Positions::kRope;
  qwen3.mlp = Mlp::kSwiglu;
  qwen3.bias = Bias::kNone;
  qwen3.qk_norm = QkNorm::kHeads;
  qwen3.tied = false;
  ModelConfig windowed = qwen3;
  windowed.window = Windows({{.window = 5}, {.window = Windows::kFull}});
  ModelConfig dropping = gpt2;
  dropping.dropout = {.embedding = 0.1, .residual = 0.1, .attention = 0.1};
  const auto shape = [&](const ModelConfig& model, int64_t micro_steps) {
    return RunShape{.model = model,
                    .micro_batch = 2,
                    .micro_steps = micro_steps,
                    .sequence_length = 24,
                    .dtype = dtype,
                    .cuda_graphs = true};
  };
  std::vector<NamedShape> all{{"one micro-step", shape(gpt2, 1)},
                              {"three micro-steps", shape(gpt2, 3)},
                              {"qwen3", shape(qwen3, 2)},
                              {"dropout", shape(dropping, 2)},
                              {"frozen", shape(gpt2, 2)},
                              {"adapters", shape(with_adapters(qwen3, 4), 2)},
                              {"recomputed, in chunks", shape(gpt2, 2)},
                              {"MLPs in chunks", shape(qwen3, 2)},
                              {"documents", shape(qwen3, 2)},
                              {"naive attention", shape(gpt2, 2)},
                              {"windows", shape(windowed, 2)}};
  all[4].shape.freeze = frozen({ParamPart::kEmbeddings}, {{0, 0}});
  all[5].shape.freeze = Freeze::all_but_adapters();
  all[6].shape.keep = Keep::nothing();
  all[6].shape.classifier_chunk = 20;
  all[7].shape.mlp_chunk = 20;
  all[8].shape.documents = true;
  all[9].shape.attention = AttentionKind::kNaive;
  return all;
}

// Nobody asks for the results of the second of six steps. Before the fourth an evaluation runs and memory is
// taken that stays, so that tensors of later steps lie elsewhere; before the fifth a step is dropped after
// its first micro-step.
inline StepsResult varied_steps(Backend& be, const RunShape& shape, HostTensors& make) {
  Arena arena = be.device() == Device::kCuda ? Arena::cuda() : Arena::host();
  TrainState state(be, arena, shape);
  state.initialize(3);
  StepsResult result;
  HostTensors data;
  for (int i = 1; i <= 6; ++i) {
    const Tensor ids = data.tokens({shape.tokens_per_step() + 1}, shape.model.vocab_size);
    const std::span all(ids.as<int32_t>(), static_cast<size_t>(ids.numel()));
    std::vector<int32_t> targets(all.begin() + 1, all.end()), documents;
    for (size_t t = 0; t < 3 * static_cast<size_t>(i); ++t) targets[5 * t % targets.size()] = kNoTarget;
    if (shape.documents)
      documents = documents_of(random_documents(7 + static_cast<uint64_t>(i), shape.sequences_per_rank(),
                                                shape.sequence_length, shape.sequence_length));
    const SequencesView sequences{
        .tokens = all.first(targets.size()), .targets = targets, .documents = documents};
    const auto rows = static_cast<size_t>(shape.rows());
    if (i == 4) {
      state.session().evaluate({.tokens = sequences.tokens.first(rows), .targets = all.first(rows)},
                               shape.micro_batch);
      arena.alloc(MemoryTag::kData, "taken between steps", DType::kF32, {1000});
    }
    const int64_t counted_tokens = counted(targets);
    if (i == 5 && shape.micro_steps > 1) {
      EXPECT_FALSE(
          state.step(sequences, counted_tokens, kTestOptimizer, 1, i, [](int64_t) { return false; }));
    }
    EXPECT_TRUE(state.step(sequences, counted_tokens, kTestOptimizer, 1e-2 / i, i));
    if (i == 2) continue;
    const TrainState::StepResult r = state.finish_step();
    result.losses.push_back(r.loss);
    result.grad_norms.push_back(r.grad_norm);
  }
  result.weights = masters_on_host(state, make);
  return result;
}

}  // namespace tessera::testing
