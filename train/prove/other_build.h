// What ./prove --against names, and how another build of Tessera computes the step.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "train/prove/record_file.h"

namespace tessera {

// What find_against() accepts, for the help of the program
inline constexpr const char* kAgainstSources =
    "another checkpoint, another build of Tessera (its folder, or its program prove), or a file that "
    "--record wrote";

enum class AgainstKind : uint8_t { kCheckpoint, kBuild, kRecord };
struct Against {
  AgainstKind kind;
  std::filesystem::path path;  // for a build, the path of its program prove
};
// Error: there is nothing of that name
Against find_against(const std::string& name);

// Runs `prove` with these arguments and --record, and reads the record. `meanwhile(line)` is called some
// times a second with the last line that the program printed. A stop signal ends it. Error: the program
// cannot be started, fails, or leaves no record; with the last lines that it printed.
RecordedStep run_build(const std::filesystem::path& prove, const std::vector<std::string>& arguments,
                       const std::function<void(const std::string& line)>& meanwhile);

}  // namespace tessera
