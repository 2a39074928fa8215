// The mask of a rank's queries, as the ranks of a context are dealt them.
#pragma once

#include "tests/attention_reference.h"
#include "train/session/context_deal.h"

namespace tessera::test {

// `documents`: of all sequences, [batch, all_tokens, 2]; empty: each sequence is one
inline MaskCase dealt_mask(const DealtShape& deal, const std::vector<int32_t>& documents) {
  const std::vector<int32_t> ids(static_cast<size_t>(deal.batch * deal.all_tokens));
  Dealt own;
  deal_batch(deal, {.tokens = ids, .targets = ids, .documents = documents}, own);
  Batch tables;
  deal.set_tables({own.numbers.data(), DType::kI32, {deal.numbers()}, Device::kCpu}, tables);
  const auto numbers = [](const Tensor& t) {
    return std::vector<int32_t>(t.as<int32_t>(), t.as<int32_t>() + t.numel());
  };
  MaskCase mask(false, numbers(tables.documents));
  mask.seen_by = numbers(tables.seen_by), mask.query_tokens = numbers(tables.places);
  return mask;
}

}  // namespace tessera::test
