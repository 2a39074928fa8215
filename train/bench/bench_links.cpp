// ./bench links: what each rank of a run has, before the run: its device, its host's memory and disk, and the
// links to the others.
//
// Pairs of machines are measured in rounds, as in a tournament: in a round each machine has one partner, and
// all pairs send at the same time, as in a run. The ranks of a machine send together, each to the rank of the
// partner that has the same local number.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/clock.h"
#include "kernels/base/file.h"
#include "kernels/base/output.h"
#include "kernels/base/present.h"
#include "train/bench/bench.h"
#include "train/bench/copy_bandwidth.h"
#include "train/bench/links_results.h"
#include "train/run/rank_group.h"
#include "train/session/device.h"
#include "train/session/measure_links.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kElements = int64_t{4} << 20;  // of a large message, in fp32
constexpr int kLarge = 8, kSmall = 50;           // messages of which the time is taken
constexpr size_t kChunk = size_t{16} << 20;      // bytes, for the disk
constexpr int kChunks = 16;

// The rounds in which each of `count` ends meets each other one once: [round][end] = partner; its own number
// has a rest. The last end stays, and the others move around it.
std::vector<std::vector<int64_t>> tournament(int64_t count) {
  const int64_t even = count + count % 2, moving = even - 1;
  std::vector<std::vector<int64_t>> rounds;
  for (int64_t round = 0; round < moving; ++round) {
    std::vector<int64_t> partner(static_cast<size_t>(even));
    for (int64_t i = 0; i < moving; ++i) {
      const int64_t other = (round + moving - i) % moving;
      partner[static_cast<size_t>(i)] = other == i ? moving : other;
      if (other == i) partner[static_cast<size_t>(moving)] = i;
    }
    for (int64_t i = 0; i < even; ++i)
      if (partner[static_cast<size_t>(i)] >= count) partner[static_cast<size_t>(i)] = i;
    partner.resize(static_cast<size_t>(count));
    rounds.push_back(std::move(partner));
  }
  return rounds;
}

class Links {
 public:
  Links(const BenchLinksOptions& options, RankGroup& ranks)
      : options_(options),
        ranks_(ranks),
        device_(choose_device(options.device, ranks.local_rank()).traits),
        be_(make_backend(device_)),
        nodes_(ranks.nodes()) {}

  LinksResults run() {
    ranks_.enter_phase("measuring devices", Timeout::kNone);
    measure_own();
    if (ranks_.size() > 1) {
      ranks_.enter_phase("measuring links", Timeout::kNone);
      own_.send =
          measure_links(*be_, ranks_.connect(*be_, {.data = ranks_.size(), .replicas = nodes_})).within;
      if (nodes_ == 1 && ranks_.size() == 2) own_.send = 0;  // that is the link
      const Mesh& mesh = ranks_.connect(*be_, {.data = ranks_.size()});
      measure_pairs(*mesh.step_axes().all);
    }
    collect();
    return results_;
  }

 private:
  int64_t ends() const { return nodes_ > 1 ? nodes_ : ranks_.size(); }
  int64_t ranks_of_an_end() const { return ranks_.size() / ends(); }

  void measure_own() {
    own_.flops = gemm_peak(*be_);
    Arena arena = make_arena(device_);
    own_.memory = copy_bandwidth(Stream(*be_), arena);
    own_.host = host_bandwidth();
    ranks_.exchange("");  // the disk is measured without the others' work
    if (ranks_.local_rank() == 0) measure_disk();
    ranks_.exchange("");
  }

  static double host_bandwidth() {
    std::vector<char> from(4 * kChunk, 1), to(4 * kChunk);
    double best = 0;
    for (int i = 0; i < 5; ++i) {
      const Clock::time_point start = Clock::now();
      std::memcpy(to.data(), from.data(), from.size());
      const volatile char read = to[static_cast<size_t>(i)];  // so that the copy is made
      (void)read;
      best = std::max(best, 2.0 * static_cast<double>(from.size()) / seconds_since(start));
    }
    return best;
  }

  // A file of 256 MiB, synced; then read without what the system holds of it
  void measure_disk() {
    fs::create_directories(options_.folder);
    const fs::path path = fs::path(options_.folder) / fmt::format(".tessera_links_{}", ranks_.rank());
    const std::vector<std::byte> chunk(kChunk, std::byte{1});
    constexpr double kBytes = static_cast<double>(kChunk) * kChunks;
    Clock::time_point start = Clock::now();
    OutputFile file(path);
    for (int i = 0; i < kChunks; ++i) file.write(chunk);
    const fs::path written = file.finish();
    own_.disk_write = kBytes / seconds_since(start);
    const Descriptor reader(open(written.c_str(), O_RDONLY | O_CLOEXEC));
    const SystemCall opened = reader.is_open();
    check_system(opened, "cannot read {}: {}", written.string());
    posix_fadvise(reader.get(), 0, 0, POSIX_FADV_DONTNEED);
    start = Clock::now();
    std::vector<std::byte> read_bytes(kChunk);
    for (int i = 0; i < kChunks; ++i) {
      const SystemCall got = read(reader.get(), read_bytes.data(), kChunk) > 0;
      check_system(got, "cannot read {}: {}", written.string());
    }
    own_.disk_read = kBytes / seconds_since(start);
  }

  // Seconds of `count` messages from this rank's end or to it; 0 where it has a rest
  struct Turn {
    int64_t partner;  // of this rank's end
    bool sends;
    int64_t elements;
    int count;
  };
  double seconds_of(Communicator& all, const Tensor& buffer, const Turn& turn) {
    const int64_t own = ranks_.rank() / ranks_of_an_end(), local = ranks_.rank() % ranks_of_an_end();
    std::vector<AllToAll::Message> sends, receives;
    if (turn.partner != own)
      (turn.sends ? sends : receives)
          .push_back({.rank = static_cast<int>(turn.partner * ranks_of_an_end() + local),
                      .tensor = buffer.rows(0, turn.elements)});
    const auto work = [&](int count) {
      for (int i = 0; i < count; ++i) all.all_to_all({.sends = sends, .receives = receives});
      all.wait();
      all.synchronize();
      be_->synchronize(be_->stream());
    };
    work(1);
    ranks_.exchange("");
    const Clock::time_point start = Clock::now();
    work(turn.count);
    return turn.partner == own ? 0 : seconds_since(start) / turn.count;
  }

  void measure_pairs(Communicator& all) {
    Arena arena = make_arena(device_);
    const Tensor buffer = arena.alloc(MemoryTag::kCommunication, "measured links", DType::kF32, {kElements});
    const int64_t own = ranks_.rank() / ranks_of_an_end();
    for (const std::vector<int64_t>& partner : tournament(ends()))
      for (const bool lower_sends : {true, false}) {
        const int64_t other = partner[static_cast<size_t>(own)];
        const bool sends = (own < other) == lower_sends;
        const Turn turn{.partner = other, .sends = sends, .elements = kElements, .count = kLarge};
        const std::vector<double> large = ranks_.gather(seconds_of(all, buffer, turn));
        Turn small = turn;
        small.elements = 1, small.count = kSmall;
        const std::vector<double> latency = ranks_.gather(seconds_of(all, buffer, small));
        for (int64_t a = 0; a < ends(); ++a) {
          const int64_t b = partner[static_cast<size_t>(a)];
          if (a >= b) continue;
          const int64_t from = lower_sends ? a : b, to = lower_sends ? b : a;
          const auto bytes = static_cast<double>(ranks_of_an_end() * kElements * int64_t{sizeof(float)});
          results_.links.push_back({.from = from,
                                    .to = to,
                                    .rate = bytes / slowest(large, {from, to}),
                                    .seconds = slowest(latency, {from, to})});
        }
      }
    std::ranges::sort(results_.links, {}, [](const auto& one) { return std::pair(one.from, one.to); });
  }

  // Of the ranks of these ends
  double slowest(const std::vector<double>& seconds, const std::vector<int64_t>& of) const {
    double most = 0;
    for (const int64_t end : of)
      for (int64_t i = 0; i < ranks_of_an_end(); ++i)
        most = std::max(most, seconds[static_cast<size_t>(end * ranks_of_an_end() + i)]);
    return most;
  }

  void collect() {
    const auto gather = [&](double LinksResults::Rank::*figure) {
      const std::vector<double> all = ranks_.gather(own_.*figure);
      results_.ranks.resize(all.size());
      for (size_t r = 0; r < all.size(); ++r) results_.ranks[r].*figure = all[r];
    };
    using Rank = LinksResults::Rank;
    for (double Rank::*figure :
         {&Rank::flops, &Rank::memory, &Rank::host, &Rank::send, &Rank::disk_write, &Rank::disk_read})
      gather(figure);
    const std::vector<std::string> machines = ranks_.exchange(ranks_.machine()),
                                   devices = ranks_.exchange(device_.name);
    for (size_t r = 0; r < machines.size(); ++r)
      results_.ranks[r].machine = machines[r], results_.ranks[r].device = devices[r];
    results_.of_machines = nodes_ > 1;
    for (int64_t end = 0; end < ends(); ++end)
      results_.ends.push_back(nodes_ > 1 ? machines[static_cast<size_t>(end * ranks_of_an_end())]
                                         : fmt::format("rank {}", end));
    // Machines that have one name, as in containers
    if (std::set(results_.ends.begin(), results_.ends.end()).size() < results_.ends.size())
      for (size_t end = 0; end < results_.ends.size(); ++end) results_.ends[end] += fmt::format(" ({})", end);
  }

  const BenchLinksOptions& options_;
  RankGroup& ranks_;
  DeviceTraits device_;
  std::unique_ptr<Backend> be_;
  int64_t nodes_;
  LinksResults::Rank own_;
  LinksResults results_;
};

}  // namespace

void bench_links(const BenchLinksOptions& options, const World& world) {
  RankGroup ranks(world, Config());
  std::optional<Links> links;  // outlives guard(): see RankGroup
  ranks.guard([&] {
    if (ranks.is_rank_0()) check_writable(options.json);
    const LinksResults results = links.emplace(options, ranks).run();
    ranks.finish();
    if (!ranks.is_rank_0()) return;
    if (!ranks.network().empty()) fmt::print("{}\n\n", ranks.network());
    fmt::print("{}", links_table(results));
    const std::vector<std::string> slow = slow_ones(results);
    for (const std::string& one : slow) fmt::print("slow: {}\n", one);
    if (slow.empty()) fmt::print("nothing is below {:g} of the median\n", kSlowShare);
    write_output(options.json, json_of(results).dump(2) + "\n");
  });
}

}  // namespace tessera
