#include "data/tokenizers/token_ids.h"

#include <algorithm>
#include <functional>

namespace tessera {

namespace {

uint32_t hash_of(std::string_view token) {
  return static_cast<uint32_t>(std::hash<std::string_view>()(token));
}

}  // namespace

size_t TokenIds::slot_of(std::string_view token, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.entry == kEmpty || (slot.hash == hash && content_of(entries_[slot.entry]) == token)) return at;
  }
}

void TokenIds::grow() {
  std::vector<Slot> before(std::max<size_t>(1024, 2 * slots_.size()));
  before.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : before) {
    if (slot.entry == kEmpty) continue;
    size_t at = slot.hash & mask;
    while (slots_[at].entry != kEmpty) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

bool TokenIds::add(std::string_view token, int32_t id) {
  if (3 * (entries_.size() + 1) > 2 * slots_.size()) grow();
  const uint32_t hash = hash_of(token);
  Slot& slot = slots_[slot_of(token, hash)];
  if (slot.entry != kEmpty) return false;
  slot = {.hash = hash, .entry = static_cast<uint32_t>(entries_.size())};
  entries_.push_back({.first = bytes_.size(), .count = static_cast<uint32_t>(token.size()), .id = id});
  bytes_ += token;
  return true;
}

int32_t TokenIds::find(std::string_view token) const {
  if (slots_.empty()) return -1;
  const uint32_t entry = slots_[slot_of(token, hash_of(token))].entry;
  return entry == kEmpty ? -1 : entries_[entry].id;
}

}  // namespace tessera
