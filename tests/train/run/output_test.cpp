// --json and its kin into what is no regular file: pipes, links, standard output.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct ProgramOutput : TrainProgram {
  ProgramOutput()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 32\n  layers: 1\n  heads: 1\n  channels: 16\n"
            "data:\n  train: text.txt\ntrain:\n  folder: out\n  steps: 1\n  tokens_per_step: 64\n") {}

  // Runs a shell line in the folder; "$0" is train, "$1" bench. /dev/stdout is stood in for by a link of our
  // own to the same target: a failing test must not replace the system's.
  ProcessResult shell(const std::string& line) const {
    if (!fs::exists(fs::symlink_status(folder / "stdout")))
      fs::create_symlink("/proc/self/fd/1", folder / "stdout");
    return run_shell(line, {TRAIN_BINARY, BENCH_BINARY}, {.folder = folder});
  }
};

// The first complete JSON object in `text`, which may have lines of print before and after it.
nlohmann::json json_within(const std::string& text) {
  const size_t begin = text.find("{\n"), end = text.rfind("\n}");
  if (begin == text.npos || end == text.npos) return {};
  return nlohmann::json::parse(text.substr(begin, end + 2 - begin), nullptr, false);
}

TEST_F(ProgramOutput, PlansGoToStandardOutputBesideWhatIsPrinted) {
  for (const char* line :
       {"\"$0\" --plan small.yaml --json stdout", "\"$0\" --plan small.yaml --json stdout | cat",
        "\"$0\" --plan small.yaml --json stdout > file; cat file"}) {
    const ProcessResult result = shell(line);
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_TRUE(json_within(result.out).contains("peak_bytes")) << line << "\n" << result.out;
    EXPECT_NE(result.out.find("all tags"), std::string::npos) << line << "\n" << result.out;
    EXPECT_TRUE(fs::is_symlink(folder / "stdout"));
  }
}

TEST_F(ProgramOutput, BenchmarksGoToStandardOutputBesideTheirTables) {
  const std::string attention =
      "attention --device cpu --seq-lens 16 --head-dims 16 --channels 32 --tokens 64 --repeats 1";
  const ProcessResult result =
      shell("\"$1\" " + attention + " --json stdout --svg plot.svg > file; cat file");
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_TRUE(json_within(result.out).contains("cells")) << result.out;
  EXPECT_NE(result.out.find("attention on"), std::string::npos) << result.out;
  EXPECT_TRUE(fs::exists(folder / "plot.svg"));
}

TEST_F(ProgramOutput, PlansAndProfilesGoIntoPipes) {
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  fs::create_directory(folder / "profile");
  ASSERT_EQ(mkfifo((folder / "profile/memory.json").c_str(), 0600), 0);
  for (const auto& [line, pipe] :
       {std::pair("\"$0\" --plan small.yaml --json pipe", "pipe"),
        std::pair("\"$0\" small.yaml --memory-profile profile --set sampling.every=0",
                  "profile/memory.json")}) {
    const ProcessResult result =
        shell(std::string("timeout 60 cat ") + pipe + " > got & timeout 60 " + line + " && wait");
    EXPECT_EQ(result.status, 0) << result.error;
    std::ifstream got(folder / "got");
    EXPECT_TRUE(nlohmann::json::parse(got, nullptr, false).is_object()) << line;
    EXPECT_TRUE(fs::is_fifo(folder / pipe));
  }
  EXPECT_TRUE(fs::exists(folder / "profile/memory.html"));
}

}  // namespace
}  // namespace tessera::testing
