#include "train/session/step_tensors.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "train/session/pair_figures.h"
#include "train/session/token_ids.h"

namespace tessera {

StepTensors::StepTensors(const Stream& stream, Arena& arena, Arena& host, const RunShape& shape,
                         const AxisPlace& context)
    : shape_(shape), context_(context) {
  const Shape per_token{shape.micro_steps, shape.rows()},
      per_token_of_pair{shape.micro_steps, shape.pair_rows()};
  const auto take = [&](const char* name, DType dtype, const Shape& of) {
    return arena.alloc(MemoryTag::kData, name, dtype, of);
  };
  tokens_ = {stream, host, take("tokens", DType::kI32, per_token)};
  targets_ = {stream, host, take("targets", DType::kI32, per_token)};
  if (deals()) {
    dealt_ = {stream, host,
              take("tables of the context", DType::kI32, {shape.micro_steps, dealt_shape().numbers()})};
  } else if (shape.documents) {
    documents_ = {stream, host, take("documents", DType::kI32, {shape.micro_steps, shape.rows(), 2})};
    positions_ = {stream, host, take("positions", DType::kI32, per_token)};
  }
  if (shape.loss.pairs) {
    check(shape.documents, "a loss of pairs needs documents");
    kinds_ = {stream, host, take("kinds of documents", DType::kI32, per_token_of_pair)};
  }
  if (shape.loss.pairs && deals()) {
    all_documents_ = {
        stream, host,
        take("documents of all tokens", DType::kI32, {shape.micro_steps, shape.pair_rows(), 2})};
    all_targets_ = {stream, host, take("targets of all tokens", DType::kI32, per_token_of_pair)};
  }
  if (shape.loss.stored_reference)
    log_probs_ = {
        stream, host,
        take("log-probabilities of the reference", DType::kF32, {shape.micro_steps, shape.pair_rows(), 2})};
  if (shape.weights)
    weights_ = {stream, host,
                take("weights of losses", DType::kF32, shape.loss.pairs ? per_token_of_pair : per_token)};
  if (const int64_t K = shape.loss.teacher_logits; K > 0) {
    teacher_ids_ = {stream, host,
                    take("ids of the teacher's logits", DType::kI32, {shape.micro_steps, shape.rows(), K})};
    teacher_logits_ = {
        stream, host,
        take("largest logits of the teacher", DType::kF32, {shape.micro_steps, shape.rows(), K + 1})};
  }
  if (shape.counts_choices() && (shape.documents || deals()))
    counted_rows_ = {stream, host, take("tokens that count for routers", DType::kI32, per_token)};
}

DealtShape StepTensors::dealt_shape() const {
  const AxisPlace place = context_;
  return {.ranks = place.size,
          .rank = place.rank,
          .batch = shape_.micro_batch,
          .all_tokens = shape_.sequence_length,
          .seen = seen_keys_of(shape_.model)};
}

void StepTensors::send_ids(std::span<const int32_t> tokens, std::span<const int32_t> targets) {
  check_ids(Ids::kTokens, tokens, shape_.model.vocab_size, tokens_.device());
  check_ids(Ids::kTargets, targets, shape_.model.vocab_size, targets_.device());
  tokens_.send(tokens);
  targets_.send(targets);
}

void StepTensors::send(const SequencesView& sequences) {
  if (deals()) return send_dealt(sequences);
  std::vector<int32_t> made;
  const std::span<const int32_t> documents =
      checked_documents(sequences.documents, shape_.sequence_length, documents_.device(), made);
  send_ids(sequences.tokens, sequences.targets);
  documents_.send(documents);
  if (counted_rows_.device()) {
    const std::vector<int32_t> counted = rows_with_targets(sequences, shape_.sequence_length);
    counted_rows_.send(std::span<const int32_t>(counted));
  }
  positions_.send(std::span<const int32_t>(positions_of(documents, shape_.sequence_length)));
  send_weights(sequences);
  send_teacher(sequences);
  if (shape_.loss.pairs) send_pairs(sequences);
}

// Sends what a loss of pairs reads, for all tokens: every rank of a context has all of it.
void StepTensors::send_pairs(const SequencesView& sequences) {
  check(sequences.kinds.size() == sequences.targets.size() && !sequences.documents.empty(),
        "the loss {} is of pairs of documents, and the sequences have none", shape_.loss.name);
  check_pairs(sequences, shape_.sequence_length, *shape_.loss.pairs);
  kinds_.send(sequences.kinds);
  if (all_targets_.device()) all_documents_.send(sequences.documents), all_targets_.send(sequences.targets);
  if (!shape_.loss.stored_reference) return;
  check(sequences.log_probs.size() == sequences.targets.size(),
        "the loss {} has a stored reference, and the sequences have no log-probabilities", shape_.loss.name);
  log_probs_.send(std::span<const float>(as_two_floats(sequences.log_probs)));
}

void StepTensors::send_dealt(const SequencesView& sequences) {
  const int64_t all = shape_.sequences_per_rank() * shape_.sequence_length;
  for (const auto& [name, found] : {std::pair{"tokens", std::ssize(sequences.tokens)},
                                    std::pair{"targets", std::ssize(sequences.targets)}})
    check(found == all, "there must be {} {}, found {}", all, name, found);
  check_documents(sequences.documents, shape_.sequence_length, shape_.documents);
  Dealt own;
  const auto part = [&](std::span<const int32_t> of, int64_t m) {
    const size_t each = of.size() / static_cast<size_t>(shape_.micro_steps);
    return of.subspan(static_cast<size_t>(m) * each, each);
  };
  for (int64_t m = 0; m < shape_.micro_steps; ++m)
    deal_batch(dealt_shape(),
               {.tokens = part(sequences.tokens, m),
                .targets = part(sequences.targets, m),
                .documents = part(sequences.documents, m)},
               own);
  send_ids(own.tokens, own.targets);
  if (counted_rows_.device())
    send_rows<int32_t>(counted_rows_, rows_with_targets(sequences, shape_.sequence_length), 1, &own);
  send_weights(sequences, shape_.loss.pairs ? nullptr : &own);
  send_teacher(sequences, &own);
  if (shape_.loss.pairs) send_pairs(sequences);
  dealt_.send(std::span<const int32_t>(own.numbers));
}

template <class T>
void StepTensors::send_rows(SentTensor& to, std::span<const T> of_all, size_t each, const Dealt* own) {
  to.send(own ? std::span<const T>(dealt_part(*own, shape_.micro_steps, of_all, each)) : of_all);
}

void StepTensors::send_weights(const SequencesView& sequences, const Dealt* own) {
  if (!weights_.device()) {
    check(sequences.weights.empty(), "the sequences have weights, and the shape of the run has none");
    return;
  }
  check(sequences.weights.empty() || sequences.weights.size() == sequences.targets.size(),
        "there must be {} weights, found {}", sequences.targets.size(), sequences.weights.size());
  const std::vector<float> ones(sequences.weights.empty() ? sequences.targets.size() : 0, 1.0f);
  send_rows(weights_, ones.empty() ? sequences.weights : std::span<const float>(ones), 1, own);
}

void StepTensors::send_teacher(const SequencesView& sequences, const Dealt* own) {
  if (!teacher_ids_.device()) return;
  const size_t rows = sequences.targets.size(), K = static_cast<size_t>(shape_.loss.teacher_logits);
  check(sequences.teacher_ids.size() == rows * K && sequences.teacher_logits.size() == rows * (K + 1),
        "the loss {} has {} stored logits of the teacher for each token, and the sequences have {}",
        shape_.loss.name, K, sequences.teacher_ids.size() / std::max<size_t>(rows, 1));
  for (size_t i = 0; i < sequences.teacher_ids.size(); ++i)
    check(sequences.teacher_ids[i] >= 0 && sequences.teacher_ids[i] < shape_.model.vocab_size,
          "a logit of the teacher is of the id {}, outside the vocabulary of {}", sequences.teacher_ids[i],
          shape_.model.vocab_size);
  send_rows(teacher_ids_, sequences.teacher_ids, K, own);
  send_rows(teacher_logits_, sequences.teacher_logits, K + 1, own);
}

void StepTensors::copy_to_first(const Stream& stream, int64_t row) {
  if (row == 0) return;
  for (const SentTensor* input :
       {&tokens_, &targets_, &documents_, &positions_, &kinds_, &log_probs_, &all_documents_, &all_targets_,
        &weights_, &teacher_ids_, &teacher_logits_, &dealt_, &counted_rows_})
    if (const Tensor& rows = input->device()) stream.run(Copy{rows.rows(row, 1), rows.rows(0, 1)});
}

Batch StepTensors::batch(int64_t row) const {
  const Shape shape{shape_.micro_batch, shape_.tokens()};
  const Tensor& documents = documents_.device();
  Batch batch{.tokens = tokens_.device().rows(row, 1).view(shape),
              .targets = targets_.device().rows(row, 1).view(shape)};
  if (documents) {
    batch.documents = documents.rows(row, 1).view({shape[0], shape[1], 2});
    batch.positions = positions_.device().rows(row, 1).view(shape);
  }
  if (shape_.loss.pairs) {
    const int64_t B = shape_.micro_batch, T_all = shape_.sequence_length;
    batch.kinds = kinds_.device().rows(row, 1).view({B, T_all});
    if (const Tensor& all = all_targets_.device()) {
      batch.all_targets = all.rows(row, 1).view({B, T_all});
      batch.all_documents = all_documents_.device().rows(row, 1).view({B, T_all, 2});
    }
  }
  if (const Tensor& log_probs = log_probs_.device())
    batch.log_probs = log_probs.rows(row, 1).view({shape_.pair_rows(), 2});
  if (const Tensor& weights = weights_.device())
    batch.weights = weights.rows(row, 1).view({weights.shape[1]});
  if (const Tensor& ids = teacher_ids_.device()) {
    const int64_t K = shape_.loss.teacher_logits;
    batch.teacher_ids = ids.rows(row, 1).view({shape_.rows(), K});
    batch.teacher_logits = teacher_logits_.device().rows(row, 1).view({shape_.rows(), K + 1});
  }
  if (const Tensor& counted = counted_rows_.device()) batch.counted = counted.rows(row, 1).view(shape);
  if (const Tensor& dealt = dealt_.device())
    dealt_shape().set_tables(dealt.rows(row, 1).view({dealt.shape[1]}), batch);
  return batch;
}

}  // namespace tessera
