// The train program, run as its users run it: it learns, stops, resumes, and refuses.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/shared_data.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct Run : TrainProgram {
  Run()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 32\n  layers: 2\n  heads: 2\n  channels: 32\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 12\n  tokens_per_step: 256\n  micro_batch: 4\n"
            "optimizer:\n  learning_rate: 1e-2\n  min_learning_rate: 1e-3\n  warmup_steps: 2\n"
            "evaluation:\n  every: 6\n  sequences: 4\n"
            "sampling:\n  every: 12\n  tokens: 8\n"
            "checkpoint:\n  every: 4\n  keep: 0\n") {}
};

TEST_F(Run, LearnsAndLeavesWhatItPromises) {
  const ProcessResult result = train({});
  ASSERT_EQ(result.status, 0) << result.error;
  for (const char* part : {"step 12/12", "tok/s", "MFU", "ETA", "validation loss", "sample after step 12",
                           "checkpoint", "memory at", "attention"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  for (const char* file : {"config.yaml", "metrics.jsonl", "checkpoints/step_00000004",
                           "checkpoints/step_00000012/model.safetensors"})
    EXPECT_TRUE(fs::exists(folder / "out" / file)) << file;
  const std::vector<std::string> found = losses("out");
  const auto value = [](const std::string& line) { return std::stod(line.substr(line.rfind(' '))); };
  EXPECT_NEAR(value(found.front()), std::log(257), 0.2);
  EXPECT_LT(value(found[found.size() - 4]), 4.0) << found[found.size() - 4];
}

TEST_F(Run, ResumesBitForBit) {
  ASSERT_EQ(train({}).status, 0);
  // Cut off at step 8, as a crash would: everything later is lost.
  fs::copy(folder / "out", folder / "cut", fs::copy_options::recursive);
  fs::remove_all(folder / "cut/checkpoints/step_00000012");
  const ProcessResult resumed = train({"--resume", "--set", "train.folder=cut"});
  ASSERT_EQ(resumed.status, 0) << resumed.error;
  EXPECT_NE(resumed.out.find("resumed from"), std::string::npos);
  EXPECT_EQ(losses("out"), losses("cut"));
}

TEST_F(Run, HasTheSameBitsOnAnyNumberOfThreads) {
  std::vector<std::string> losses_of_one;
  for (const char* threads : {"1", "2", "3"}) {
    const ProcessResult result =
        run_process("/usr/bin/env",
                    {"OMP_NUM_THREADS=" + std::string(threads), TRAIN_BINARY, "--config", "small.yaml",
                     "--set", "train.folder=on" + std::string(threads)},
                    {.folder = folder});
    ASSERT_EQ(result.status, 0) << result.error;
    const std::vector<std::string> found = losses("on" + std::string(threads));
    if (losses_of_one.empty()) losses_of_one = found;
    EXPECT_EQ(found, losses_of_one) << threads;
  }
}

// A mask depends on the number of the step, not on the process that runs it.
TEST_F(Run, ResumesBitForBitWithDropout) {
  const std::vector<std::string> drops{"--set", "model.dropout=0.1"};
  const ProcessResult first = train(drops);
  ASSERT_EQ(first.status, 0) << first.error;
  EXPECT_NE(first.out.find("dropout  0.1016 (26/256) on embeddings, residual branches and attention\n"),
            std::string::npos)
      << first.out;
  fs::copy(folder / "out", folder / "cut", fs::copy_options::recursive);
  fs::remove_all(folder / "cut/checkpoints/step_00000012");
  fs::copy(folder / "cut", folder / "changed", fs::copy_options::recursive);
  const ProcessResult resumed = train({"--resume", "--set", "train.folder=cut", drops[0], drops[1]});
  ASSERT_EQ(resumed.status, 0) << resumed.error;
  EXPECT_EQ(losses("out"), losses("cut"));

  const ProcessResult changed = train({"--resume", "--set", "train.folder=changed", drops[0],
                                       "model.dropout=0.1", drops[0], "model.dropout.attention=0"});
  ASSERT_EQ(changed.status, 0) << changed.error;
  EXPECT_NE(changed.out.find("changed: model.dropout.attention: 0.1, now 0; from the next step on"),
            std::string::npos)
      << changed.out;
  EXPECT_NE(losses("out"), losses("changed"));

  ASSERT_EQ(train({"--overwrite"}).status, 0);
  EXPECT_NE(losses("out"), losses("cut"));
}

TEST_F(Run, ResumesBitForBitWithMomentsInBf16) {
  const std::vector<std::string> bf16{"--set", "optimizer.moments=bf16"};
  ASSERT_EQ(train(bf16).status, 0);
  fs::copy(folder / "out", folder / "cut", fs::copy_options::recursive);
  fs::remove_all(folder / "cut/checkpoints/step_00000012");
  fs::copy(folder / "cut", folder / "fp32", fs::copy_options::recursive);
  const ProcessResult resumed = train({"--resume", "--set", "train.folder=cut", bf16[0], bf16[1]});
  ASSERT_EQ(resumed.status, 0) << resumed.error;
  EXPECT_EQ(losses("out"), losses("cut"));
  // fp32 starts from the same numbers and computes others.
  ASSERT_EQ(train({"--resume", "--set", "train.folder=fp32"}).status, 0);
  const std::vector<std::string> narrow = losses("cut"), wide = losses("fp32");
  ASSERT_EQ(narrow.size(), wide.size());
  const auto differ = std::mismatch(narrow.begin(), narrow.end(), wide.begin());
  ASSERT_NE(differ.first, narrow.end()) << "the moments were not rounded";
  // Step 9 ends with equal weights and other moments, step 10 with other weights, which step 11 reads.
  EXPECT_TRUE(differ.first->starts_with("11 ")) << *differ.first;
}

TEST_F(Run, ASignalFinishesTheStepSavesAndExitsWithZero) {
  const std::vector<std::string> long_run{"--set", "train.steps=400",    "--set", "evaluation.every=200",
                                          "--set", "checkpoint.every=0", "--set", "sampling.every=0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), long_run.begin(), long_run.end());
    return more;
  };
  ASSERT_EQ(train(with({"--set", "train.folder=whole"})).status, 0);
  for (const int number : {SIGTERM, SIGINT}) {
    fs::remove_all(folder / "out");
    Process process(TRAIN_BINARY, with({"--config", "small.yaml"}), {.folder = folder});
    ASSERT_TRUE(wait_until([&] { return losses("out").size() >= 5; }));
    process.signal(number);
    process.signal(number);  // as timeout and mpirun do
    const ProcessResult result = process.finish();
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_NE(result.out.find("stopped by a signal"), std::string::npos) << result.out;
    ASSERT_EQ(train(with({"--resume"})).status, 0);
    EXPECT_EQ(losses("out"), losses("whole"));
  }
}

TEST_F(Run, EveryAttentionAndMicroBatchTrains) {
  for (const char* attention : {"naive", "flash"})
    for (const char* micro_batch : {"1", "auto"})
      EXPECT_EQ(train({"--overwrite", "--set", std::string("model.attention=") + attention, "--set",
                       std::string("train.micro_batch=") + micro_batch})
                    .status,
                0);
}

TEST_F(Run, StartsFromTheWeightsOfACheckpoint) {
  ASSERT_EQ(train({}).status, 0);
  const ProcessResult result =
      train({"--set", "train.folder=next", "--set", "train.init_from=out/checkpoints/step_00000012", "--set",
             "train.steps=1", "--set", "optimizer.warmup_steps=0"});
  ASSERT_EQ(result.status, 0) << result.error;
  const std::string first = losses("next").front();
  EXPECT_LT(std::stod(first.substr(first.rfind(' '))), 4.0);
}

TEST_F(Run, AnEarlierRunIsNotOverwrittenUnasked) {
  ASSERT_EQ(train({"--set", "train.steps=4"}).status, 0);
  refused({}, {"out holds checkpoints", "--resume", "--overwrite", "train.folder"});
  EXPECT_TRUE(fs::exists(folder / "out/checkpoints/step_00000004"));
  refused({"--resume", "--set", "train.steps=3"}, {"step_00000004 is at step 4", "nothing is left"});
  refused({"--resume", "--set", "train.seed=2"}, {"train.seed", "order of the data"});
  refused({"--resume", "--set", "model.layers=3"}, {"another model", "n_layer is 2", "has model.layers=3"});
  refused({"--resume", "--set", "train.folder=none"}, {"nothing to resume"});
}

TEST_F(Run, RefusesBadInputWithAdvice) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // inherited by the program: the same words with and without a GPU
  refused({"--set", "model.heads=3"}, {"heads"});
  refused({"--set", "model.attention=cudnn"}, {"cudnn attention needs a GPU", "flash"});
  refused({"--set", "model.atention=flash"}, {"model.atention", "did you mean", "model.attention"});
  refused({"--set", "train.sequence_length=64"}, {"64", "context", "32"});
  refused({"--set", "data.train=missing.txt"}, {"missing.txt"});
  refused({"--set", "model.vocab_size=100"}, {"text.txt", "vocab"});
  refused({"--set", "device=cuda", "--set", "train.precision=fp32"}, {"device is cuda"});
  refused({"--set", "train.precision=bf16"}, {"train.precision=bf16 needs a GPU"});
  refused({"--set", "train.init_from=nowhere"}, {"nowhere"});
  std::ofstream(folder / "short.bin") << "not a shard";
  refused({"--set", "data.train=short.bin"}, {"short.bin"});
  const ProcessResult missing = run_process(TRAIN_BINARY, {"--config", "none.yaml"}, {.folder = folder});
  EXPECT_EQ(missing.status, 1);
  EXPECT_NE(missing.error.find("none.yaml"), std::string::npos) << missing.error;
  EXPECT_FALSE(fs::exists(folder / "out")) << "a refused run left something behind";
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(Run, AFullDiskWhileSavingLosesNothingEarlier) {
  ASSERT_EQ(train({"--set", "train.steps=4"}).status, 0);
  refused({"--resume", "--set", "train.steps=8"}, {"step 8 was not written", "model.safetensors"}, 32768);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "out/checkpoints"), fs::directory_iterator{}), 1);
  EXPECT_EQ(train({"--resume", "--set", "train.steps=8"}).status, 0);
}

TEST_F(Run, NoPermissionToWriteIsSaidBeforeTraining) {
  fs::create_directories(folder / "locked");
  fs::permissions(folder / "locked", fs::perms::owner_read | fs::perms::owner_exec);
  const ProcessResult result =
      run_process(TRAIN_BINARY, {"--config", "small.yaml", "--set", "train.folder=locked/run"},
                  {.folder = folder, .as_nobody = true});
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.error.find("folder locked/run"), std::string::npos) << result.error;
}

TEST_F(Run, AFileInTheWayOfTheFolderIsSaid) {
  std::ofstream(folder / "file") << "x";
  refused({"--set", "train.folder=file/run"}, {"folder file/run"});
}

TEST_F(Run, ADivergingRunStopsLoudly) {
  const ProcessResult result =
      train({"--set", "optimizer.learning_rate=1e30", "--set", "optimizer.min_learning_rate=1e30", "--set",
             "optimizer.warmup_steps=0", "--set", "optimizer.max_grad_norm=0"});
  EXPECT_EQ(result.status, 1) << result.out;
  EXPECT_NE(result.error.find("learning_rate"), std::string::npos) << result.error;
}

TEST_F(Run, PrintConfigIsAConfigurationAndHelpIsComplete) {
  const ProcessResult printed = train({"--print-config", "--set", "train.steps=77"});
  ASSERT_EQ(printed.status, 0) << printed.error;
  std::ofstream(folder / "printed.yaml") << printed.out;
  const ProcessResult again =
      run_process(TRAIN_BINARY, {"--config", "printed.yaml", "--print-config"}, {.folder = folder});
  EXPECT_EQ(again.out, printed.out);
  EXPECT_NE(printed.out.find("steps: 77"), std::string::npos);
  const ProcessResult help = run_process(TRAIN_BINARY, {"--help"}, {.folder = folder});
  EXPECT_EQ(help.status, 0);
  for (const char* part : {"--config", "--set", "--print-config", "--resume", "--overwrite", "SIGTERM"})
    EXPECT_NE(help.out.find(part), std::string::npos) << part;
}

// A corpus anyone knows: the model must learn more of it than how often each byte occurs.
TEST_F(Run, LearnsRealText) {
  const auto [text, missing] = shared_data("tinyshakespeare.txt");
  if (!missing.empty()) GTEST_SKIP() << missing;
  const ProcessResult result =
      train({"--set", "data.train=" + text.string(), "--set", "train.steps=150", "--set",
             "train.tokens_per_step=1024", "--set", "train.micro_batch=auto", "--set", "evaluation.every=150",
             "--set", "evaluation.at_start=false", "--set", "evaluation.sequences=32", "--set",
             "checkpoint.every=0", "--set", "optimizer.learning_rate=4e-3"});
  ASSERT_EQ(result.status, 0) << result.error;
  for (const std::string& line : losses("out")) {
    if (line.find("validation_loss") == std::string::npos) continue;
    EXPECT_LT(std::stod(line.substr(line.rfind(' '))), 2.9) << line;  // 3.3: byte frequencies alone
  }
}

}  // namespace
}  // namespace tessera::testing
