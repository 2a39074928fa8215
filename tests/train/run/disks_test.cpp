// Two machines of two ranks each, as they believe, with a working folder each and no shared disk: what each
// writes, what a run that goes on finds, brings and refuses, and files that differ.
#include "tests/ranks_by_hand.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct RanksOfTwoDisks : RanksByHand {
  void SetUp() override {
    RanksByHand::SetUp();
    for (const char* machine : {"a", "b"}) {
      fs::create_directory(folder / machine);
      fs::copy_file(folder / "text.txt", folder / machine / "text.txt");
    }
  }

  fs::path step(const char* machine, int number) const {
    return folder / machine / fmt::format("out/checkpoints/step_{:08}", number);
  }
  // What rank 0 says, and all errors
  ProcessResult run(const Words& more, bool works = true) {
    const Words common =
        sets({"train.steps=6", "checkpoint.every=3", "parallel.shard=weights", "parallel.replicas=2",
              "optimizer.schedule=constant", "evaluation.every=0", "sampling.every=0"});
    for (int rank = 3; rank >= 0; --rank)
      start_in(folder / (rank < 2 ? "a" : "b"), rank, with(common, more), 4);
    ProcessResult found{.status = 0, .out = "", .error = ""};
    for (const ProcessResult& result : end()) {
      EXPECT_EQ(result.status == 0, works) << result.out << result.error;
      found.out = result.out;
      found.error += result.error;
    }
    return found;
  }
  std::vector<std::string> losses_of_a() const { return losses("a/out"); }
};

// As a run on one disk, bit for bit, also after it went on: each disk has a part of the newest checkpoints,
// is brought what it lacks of the last, and keeps as many as it should.
TEST_F(RanksOfTwoDisks, HaveAPartOfEachCheckpointAndGoOn) {
  const Words to_9{"--set", "train.steps=9"};
  const std::string said = run(with(to_9, sets({"checkpoint.keep=2"}))).out;
  EXPECT_NE(said.find("not on a shared disk"), std::string::npos) << said;
  const std::vector<std::string> expected = losses_of_a();
  for (const char* machine : {"a", "b"}) {
    EXPECT_EQ(checkpoints(std::string(machine) + "/out"), (std::vector{6, 9}));
    EXPECT_EQ(fs::exists(step(machine, 9) / "model.safetensors"), machine == std::string("a"));
    EXPECT_EQ(fs::exists(step(machine, 9) / "optimizer.safetensors"), machine == std::string("b"));
    for (const char* file : {"state.json", "config.json", "checksums.json", "machines.json"})
      EXPECT_EQ(read_file(step("a", 9) / file), read_file(step(machine, 9) / file)) << file;
  }
  for (const char* machine : {"a", "b"}) fs::remove_all(folder / machine / "out");
  run({});  // to step 6
  EXPECT_NE(run(with({"--resume"}, to_9)).out.find("came from other machines"), std::string::npos);
  EXPECT_EQ(losses_of_a(), expected);
}

// A phase begins from a checkpoint, and so does a run that goes back.
TEST_F(RanksOfTwoDisks, BeginPhasesFromTheirParts) {
  run(sets({"train.context_schedule={0: 16, 2: 32}", "train.steps=4"}));
  EXPECT_EQ(values("a/out", "loss").size(), 4u);
}

// Each disk has a part of the checkpoint in the folder of a bad step. The ranks that compute the step again
// bring one another what they lack. If a part is on no disk, they cannot.
TEST_F(RanksOfTwoDisks, ReplayABadStepFromTheirParts) {
  const Words bad = sets({"optimizer.learning_rate=1e30", "train.steps=9"});
  const std::string stopped = run(bad, /*works=*/false).error;
  EXPECT_NE(stopped.find("--replay "), std::string::npos) << stopped;
  std::string name;
  for (const auto& one : fs::directory_iterator(folder / "a/out"))
    if (const std::string found = one.path().filename().string(); found.starts_with("bad_step_"))
      name = found;
  ASSERT_NE(name, "");
  const auto checkpoint = [&](const char* machine) {
    for (const auto& one : fs::directory_iterator(folder / machine / "out" / name))
      if (one.is_directory()) return one.path();
    return fs::path();
  };
  const fs::path parts[] = {checkpoint("a") / "optimizer.safetensors", checkpoint("b") / "model.safetensors"};
  for (const fs::path& part : parts) EXPECT_FALSE(fs::exists(part)) << part;
  const auto replay = [&] {
    for (int rank = 3; rank >= 0; --rank)
      start_program(folder / (rank < 2 ? "a" : "b"), rank, {"--replay", "out/" + name}, 4);
    std::string said;
    for (const ProcessResult& result : end()) {
      EXPECT_NE(result.status, 0) << result.out;
      said += result.out + result.error;
    }
    return said;
  };
  const std::string kept = read_file(checkpoint("b") / "optimizer.safetensors");
  fs::rename(checkpoint("b") / "optimizer.safetensors", folder / "kept");
  EXPECT_NE(replay().find("Missing: optimizer.safetensors (written by "), std::string::npos);
  fs::rename(folder / "kept", checkpoint("b") / "optimizer.safetensors");
  const std::string again = replay();
  EXPECT_NE(again.find("the step is bad again"), std::string::npos) << again;
  EXPECT_NE(again.find("came from the others"), std::string::npos) << again;
  EXPECT_EQ(read_file(parts[0]), kept);
}

// A machine is replaced by an empty one. Without its part nothing can go on; with the part elsewhere all
// can.
TEST_F(RanksOfTwoDisks, SayWhatIsMissing) {
  run({});
  fs::rename(folder / "b/out", folder / "old");
  const std::string error = run({"--resume"}, /*works=*/false).error;
  expect_one_message(error, {"step_00000006", "Missing: optimizer.safetensors (written by ", "mv "});
  const ProcessResult alone = run_process(
      "/usr/bin/env",
      {"-C", (folder / "a").string(), TRAIN_BINARY, "out", "--resume", "--set", "parallel.replicas=1"},
      {.folder = folder});
  EXPECT_EQ(alone.status, 1);
  EXPECT_NE(alone.error.find("scp "), std::string::npos) << alone.error;
  const fs::path kept = folder / "old/checkpoints/step_00000006/optimizer.safetensors";
  fs::copy_file(kept, step("a", 6) / kept.filename());
  run({"--resume", "--set", "train.steps=7"});
  EXPECT_EQ(checkpoints("b/out"), (std::vector{6, 7}));  // the older one is only on a
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "checksums.json", "machines.json"})
    EXPECT_EQ(read_file(step("b", 6) / file), read_file(step("a", 6) / file)) << file;
}

// A checkpoint that got its name on one disk, when the run was killed: the one before is whole on both.
TEST_F(RanksOfTwoDisks, PassOverACheckpointThatOneOfThemHasNotFinished) {
  run({});
  fs::rename(step("b", 6), step("b", 6).string() + ".unfinished");
  const std::string said = run({"--resume", "--set", "train.steps=7"}).out;
  EXPECT_NE(said.find("step_00000003"), std::string::npos) << said;
  EXPECT_EQ(values("a/out", "loss").size(), 7u);
}

TEST_F(RanksOfTwoDisks, RefuseCheckpointsOfTwoRuns) {
  run({});
  fs::rename(folder / "b/out", folder / "old");
  fs::rename(folder / "a/out", folder / "other");
  run(sets({"train.seed=7"}));
  fs::remove_all(folder / "a/out");
  fs::rename(folder / "other", folder / "a/out");
  expect_one_message(run({"--resume"}, /*works=*/false).error, {"of two runs"});
}

TEST_F(RanksOfTwoDisks, SayWhichFileDiffers) {
  std::string text = read_file(folder / "b/text.txt");
  text.back() = '.';
  write("b/text.txt", text);
  expect_one_message(run({}, /*works=*/false).error,
                     {"data.train: checksum of a sample", "rank 0 on ", "rank 2 on ", "copy the files"});
  write("b/text.txt", text + "more");
  expect_one_message(run({}, /*works=*/false).error, {"data.train: ", "tokens"});
  make_model("a/model", 1);
  make_model("b/model", 2);
  write("b/text.txt", read_file(folder / "text.txt"));
  expect_one_message(run(sets({"train.init_from=model"}), /*works=*/false).error,
                     {"train.init_from=model", "rank 2 on ", "model.safetensors: "});
}

}  // namespace
}  // namespace tessera::testing
