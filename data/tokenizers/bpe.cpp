#include "data/tokenizers/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>
#include <tuple>

#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

constexpr size_t kShort = 32;  // bytes of a piece up to which all pairs are compared before each merge

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Multiplies and folds: the upper bits depend on all of `x`.
uint64_t mix(uint64_t x) {
  const auto product = static_cast<unsigned __int128>(x) * 0x9E3779B97F4A7C15u;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

constexpr uint64_t kSeed = 0x2545F4914F6CDD1D;  // odd and arbitrary
uint64_t hash_of(uint64_t x) { return mix(mix(x ^ kSeed)); }

template <class T>
T load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Up to 31 bytes, zeros, and their number in the last byte; in whole words, without a copy of single bytes
std::array<uint64_t, 4> words_of(std::string_view piece) {
  const char* const bytes = piece.data();
  const size_t size = piece.size();
  std::array<uint64_t, 4> words{};
  const auto byte = [&](size_t i) { return uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i); };
  if (size >= 8) {
    for (size_t i = 0; i + 8 <= size; i += 8) words[i / 8] = load<uint64_t>(bytes + i);
    if (size % 8 != 0) words[size / 8] = load<uint64_t>(bytes + size - 8) >> (64 - 8 * (size % 8));
  } else if (size >= 4) {  // two halves, which may overlap
    words[0] = load<uint32_t>(bytes) | uint64_t{load<uint32_t>(bytes + size - 4)} << (8 * (size - 4));
  } else if (size > 0) {
    words[0] = byte(0) | byte(size / 2) | byte(size - 1);
  }
  words[3] |= uint64_t{size} << 56;
  return words;
}

}  // namespace

Bpe::Cache::Cache() : slots_(std::make_unique<Slot[]>(size_t{1} << kSlotBits)) {}

Bpe::Bpe(const TokenizerDefinition& definition, const std::string& where)
    : symbols_(definition), borders_(definition, symbols_), ignore_merges_(definition.ignore_merges) {
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    const std::string& token = definition.tokens[id];
    if (ignore_merges_ && !token.empty()) whole_.add(token, static_cast<int32_t>(id));
  }
  const size_t size = std::bit_ceil(2 * definition.merges.size() + 2);
  merges_.resize(size);
  shift_ = 64 - std::countr_zero(size);
  for (size_t rank = 0; rank < definition.merges.size(); ++rank) {
    const Merge& merge = definition.merges[rank];
    const uint64_t pair = key_of(merge.left, merge.right);
    size_t at = hash_of(pair) >> shift_;
    while (merges_[at].pair != UINT64_MAX && merges_[at].pair != pair) at = (at + 1) & (size - 1);
    if (merges_[at].pair == pair)
      fail("{}: the merges {} and {} (from 0) are of the same pair, {} and {}", where, merges_[at].rank, rank,
           in_quotes(definition.tokens[static_cast<size_t>(merge.left)]),
           in_quotes(definition.tokens[static_cast<size_t>(merge.right)]));
    merges_[at] = {.pair = pair, .rank = static_cast<int32_t>(rank), .result = merge.result};
  }
}

const Bpe::Slot* Bpe::merge_of(int32_t left, int32_t right) const {
  const uint64_t pair = key_of(left, right);
  for (size_t at = hash_of(pair) >> shift_;; at = (at + 1) & (merges_.size() - 1)) {
    if (merges_[at].pair == pair) return &merges_[at];
    if (merges_[at].pair == UINT64_MAX) return nullptr;
  }
}

void Bpe::encode(std::string_view piece, Cache& cache, std::vector<int32_t>& ids, int64_t* left_out) const {
  if (!borders_.known()) return encode_part(piece, cache, ids, left_out);
  borders_.cut(piece, [&](std::string_view part) { encode_part(part, cache, ids, left_out); });
}

void Bpe::encode_part(std::string_view piece, Cache& cache, std::vector<int32_t>& ids,
                      int64_t* left_out) const {
  if (piece.size() > Cache::kBytes) return encode_anew(piece, ids, left_out);
  const std::array<uint64_t, 4> key = words_of(piece);
  const uint64_t hash = mix(mix(mix(key[0] ^ kSeed) ^ key[1]) ^ mix(key[2] ^ std::rotl(key[3], 32)));
  Cache::Slot* const pair = &cache.slots_[hash >> (64 - Cache::kSlotBits) & ~uint64_t{1}];
  for (const Cache::Slot* slot : {pair, pair + 1}) {
    const uint64_t differ =
        (slot->key[0] ^ key[0]) | (slot->key[1] ^ key[1]) | (slot->key[2] ^ key[2]) | (slot->key[3] ^ key[3]);
    if (differ != 0) continue;
    ids.insert(ids.end(), slot->ids.begin(), slot->ids.begin() + slot->count);
    return;
  }
  const size_t before = ids.size();
  const int64_t left_out_before = left_out ? *left_out : 0;
  encode_anew(piece, ids, left_out);
  const size_t count = ids.size() - before;
  // A piece with a byte that was left out is not kept: it has to be counted, or refused, each time.
  if (count > Cache::kIds || (left_out && *left_out != left_out_before)) return;
  pair[1] = pair[0];
  pair[0].key = key;
  pair[0].count = static_cast<int32_t>(count);
  std::copy_n(ids.begin() + static_cast<int64_t>(before), count, pair[0].ids.begin());
}

void Bpe::encode_anew(std::string_view piece, std::vector<int32_t>& ids, int64_t* left_out) const {
  if (ignore_merges_)
    if (const int32_t whole = whole_.find(piece); whole >= 0) return ids.push_back(whole);
  if (piece.size() <= kShort) return encode_short(piece, ids, left_out);
  encode_long(piece, ids, left_out);
}

void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& ids, int64_t* left_out) const {
  std::array<int32_t, kShort> token, rank, result;  // rank[i], result[i]: of the merge of i and i + 1
  size_t count = 0;
  symbols_.for_each(piece, left_out, [&](int32_t id) { token[count++] = id; });
  const auto look = [&](size_t i) {
    const Slot* merge = i + 1 < count ? merge_of(token[i], token[i + 1]) : nullptr;
    rank[i] = merge ? merge->rank : kNoMerge;
    if (merge) result[i] = merge->result;
  };
  for (size_t i = 0; i < count; ++i) look(i);
  while (count > 1) {
    const size_t first = static_cast<size_t>(
        std::min_element(rank.begin(), rank.begin() + static_cast<int64_t>(count) - 1) - rank.begin());
    if (rank[first] == kNoMerge) break;
    token[first] = result[first];
    for (size_t i = first + 1; i + 1 < count; ++i) {
      token[i] = token[i + 1];
      rank[i] = rank[i + 1];
      result[i] = result[i + 1];
    }
    --count;
    look(first);
    if (first > 0) look(first - 1);
  }
  ids.insert(ids.end(), token.begin(), token.begin() + static_cast<int64_t>(count));
}

// A linked list of tokens, and a queue of the merges that were possible when they were put there.
void Bpe::encode_long(std::string_view piece, std::vector<int32_t>& ids, int64_t* left_out) const {
  check(piece.size() < size_t{INT32_MAX},
        "a piece of {} bytes without a place to split is too long; at most {}", piece.size(), INT32_MAX - 1);
  struct Node {
    int32_t token, previous, next;  // token -1: merged into the one before; previous, next: -1 at the ends
  };
  std::vector<Node> nodes;
  nodes.reserve(piece.size());
  symbols_.for_each(piece, left_out, [&](int32_t id) {
    const auto place = static_cast<int32_t>(nodes.size());
    nodes.push_back({id, place - 1, place + 1});
  });
  if (nodes.empty()) return;
  nodes.back().next = -1;
  const auto count = static_cast<int32_t>(nodes.size());
  using Candidate = std::tuple<int32_t, int32_t, int32_t, int32_t>;  // rank, place, left and right token
  std::vector<Candidate> candidates;
  const auto node = [&](int32_t i) -> Node& { return nodes[static_cast<size_t>(i)]; };
  const auto candidate_at = [&](int32_t place, auto&& add) {
    if (place < 0 || node(place).next < 0) return;
    const int32_t left = node(place).token, right = node(node(place).next).token;
    if (const Slot* merge = merge_of(left, right)) add(Candidate{merge->rank, place, left, right});
  };
  for (int32_t i = 0; i < count; ++i) candidate_at(i, [&](const Candidate& c) { candidates.push_back(c); });
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                               std::move(candidates));
  while (!queue.empty()) {
    const auto [rank, place, left, right] = queue.top();
    queue.pop();
    Node& first = node(place);
    if (first.token != left || first.next < 0 || node(first.next).token != right) continue;
    Node& second = node(first.next);
    first.token = merge_of(left, right)->result;
    second.token = -1;
    first.next = second.next;
    if (second.next >= 0) node(second.next).previous = place;
    candidate_at(first.previous, [&](const Candidate& c) { queue.push(c); });
    candidate_at(place, [&](const Candidate& c) { queue.push(c); });
  }
  for (int32_t i = 0; i >= 0; i = node(i).next) ids.push_back(node(i).token);
}

}  // namespace tessera
