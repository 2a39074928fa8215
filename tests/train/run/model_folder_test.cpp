#include "train/run/model_folder.h"

#include <gtest/gtest.h>

#include "tests/data/support.h"
#include "tests/says.h"
#include "train/run/run_lock.h"

namespace tessera::testing {
namespace {

struct FolderOfARunForPrograms : InTempFolder {
  std::string refusal(const std::string& name) const {
    try {
      find_model_folder((folder_ / name).string());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

// Before a run has written a checkpoint, it says when the first one comes and how to have one earlier.
TEST_F(FolderOfARunForPrograms, OfARunWithoutACheckpointSaysWhenItHasOne) {
  std::filesystem::create_directory(folder_ / "run");
  const std::string run = (folder_ / "run").string();
  write("run/config.yaml", "train: {steps: 900}\ncheckpoint: {every: 250}\n");
  write("run/metrics.jsonl",
        "{\"type\":\"start\",\"step\":0}\n{\"type\":\"step\",\"step\":17,\"loss\":2.5,\"seconds\":1}\n");
  for (const char* name : {"run", "run/"})
    EXPECT_TRUE(says(refusal(name), {run, "no finished checkpoint", "after step 250", "at step 17",
                                     "not running", "./train " + run + " --resume auto"}));
  const RunLock lock(run);
  EXPECT_TRUE(says(refusal("run"), {run, "no finished checkpoint", "after step 250", "at step 17",
                                    "process " + std::to_string(getpid()), "Ctrl-C"}));
  write("run/config.yaml", "train: {steps: 900}\ncheckpoint: {every: 0}\n");
  EXPECT_TRUE(says(refusal("run"), {"after the last step", "at step 17"}));
  write("run/metrics.jsonl", "");
  EXPECT_TRUE(says(refusal("run"), {run, "no finished checkpoint"}));
  std::filesystem::create_directory(folder_ / "run/checkpoints");
  EXPECT_TRUE(says(refusal("run/checkpoints"), {run, "no finished checkpoint"}));
}

}  // namespace
}  // namespace tessera::testing
