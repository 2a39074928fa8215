// The algorithms of a run's GEMMs (train.tune): looked up in tables, timed where no table has them,
// and kept, so that a run has the same bits each time it is started or resumed.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "kernels/base/status_line.h"
#include "kernels/gemm/timing.h"
#include "train/run/rank_group.h"
#include "train/session/run_shape.h"

namespace tessera {

// The table in the folder of a run: gemms.jsonl, or products.jsonl, as older versions named it.
std::filesystem::path gemms_file(const std::filesystem::path& run);
// Writes gemms.jsonl; a file with the old name goes.
void write_gemms_file(const std::filesystem::path& run, const GemmTable& table);

// Where algorithms are looked up, in this order; an empty path is no table. What is timed goes to `cache`,
// unless another run has done so in the meantime: then that is chosen.
struct GemmTablePlaces {
  std::filesystem::path run, shipped, cache;
};
// `run`: the file of the run, or empty. The cache is below $XDG_CACHE_HOME or ~/.cache.
GemmTablePlaces table_places(const GemmPlatform& platform, const std::filesystem::path& run);

struct GemmChoices {
  GemmTable table;      // of the GEMMs that were asked for, but for those that the library cannot compute
  std::string summary;  // "12 from /usr/share/tessera/configs/gemms/...jsonl, 1 timed here and kept in ..."
  std::vector<std::string> notices;
};

// `time` measures a GEMM and `done(i)` is called before the i-th of those that are not in any table. A
// table of the run from another device or library is not used, and neither is an algorithm that this library
// does not support: a notice says so.
// Error: a table that is damaged, or shipped or cached for another platform; with file and line.
struct GemmChooser {
  GemmLibrary& library;
  GemmTablePlaces places;
  std::function<std::vector<GemmTime>(const GemmKey&)> time;
  std::function<void(int64_t done, int64_t total)> progress = {};
};
GemmChoices choose_gemms(const GemmChooser& chooser, const std::vector<GemmKey>& keys);

// Adds the table to the file at `path`, in place of entries of the same GEMMs. Error: the file is damaged
// or of another platform, or cannot be written.
void add_to_table(const std::filesystem::path& path, GemmTable table);

// Rank 0 chooses, every rank uses the same: all ranks call it, before the run's memory is reserved, since the
// timed operands are allocated from memory of their own. They are among those of a step, and smaller than the
// whole. `shapes`: of all phases of the run. Without a choice (the CPU, train.tune: off) the table is empty.
// Error: as choose_gemms(); ranks on different devices.
GemmChoices use_chosen_gemms(Backend& be, const Config& config, const std::vector<RunShape>& shapes,
                             const std::filesystem::path& run, RankGroup& ranks, StatusLine& line);

// Keeps the operands of one GEMM at a time on the device of `be`.
std::vector<GemmTime> time_on(Backend& be, const GemmKey& key);

}  // namespace tessera
