// Updates by Muon of gradients that are made up, on any device and by any number of ranks.
#pragma once

#include "kernels/base/ordered_float.h"
#include "model/optimizer.h"
#include "tests/data_parallel.h"
#include "tests/muon_reference.h"

namespace tessera::testing {

struct MuonRun {
  DeviceTraits device = {};
  ModelConfig model = kSharedModel;
  DType dtype = DType::kF32;
  Shards shards = {};
  MuonConfig muon = {};
  DType moments = DType::kF32;
  int steps = 3;
  double most_score = 0;  // above 0: heads are clipped, by scores that are made up
};

// Of each rank others, of which the largest counts
inline Tensor made_up_scores(HostTensors& make, const ModelConfig& model, int ranks) {
  const Tensor words = make.empty({ranks, model.layers, model.heads}, DType::kI32);
  const int64_t each = model.layers * model.heads;
  for (int64_t i = 0; i < words.numel(); ++i)
    words.as<uint32_t>()[i] =
        i / each == i % each % ranks ? ordered_word(50.0f * static_cast<float>(1 + i % each)) : 0;
  return words;
}

// The bytes of all masters and moments after some updates. Gradients depend on step, parameter and element,
// and all are rank 0's, so that their sum over the ranks is exact.
inline std::string muon_bytes(const MuonRun& run, const Ranks& ranks) {
  const std::unique_ptr<Backend> be = make_backend(run.device);
  const std::unique_ptr<Communicator> comm = make_communicator(*be, ranks);
  Arena arena = make_arena(run.device);
  const Tensor workspace =
      arena.alloc(MemoryTag::kWorkspace, "workspace", DType::kF32,
                  {workspace_bytes(run.device.device, 64, run.model.channels, 8 * run.model.channels) / 4});
  const Stream stream(*be, workspace);
  ParamStore store(stream, arena,
                   {.model = run.model,
                    .dtype = run.dtype,
                    .homes = {.shards = run.shards, .axis = comm.get(), .training = ParamStore::Training{}}});
  Optimizer optimizer(arena, store, muon(run.muon, run.moments));
  store.kept().clear();
  init_weights(run.model, 3, {.values = store.writer(), .normal = store.normal_writer()}, InitialOf::kAll);
  const OptimizerConfig config{
      .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .max_grad_norm = 0, .random_key = 9};
  HostTensors make;
  Tensor scores;
  if (run.most_score > 0) {
    const Tensor host = made_up_scores(make, run.model, ranks.size);
    scores = arena.alloc(MemoryTag::kData, "scores", DType::kI32, host.shape);
    stream.run(Copy{host, scores});
  }
  for (int step = 1; step <= run.steps; ++step) {
    store.begin_step();
    store.gradient_home().begin_micro_step({.first = true, .last = true});
    const auto fill = [&](const ParamInfo& info, const Tensor& gradient) {
      const Tensor host = make.zeros(gradient.shape);
      const Philox random(static_cast<uint64_t>(step), std::hash<std::string>()(info.name));
      for (int64_t i = 0; ranks.rank == 0 && i < host.numel(); ++i)
        floats(host)[i] = 1e-3f * static_cast<float>(random.normal(static_cast<uint64_t>(i)));
      stream.run(Copy{host, gradient});
    };
    {
      const auto head = store.head_gradients();
      for (int64_t l = run.model.layers - 1; l >= 0; --l) {
        const auto block = store.block_gradients(static_cast<size_t>(l));
        visit_block_weights(const_cast<BlockParams&>(*block), store.layout().kinds.of(static_cast<size_t>(l)),
                            l, fill);
      }
      const auto tables = store.table_gradients();
      fill(ParamInfo{.name = "table", .shape = {}, .init = Init::kNormal}, tables->token_table);
    }
    store.gradient_home().wait();
    optimizer.measure(stream);
    optimizer.share_norms();
    optimizer.update(stream, {.config = config,
                              .learning_rate = 1e-2,
                              .number = step,
                              .largest_scores = scores,
                              .most_score = run.most_score});
  }
  std::string bytes;
  for (const std::string& name : store.kept().names())
    for (size_t b = 0; b < store.layout().buckets.size(); ++b)
      store.with_whole(name, b, [&](const ParamReader& read) {
        for (const ParamPlace& place : store.layout().places) {
          if (place.bucket != b || (name == "second_moment" && is_matrix_of_block(place.info)) ||
              (name == kRowSquares && !is_matrix_of_block(place.info)))
            continue;
          const Tensor host = make.poisoned(place.info.shape);
          read(place, host);
          stream.synchronize();
          bytes.append(host.as<char>(), host.bytes());
        }
      });
  return bytes;
}

}  // namespace tessera::testing
