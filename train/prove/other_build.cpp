#include "train/prove/other_build.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/signals.h"
#include "kernels/base/start_program.h"
#include "kernels/base/text.h"
#include "train/prove/temporary_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr auto kPollProgram = std::chrono::milliseconds(50);
constexpr size_t kLastLines = 8, kMostBytesOfLines = 4096;  // in messages

bool can_run(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

// The last lines that a program printed, `most` of them
std::string last_lines(const fs::path& output, size_t most) {
  std::error_code error;
  if (fs::file_size(output, error) == 0 || error) return "";
  const MappedFile file(output);
  std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  while (text.ends_with('\n')) text.remove_suffix(1);
  if (text.size() > kMostBytesOfLines) text.remove_prefix(text.size() - kMostBytesOfLines);
  size_t begin = text.size();
  for (size_t lines = 0; begin > 0 && (text[begin - 1] != '\n' || ++lines < most);) --begin;
  return printable(text.substr(begin));
}

// A program that ends with this object at the latest
class Running {
 public:
  explicit Running(const Program& program) : pid_(start_program(program)) {}
  ~Running() {
    if (pid_ == 0) return;
    kill(-pid_, SIGKILL);  // what it leaves lies in a folder that is removed
    waitpid(pid_, nullptr, 0);
  }
  Running(const Running&) = delete;

  bool has_ended(int& status) {
    if (waitpid(pid_, &status, WNOHANG) != pid_) return false;
    pid_ = 0;
    return true;
  }

 private:
  pid_t pid_;
};

}  // namespace

Against find_against(const std::string& name) {
  std::error_code error;
  check(fs::exists(name, error), "--against {}: there is nothing of this name. Name {}", name,
        kAgainstSources);
  if (fs::is_directory(name, error)) {
    const fs::path program = fs::path(name) / "prove";
    if (can_run(program)) return {AgainstKind::kBuild, program};
    return {AgainstKind::kCheckpoint, name};
  }
  if (can_run(name)) return {AgainstKind::kBuild, fs::absolute(name)};
  return {AgainstKind::kRecord, name};
}

RecordedStep run_build(const fs::path& prove, const std::vector<std::string>& arguments,
                       const std::function<void(const std::string& line)>& meanwhile) {
  const TemporaryFolder folder;
  const fs::path output = folder.path() / "output.txt", record = folder.path() / "step.safetensors";
  Program program{.arguments = {prove.string()}, .output = output};
  program.arguments.insert(program.arguments.end(), arguments.begin(), arguments.end());
  program.arguments.insert(program.arguments.end(), {"--record", record.string()});
  const auto printed = [&] {
    const std::string lines = last_lines(output, kLastLines);
    return lines.empty() ? std::string("It printed nothing") : "The last that it printed:\n" + lines;
  };
  Running running(program);
  int status = 0;
  while (!running.has_ended(status)) {
    if (const int number = stop_signal())
      fail("stopped by {} while {} computed the step; nothing was written", name_of_signal(number),
           prove.string());
    meanwhile(last_lines(output, 1));
    std::this_thread::sleep_for(kPollProgram);
  }
  check(WIFEXITED(status) && WEXITSTATUS(status) == 0,
        "{} {} and has not recorded the step. A build from before --record cannot be compared. {}",
        prove.string(), how_it_ended(status), printed());
  check(fs::exists(record), "{} ended without a record of the step: is it a build of Tessera? {}",
        prove.string(), printed());
  return read_record(record);
}

}  // namespace tessera
