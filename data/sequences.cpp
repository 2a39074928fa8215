#include "data/sequences.h"

#include <algorithm>
#include <numeric>

namespace tessera {

std::vector<int64_t> document_lengths(std::span<const int32_t> documents) {
  std::vector<int64_t> lengths;
  for (size_t t = 0; 2 * t < documents.size(); t += static_cast<size_t>(std::max<int64_t>(lengths.back(), 1)))
    lengths.push_back(documents[2 * t + 1] - documents[2 * t]);
  return lengths;
}

void clear(Sequences& sequences) {
  sequences.tokens.clear();
  sequences.targets.clear();
  sequences.documents.clear();
  sequences.kinds.clear();
  sequences.log_probs.clear();
  sequences.weights.clear();
  sequences.teacher_ids.clear();
  sequences.teacher_logits.clear();
}

void append(Sequences& to, const SequencesView& more) {
  const auto add = [](auto& rows, const auto& own) { rows.insert(rows.end(), own.begin(), own.end()); };
  if (!to.weights.empty() || !more.weights.empty()) {
    to.weights.resize(to.tokens.size(), 1.0f);
    add(to.weights, more.weights);
    to.weights.resize(to.tokens.size() + more.tokens.size(), 1.0f);
  }
  add(to.tokens, more.tokens);
  add(to.targets, more.targets);
  add(to.documents, more.documents);
  add(to.kinds, more.kinds);
  add(to.log_probs, more.log_probs);
  add(to.teacher_ids, more.teacher_ids);
  add(to.teacher_logits, more.teacher_logits);
}

void SequenceSource::fetch(int64_t position, int64_t count, Sequences& out) const {
  std::vector<int64_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), position);
  fetch_at(positions, out);
}

}  // namespace tessera
