// The folder `checkpoints` of a run: which of its entries are checkpoints, and which checkpoints are removed.
//
// A checkpoint is a folder named step_ and the step, in at least 8 digits, whose state.json names the same
// step. While it is written or removed, its name ends in `.unfinished`. Nothing else is ever changed or
// removed, and no folder that holds a file which a run does not write.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

std::string checkpoint_name(int64_t step);                   // step_00001000
std::optional<int64_t> step_of_name(std::string_view name);  // nothing: not the name of a checkpoint
std::filesystem::path unfinished(const std::filesystem::path& checkpoint);  // its name while it is written
// Its name while it is copied from other disks
std::filesystem::path name_while_moved(const std::filesystem::path& checkpoint);

struct NamedCheckpoint {
  enum class Standing : uint8_t {
    kCheckpoint,
    kCopy,    // it holds another step than its name says
    kDamaged  // or it is not a checkpoint: its state.json cannot be read or does not agree
  };
  int64_t step = 0;  // from the name
  std::filesystem::path path;
  Standing standing = Standing::kCheckpoint;
  std::string why = {};  // if it is damaged
};
std::set<int64_t> steps_in(const std::filesystem::path& folder);  // of the names of checkpoints
// The checkpoints whose writing was never finished
std::set<int64_t> unfinished_steps_in(const std::filesystem::path& folder);
// All folders with the name of a checkpoint, by step
std::vector<NamedCheckpoint> named_checkpoints(const std::filesystem::path& folder);

// The newest checkpoint in `folder`, if there is one.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder);

struct KeepRule {
  int64_t newest = 0;                       // how many of the newest; 0: all
  int64_t every = 0;                        // also those of steps that are multiples of this; 0: none
  std::optional<int64_t> best = {};         // also this step's
  std::set<int64_t> before_bad_steps = {};  // also these steps'
};
// What a run may remove
struct Removable {
  std::set<int64_t>* own = nullptr;     // the steps of the run's own checkpoints; a step is erased when its
                                        // checkpoint is removed. Null: all are its own
  std::function<void()> check = [] {};  // before each removal
};
// Removes the checkpoints that the rule does not keep. Those of other runs are not counted. Returns what
// could not be removed, and why: "cannot remove FILE: Input/output error". What is left is removed together
// with unfinished checkpoints later.
std::vector<std::string> prune_checkpoints(const std::filesystem::path& folder, const KeepRule& keep,
                                           const Removable& removable = {});

// Removes all checkpoints, also damaged and unfinished ones. Copies and files of other programs stay.
void remove_checkpoints(const std::filesystem::path& folder);

// Removes the unfinished checkpoints of runs that were killed while they wrote or removed one. Returns what
// could not be removed, and why.
std::vector<std::string> remove_unfinished(const std::filesystem::path& folder);

// Whether the folder holds only files that a run would write there
bool holds_only_our_files(const std::filesystem::path& checkpoint);

// Gives `pending` the name of a folder that exists. If the file system can exchange names, this is one atomic
// step: a kill leaves one of the two under that name. Returns the name that the other folder then has.
std::filesystem::path exchange(const std::filesystem::path& pending, const std::filesystem::path& taken);

// Gives a finished checkpoint its final name. An existing checkpoint of that name becomes unfinished if the
// run `replaces` it. Anything else of that name is renamed to NAME.found.
void give_name(const std::filesystem::path& pending, const std::filesystem::path& checkpoint,
               bool replaces = true);

}  // namespace tessera
