#include "train/run/checkpoint_parts.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"
#include "kernels/stream.h"
#include "train/run/checkpoint_files.h"
#include "train/run/checkpoint_folder.h"
#include "train/session/device.h"
#include "train/session/host_tensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kElements = int64_t{4} << 20;  // of a message between ranks, in fp32

// What a disk has of a checkpoint
struct Holdings {
  bool finished = false;
  FileChecksums lists;                          // of checksums.json
  std::set<std::string> has;                    // of them
  std::map<std::string, std::string> machines;  // that wrote those which it lacks
};

Holdings holdings_of(const fs::path& checkpoint) {
  Holdings found{.finished = fs::exists(checkpoint / kStateFile), .lists = {}, .has = {}, .machines = {}};
  if (!found.finished) return found;
  found.lists = written_checksums(checkpoint);
  check(!found.lists.empty(),
        "{} has no checksums: an earlier version wrote it. Copy it to the same folder on every machine",
        checkpoint.string());
  for (const auto& [name, sum] : found.lists) {
    std::error_code none;
    if (static_cast<int64_t>(fs::file_size(checkpoint / name, none)) == sum.bytes && !none)
      found.has.insert(name);
    else
      found.machines[name] = machine_of_file(checkpoint, name);
  }
  return found;
}

// Of all ranks that lead a disk; of the others nothing
std::map<int64_t, Holdings> all_holdings(const OnDisks& on, const fs::path& checkpoint) {
  std::string mine;
  if (on.disks.leads(on.rank)) {
    const Holdings own = holdings_of(checkpoint);
    mine = Json{{"finished", own.finished},
                {"lists", json_of(own.lists)},
                {"has", own.has},
                {"machines", own.machines}}
               .dump();
  }
  std::map<int64_t, Holdings> all;
  const std::vector<std::string> texts = on.exchange(mine);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    const Json json = Json::parse(texts[rank]);
    all[static_cast<int64_t>(rank)] = {.finished = json["finished"],
                                       .lists = read_checksums(json["lists"], "a disk's checksums"),
                                       .has = json["has"],
                                       .machines = json["machines"]};
  }
  return all;
}

// Equal on all disks that have it
FileChecksums lists_of(const OnDisks& on, const fs::path& checkpoint,
                       const std::map<int64_t, Holdings>& all) {
  std::optional<int64_t> first;
  for (const auto& [rank, holdings] : all) {
    if (!holdings.finished) continue;
    if (!first) first = rank;
    check(holdings.lists == all.at(*first).lists,
          "{} on {} and on {} are of two runs. Remove the folder of the other run, or choose another with "
          "--set train.folder=NAME",
          checkpoint.string(), on.disks.machine_of(*first), on.disks.machine_of(rank));
  }
  return first ? all.at(*first).lists : FileChecksums{};
}

std::optional<int64_t> holder_of(const std::string& file, const std::map<int64_t, Holdings>& all) {
  for (const auto& [rank, holdings] : all)
    if (holdings.has.contains(file)) return rank;
  return std::nullopt;
}

void check_complete(const OnDisks& on, const fs::path& checkpoint) {
  const std::map<int64_t, Holdings> all = all_holdings(on, checkpoint);
  std::string missing;
  for (const auto& [name, sum] : lists_of(on, checkpoint, all)) {
    if (holder_of(name, all)) continue;
    std::string machine;
    for (const auto& [rank, holdings] : all)
      if (const auto found = holdings.machines.find(name); found != holdings.machines.end())
        machine = found->second;
    missing += fmt::format("{}{}{}", missing.empty() ? "" : ", ", name,
                           machine.empty() ? "" : fmt::format(" (written by {})", machine));
  }
  check(missing.empty(),
        "no machine of this run has all of {}. Missing: {}. Start the run with the machines that wrote these "
        "files, or copy them into that folder on any machine. To go on from an earlier checkpoint, rename it "
        "on every machine: mv {} {}.incomplete",
        checkpoint.string(), missing, checkpoint.string(), checkpoint.string());
}

// Where a disk collects what it lacks
fs::path collected_in(const fs::path& checkpoint) {
  return fs::exists(checkpoint) ? checkpoint : name_while_moved(checkpoint);
}

}  // namespace

std::optional<fs::path> newest_on_disks(const OnDisks& on) {
  Json mine = {{"finished", Json::array()}, {"unfinished", Json::array()}};
  if (on.disks.leads(on.rank)) {
    for (const NamedCheckpoint& one : named_checkpoints(on.folder))
      if (one.standing == NamedCheckpoint::Standing::kCheckpoint) mine["finished"].push_back(one.step);
    for (const int64_t step : unfinished_steps_in(on.folder))
      if (!fs::exists(on.folder / checkpoint_name(step))) mine["unfinished"].push_back(step);
  }
  std::set<int64_t> finished, unfinished;
  for (const std::string& text : on.exchange(mine.dump())) {
    const Json json = Json::parse(text);
    for (const Json& step : json["finished"]) finished.insert(step.get<int64_t>());
    for (const Json& step : json["unfinished"]) unfinished.insert(step.get<int64_t>());
  }
  for (const int64_t step : unfinished) finished.erase(step);
  if (finished.empty()) return std::nullopt;
  const fs::path newest = on.folder / checkpoint_name(*finished.rbegin());
  check_complete(on, newest);
  return newest;
}

std::vector<MovedFile> files_to_move(const OnDisks& on, const fs::path& checkpoint) {
  const std::map<int64_t, Holdings> all = all_holdings(on, checkpoint);
  std::vector<MovedFile> files;
  for (const auto& [name, sum] : lists_of(on, checkpoint, all)) {
    MovedFile file{.name = name, .sum = sum, .from = holder_of(name, all).value_or(-1), .to = {}};
    check(file.from >= 0, "no machine has {} of {} any more", name, checkpoint.string());
    for (const auto& [rank, holdings] : all)
      if (!holdings.has.contains(name)) file.to.push_back(rank);
    if (!file.to.empty()) files.push_back(std::move(file));
  }
  return files;
}

namespace {

// 16 MiB that go from rank to rank
class Message {
 public:
  Message(Backend& be, Communicator& all, int64_t rank)
      : all_(all),
        rank_(rank),
        arena_(make_arena(be.traits())),
        host_(Arena::pinned(be.device())),
        stream_(be),
        device_(arena_.alloc(MemoryTag::kCommunication, "files of a checkpoint", DType::kF32, {kElements})),
        sent_(stream_, host_, device_),
        fetched_(stream_, host_, device_) {}

  // `bytes` of the rank `from`; they are the result at the ranks `to`
  std::span<const std::byte> move(const MovedFile& file, std::span<const std::byte> bytes) {
    std::vector<AllToAll::Message> sends, receives;
    if (file.from == rank_) {
      values_.resize(static_cast<size_t>(kElements));
      std::memcpy(values_.data(), bytes.data(), bytes.size());
      sent_.send<float>(values_);
      for (const int64_t to : file.to) sends.push_back({.rank = static_cast<int>(to), .tensor = device_});
    }
    const bool receives_it = std::ranges::find(file.to, rank_) != file.to.end();
    if (receives_it) receives.push_back({.rank = static_cast<int>(file.from), .tensor = device_});
    all_.all_to_all({.sends = sends, .receives = receives});
    all_.wait();
    all_.synchronize();
    stream_.synchronize();
    if (!receives_it) return {};
    fetched_.start();
    return std::as_bytes(fetched_.values());
  }

 private:
  Communicator& all_;
  int64_t rank_;
  Arena arena_, host_;
  Stream stream_;
  Tensor device_;
  SentTensor sent_;
  FetchedTensor fetched_;
  std::vector<float> values_;
};

}  // namespace

void move_files(const OnDisks& on, const fs::path& checkpoint, const std::vector<MovedFile>& files,
                Backend& be, Communicator& all) {
  const fs::path folder = collected_in(checkpoint);
  Message message(be, all, on.rank);
  bool receives = false;
  for (const MovedFile& file : files) {
    const bool is_mine = std::ranges::find(file.to, on.rank) != file.to.end();
    receives |= is_mine;
    std::optional<MappedFile> source;
    std::optional<OutputFile> target;
    if (file.from == on.rank) source.emplace(checkpoint / file.name);
    if (is_mine) {
      fs::create_directories((folder / file.name).parent_path());
      target.emplace(folder / file.name);
    }
    constexpr int64_t kBytes = kElements * int64_t{sizeof(float)};
    for (int64_t at = 0; at < file.sum.bytes; at += kBytes) {
      const auto count = static_cast<size_t>(std::min(kBytes, file.sum.bytes - at));
      std::span<const std::byte> bytes;
      if (source) bytes = source->bytes().subspan(static_cast<size_t>(at), count);
      bytes = message.move(file, bytes);
      if (target) target->write(bytes.first(count));
    }
    if (!target) continue;
    const FileChecksum found = target->commit();
    check(found == file.sum,
          "{} of {} came from {} with the checksum {}, expected {}: ./train --verify {} there", file.name,
          checkpoint.string(), on.disks.machine_of(file.from), found.checksum, file.sum.checksum,
          checkpoint.string());
  }
  const std::map<int64_t, Holdings> now = all_holdings(on, checkpoint);
  if (!receives) return;
  if (folder != checkpoint) {
    write_file(folder / kChecksumsFile, checksums_text(lists_of(on, checkpoint, now)));
    fs::rename(folder, checkpoint);
  }
  sync_folder(checkpoint);
  sync_folder(on.folder);
}

}  // namespace tessera
