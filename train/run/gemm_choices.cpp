#include "train/run/gemm_choices.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/base/clock.h"
#include "kernels/base/descriptor.h"
#include "kernels/base/file.h"
#include "kernels/base/system_error.h"
#include "train/config/find_config.h"
#include "train/session/device.h"
#include "train/session/step_gemms.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string text_of(const GemmPlatform& platform) {
  return fmt::format("{} with cuBLASLt {} of CUDA {}", platform.device, platform.cublaslt, platform.cudart);
}

fs::path cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache && *cache) return fs::path(cache) / "tessera";
  const char* home = std::getenv("HOME");
  return home && *home ? fs::path(home) / ".cache/tessera" : fs::path();
}

constexpr const char *kGemmsFile = "gemms.jsonl", *kOldGemmsFile = "products.jsonl";

GemmTable read_table(const fs::path& path) {
  try {
    return read_gemm_table(path);
  } catch (const Error& error) {
    fail("{}. Without this file algorithms are chosen anew: mv {} {}.damaged", error.what(), path.string(),
         path.string());
  }
}

// Empty if there is no such file. Its name says for which platform it is.
GemmTable read_table_for(const GemmPlatform& platform, const fs::path& path) {
  if (path.empty() || !fs::exists(path)) return {.platform = platform, .choices = {}};
  GemmTable table = read_table(path);
  check(table.platform == platform, "{}:1: found algorithms for {}, expected those for {}", path.string(),
        text_of(table.platform), text_of(platform));
  return table;
}

GemmTable read_run_table(const GemmPlatform& platform, const fs::path& path,
                         std::vector<std::string>& notices) {
  if (path.empty() || !fs::exists(path)) return {.platform = platform, .choices = {}};
  GemmTable table = read_table(path);
  if (table.platform == platform) return table;
  notices.push_back(fmt::format(
      "{} has algorithms for {}; here is {}. They are chosen anew, and the bits of this run may differ",
      path.string(), text_of(table.platform), text_of(platform)));
  return {.platform = platform, .choices = {}};
}

// While it lives, other processes that take the lock of this file wait.
Descriptor lock(const fs::path& path) {
  Descriptor file(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644));
  check_system(file.is_open() && ::flock(file.get(), LOCK_EX) == 0, "{} cannot be locked: {}", path.string());
  return file;
}

// Adds what was timed to the table at `path`, and returns it as it is there: what another run has added in
// the meantime stays, so that all runs of this machine make the same choice.
GemmTable keep_first(const fs::path& path, const GemmTable& timed) {
  fs::create_directories(path.parent_path());
  const Descriptor locked = lock(path.string() + ".lock");
  GemmTable all = read_table_for(timed.platform, path), kept{.platform = timed.platform, .choices = {}};
  for (const auto& [key, choice] : timed.choices)
    kept.choices.insert(*all.choices.emplace(key, choice).first);
  write_file(path, text_of(all));
  return kept;
}

}  // namespace

fs::path gemms_file(const fs::path& run) {
  return !fs::exists(run / kGemmsFile) && fs::exists(run / kOldGemmsFile) ? run / kOldGemmsFile
                                                                          : run / kGemmsFile;
}

void write_gemms_file(const fs::path& run, const GemmTable& table) {
  write_file(run / kGemmsFile, text_of(table));
  fs::remove(run / kOldGemmsFile);
}

GemmTablePlaces table_places(const GemmPlatform& platform, const fs::path& run) {
  GemmTablePlaces places{.run = run, .shipped = {}, .cache = cache_folder()};
  const std::string name = table_file_name(platform);
  if (!places.cache.empty()) places.cache /= name;
  for (const fs::path& folder : shipped_config_folders())
    if (places.shipped.empty() && fs::exists(folder / "gemms" / name))
      places.shipped = folder / "gemms" / name;
  return places;
}

GemmChoices choose_gemms(const GemmChooser& chooser, const std::vector<GemmKey>& keys) {
  const GemmTablePlaces& places = chooser.places;
  GemmChoices choices{
      .table = {.platform = chooser.library.platform(), .choices = {}}, .summary = {}, .notices = {}};
  const GemmPlatform& platform = choices.table.platform;
  const std::pair<fs::path, GemmTable> tables[] = {
      {places.run, read_run_table(platform, places.run, choices.notices)},
      {places.shipped, read_table_for(platform, places.shipped)},
      {places.cache, read_table_for(platform, places.cache)}};
  std::vector<std::string> parts;
  for (const auto& [path, table] : tables) {
    size_t used = 0;
    for (const GemmKey& key : keys) {
      const auto found = table.choices.find(key);
      if (found == table.choices.end() || choices.table.choices.contains(key)) continue;
      if (chooser.library.supports(key, found->second.algorithm)) {
        choices.table.choices.insert(*found), ++used;
      } else if (found->second.algorithm.id == GemmAlgorithm::kOwn) {
        if (path == places.run)
          choices.notices.push_back(
              fmt::format("{}: this run has used our own GEMM for {}, but train.gemm_backend or this build "
                          "leaves it out; another is chosen, and the bits of this run may differ",
                          path.string(), describe(key)));
      } else {
        choices.notices.push_back(
            fmt::format("{}: cuBLASLt does not support algorithm {} for {}; another is "
                        "chosen",
                        path.string(), found->second.algorithm.id, describe(key)));
      }
    }
    if (used > 0) parts.push_back(fmt::format("{} from {}", used, path.string()));
  }

  std::vector<GemmKey> missing;
  for (const GemmKey& key : keys)
    if (!choices.table.choices.contains(key)) missing.push_back(key);
  GemmTable timed{.platform = platform, .choices = {}};
  const Clock::time_point start = Clock::now();
  for (size_t i = 0; i < missing.size(); ++i) {
    if (chooser.progress) chooser.progress(static_cast<int64_t>(i), std::ssize(missing));
    const std::vector<GemmTime> times = chooser.time(missing[i]);
    if (!times.empty()) timed.choices[missing[i]] = choose(times);
  }
  if (!timed.choices.empty()) {
    std::string kept;
    try {
      if (!places.cache.empty()) {
        timed = keep_first(places.cache, timed);
        kept = " and kept in " + places.cache.string();
      }
    } catch (const std::exception& error) {
      choices.notices.push_back(fmt::format("{}: the next run times its GEMMs again", error_text(error)));
    }
    parts.push_back(fmt::format("{} timed in {:.1f} s{}", timed.choices.size(), seconds_since(start), kept));
    choices.table.choices.merge(timed.choices);
  }
  choices.summary = fmt::format("{}", fmt::join(parts, ", "));
  return choices;
}

void add_to_table(const fs::path& path, GemmTable table) {
  table.choices.merge(read_table_for(table.platform, path).choices);
  write_file(path, text_of(table));
}

std::vector<GemmTime> time_on(Backend& be, const GemmKey& key) {
  Arena arena = make_arena(be.traits());
  const Stream stream(be, arena.alloc(MemoryTag::kWorkspace, "kernel workspace", DType::kF32,
                                      {workspace_bytes(be.device(), 1, 1, 1) / 4}));
  return time_algorithms(*be.gemms(), stream, arena, key);
}

GemmChoices use_chosen_gemms(Backend& be, const Config& config, const std::vector<RunShape>& shapes,
                             const fs::path& run, RankGroup& ranks, StatusLine& line) {
  GemmLibrary* library = be.gemms();
  const GemmSource source = config.train.gemm_backend;
  if (!library) {
    check(source != GemmSource::kTessera, "train.gemm_backend=tessera needs a Hopper GPU, found {}",
          be.traits().name);
    return {};
  }
  library->take_from(source);
  if (config.train.tune == Tune::kOff) return {.table = {}, .summary = "not timed", .notices = {}};
  ranks.enter_phase("choosing the algorithms of GEMMs", Timeout::kNone);
  const GemmPlatform platform = library->platform();
  ranks.check_same(text_of(platform),
                   "device and cuBLASLt: all ranks use the same algorithms for GEMMs. For ranks on "
                   "different devices, --set train.tune=off");
  GemmChoices choices;
  if (ranks.is_rank_0()) {
    std::vector<GemmKey> keys;
    for (const RunShape& shape : shapes)
      for (const StepGemm& gemm : step_gemms(shape, be.traits()))
        if (std::ranges::find(keys, gemm.key) == keys.end()) keys.push_back(gemm.key);
    GemmTablePlaces places = table_places(platform, run);
    if (source != GemmSource::kAuto) places.cache.clear();  // it is a choice among all
    if (source == GemmSource::kTessera) places.shipped.clear();
    choices = choose_gemms({.library = *library,
                            .places = places,
                            .time = [&](const GemmKey& key) { return time_on(be, key); },
                            .progress =
                                [&](int64_t done, int64_t total) {
                                  line.show({{fmt::format("timing GEMMs: {} of {}", done, total), 1}});
                                }},
                           keys);
    line.clear();
  }
  choices.table =
      parse_gemm_table(ranks.of_rank_0(tessera::text_of(choices.table)), "the algorithms of rank 0");
  library->use(choices.table);
  return choices;
}

}  // namespace tessera
