#include "train/session/session.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "model/formats/weights.h"
#include "model/rope.h"
#include "train/session/mean_loss.h"
#include "train/session/token_ids.h"

namespace tessera {
namespace {

AttentionRequest attention_request(const SessionShape& s, const DeviceTraits& device,
                                   const AttentionShape& shape, bool dropout = false) {
  return {.kind = s.attention,
          .shape = shape,
          .dtype = s.dtype,
          .device = device,
          .deterministic = s.deterministic,
          .dropout = dropout};
}

AttentionShape attention_shape(const SessionShape& s, int64_t batch, int64_t tokens, bool documents) {
  return {.batch = batch,
          .tokens = tokens,
          .heads = s.model.heads,
          .head_dim = s.model.head_dim,
          .mask = {/*is_causal=*/true, documents},
          .kv_heads = s.model.kv_heads};
}

// What the kernels of any batch need, those of a backward too
Tensor allocate_workspace(Arena& arena, const SessionShape& s) {
  const int64_t rows = std::max(s.batch * s.sequence_length, s.model.context);
  const int64_t features = std::max(s.model.qkv_heads() * s.model.head_dim,  // of qkv
                                    (s.model.gated() ? 2 : 1) * s.model.mlp_width);
  const int64_t bytes = workspace_bytes(arena.device(), rows, s.model.channels, features);
  return arena.alloc(MemoryTag::kWorkspace, "kernel workspace", DType::kF32, {(bytes + 3) / 4});
}

// Texts that are sampled during a training have the angles of the training's sequences.
AngleTable angle_table(const SessionShape& s) {
  return {.positions = std::max(s.sequence_length, s.longest_sample()), .sequence_length = s.sequence_length};
}

// The lists for whole sequences are for texts that are continued.
SparseLists lists_of_rank(const Stream& stream, Arena& arena, const SessionShape& s) {
  const DealtShape dealt{.ranks = s.context.size,
                         .rank = s.context.rank,
                         .batch = s.batch,
                         .all_tokens = s.sequence_length,
                         .seen = seen_keys_of(s.model)};
  return {stream, arena, s.model, s.sequence_length, dealt_blocks(dealt)};
}

}  // namespace

Session::Session(Backend& be, Arena& arena, const SessionShape& shape, const ParamStore::Homes& homes,
                 Communicator* context)
    : stream_(be, allocate_workspace(arena, shape)),
      arena_(arena),
      shape_(shape),
      context_(shape.context.size > 1 ? context : nullptr),
      store_(stream_, arena, {.model = shape.model, .dtype = shape.dtype, .homes = homes}),
      sparse_(stream_, arena, shape.model, angle_table(shape).positions),
      model_{.config = shape.model,
             .params = &store_,
             .attention = {store_.layout().kinds,
                           attention_request(
                               shape, be.traits(),
                               attention_shape(shape, shape.batch, shape.sequence_length, shape.documents)),
                           sparse_},
             .angles = allocate_angles(stream_, arena, shape.model, angle_table(shape)),
             .local_angles = allocate_local_angles(stream_, arena, shape.model, angle_table(shape)),
             .sparse = sparse_,
             .classifier_chunk = shape.classifier_chunk,
             .mlp_chunk = shape.mlp_chunk} {
  const int64_t found = context ? context->size() : 1;
  check(found == shape.context.size || (shape.context.size == 1 && !context_),
        "a context of {} ranks was given a communicator of {}", shape.context.size, found);
  if (context_) dealt_sparse_ = lists_of_rank(stream_, arena, shape);
}

void Session::initialize(uint64_t seed) {
  init_weights(shape_.model, seed, {.values = store_.writer(), .normal = store_.normal_writer()});
}

Model Session::training_model(const ByBlock<Keep>& keep) const {
  Model model = shared_model(shape_.batch, shape_.sequence_length, shape_.model.dropout.attention > 0);
  model.keep = keep;
  if (model.chunks_mlp()) model.keep = keep.changed([](Keep& each) { each.add(Recomputed::kMlp); });
  return model;
}

Model Session::model_at(int64_t batch, int64_t tokens, bool documents) const {
  Model model = model_;
  model.attention = {store_.layout().kinds,
                     attention_request(shape_, stream_.backend().traits(),
                                       attention_shape(shape_, batch, tokens, documents)),
                     sparse_};
  return model;
}

Model Session::shared_model(int64_t batch, int64_t all_tokens, bool dropout) const {
  Model model = model_;
  AttentionShape shape = attention_shape(shape_, batch, all_tokens, shape_.documents);
  if (context_) {
    shape.tokens = dealt_tokens(all_tokens, shape_.context.size, seen_keys_of(shape_.model));
    shape.mask = AttentionMask::of_dealt_queries();
    const int64_t group = shape.group();
    shape.kv_heads = shape_.context_heads > 0 ? shape_.context_heads : heads_of_part(shape);
    shape.heads = group * shape.kv_heads;
    model.context = context_;
    model.sparse = dealt_sparse_;
  }
  model.attention = {store_.layout().kinds,
                     attention_request(shape_, stream_.backend().traits(), shape, dropout), model.sparse};
  return model;
}

double Session::evaluate(const SequencesView& sequences, int64_t count, std::span<double> by_position) {
  const int64_t T = shape_.sequence_length;
  const std::vector<float> host = losses(sequences, count, T);
  for (int64_t n = 0; !by_position.empty() && n < std::ssize(host); ++n)
    by_position[static_cast<size_t>(position_in(sequences, n, T))] +=
        static_cast<double>(host[static_cast<size_t>(n)]);
  return mean_loss(host, static_cast<double>(counted(sequences.targets)));
}

Model Session::without_adapters() const {
  Model model = shared_model(shape_.batch, shape_.sequence_length, /*dropout=*/false);
  model.config.lora = {};
  return model;
}

void Session::check_batch(int64_t count, int64_t T) const {
  check(T <= shape_.sequence_length && count * T <= shape_.batch * shape_.sequence_length,
        "{} sequences of {} tokens are more than a batch, {} of {}", count, T, shape_.batch,
        shape_.sequence_length);
}

std::vector<float> Session::losses(const SequencesView& sequences, int64_t count, int64_t T,
                                   Adapters adapters) {
  check_batch(count, T);
  if (context_) return shared_losses(sequences, count, T, adapters);
  Model model = model_at(count, T, shape_.documents);
  if (adapters == Adapters::kOff) model.config.lora = {};
  return losses_of(model, [&](Batch& batch) {
    send(sequences, batch);
    copy_ids(stream_, Ids::kTargets, sequences.targets, shape_.model.vocab_size, batch.targets);
  });
}

// The tokens and the documents, for which it allocates
void Session::send(const SequencesView& sequences, Batch& batch) {
  const int64_t count = batch.tokens.shape[0], T = batch.tokens.shape[1];
  if (shape_.documents) {
    batch.documents = arena_.alloc(MemoryTag::kData, "documents evaluated", DType::kI32, {count, T, 2});
    batch.positions = arena_.alloc(MemoryTag::kData, "positions evaluated", DType::kI32, {count, T});
  }
  copy_ids(stream_, Ids::kTokens, sequences.tokens, shape_.model.vocab_size, batch.tokens);
  copy_documents(stream_, sequences.documents, T, {batch.documents, batch.positions});
}

Session::Largest Session::largest_logits(const SequencesView& sequences, int64_t count, int64_t T,
                                         double temperature) {
  check(!context_, "the ranks of a context do not compute the largest logits");
  check_batch(count, T);
  Arena::Scope scope(arena_);
  Arena::Phase phase(arena_, "batch", MemoryRecording::kNone, Arena::Phase::kRecordFirstFew);
  const Model model = model_at(count, T, shape_.documents);
  const int64_t N = count * T, K = shape_.largest_logits;
  const auto take = [&](MemoryTag tag, const char* name, DType dtype, const Shape& of) {
    return arena_.alloc(tag, name, dtype, of);
  };
  const Tensor ids = take(MemoryTag::kData, "ids of the largest logits", DType::kI32, {N, K}),
               values = take(MemoryTag::kData, "largest logits", DType::kF32, {N, K + 1});
  Batch batch{.tokens = take(MemoryTag::kData, "tokens evaluated", DType::kI32, {count, T}), .targets = {}};
  send(sequences, batch);
  const Saved saved = allocate_saved(arena_, model, Keep::nothing());
  forward(stream_, {.model = model, .batch = batch, .saved = saved});
  const int64_t chunk = rows_at_a_time(model.classifier_chunk, N);
  const Tensor logits =
      take(MemoryTag::kActivations, "logits", shape_.dtype, {chunk, shape_.model.padded_vocab()});
  for (int64_t first = 0; first < N; first += chunk) {
    const int64_t rows = std::min(chunk, N - first);
    logits_forward(stream_,
                   {.model = model, .rows = saved.norm.y.rows(first, rows), .logits = logits.rows(0, rows)});
    stream_.run(LargestLogits{.logits = logits.rows(0, rows),
                              .ids = ids.rows(first, rows),
                              .values = values.rows(first, rows),
                              .vocab_size = shape_.model.vocab_size,
                              .temperature = static_cast<float>(temperature)});
  }
  if (arena_.is_plan()) return {};
  Largest found{.ids = std::vector<int32_t>(static_cast<size_t>(ids.numel())),
                .values = std::vector<float>(static_cast<size_t>(values.numel()))};
  stream_.run(Copy{ids, {found.ids.data(), DType::kI32, ids.shape, Device::kCpu}});
  stream_.run(Copy{values, {found.values.data(), DType::kF32, values.shape, Device::kCpu}});
  stream_.synchronize();
  return found;
}

std::vector<float> Session::shared_losses(const SequencesView& sequences, int64_t count, int64_t T,
                                          Adapters adapters) {
  const DealtShape dealt{.ranks = shape_.context.size,
                         .rank = shape_.context.rank,
                         .batch = count,
                         .all_tokens = T,
                         .seen = seen_keys_of(shape_.model)};
  std::vector<float> all(static_cast<size_t>(count * T));
  Dealt own;
  const auto fill = [&](Batch& batch) {
    const Tensor numbers =
        arena_.alloc(MemoryTag::kData, "tables of the context", DType::kI32, {dealt.numbers()});
    dealt.set_tables(numbers, batch);
    if (arena_.is_plan()) return;
    check_documents(sequences.documents, T, shape_.documents);
    deal_batch(dealt, sequences, own);
    copy_ids(stream_, Ids::kTokens, own.tokens, shape_.model.vocab_size, batch.tokens);
    copy_ids(stream_, Ids::kTargets, own.targets, shape_.model.vocab_size, batch.targets);
    stream_.run(Copy{{own.numbers.data(), DType::kI32, numbers.shape, Device::kCpu}, numbers});
  };
  Model model = shared_model(count, T, /*dropout=*/false);
  if (adapters == Adapters::kOff) model.config.lora = {};
  const std::vector<float> losses = losses_of(model, fill);
  for (size_t i = 0; i < own.from.size(); ++i)
    if (own.from[i] >= 0) all[static_cast<size_t>(own.from[i])] = losses[i];
  return all;
}

std::vector<float> Session::losses_of(const Model& model, const std::function<void(Batch&)>& fill) {
  Arena::Scope scope(arena_);
  Arena::Phase phase(arena_, "batch", MemoryRecording::kNone, Arena::Phase::kRecordFirstFew);
  const Shape shape{model.attention.batch(), model.attention.tokens()};
  const auto take = [&](const char* name, DType dtype, const Shape& of) {
    return arena_.alloc(MemoryTag::kData, name, dtype, of);
  };
  const Tensor found = take("losses evaluated", DType::kF32, {shape.numel()});
  Batch batch{.tokens = take("tokens evaluated", DType::kI32, shape),
              .targets = take("targets evaluated", DType::kI32, shape)};
  fill(batch);
  evaluate_batch(stream_, arena_, {.model = model, .batch = batch, .losses = found});
  return host_losses(stream_, found);
}

std::vector<float> Session::last_logits(std::span<const int32_t> tokens, int64_t count) {
  Arena::Scope scope(arena_);
  Arena::Phase phase(arena_, "token", MemoryRecording::kNone, Arena::Phase::kRecordFirstFew);
  const int64_t T = std::ssize(tokens);
  const Model model = model_at(1, T, /*documents=*/false);
  const Tensor device_tokens = arena_.alloc(MemoryTag::kData, "prompt", DType::kI32, {1, T});
  copy_ids(stream_, Ids::kTokens, tokens, shape_.model.vocab_size, device_tokens);
  const Saved saved = allocate_saved(arena_, model, Keep::nothing());
  const Batch batch{.tokens = device_tokens, .targets = {}};
  forward(stream_, {.model = model, .batch = batch, .saved = saved});
  const int64_t V = shape_.model.vocab_size, padded = shape_.model.padded_vocab();
  const Shape logits_shape{count, padded};
  const Tensor logits = arena_.alloc(MemoryTag::kActivations, "logits", shape_.dtype, logits_shape);
  logits_forward(stream_, {.model = model, .rows = saved.norm.y.rows(T - count, count), .logits = logits});
  std::vector<float> host(static_cast<size_t>(count * padded));
  stream_.run(Copy{logits, {host.data(), DType::kF32, logits_shape, Device::kCpu}});
  stream_.synchronize();
  for (int64_t row = 1; row < count; ++row)  // without the padding
    std::copy_n(host.begin() + row * padded, V, host.begin() + row * V);
  host.resize(static_cast<size_t>(count * V));
  return host;
}

void load_weights(const std::filesystem::path& folder, Session& session, const FolderOptions& options) {
  load_weights(folder, session.shape().model, session.store().writer(),
               {.folder = options, .hand_over = HandOver::kAsStored});
}

}  // namespace tessera
