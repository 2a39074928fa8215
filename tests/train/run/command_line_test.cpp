// The command lines of all programs as their users type them, rightly and wrongly.
#include <gtest/gtest.h>

#include <regex>

#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

struct CommandLine : TrainProgram {
  CommandLine()
      : TrainProgram(
            "model:\n  vocab_size: 257\n  context: 64\n  layers: 1\n  heads: 1\n  channels: 32\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 1\n  tokens_per_step: 512\n") {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);  // the same with and without a GPU
  }
  ~CommandLine() override { unsetenv("CUDA_VISIBLE_DEVICES"); }

  ProcessResult run(const char* program, const Words& arguments) const {
    return run_process(program, arguments, {.folder = folder});
  }
  void expect_error(const char* program, const Words& arguments, const Words& parts) const {
    const ProcessResult result = run(program, arguments);
    EXPECT_EQ(result.status, 1) << result.error;
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(result.error.starts_with(fs::path(program).filename().string() + ": error: "))
        << result.error;
    for (const std::string& part : parts)
      EXPECT_NE(result.error.find(part), std::string::npos)
          << "wanted: " << part << "\nfound:  " << result.error;
    EXPECT_FALSE(fs::exists(folder / "out"));
  }
};

constexpr const char *kTrain = TRAIN_BINARY, *kBench = BENCH_BINARY, *kPrepare = PREPARE_BINARY,
                     *kReport = REPORT_BINARY, *kGenerate = GENERATE_BINARY, *kExport = EXPORT_BINARY,
                     *kEvaluate = EVALUATE_BINARY, *kTokenize = TOKENIZE_BINARY;

TEST_F(CommandLine, AMisspelledOptionGivesTheNearest) {
  expect_error(kTrain, {"--confg", "small.yaml"},
               {"no option --confg", "did you mean --config?", "./train --help"});
  expect_error(kTrain, {"-config", "small.yaml"}, {"no option -config", "did you mean --config?"});
  expect_error(kTrain, {"--Plan", "small.yaml"}, {"did you mean --plan?"});
  expect_error(kTrain, {"small.yaml", "--print-confg=1"}, {"no option --print-confg"});
  expect_error(kBench, {"step", "--gpu", "4"}, {"did you mean --gpus?", "./bench step --help"});
  expect_error(kBench, {"stp"}, {"no benchmark \"stp\"", "did you mean step?"});
  expect_error(kBench, {"--config", "small.yaml", "step"}, {"./bench step --config"});
  expect_error(kReport, {"out", "--outptu", "a.html"}, {"did you mean --output?"});
  expect_error(kPrepare, {"--inputs", "text.txt", "--output", "data"}, {"did you mean --input?"});
}

TEST_F(CommandLine, LettersOfOtherProgramsGiveTheOption) {
  expect_error(kPrepare, {"text.txt", "-o", "data"}, {"no option -o", "did you mean --output?"});
  expect_error(kExport, {"out", "--format", "hf", "-o", "x"}, {"did you mean --output?"});
  expect_error(kReport, {"out", "-o", "a.html"}, {"did you mean --output?"});
  expect_error(kTokenize, {"train", "text.txt", "-o", "x"}, {"did you mean --output?"});
  expect_error(kGenerate, {"-m", "out"}, {"did you mean --model?"});
  expect_error(kTrain, {"-c", "small.yaml"}, {"did you mean --config?"});
  expect_error(kTrain, {"small.yaml", "-o", "x"}, {"--set train.folder=FOLDER"});
  expect_error(kTrain, {"small.yaml", "--warmup_steps=50"}, {"--set optimizer.warmup_steps=50"});
}

// What the command line says is wrong before any folder is.
TEST_F(CommandLine, ItsErrorsComeFirst) {
  const Words from_nowhere{"small.yaml", "--set", "train.init_from=nowhere", "--plan"};
  const auto plan = [&](Words more) {
    more.insert(more.begin(), from_nowhere.begin(), from_nowhere.end());
    return more;
  };
  expect_error(kTrain, plan({"--device-memory", "80"}), {"--device-memory: \"80\"", "80 bytes", "80GiB"});
  expect_error(kTrain, plan({"--arch", "7"}), {"found 7"});
  expect_error(kTrain, {"nowhere.yaml", "--device-memory", "80", "--plan"}, {"80 bytes"});
  expect_error(kGenerate, {"nowhere", "--plan", "--device-memory", "80"}, {"80 bytes"});
  expect_error(kGenerate, {"nowhere", "--prompt", "x", "--temperature", "-1"}, {"--temperature"});
  expect_error(kBench, {"memory", "nowhere.yaml", "--device-memory", "80"}, {"80 bytes"});
  expect_error(kBench, {"step", "nowhere.yaml", "--markdown", "a.md"}, {"add it"});
  expect_error(kExport, {"nowhere", "--format", "hf", "--output", "x", "--shard-size", "5"}, {"5 bytes"});
  expect_error(kExport, {"nowhere", "--format", "llm.c", "--output", "x", "--dtype", "q8_0"},
               {"fp32 or bf16, found --dtype q8_0"});
  expect_error(kEvaluate, {"nowhere", "--items", "5"}, {"--items is of tasks"});
  expect_error(kEvaluate, {"nowhere", "--task", "arcs:x.jsonl"}, {"\"arcs\""});
  expect_error(kEvaluate, {"nowhere", "--task", "text.txt", "--by-position"}, {"--by-position", "loss"});
}

TEST_F(CommandLine, ANameOfTheHubGivesTheDownload) {
  const std::string model = "hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B";
  expect_error(kGenerate, {"Qwen/Qwen3-0.6B", "--prompt", "x"}, {model});
  expect_error(kEvaluate, {"Qwen/Qwen3-0.6B"}, {model});
  expect_error(kTrain, {"small.yaml", "--set", "train.init_from=Qwen/Qwen3-0.6B"}, {model});
  expect_error(kPrepare, {"text.txt", "--tokenizer", "gpt2", "--output", "data"},
               {"hf download openai-community/gpt2 tokenizer.json"});
}

// ./train FOLDER --resume, wherever the folder is now
TEST_F(CommandLine, TheFolderOfARunIsItsConfiguration) {
  ASSERT_EQ(run(kTrain, {"small.yaml", "--set", "device=cpu", "--set", "evaluation.every=0"}).status, 0);
  for (const Words& words :
       {Words{"out", "--resume"}, Words{"--resume", "out/"}, Words{"--resume", "auto", "./out"}}) {
    const ProcessResult same = run(kTrain, words);
    EXPECT_EQ(same.status, 0) << same.error;
    EXPECT_NE(same.out.find("nothing is left"), std::string::npos) << same.out;
    EXPECT_EQ(same.out.find("changed:"), std::string::npos) << same.out;
  }
  fs::rename(folder / "out", folder / "moved");
  const ProcessResult longer = run(kTrain, {"moved", "--resume", "--set", "train.steps=2"});
  EXPECT_EQ(longer.status, 0) << longer.error;
  EXPECT_TRUE(fs::exists(folder / "moved/checkpoints/step_00000002"));
  expect_error(kTrain, {"moved", "--set", "train.steps=3"}, {"--resume"});
  expect_error(kTrain, {"moved/checkpoints/step_00000002", "--resume"},
               {"is a checkpoint", "./train moved --resume", "--set train.init_from=moved/checkpoints"});
}

TEST_F(CommandLine, AKeyIsSetWithSet) {
  expect_error(kTrain, {"small.yaml", "--steps", "5"}, {"no option --steps", "--set train.steps=VALUE"});
  expect_error(kTrain, {"small.yaml", "--learning-rate=1e-3"}, {"--set optimizer.learning_rate=1e-3"});
  expect_error(kTrain, {"small.yaml", "--set", "train.steps=2", "model.layers=2"},
               {"\"model.layers=2\"", "too many", "--set model.layers=2"});
  expect_error(kTrain, {"train.steps=2"}, {"--set train.steps=2"});
}

TEST_F(CommandLine, ErrorsSayWhatIsWanted) {
  expect_error(kTrain, {}, {"no configuration", "--config quickstart.yaml", "gpt2_small", "long_context"});
  expect_error(kTrain, {"quickstrat.yaml"}, {"did you mean quickstart?"});
  expect_error(kTrain, {"--config"}, {"--config", "FILE"});
  expect_error(kTrain, {"--config", "a", "--config", "b"}, {"--config", "more than once"});
  expect_error(kTrain, {"small.yaml", "more"}, {"\"more\"", "too many"});
  expect_error(kTrain, {"small.yaml", "--json", "a"}, {"--json needs --plan"});
  expect_error(kTrain, {"small.yaml", "--plan", "--overwrite"}, {"be combined with"});
  expect_error(kTrain, {"small.yaml", "--ranks", "x"}, {"--ranks", "1 to 65536", "\"x\""});
  expect_error(kTrain, {"small.yaml", "--plan", "--fit", "width"},
               {"--fit", "context", "batch", "\"width\""});
  expect_error(kTrain, {"small.yaml", "--plan", "--arch", "x"}, {"--arch", "found \"x\""});
  expect_error(kBench, {}, {"./bench step", "./bench memory", "./bench attention"});
  expect_error(kBench, {"attention", "--repeats", "0"}, {"--repeats", "positive", "\"0\""});
  expect_error(kBench, {"step", "--warmup", "-1"}, {"--warmup", "at least 0", "\"-1\""});
  expect_error(kPrepare, {}, {"--input is required"});
  expect_error(kTrain, {"small.yaml", "--plan", "--json", ""}, {"--json", "name"});
  expect_error(kTrain, {"small.yaml", "--plan", "--json", "."}, {"cannot write .", "folder"});
  expect_error(kGenerate, {"out", "--tokens", "1e3"}, {"--tokens", "whole number", "\"1e3\""});
  expect_error(kGenerate, {"out", "--top-k", "1.5"}, {"--top-k", "whole number", "\"1.5\""});
  expect_error(kGenerate, {"out", "--top-p", "x"}, {"--top-p", "number", "\"x\""});
  expect_error(kGenerate, {"out", "--temperature"}, {"--temperature", "none"});
  expect_error(kGenerate, {"out", "--seed", "18446744073709551615"},
               {"--seed", "9223372036854775807", "\"18446744073709551615\""});
  expect_error(kGenerate, {"out", "--prompt", "x", "--tokenizer", ""}, {"--tokenizer", "empty"});
  expect_error(kTrain, {"small.yaml", "--memory-profile", ""}, {"--memory-profile", "folder"});
}

TEST_F(CommandLine, ABareNameIsTheConfiguration) {
  const ProcessResult named = run(kTrain, {"--config", "small.yaml", "--print-config"});
  ASSERT_EQ(named.status, 0) << named.error;
  EXPECT_EQ(run(kTrain, {"small.yaml", "--print-config"}).out, named.out);
  const ProcessResult last = run(kTrain, {"--print-config", "--set", "train.steps=3", "small.yaml"});
  EXPECT_EQ(last.status, 0) << last.error;
  EXPECT_NE(last.out.find("steps: 3\n"), std::string::npos);
  EXPECT_EQ(run(kTrain, {"small.yaml", "--set", "device=cpu"}).status, 0);
  EXPECT_TRUE(fs::exists(folder / "out/checkpoints"));
  const ProcessResult step = run(kBench, {"step", "small.yaml", "--set", "device=cpu", "--steps", "1"});
  EXPECT_EQ(step.status, 0) << step.error;
  const std::regex begins(
      "[0-9,]+ parameters, .* on CPU\n  estimate  .* a step, .* for the \\d+ steps [\\s\\S]*");
  EXPECT_TRUE(std::regex_match(step.out, begins)) << step.out;
  EXPECT_EQ(run(kPrepare, {"text.txt", "--output", "data"}).status, 0);
  EXPECT_TRUE(fs::exists(folder / "data/dataset.json"));
}

TEST_F(CommandLine, VersionsNameTheCommitAndWhatIsBuiltIn) {
  for (const auto& [program, arguments] :
       {std::pair(kTrain, Words{"--version"}), std::pair(kBench, Words{"--version"}),
        std::pair(kBench, Words{"step", "--version"}), std::pair(kPrepare, Words{"--version"}),
        std::pair(kReport, Words{"--version"})}) {
    const ProcessResult result = run(program, arguments);
    EXPECT_EQ(result.status, 0) << result.error;
    const std::regex wanted(fs::path(program).filename().string() +
                            " of Tessera \\d+\\.\\d+\\.\\d+\n"
                            "commit    ([0-9a-f]{40}(, with uncommitted changes)?|unknown)\n"
                            "compiler  \\S+ [0-9.]+, .*\n"
                            "CUDA      (not built in|[0-9.]+, for .*)\n"
                            "cuDNN     (not built in|[0-9.]+)\n"
                            "NCCL      (not built in|[0-9.]+)\n");
    EXPECT_TRUE(std::regex_match(result.out, wanted)) << result.out;
  }
}

// The script that every build runs: another commit, and a change, are said; no repository is no error.
TEST_F(CommandLine, TheCommitIsThatOfTheBuild) {
  const std::string script = TESSERA_SOURCE_DIR "/kernels/base/version.cmake",
                    source = (folder / "clone").string();
  const auto commit = [&] {
    const ProcessResult result = run_shell(R"(cmake -DSOURCE="$1" -DOUTPUT=commit.h -P "$0" && cat commit.h)",
                                           {script, source}, {.folder = folder});
    return result.status == 0 ? result.out : result.error;
  };
  const auto git = [&](const std::string& command) {
    return run_shell("cd clone && git -c user.name=a -c user.email=a@b.c " + command, {}, {.folder = folder})
        .status;
  };
  fs::create_directory(source);
  if (run_shell("cmake --version && git --version", {}, {.folder = folder}).status != 0)
    GTEST_SKIP() << "no cmake or no git on the PATH";
  EXPECT_EQ(commit(), "#define TESSERA_COMMIT \"unknown\"\n");
  write("clone/file", "a");
  ASSERT_EQ(git("init -q && git add file && git -c user.name=a -c user.email=a@b.c commit -q -m one"), 0);
  const std::string first = commit();
  EXPECT_TRUE(std::regex_match(first, std::regex("#define TESSERA_COMMIT \"[0-9a-f]{40}\"\n"))) << first;
  write("clone/file", "b");
  EXPECT_EQ(commit(), first.substr(0, first.size() - 2) + ", with uncommitted changes\"\n");
  ASSERT_EQ(git("commit -q -a -m two"), 0);
  EXPECT_TRUE(std::regex_match(commit(), std::regex("#define TESSERA_COMMIT \"[0-9a-f]{40}\"\n")));
  EXPECT_NE(commit(), first);
}

TEST_F(CommandLine, HelpHasExamplesAndLinesOf100Columns) {
  for (const auto& [program, arguments] :
       {std::pair(kTrain, Words{}), std::pair(kBench, Words{}), std::pair(kBench, Words{"step"}),
        std::pair(kBench, Words{"memory"}), std::pair(kBench, Words{"attention"}),
        std::pair(kPrepare, Words{}), std::pair(kReport, Words{})}) {
    Words all = arguments;
    all.push_back("--help");
    const ProcessResult result = run(program, all);
    EXPECT_EQ(result.status, 0) << result.error;
    const std::string name = fs::path(program).filename().string();
    EXPECT_NE(result.out.find("Examples:\n  ./" + name), std::string::npos) << result.out;
    if (arguments.empty()) {
      EXPECT_NE(result.out.find("Exit code"), std::string::npos) << result.out;
    }
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST_F(CommandLine, GpusThatAreAbsentAreNotReplacedByTheCpu) {
  expect_error(kTrain, {"small.yaml", "--gpus", "4"},
               {"--gpus 4", "Remove --gpus", "--ranks 4 --set device=cpu"});
  expect_error(kTrain, {"small.yaml", "--gpus", "1"}, {"--gpus 1 was asked for"});
  expect_error(kBench, {"step", "small.yaml", "--gpus", "2"}, {"--gpus 2 was asked for"});
  expect_error(kTrain, {"small.yaml", "--gpus", "4", "--set", "device=cpu"}, {"--gpus 4", "device is cpu"});
  expect_error(kTrain, {"small.yaml", "--plan", "--gpus", "4", "--set", "device=cpu"}, {"device is cpu"});
  expect_error(kTrain, {"small.yaml", "--gpus", "2", "--ranks", "2"}, {"be combined with"});
  // A plan needs none.
  const ProcessResult plan = run(kTrain, {"small.yaml", "--plan", "--gpus", "4", "--set", "model.channels=64",
                                          "--set", "train.tokens_per_step=1024"});
  EXPECT_EQ(plan.status, 0) << plan.error;
  EXPECT_NE(plan.out.find("4 ranks x "), std::string::npos) << plan.out;
  EXPECT_NE(plan.out.find("compute capability 9.0"), std::string::npos) << plan.out;
}

}  // namespace
}  // namespace tessera::testing
