#include "train/session/fastest_shape.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "train/session/memory_plan.h"
#include "train/session/step_estimate.h"

namespace tessera {
namespace {

// Rows of a micro-batch above which a step does not get faster
constexpr int64_t kEnoughRowsCuda = 65536, kEnoughRowsCpu = 1024;
// The share of a device's memory that a plan may use: the rest is for the driver and other programs.
constexpr double kUsableCuda = 0.92, kUsableCpu = 0.6;
constexpr double kFaster = 0.98;  // times as long: less may be the estimate's error
// Two groups of blocks run the operations of both, whose errors are alike.
constexpr double kFasterInGroups = 0.99;
// With weights or gradients on the host a step depends on the bus, whose speed machines differ in.
constexpr double kFasterFromHost = 1 / 1.1;
constexpr size_t kGroupsTried = 4;  // of all pairs, those that promise most

template <class T>
std::vector<T> only(const T& value) {
  return {value};
}

class Search {
 public:
  Search(const FreeFields& free, const DeviceTraits& device, const MemoryLimit& limit)
      : free_(free), device_(device), limit_(limit), cuda_(device.device == Device::kCuda) {}

  RunShape find(const RunShape& shape) const {
    if (!limit_.known()) return free_.micro_batch ? with_micro_batch(shape, 1) : shape;
    const auto share =
        static_cast<int64_t>((cuda_ ? kUsableCuda : kUsableCpu) * static_cast<double>(limit_.total));
    const std::vector<Alternative> whole = alternatives(shape);
    std::vector<Alternative> chunked, offloaded;
    const int64_t enough = (cuda_ ? kEnoughRowsCuda : kEnoughRowsCpu) / shape.sequence_length;
    for (const Room& room : {Room{std::min(share, limit_.bytes), enough}, Room{limit_.bytes, 1}}) {
      if (const std::optional<Timed> found = fastest(whole, room)) return or_more_on_host(*found, room);
      if (chunked.empty() && offloaded.empty())
        chunked = in_smallest_chunks(shape), offloaded = with_more_on_host(shape);
      if (std::ranges::any_of(chunked, [&](const Alternative& one) { return one.peak <= room.bytes; }))
        for (const int64_t chunk : chunks(shape))
          if (const std::optional<Timed> found = fastest(alternatives(with_mlp_chunk(shape, chunk)), room))
            return or_more_on_host(*found, room);
      if (const std::optional<Timed> found = fastest(offloaded, room)) return found->shape;
    }
    std::vector<Alternative> all = whole;
    for (const std::vector<Alternative>* more : {&chunked, &offloaded})
      all.insert(all.end(), more->begin(), more->end());
    return std::ranges::min_element(all, {}, &Alternative::peak)->shape;
  }

 private:
  struct Room {
    int64_t bytes, micro_batch;  // at most; a micro-batch of 1 is always tried
  };
  struct Alternative {
    RunShape shape;  // with the least micro-batch
    int64_t peak;    // its peak
  };
  struct Timed {
    RunShape shape;
    double seconds;
  };
  static RunShape with_micro_batch(RunShape shape, int64_t micro_batch) {
    const int64_t sequences = shape.sequences_per_rank();
    shape.micro_batch = micro_batch, shape.micro_steps = sequences / micro_batch;
    return shape;
  }
  static RunShape with_mlp_chunk(RunShape shape, int64_t chunk) {
    shape.mlp_chunk = chunk;
    return shape;
  }
  // Those of kMlpChunks that are smaller than the smallest micro-batch
  std::vector<int64_t> chunks(const RunShape& shape) const {
    std::vector<int64_t> found;
    const int64_t rows = free_.micro_batch ? shape.sequence_length : shape.rows();
    for (const int64_t chunk : kMlpChunks)
      if (free_.mlp_chunk && chunk < rows) found.push_back(chunk);
    return found;
  }
  std::vector<Alternative> in_smallest_chunks(const RunShape& shape) const {
    const std::vector<int64_t> all = chunks(shape);
    return all.empty() ? std::vector<Alternative>() : alternatives(with_mlp_chunk(shape, all.back()));
  }
  std::vector<Alternative> with_more_on_host(RunShape shape) const {
    if (!free_.offload || !cuda_) return {};
    if (const std::vector<int64_t> all = chunks(shape); !all.empty()) shape.mlp_chunk = all.back();
    return alternatives(shape, /*more_on_host=*/true);
  }
  // Weights cross the bus twice in a micro-step, gradients once in each direction. What the optimizer keeps
  // is larger than either, and crosses it once in a step: gradients follow it.
  std::vector<Offload> offloads(const RunShape& shape, bool more_on_host) const {
    if (!free_.offload || !cuda_) return only(shape.offload);
    const std::vector<Offload> few{
        {}, {.optimizer = true}, {.activations = true}, {.optimizer = true, .activations = true}};
    if (!more_on_host) return few;
    std::vector<Offload> more;
    for (const auto& [weights, gradients] : {std::pair{false, true}, {true, false}, {true, true}})
      for (Offload one : few) {
        if (gradients && !one.optimizer) continue;
        one.weights = weights, one.gradients = gradients;
        more.push_back(one);
      }
    return more;
  }
  // On the device; more than any has, where what is offloaded does not fit the host
  int64_t peak(const RunShape& shape) const {
    const MemoryPlan plan = plan_stages(shape, device_);
    return plan.host_bytes <= limit_.pinned ? plan.ledger.peak_bytes() : std::numeric_limits<int64_t>::max();
  }

  // In the order in which they are preferred
  std::vector<Alternative> alternatives(const RunShape& shape, bool more_on_host = false) const {
    const auto shards = free_.shard && shape.ranks() > 1
                            ? std::vector{Shard::kOptimizer, Shard::kGradients, Shard::kWeights}
                            : only(shape.shard);
    std::vector<Alternative> all;
    for (const Offload& offload : offloads(shape, more_on_host))
      for (const int64_t replicas : replicas_of(shape))
        for (const Shard shard : shards)
          for (const ByBlock<Keep>& keep : free_.keep ? keeps(shape) : only(shape.keep)) {
            RunShape own = free_.micro_batch ? with_micro_batch(shape, 1) : shape;
            own.offload = offload, own.mesh.replicas = replicas, own.shard = shard, own.keep = keep;
            if (offload.weights && own.mesh.ranks_of_shard() > 1 && shard != Shard::kWeights) continue;
            all.push_back({.shape = own, .peak = peak(own)});
          }
    return all;
  }
  // Collectives within a machine are faster: more replicas come first.
  std::vector<int64_t> replicas_of(const RunShape& shape) const {
    if (!free_.replicas || shape.nodes == 1 || shape.crosses_nodes(Axis::kContext))
      return only(shape.mesh.replicas);
    return {shape.nodes, 1};
  }
  static std::vector<ByBlock<Keep>> keeps(const RunShape& shape) {
    using R = Recomputed;
    using Each = std::vector<ByBlock<Keep>>;
    // A chunk recomputes the MLP anyway.
    if (shape.mlp_chunk > 0)
      return Each{Keep{R::kMlp}, Keep{R::kNorms, R::kMlp}, kKeepAttention, kKeepOutputs};
    if (!shape.model.gated())
      return Each{kKeepAll, Keep{R::kNorms}, Keep{R::kMlp}, kKeepAttention, kKeepOutputs};
    return Each{
        kKeepAll,      Keep{R::kNorms},          Keep{R::kActivation}, Keep{R::kNorms, R::kActivation},
        Keep{R::kMlp}, Keep{R::kNorms, R::kMlp}, kKeepAttention,       kKeepOutputs};
  }

  // Nothing: none fits, or none takes less than `most` seconds.
  std::optional<Timed> fastest(const std::vector<Alternative>& all, const Room& room,
                               double most = std::numeric_limits<double>::infinity()) const {
    std::optional<Timed> best;
    for (const Alternative& one : all) {
      const std::optional<RunShape> fitting = largest(one, room);
      if (!fitting) continue;
      if (all.size() == 1) return Timed{*fitting, 0};
      const double own = estimate_step(*fitting, device_).seconds;
      if (own < (best ? kFaster * best->seconds : most)) best = Timed{*fitting, own};
    }
    return best ? in_two_groups(all, *best, room) : best;
  }

  // `found`, or with adapters what is faster with frozen weights on the host too: their memory lets blocks
  // recompute and offload less. It is not tried where even unlimited memory would gain too little.
  RunShape or_more_on_host(const Timed& found, const Room& room) const {
    if (!free_.offload || !cuda_ || !found.shape.model.lora) return found.shape;
    const double most = kFasterFromHost * found.seconds;
    if (estimate_step(without_limit(found.shape, room), device_).seconds >= most) return found.shape;
    const std::optional<Timed> other = fastest(alternatives(found.shape, /*more_on_host=*/true), room, most);
    return other ? other->shape : found.shape;
  }
  RunShape without_limit(RunShape shape, const Room& room) const {
    if (free_.micro_batch) shape = with_micro_batch(shape, most_sequences(shape, room));
    if (free_.keep) shape.keep = kKeepAll;
    shape.offload = {};
    return shape;
  }
  static int64_t most_sequences(const RunShape& shape, const Room& room) {
    int64_t most = std::max<int64_t>(std::min(shape.sequences_per_rank(), room.micro_batch), 1);
    while (shape.sequences_per_rank() % most != 0) --most;
    return most;
  }

  // A shape of which all blocks are alike, at a micro-batch
  struct Level {
    RunShape shape;
    int64_t peak;
    double seconds;
  };
  // Blocks of one level that fits, and of one that does not
  struct Groups {
    const Level *saving, *fast;
    double guess;  // of the seconds with as few blocks of `saving` as fit
  };

  // `alike`, or what is faster in two groups, at the same split, and at the micro-batch of `alike` or the
  // next ones.
  Timed in_two_groups(const std::vector<Alternative>& all, const Timed& alike, const Room& room) const {
    Timed found = alike;
    if (alike.shape.model.layers == 1) return found;
    for (const bool activations : {false, true})
      for (const int64_t micro_batch : near(alike.shape, room))
        for (const bool optimizer : {false, true}) {
          const double most = kFasterInGroups * found.seconds;
          Offload at_most = alike.shape.offload;
          at_most.optimizer = optimizer, at_most.activations = activations;
          const std::vector<Level> tried = levels(all, alike.shape.shard, at_most, micro_batch, most);
          for (const Groups& groups : promising(tried, room, most)) {
            const RunShape shape = with_most_fast(groups, room);
            const double own = estimate_step(shape, device_).seconds;
            if (own < kFasterInGroups * found.seconds) found = {shape, own};
          }
        }
    return found;
  }

  // What `all` has at this split, with at most these activations offloaded, at this micro-batch. One alone
  // where the first, which does the least, takes `most` seconds or more.
  std::vector<Level> levels(const std::vector<Alternative>& all, Shard shard, const Offload& at_most,
                            int64_t micro_batch, double most) const {
    std::vector<Level> found;
    for (const Alternative& one : all) {
      const Offload& offload = one.shape.offload;
      if (one.shape.shard != shard || offload.optimizer != at_most.optimizer) continue;
      if (offload.weights != at_most.weights || offload.gradients != at_most.gradients) continue;
      if (offload.activations && !at_most.activations) continue;
      const RunShape shape = with_micro_batch(one.shape, micro_batch);
      found.push_back({shape, peak(shape), estimate_step(shape, device_).seconds});
      if (found[0].seconds >= most) break;
    }
    return found;
  }

  std::vector<int64_t> near(const RunShape& best, const Room& room) const {
    std::vector<int64_t> found{best.micro_batch};
    const int64_t sequences = best.sequences_per_rank();
    const auto add_next = [&](int64_t step, int64_t last) {
      for (int64_t b = best.micro_batch + step; b * step <= last * step; b += step)
        if (sequences % b == 0) return found.push_back(b);
    };
    if (free_.micro_batch) add_next(1, std::min(sequences, room.micro_batch)), add_next(-1, 1);
    return found;
  }

  static std::vector<Groups> promising(const std::vector<Level>& levels, const Room& room, double most) {
    std::vector<Groups> all;
    for (const Level& saving : levels)
      for (const Level& fast : levels) {
        if (saving.peak > room.bytes || fast.peak <= room.bytes || fast.seconds >= most) continue;
        if (fast.shape.offload.activations && !saving.shape.offload.activations) continue;
        // The first block of a group saves nothing, and costs nothing: it has what others would share.
        const auto more = static_cast<double>(saving.shape.model.layers - 1);
        const double share =
            static_cast<double>(fast.peak - room.bytes) / static_cast<double>(fast.peak - saving.peak);
        const double guess = fast.seconds + std::ceil(share * more) / more * (saving.seconds - fast.seconds);
        if (guess < most) all.push_back({.saving = &saving, .fast = &fast, .guess = guess});
      }
    std::ranges::stable_sort(all, {}, &Groups::guess);
    if (all.size() > kGroupsTried) all.erase(all.begin() + kGroupsTried, all.end());
    return all;
  }

  // `blocks` of the saving ones. If they alone are offloaded, they come first: theirs wait longest. Else they
  // come last: of blocks that recompute the same, the last one does not run again.
  static RunShape in_groups(const Groups& groups, int64_t blocks) {
    const RunShape &saving = groups.saving->shape, &fast = groups.fast->shape;
    RunShape shape = saving;
    const bool offloads = saving.offload.activations && !fast.offload.activations;
    if (offloads) shape.offload.blocks = blocks;
    if (saving.keep == fast.keep) return shape;
    const Keep less = saving.keep.at(0), more = fast.keep.at(0);
    shape.keep = offloads ? ByBlock<Keep>({{less, blocks}, {more}})
                          : ByBlock<Keep>({{more, shape.model.layers - blocks}, {less}});
    return shape;
  }
  RunShape with_most_fast(const Groups& groups, const Room& room) const {
    const int64_t all = groups.saving->shape.model.layers;
    int64_t too_few = 0, enough = all;
    while (enough - too_few > 1) {
      const int64_t middle = (too_few + enough) / 2;
      (peak(in_groups(groups, middle)) <= room.bytes ? enough : too_few) = middle;
    }
    return enough == all ? groups.saving->shape : in_groups(groups, enough);
  }

  // Nothing: no micro-batch fits.
  std::optional<RunShape> largest(const Alternative& least, const Room& room) const {
    if (least.peak > room.bytes) return {};
    RunShape best = least.shape;
    const int64_t sequences = best.sequences_per_rank();
    for (int64_t b = 2; free_.micro_batch && b <= std::min(sequences, room.micro_batch); ++b) {
      if (sequences % b != 0) continue;
      const RunShape next = with_micro_batch(best, b);
      if (peak(next) > room.bytes) break;
      best = next;
    }
    return best;
  }

  FreeFields free_;
  DeviceTraits device_;
  MemoryLimit limit_;
  bool cuda_;
};

}  // namespace

RunShape fastest_shape(const RunShape& shape, const FreeFields& free, const DeviceTraits& device,
                       const MemoryLimit& limit) {
  if (!free.micro_batch && !free.any_but_micro_batch()) return shape;
  return Search(free, device, limit).find(shape);
}

}  // namespace tessera
