#include "train/run/disks.h"

#include <algorithm>
#include <map>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "train/launch/world.h"
#include "train/run/rank_group.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 4096, kBlocks = 64;  // of a sample

// The folder itself, or the nearest one above it that exists
fs::path existing(const fs::path& folder) {
  fs::path at = fs::absolute(folder).lexically_normal();
  while (!fs::is_directory(at) && at.has_parent_path() && at != at.parent_path()) at = at.parent_path();
  return at;
}

// An empty file, as long as this lives. Its name has never been looked up before, so no file system has an
// old answer for it.
class Mark {
 public:
  Mark(const fs::path& in, const fs::path& run_folder, const std::string& name) : path_(in / name) {
    try {
      write_file(path_, "");
    } catch (const Error& error) {
      fail("cannot write to the run's folder {}: {}. Choose another with --set train.folder=NAME",
           run_folder.string(), error.what());
    }
  }
  Mark(const Mark&) = delete;
  ~Mark() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }

 private:
  fs::path path_;
};

std::string sample_of(const fs::path& file) {
  const MappedFile mapped(file);
  const std::span<const std::byte> bytes = mapped.bytes();
  const int64_t last = std::max<int64_t>(0, std::ssize(bytes) - kBlock);
  Checksum checksum;
  for (int64_t i = 0; i < kBlocks; ++i) {
    const auto first =
        static_cast<size_t>(last / (kBlocks - 1) * i + last % (kBlocks - 1) * i / (kBlocks - 1));
    checksum.update(bytes.subspan(first, std::min(static_cast<size_t>(kBlock), bytes.size() - first)));
  }
  return checksum.digits();
}

}  // namespace

bool Disks::several() const {
  return std::ranges::any_of(leaders_, [](int64_t leader) { return leader != 0; });
}

std::vector<int64_t> Disks::writers(int64_t ranks) const {
  std::vector<std::pair<int64_t, int64_t>> turns;  // how many of its disk come before it, and the rank
  std::map<int64_t, int64_t> before;
  for (int64_t rank = 0; rank < ranks; ++rank) turns.emplace_back(before[leader_of(rank)]++, rank);
  std::ranges::sort(turns);
  std::vector<int64_t> order;
  for (const auto& [turn, rank] : turns) order.push_back(rank);
  return order;
}

Disks find_disks(const fs::path& folder, RankGroup& ranks) {
  const std::vector<std::string> machines = ranks.exchange(ranks.machine());
  if (ranks.on_one_machine()) return {std::vector<int64_t>(machines.size(), 0), machines};
  const std::string name = ".tessera_" + ranks.of_rank_0(random_secret().substr(0, 16)) + "_";
  const fs::path in = existing(folder);
  const auto look = [&](int64_t rank) { return fs::exists(in / (name + std::to_string(rank))); };
  std::optional<Mark> mark;
  const std::string own = name + std::to_string(ranks.rank());
  if (ranks.is_rank_0()) mark.emplace(in, folder, own);
  ranks.exchange("");  // it is there
  int64_t leader = look(0) ? 0 : ranks.rank();
  if (leader != 0) mark.emplace(in, folder, own);
  ranks.exchange("");
  for (int64_t rank = 1; leader != 0 && rank < leader; ++rank)
    if (look(rank)) leader = rank;
  std::vector<int64_t> leaders;
  for (const double each : ranks.gather(static_cast<double>(leader)))
    leaders.push_back(static_cast<int64_t>(each));
  return {leaders, machines};
}

std::string lines_of_files(const fs::path& path) {
  std::vector<fs::path> files{path};
  if (fs::is_directory(path)) {
    files.clear();
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.is_regular_file()) files.push_back(entry.path());
    std::ranges::sort(files);
  }
  std::string lines;
  for (const fs::path& file : files)
    lines +=
        fmt::format("{}: {} bytes, {}\n", file.filename().string(), fs::file_size(file), sample_of(file));
  return lines;
}

}  // namespace tessera
