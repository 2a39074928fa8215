#include "train/session/context_deal.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/check.h"
#include "kernels/base/no_target.h"
#include "train/session/equal_shares.h"

namespace tessera {
namespace {

constexpr int64_t kLargestBlock = 128;  // a query tile of the attention kernels
constexpr int64_t kMostPadding = 64;    // at most 1 / kMostPadding of a sequence's tokens

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The largest power of two with little padding
int64_t block_of(int64_t all_tokens, int64_t ranks) {
  int64_t block = kLargestBlock;
  while (block > 1) {
    const int64_t padded = divided_up(divided_up(all_tokens, block), ranks) * block * ranks;
    if ((padded - all_tokens) * kMostPadding <= all_tokens) break;
    block /= 2;
  }
  return block;
}

bool is_listed(std::span<const SeenKeys> seen, int64_t tokens) {
  return std::ranges::any_of(seen, [&](const SeenKeys& one) { return one.listed(tokens); });
}

// The tokens of a block that is dealt whole, for lists: whole blocks of every pattern have it, and a tile of
// queries is of one. The same for all lengths
int64_t listed_block_of(std::span<const SeenKeys> seen) {
  int64_t block = kLargestBlock;
  for (const SeenKeys& one : seen)
    if (one.sparse.window > 0) block = std::gcd(block, one.sparse.block);
  return block;
}

// Those that hide keys
std::vector<int64_t> hiding_windows(const DealtShape& shape) {
  std::vector<int64_t> windows;
  for (const SeenKeys& one : shape.seen)
    if (one.window != Windows::kFull && one.window < shape.all_tokens) windows.push_back(one.window);
  return windows;
}

// The tables of a batch side by side. Each begins at a multiple of 16 bytes.
struct TableSizes {
  int64_t positions, places, documents, seen_by, gathered, scattered;
  int64_t windows;  // documents and seen_by once more for each
  explicit TableSizes(const DealtShape& s)
      : positions(whole(s.batch * s.tokens())),
        places(positions),
        documents(whole(s.batch * s.tokens() * 2)),
        seen_by(whole(s.batch * s.all_tokens * 2)),
        gathered(whole(s.batch * s.all_tokens)),
        scattered(whole(s.ranks * s.batch * s.tokens())),
        windows(std::ssize(hiding_windows(s))) {}
  static int64_t whole(int64_t numbers) { return divided_up(numbers, 4) * 4; }
  int64_t sum() const {
    return positions + places + gathered + scattered + (1 + windows) * (documents + seen_by);
  }
};

int64_t document_of(std::span<const int32_t> documents, int64_t token, int64_t otherwise, int64_t end) {
  return documents.empty() ? otherwise : documents[static_cast<size_t>(2 * token + end)];
}

// The tables of a batch, as spans
struct Tables {
  struct Seen {  // within a window
    int64_t window;
    std::span<int32_t> documents, seen_by;
  };
  std::span<int32_t> positions, places, gathered, scattered;
  std::vector<Seen> seen;  // first Windows::kFull
  Tables(const DealtShape& shape, std::span<int32_t> numbers) {
    const TableSizes sizes(shape);
    const auto take = [&](std::span<int32_t>& table, int64_t size) {
      table = numbers.first(static_cast<size_t>(size));
      numbers = numbers.subspan(static_cast<size_t>(size));
    };
    take(positions, sizes.positions), take(places, sizes.places);
    take(gathered, sizes.gathered), take(scattered, sizes.scattered);
    std::vector<int64_t> windows = hiding_windows(shape);
    windows.insert(windows.begin(), Windows::kFull);
    for (const int64_t window : windows) {
      Seen& own = seen.emplace_back(Seen{.window = window, .documents = {}, .seen_by = {}});
      take(own.documents, sizes.documents), take(own.seen_by, sizes.seen_by);
    }
  }
};

// What this rank's rows of sequence b are
void fill_rows(const DealtShape& shape, std::span<const int32_t> documents, int64_t b,
               std::span<const int32_t> places, Tables& to) {
  const int64_t T = shape.tokens();
  for (int64_t t = 0; t < T; ++t) {
    const auto at = static_cast<size_t>(b * T + t);
    const int32_t place = places[static_cast<size_t>(t)];
    const bool real = place != kNoPlace;
    to.positions[at] = real ? static_cast<int32_t>(place - document_of(documents, place, 0, 0)) : 0;
    to.places[at] = real ? place : 0;
  }
}

// Which keys they see: those of their document up to their place, the last ones of a window
void fill_keys(const DealtShape& shape, std::span<const int32_t> documents, int64_t b,
               std::span<const int32_t> places, Tables::Seen& to) {
  const int64_t T = shape.tokens();
  int64_t end = 0;  // of the keys that the row before sees
  for (int64_t t = 0; t < T; ++t) {
    const auto at = static_cast<size_t>(2 * (b * T + t));
    const int32_t place = places[static_cast<size_t>(t)];
    int64_t begin = end;
    if (place != kNoPlace) {
      begin = document_of(documents, place, 0, 0), end = place + 1;
      if (to.window != Windows::kFull) begin = std::max(begin, end - to.window);
    }
    to.documents[at] = static_cast<int32_t>(begin), to.documents[at + 1] = static_cast<int32_t>(end);
  }
}

// Which of this rank's rows see each key of sequence b: those of its document from its place on, the first
// ones of a window
void fill_seen_by(const DealtShape& shape, std::span<const int32_t> documents, int64_t b,
                  std::span<const int32_t> places, Tables::Seen& to) {
  const auto real = static_cast<int32_t>(std::ranges::find(places, kNoPlace) - places.begin());
  const auto first_from = [&](int32_t row,
                              int64_t place) {  // the first row from `row` on at `place` or later
    while (row < real && places[static_cast<size_t>(row)] < place) ++row;
    return row;
  };
  int32_t begin = 0, end = 0;
  for (int64_t key = 0; key < shape.all_tokens; ++key) {
    begin = first_from(begin, key);
    int64_t unseen = document_of(documents, key, shape.all_tokens, 1);
    if (to.window != Windows::kFull) unseen = std::min(unseen, key + to.window);
    end = first_from(std::max(end, begin), unseen);
    const auto at = static_cast<size_t>(2 * (b * shape.all_tokens + key));
    to.seen_by[at] = begin, to.seen_by[at + 1] = end;
  }
}

// Where the rows of all ranks are
void fill_orders(const DealtShape& shape, int64_t b, std::span<const int32_t> places, Tables& to) {
  const int64_t T = shape.tokens();
  for (int64_t rank = 0; rank < shape.ranks; ++rank)
    for (int64_t t = 0; t < T; ++t) {
      const int64_t row = (rank * shape.batch + b) * T + t;
      const int32_t place = places[static_cast<size_t>(rank * T + t)];
      const auto token = static_cast<int32_t>(b * shape.all_tokens + place);
      to.scattered[static_cast<size_t>(row)] = place == kNoPlace ? -1 : token;
      if (place != kNoPlace) to.gathered[static_cast<size_t>(token)] = static_cast<int32_t>(row);
    }
}

// The pairs of the queries `begin` to `end` - 1, which are of one block of every pattern, and the keys that
// they see in one document, summed over the blocks of the model
double listed_work(std::span<const SeenKeys> seen, int64_t begin, int64_t end) {
  double work = 0;
  for (const auto& [window, sparse, blocks] : seen) {
    const int64_t row = sparse ? begin / sparse.block : 0,  // whose other blocks are seen whole
        whole = sparse ? (sparse.blocks_seen_by(row) - 1) * sparse.block : 0, own = row * sparse.block;
    for (int64_t token = begin; token < end; ++token) {
      const int64_t keys = whole + token + 1 - own;
      work += static_cast<double>(blocks * (window == Windows::kFull ? keys : std::min(keys, window)));
    }
  }
  return work;
}

// For each of `rounds`, the block that each rank gets: of S blocks that follow one another one each, the one
// with the most work for the rank with the least so far
std::vector<int64_t> deal_in_rounds(const DealtShape& shape, int64_t block, int64_t rounds) {
  const auto S = static_cast<size_t>(shape.ranks);
  std::vector<double> lacks(S);  // the work so far, negative
  std::vector<int64_t> dealt;
  for (int64_t first = 0; first < rounds * shape.ranks; first += shape.ranks) {
    std::vector<double> work;
    for (int64_t i = first; i < first + shape.ranks; ++i)
      work.push_back(listed_work(shape.seen, i * block, (i + 1) * block));
    const std::vector<int64_t> blocks = by_falling(work), takers = by_falling(lacks);
    dealt.resize(dealt.size() + S);
    for (size_t i = 0; i < S; ++i) {
      const auto rank = static_cast<size_t>(takers[i]), taken = static_cast<size_t>(blocks[i]);
      dealt[dealt.size() - S + rank] = first + blocks[i];
      lacks[rank] -= work[taken];
    }
  }
  return dealt;
}

// Blocks that are assigned by falling work: for each rank, those that it has
std::vector<std::vector<int64_t>> deal_by_work(const DealtShape& shape, std::span<const int32_t> documents,
                                               int64_t block) {
  const int64_t blocks = divided_up(shape.all_tokens, block), room = divided_up(blocks, shape.ranks);
  std::vector<double> work(static_cast<size_t>(blocks));
  for (int64_t token = 0; token < shape.all_tokens; ++token) {
    const int64_t before = token + 1 - document_of(documents, token, 0, 0);
    for (const SeenKeys& one : shape.seen)
      work[static_cast<size_t>(token / block)] += static_cast<double>(
          one.blocks * (one.window == Windows::kFull ? before : std::min(before, one.window)));
  }
  return equal_shares(work, shape.ranks, room);
}

}  // namespace

std::vector<SeenKeys> seen_keys_of(const ModelConfig& model) {
  std::vector<SeenKeys> seen;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    const SeenKeys own{.window = model.window.at(l), .sparse = model.sparse.at(l)};
    const auto same = std::ranges::find_if(
        seen, [&](const SeenKeys& one) { return one.window == own.window && one.sparse == own.sparse; });
    if (same == seen.end())
      seen.push_back(own);
    else
      ++same->blocks;
  }
  return seen;
}

int64_t dealt_tokens(int64_t all_tokens, int64_t ranks, std::span<const SeenKeys> seen) {
  if (ranks == 1) return all_tokens;
  const int64_t block = is_listed(seen, all_tokens) ? listed_block_of(seen) : block_of(all_tokens, ranks);
  return divided_up(divided_up(all_tokens, block), ranks) * block;
}

DealtBlocks dealt_blocks(const DealtShape& shape) {
  DealtBlocks dealt{.ranks = shape.ranks, .rank = shape.rank};
  if (!is_listed(shape.seen, shape.all_tokens)) return dealt;
  dealt.size = listed_block_of(shape.seen);
  dealt.blocks = deal_in_rounds(shape, dealt.size, shape.tokens() / dealt.size);
  return dealt;
}

std::vector<int32_t> deal_tokens(const DealtShape& shape, std::span<const int32_t> documents) {
  const int64_t T = shape.tokens(), all = shape.all_tokens;
  const DealtBlocks listed = dealt_blocks(shape);
  const int64_t block = listed.size > 0 ? listed.size : block_of(all, shape.ranks);
  std::vector<std::vector<int64_t>> dealt(static_cast<size_t>(shape.ranks));
  if (listed.size == 0) dealt = deal_by_work(shape, documents, block);
  for (size_t i = 0; i < listed.blocks.size(); ++i) dealt[i % dealt.size()].push_back(listed.blocks[i]);
  std::vector<int32_t> places(static_cast<size_t>(shape.ranks * T), kNoPlace);
  for (size_t rank = 0; rank < dealt.size(); ++rank) {
    std::ranges::sort(dealt[rank]);
    auto to = places.begin() + static_cast<std::ptrdiff_t>(rank) * T;
    for (const int64_t i : dealt[rank])
      for (int64_t token = i * block; token < std::min((i + 1) * block, all); ++token)
        *to++ = static_cast<int32_t>(token);
  }
  return places;
}

int64_t DealtShape::numbers() const { return TableSizes(*this).sum(); }

void DealtShape::set_tables(const Tensor& numbers, Batch& of_rank) const {
  const TableSizes sizes(*this);
  int64_t at = 0;
  const auto take = [&](int64_t size, const Shape& shape) {
    const Tensor table = numbers.rows(at, shape.numel()).view(shape);
    at += size;
    return table;
  };
  const int64_t T = tokens();
  of_rank.positions = take(sizes.positions, {batch, T});
  of_rank.places = take(sizes.places, {batch, T});
  of_rank.context.gathered_rows = take(sizes.gathered, {batch * all_tokens});
  of_rank.context.scattered_rows = take(sizes.scattered, {ranks * batch * T});
  const auto take_seen = [&](Tensor& documents, Tensor& seen_by) {
    documents = take(sizes.documents, {batch, T, 2});
    seen_by = take(sizes.seen_by, {batch, all_tokens, 2});
  };
  take_seen(of_rank.documents, of_rank.seen_by);
  of_rank.within.clear();
  for (const int64_t window : hiding_windows(*this)) {
    Batch::Within& own =
        of_rank.within.emplace_back(Batch::Within{.window = window, .documents = {}, .seen_by = {}});
    take_seen(own.documents, own.seen_by);
  }
}

void deal_batch(const DealtShape& shape, const SequencesView& sequences, Dealt& out) {
  const int64_t T = shape.tokens(), all = shape.all_tokens;
  const int64_t N = shape.batch * all;
  const std::span<const int32_t> tokens = sequences.tokens, targets = sequences.targets,
                                 documents_of_all = sequences.documents;
  check(std::ssize(tokens) == N && std::ssize(targets) == N,
        "{} sequences of {} must have {} tokens and as many targets, found {} and {}", shape.batch, all, N,
        tokens.size(), targets.size());
  check(documents_of_all.empty() || std::ssize(documents_of_all) == 2 * N,
        "documents must be {} numbers, for {} sequences of {}, found {}", 2 * N, shape.batch, all,
        documents_of_all.size());
  const size_t first = out.numbers.size();
  out.numbers.resize(first + static_cast<size_t>(shape.numbers()));
  Tables tables(shape, std::span(out.numbers).subspan(first));
  const bool listed = is_listed(shape.seen, all);  // all sequences are dealt alike
  std::vector<int32_t> places;
  for (int64_t b = 0; b < shape.batch; ++b) {
    const auto documents =
        sequences.documents.empty()
            ? sequences.documents
            : sequences.documents.subspan(static_cast<size_t>(2 * b * all), static_cast<size_t>(2 * all));
    if (b == 0 || !listed) places = deal_tokens(shape, documents);
    const std::span own =
        std::span(places).subspan(static_cast<size_t>(shape.rank * T), static_cast<size_t>(T));
    for (const int32_t place : own) {
      const int64_t from = place == kNoPlace ? -1 : b * all + place;
      out.tokens.push_back(from < 0 ? 0 : sequences.tokens[static_cast<size_t>(from)]);
      out.targets.push_back(from < 0 ? kNoTarget : sequences.targets[static_cast<size_t>(from)]);
      out.from.push_back(from);
    }
    fill_rows(shape, documents, b, own, tables);
    for (Tables::Seen& seen : tables.seen) {
      fill_keys(shape, documents, b, own, seen);
      fill_seen_by(shape, documents, b, own, seen);
    }
    fill_orders(shape, b, places, tables);
  }
}

}  // namespace tessera
