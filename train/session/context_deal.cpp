#include "train/session/context_deal.h"

#include <algorithm>

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

// Those that hide keys
std::vector<int64_t> hiding_windows(const DealtShape& shape) {
  std::vector<int64_t> windows;
  for (const auto& [window, blocks] : shape.windows)
    if (window != Windows::kFull && window < shape.all_tokens) windows.push_back(window);
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

}  // namespace

int64_t dealt_tokens(int64_t all_tokens, int64_t ranks) {
  if (ranks == 1) return all_tokens;
  const int64_t block = block_of(all_tokens, ranks);
  return divided_up(divided_up(all_tokens, block), ranks) * block;
}

std::vector<int32_t> deal_tokens(std::span<const int32_t> documents, int64_t all_tokens, int64_t ranks,
                                 std::span<const Windows::Run> windows) {
  const int64_t block = block_of(all_tokens, ranks), blocks = divided_up(all_tokens, block),
                room = divided_up(blocks, ranks), T = room * block;
  std::vector<double> work(static_cast<size_t>(blocks));
  for (int64_t token = 0; token < all_tokens; ++token) {
    const int64_t before = token + 1 - document_of(documents, token, 0, 0);
    for (const auto& [window, with_it] : windows)
      work[static_cast<size_t>(token / block)] +=
          static_cast<double>(with_it * (window == Windows::kFull ? before : std::min(before, window)));
  }
  std::vector<std::vector<int64_t>> dealt = equal_shares(work, ranks, room);
  std::vector<int32_t> places(static_cast<size_t>(ranks * T), kNoPlace);
  for (size_t rank = 0; rank < dealt.size(); ++rank) {
    std::ranges::sort(dealt[rank]);
    auto to = places.begin() + static_cast<std::ptrdiff_t>(rank) * T;
    for (const int64_t i : dealt[rank])
      for (int64_t token = i * block; token < std::min((i + 1) * block, all_tokens); ++token)
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
  for (int64_t b = 0; b < shape.batch; ++b) {
    const auto documents =
        sequences.documents.empty()
            ? sequences.documents
            : sequences.documents.subspan(static_cast<size_t>(2 * b * all), static_cast<size_t>(2 * all));
    const std::vector<int32_t> places = deal_tokens(documents, all, shape.ranks, shape.windows);
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
