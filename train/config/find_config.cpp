#include "train/config/find_config.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/text.h"
#include "train/config/config_keys.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> configs_in(const std::vector<fs::path>& folders) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::path& folder : folders)
    for (const auto& entry : fs::directory_iterator(folder, error))
      if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

std::vector<fs::path> shipped_folders() {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path();
  return {program, program.parent_path(), program.parent_path() / "share/tessera"};
}

std::vector<fs::path> shipped_config_folders() {
  std::vector<fs::path> folders = shipped_folders();
  for (fs::path& folder : folders) folder /= "configs";
  return folders;
}

fs::path find_config(const std::string& name, const std::vector<fs::path>& folders) {
  const std::vector<std::string> shipped = configs_in(folders);
  const std::string these_ship =
      shipped.empty() ? "No configurations ship beside this program"
                      : fmt::format("These ship with the program: {}", fmt::join(shipped, ", "));
  check(
      !name.empty(),
      "no configuration was given. Name one, as in --config quickstart.yaml, or a YAML file of your own. {}",
      these_ship);
  std::vector<std::string> tried;
  const auto found = [&](const fs::path& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    tried.push_back(path.string() + (fs::is_directory(status) ? " (a folder)" : ""));
    return fs::exists(status) && !fs::is_directory(status);
  };
  const bool bare = name.find('/') == std::string::npos;
  std::vector<std::string> names = {name};
  if (!name.ends_with(".yaml")) names.push_back(name + ".yaml");
  for (const std::string& file : names)
    if (found(file)) return file;
  for (const fs::path& folder : folders)
    for (const std::string& file : names)
      if (bare && found(folder / file)) return folder / file;
  std::error_code error;
  if (const fs::path file = fs::path(name) / kRunConfig; fs::is_regular_file(file, error)) {
    const fs::path folder = fs::weakly_canonical(name).parent_path();
    check(folder.filename() != "checkpoints",
          "{0} is a checkpoint, not a configuration. To resume its run from the newest one: ./train {1} "
          "--resume; to train from these weights: ./train finetune.yaml --set train.init_from={0} --set "
          "data.train=PATH",
          name, fs::path(name).lexically_normal().parent_path().parent_path().string());
    return file;
  }
  const std::string stem = !bare ? "" : name.ends_with(".yaml") ? fs::path(name).stem().string() : name;
  const auto near = nearest(std::vector<std::string_view>(shipped.begin(), shipped.end()), stem);
  std::string advice = option_is_a_key(name);
  advice = !advice.empty() ? "; " + advice + "." : near.empty() ? "." : "; " + did_you_mean(near);
  fail("there is no configuration {}{} Tried: {}. {}", in_quotes(name), advice, fmt::join(tried, ", "),
       these_ship);
}

}  // namespace tessera
