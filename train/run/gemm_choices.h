// The algorithms of a run's GEMMs (train.tune). They are looked up in tables, timed if no table has them, and
// stored, so that a run has the same bits each time it is started or resumed.
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

// The table in a run's folder: gemms.jsonl; in older versions products.jsonl
std::filesystem::path gemms_file(const std::filesystem::path& run);
// Writes gemms.jsonl, and removes the file with the old name.
void write_gemms_file(const std::filesystem::path& run, const GemmTable& table);

// Where algorithms are looked up, in this order; an empty path is no table. Results of timing are added to
// `cache`. If another run has added an entry for the same GEMM in the meantime, that entry is used.
struct GemmTablePlaces {
  std::filesystem::path run, shipped, cache;
};
// `run`: the file of the run, or empty. The cache is below $XDG_CACHE_HOME or ~/.cache.
GemmTablePlaces table_places(const GemmPlatform& platform, const std::filesystem::path& run);

struct GemmChoices {
  GemmTable table;      // of the GEMMs that were asked for, except those that the library cannot compute
  std::string summary;  // "12 from /usr/share/tessera/configs/gemms/...jsonl, 1 timed here and kept in ..."
  std::vector<std::string> notices;
};

// `time` measures a GEMM. `done(i)` is called before the i-th GEMM that is not in any table. The run's table
// is not used if it is of another device or library, and an algorithm that this library does not support is
// not used either: a notice says so. Error: a table is damaged, or the shipped or cached table is for another
// platform; with file and line.
struct GemmChooser {
  GemmLibrary& library;
  GemmTablePlaces places;
  std::function<std::vector<GemmTime>(const GemmKey&)> time;
  std::function<void(int64_t done, int64_t total)> progress = {};
};
GemmChoices choose_gemms(const GemmChooser& chooser, const std::vector<GemmKey>& keys);

// Adds the table to the file at `path`, replacing entries of the same GEMMs. Error: the file is damaged, is
// for another platform, or cannot be written.
void add_to_table(const std::filesystem::path& path, GemmTable table);

// Rank 0 chooses, and every rank uses its choice. All ranks call it before the run's memory is reserved,
// because the timed operands have memory of their own. They are operands of a step, so they take less memory
// than a step does. `shapes`: of all phases of the run. If there is nothing to choose (on the CPU, or with
// train.tune: off), the table is empty. Error: as choose_gemms(); ranks on different devices.
GemmChoices use_chosen_gemms(Backend& be, const Config& config, const std::vector<RunShape>& shapes,
                             const std::filesystem::path& run, RankGroup& ranks, StatusLine& line);

// Holds the operands of one GEMM at a time on the device of `be`.
std::vector<GemmTime> time_on(Backend& be, const GemmKey& key);

}  // namespace tessera
