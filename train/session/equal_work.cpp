#include "train/session/equal_work.h"

#include <algorithm>
#include <numeric>

#include "kernels/base/check.h"
#include "train/session/equal_shares.h"

namespace tessera {
bool takes_by_work(const RunShape& shape) {
  return shape.documents && shape.mesh.data > 1 && !shape.model.dropout;
}

double attention_spans(const ModelConfig& model, std::span<const int64_t> lengths) {
  double sum = 0;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    sum += static_cast<double>(length) * model.attention_span(begin, begin + length);
    begin += length;
  }
  return sum;
}

std::vector<double> work_of_step(const RunShape& shape,
                                 const std::function<std::vector<int64_t>(int64_t place)>& lengths_of) {
  if (!takes_by_work(shape)) return {};
  std::vector<double> work;
  for (int64_t place = 0; place < shape.sequences_per_step(); ++place)
    work.push_back(attention_spans(shape.model, lengths_of(place)));
  return work;
}

namespace {

// Of all ranks: [data ranks, micro-batches, sequences of each]
std::vector<int64_t> order_by_work(const RunShape& shape, std::span<const double> work) {
  check(std::ssize(work) == shape.sequences_per_step(), "a step has {} sequences, and the work is of {}",
        shape.sequences_per_step(), work.size());
  const int64_t ranks = shape.mesh.data, together = ranks * shape.micro_batch;
  const std::vector<int64_t> falling = by_falling(work);
  std::vector<int64_t> order(work.size());
  std::vector<double> had(static_cast<size_t>(ranks));  // by each rank, in the micro-batches so far
  for (int64_t m = 0; m < shape.micro_steps; ++m) {
    const std::span<const int64_t> places =
        std::span(falling).subspan(static_cast<size_t>(m * together), static_cast<size_t>(together));
    std::vector<double> of_places;
    for (const int64_t place : places) of_places.push_back(work[static_cast<size_t>(place)]);
    const auto shares = equal_shares(of_places, ranks, shape.micro_batch);
    std::vector<double> of_shares;
    for (const auto& share : shares)
      of_shares.push_back(std::accumulate(share.begin(), share.end(), 0.0, [&](double sum, int64_t i) {
        return sum + of_places[static_cast<size_t>(i)];
      }));
    std::vector<int64_t> takers(static_cast<size_t>(ranks));  // that with the least first
    std::iota(takers.begin(), takers.end(), 0);
    std::ranges::stable_sort(takers, {}, [&](int64_t rank) { return had[static_cast<size_t>(rank)]; });
    const std::vector<int64_t> largest = by_falling(of_shares);
    for (size_t i = 0; i < takers.size(); ++i) {
      const auto share = static_cast<size_t>(largest[i]);
      auto to = order.begin() + (takers[i] * shape.micro_steps + m) * shape.micro_batch;
      for (const int64_t one : shares[share]) *to++ = places[static_cast<size_t>(one)];
      had[static_cast<size_t>(takers[i])] += of_shares[share];
    }
  }
  return order;
}

}  // namespace

std::vector<int64_t> places_of_rank(const RunShape& shape, const AxisPlace& rank,
                                    std::span<const double> work) {
  const int64_t mine = shape.sequences_per_rank();
  std::vector<int64_t> places(static_cast<size_t>(mine));
  if (takes_by_work(shape))
    std::ranges::copy_n(order_by_work(shape, work).begin() + rank.rank * mine, mine, places.begin());
  else
    std::iota(places.begin(), places.end(), rank.rank * mine);
  return places;
}

}  // namespace tessera
