// A small model on the CPU, and the same in fp64: losses and slopes to hold gradients against.
#pragma once

#include "model/rope.h"
#include "model/transformer.h"
#include "tests/documents.h"
#include "tests/model/reference_model.h"
#include "tests/tolerances.h"

namespace tessera::testing {

// A model with weights so large that every term of every gradient counts.
struct LoudModel {
  static constexpr int64_t kBatch = 2, kTokens = 11;

  // `document_lengths` of each sequence; none: every sequence is one document.
  LoudModel(const ModelConfig& config, AttentionKind attention, const DocumentLengths& document_lengths = {})
      : store(cpu, arena, {.model = config, .homes = {.training = ParamStore::Training{}}}),
        sparse(cpu, arena, config, kTokens),
        model{.config = config,
              .params = &store,
              .attention = {store.layout().kinds,
                            {.kind = attention,
                             .shape = {.batch = kBatch,
                                       .tokens = kTokens,
                                       .heads = config.heads,
                                       .head_dim = config.head_dim,
                                       .mask = {/*is_causal=*/true, !document_lengths.empty()},
                                       .kv_heads = config.kv_heads},
                             .dtype = DType::kF32,
                             .device = {},
                             .dropout = config.dropout.attention > 0},
                            sparse},
              .angles = allocate_angles(cpu, arena, config, {kTokens}),
              .local_angles = allocate_local_angles(cpu, arena, config, {kTokens}),
              .sparse = sparse},
        reference(config) {
    if (!document_lengths.empty()) {
      documents = documents_tensor(make, document_lengths);
      positions = positions_tensor(make, document_lengths);
    }
    for (const std::vector<int64_t>& sequence : document_lengths)
      lengths.insert(lengths.end(), sequence.begin(), sequence.end());
    if (lengths.empty()) lengths.assign(kBatch, kTokens);
    reference.sequence_length = kTokens;
    reference.dropout = {.probabilities = config.dropout, .key = dropout_key(1337, 4), .first_sequence = 6};
    for_each_param(store.weights(), config, [&](const ParamInfo& info, const Tensor& tensor) {
      const int64_t filled = tensor.numel() / info.shape[0] * (info.shape[0] - info.padding);
      const Tensor values = make.normal(info.shape, 0.3, info.init == Init::kOne ? 1 : 0);
      std::memcpy(tensor.data, values.data, static_cast<size_t>(filled) * sizeof(float));
      reference.weights[info.name].assign(floats(tensor).begin(), floats(tensor).end());
    });
  }

  double train() {
    const Tensor losses = make.poisoned({kBatch * kTokens});
    const auto count = static_cast<float>(counted(ids(targets)));
    store.gradient_home().begin_micro_step({.first = true, .last = true});
    train_batch(cpu, arena,
                {.model = model,
                 .batch = {tokens, targets, positions, documents},
                 .gradient_scale = make.scalar(1 / count),
                 .losses = losses,
                 .dropout = reference.dropout});
    double sum = 0;
    for (const float loss : floats(losses)) sum += static_cast<double>(loss);
    return sum / static_cast<double>(count);
  }
  double reference_loss() const { return reference.loss(ids(tokens), ids(targets), lengths); }
  static std::span<int32_t> ids(const Tensor& t) { return {t.as<int32_t>(), static_cast<size_t>(t.numel())}; }

  Tensor gradient(const ParamPlace& place) const {
    return store.layout().view(store.gradient_home().whole().buckets, place);
  }

  HostTensors make;
  Arena arena = Arena::host();
  CpuStream cpu;
  ParamStore store;
  SparseLists sparse;
  Model model;
  ReferenceModel reference;
  Tensor documents, positions;
  std::vector<int64_t> lengths;  // of all documents
  Tensor tokens = make.tokens({kBatch, kTokens}, model.config.vocab_size),
         targets = make.tokens({kBatch, kTokens}, model.config.vocab_size);
};

// Central differences in fp64: their own error, h^2, and that of their rounding, 1e-16 / h, are both below
// 1e-8.
inline double slope(LoudModel& loud, double& weight) {
  constexpr double kStep = 1e-5;
  const double before = weight;
  weight = before + kStep;
  const double above = loud.reference_loss();
  weight = before - kStep;
  const double below = loud.reference_loss();
  weight = before;
  return (above - below) / (2 * kStep);
}

// Loss and gradients of one model, by both kinds of attention, against fp64: a few elements of every tensor
inline void expect_fp64(LoudModel& naive, LoudModel& flash) {
  const double loss = flash.reference_loss();
  EXPECT_NEAR(naive.train() / loss, 1, 1e-6);
  EXPECT_NEAR(flash.train() / loss, 1, 1e-6);
  for (const ParamPlace& place : ParamLayout(flash.model.config, 1).places) {
    std::vector<double>& weights = flash.reference.weights.at(place.info.name);
    const Tensor gradients[] = {naive.gradient(place), flash.gradient(place)};
    // The gradient of a sink is a sum over all rows, whose terms cancel.
    double largest = place.info.name.ends_with("attention.sinks") ? 1e-2 : 1e-3;
    for (const float g : floats(gradients[0])) largest = std::max(largest, std::abs(static_cast<double>(g)));
    for (size_t i = 0; i < weights.size(); i += weights.size() / 3 + 1) {
      const double wanted = slope(flash, weights[i]);
      for (const Tensor& gradient : gradients)
        EXPECT_NEAR(floats(gradient)[i], wanted, tolerance::kCpuAgainstPyTorch * largest)
            << place.info.name << " " << i;
    }
  }
}

}  // namespace tessera::testing
