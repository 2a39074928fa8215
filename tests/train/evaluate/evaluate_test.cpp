// The program evaluate, on a model that the test trains: its loss is the run's to the bit, whatever the
// number of ranks; its tasks are those of a run with evaluation.tasks.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/reference_folder.h"
#include "tests/tolerances.h"
#include "tests/train_ranks.h"
#include "train/launch/connection.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// The text of TrainProgram, "line 3 of a text that repeats itself", as questions
std::string questions(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    Json choices{" text that", " tuxt thet", "zzzzzz that"};
    std::rotate(choices.begin(), choices.begin() + i % 3, choices.end());
    const Json line{{"context", "line " + std::to_string(i % 17) + " of a"},
                    {"choices", choices},
                    {"label", (3 - i % 3) % 3}};
    lines += line.dump() + "\n";
  }
  return lines;
}

struct Evaluate : TrainRanks {
  Evaluate() {
    write("questions.jsonl", questions(40));
    write("endings.jsonl", R"({"ctx": "line 1 of a", "endings": ["text", "box"], "label": 0})"
                           "\n"
                           R"({"ctx": "line 2 of a text", "endings": ["that", "tzzt"], "label": 0})"
                           "\n");
  }

  ProcessResult evaluate(const Words& arguments) const {
    return run_process(EVALUATE_BINARY, arguments, {.folder = folder});
  }
  Json figures(Words arguments) const {
    arguments.insert(arguments.end(), {"--json", "figures.json"});
    const ProcessResult result = evaluate(arguments);
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_EQ(result.error, "");
    out = result.out;
    return Json::parse(read_file(folder / "figures.json"));
  }
  void evaluate_refused(const Words& arguments, std::initializer_list<const char*> parts) const {
    const ProcessResult result = evaluate(arguments);
    EXPECT_EQ(result.status, 1) << result.out;
    for (const char* part : parts)
      EXPECT_NE(result.error.find(part), std::string::npos)
          << "wanted: " << part << "\nfound:  " << result.error;
  }
  // The evaluations of a run's metrics, by step
  std::map<int, Json> evaluations(const std::string& run) const {
    std::map<int, Json> found;
    std::ifstream file(folder / run / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const Json json = Json::parse(line); json["type"] == "evaluation") found[json["step"]] = json;
    return found;
  }
  Words short_run(const std::string& run, const Words& settings = {}) const {
    return by(1, run, with({"train.steps=20", "evaluation.every=10", "checkpoint.every=10"}, settings));
  }
  std::string checkpoint(const std::string& run, int step) const {
    return fmt::format("{}/checkpoints/step_{:08}", run, step);
  }

  mutable std::string out;  // what the program printed
};

TEST_F(Evaluate, HasTheValidationLossOfTheRunToTheBit) {
  trains(short_run("one", {"evaluation.by_position=true"}));
  auto wanted = evaluations("one");
  ASSERT_EQ(wanted.size(), 3u);
  const Json newest = figures({"one"}),
             earlier = figures({"--model", checkpoint("one", 10), "--by-position"});
  EXPECT_EQ(newest["loss"], wanted[20]["validation_loss"]);
  EXPECT_EQ(newest["step"], 20);
  EXPECT_EQ(newest["sequences"], wanted[20]["validation_sequences"]);
  EXPECT_FALSE(newest.contains("position_losses"));
  EXPECT_EQ(earlier["loss"], wanted[10]["validation_loss"]);
  EXPECT_EQ(earlier["position_losses"], wanted[10]["position_losses"]);
  EXPECT_NE(earlier["loss"], newest["loss"]);
  EXPECT_NE(out.find(fmt::format("loss     {:.4f}, perplexity", earlier["loss"].get<double>())),
            std::string::npos)
      << out;
  EXPECT_NE(out.find("loss by position\n  1 "), std::string::npos) << out;
  // Two ranks and one, and runs of either
  for (const char* ranks : {"2", "3"}) {
    const Json several = figures({"one", "--ranks", ranks, "--by-position"});
    EXPECT_EQ(several["loss"], newest["loss"]) << ranks;
    EXPECT_EQ(several["position_losses"], wanted[20]["position_losses"]) << ranks;
  }
  trains(by(2, "two", {"train.steps=20", "evaluation.every=10", "checkpoint.every=10"}));
  EXPECT_EQ(figures({"two"})["loss"], evaluations("two")[20]["validation_loss"]);
}

// Sequences of 32 tokens have no codes: what is left is another order of sums.
TEST_F(Evaluate, ReadsSequencesThroughACache) {
  trains(short_run("one"));
  const Json plain = figures({"one", "--by-position"}),
             cached = figures({"one", "--by-position", "--cache-dtype", "int4", "--documents", "join"}),
             joined = figures({"one", "--by-position", "--documents", "join"});
  EXPECT_EQ(cached["loss_tokens"], joined["loss_tokens"]);
  EXPECT_NEAR(cached["loss"].get<double>(), joined["loss"].get<double>(), 1e-4);
  EXPECT_EQ(cached["position_ends"], plain["position_ends"]);
  for (size_t i = 0; i < cached["position_losses"].size(); ++i)
    EXPECT_NEAR(cached["position_losses"][i].get<double>(), joined["position_losses"][i].get<double>(), 1e-4);
  evaluate_refused({"one", "--cache-dtype", "int4", "--documents", "mask"},
                   {"--cache-dtype int4", "--documents join"});
  evaluate_refused({"one", "--task", "questions.jsonl", "--cache-dtype", "fp8"}, {"--cache-dtype", "--task"});
  evaluate_refused({"one", "--cache-dtype", "bf16", "--documents", "join"}, {"--cache-dtype bf16", "fp32"});
}

TEST_F(Evaluate, AddsTheAdaptersOfARunToItsWeights) {
  trains(short_run("one"));
  trains(short_run("adapted",
                   {"train.init_from=" + checkpoint("one", 20), "train.lora.rank=4", "sampling.every=0"}));
  auto wanted = evaluations("adapted");
  const double loss = wanted[20]["validation_loss"];
  EXPECT_NE(loss, wanted[0]["validation_loss"]);
  EXPECT_NEAR(figures({"adapted"})["loss"].get<double>(), loss, tolerance::kCpuAgainstPyTorch * loss);
}

TEST_F(Evaluate, AnswersTheTasksOfARunAsTheRunDid) {
  const Words tasks = {"evaluation.tasks=[questions.jsonl, \"hellaswag:endings.jsonl\"]",
                       "evaluation.task_items=30", "optimizer.learning_rate=1e-2"};
  const ProcessResult run = trains(short_run("one", tasks));
  EXPECT_NE(run.out.find("step 20: questions "), std::string::npos) << run.out;
  auto found = evaluations("one");
  const Json at_start = found[0]["tasks"], at_end = found[20]["tasks"];
  EXPECT_EQ(at_end["questions"]["items"], 30);
  EXPECT_EQ(at_end["endings"]["items"], 2);
  EXPECT_GT(at_end["questions"]["accuracy"], 0.6) << "nothing was learned";
  const Words switches{"one", "--task", "questions.jsonl", "--task", "endings.jsonl", "--items", "30"};
  const Json alone = figures(switches);
  EXPECT_FALSE(alone.contains("loss"));
  for (size_t i = 0; i < 2; ++i) {
    const Json& task = alone["tasks"][i];
    const Json& wanted = at_end[task["name"].get<std::string>()];
    for (const auto& [key, value] : wanted.items()) EXPECT_EQ(task[key], value) << key;
  }
  EXPECT_NE(out.find("\nquestions       30   33.3%  "), std::string::npos) << out;
  EXPECT_EQ(figures(with(switches, {"--ranks", "2"}))["tasks"], alone["tasks"]);
  const Json both = figures(with(switches, {"--data", "run", "--ranks", "2"}));
  EXPECT_EQ(both["tasks"], alone["tasks"]);
  EXPECT_EQ(both["loss"], found[20]["validation_loss"]);
  // A run without tasks learns the same, and so does one that resumes.
  trains(short_run("none", {"optimizer.learning_rate=1e-2"}));
  EXPECT_EQ(losses("one"), losses("none"));
  fs::copy(folder / "one", folder / "copy", fs::copy_options::recursive);
  fs::remove_all(folder / checkpoint("copy", 20));
  trains(with(short_run("copy", tasks), {"--resume"}));
  EXPECT_EQ(losses("copy"), losses("one"));
  EXPECT_EQ(evaluations("copy")[20]["tasks"], at_end);
}

TEST_F(Evaluate, OfTextShardsAndOtherSequences) {
  trains(short_run("one"));
  const Json all = figures({"one", "--data", "text.txt"});
  EXPECT_EQ(all["sequences"], (fs::file_size(folder / "text.txt") - 1) / 32);
  const Json some = figures({"one", "--data", "text.txt", "--sequences", "7", "--sequence-length", "16",
                             "--batch", "3", "--attention", "naive"});
  EXPECT_EQ(some["sequences"], 7);
  EXPECT_EQ(some["loss_tokens"], 7 * 16);
  EXPECT_EQ(some["batch"], 3);
  ASSERT_EQ(run_process(PREPARE_BINARY, {"--input", "text.txt", "--tokenizer", "bytes", "--output", "shards"},
                        {.folder = folder})
                .status,
            0);
  const Json shards = figures({"one", "--data", "shards"});
  EXPECT_NEAR(shards["loss"].get<double>(), all["loss"].get<double>(), 1e-2);
  const Json masked = figures({"one", "--data", "shards", "--documents", "mask", "--sequences", "5"});
  EXPECT_GT(masked["loss"], 0);
}

TEST_F(Evaluate, OfAFolderOfAnotherProgram) {
  const fs::path model = folder / "model";
  fs::create_directory(model);
  for (const char* file : {"config.json", "model.safetensors"}) fs::copy(fixture("tasks") / file, model);
  const std::string hellaswag = (fixture("tasks") / "hellaswag.jsonl").string();
  evaluate_refused({"model"}, {"which data", "--data PATH"});
  evaluate_refused({"model", "--data", "text.txt"}, {"holds no tokenizer", "--tokenizer"});
  evaluate_refused({"model", "--task", hellaswag}, {"needs a tokenizer"});
  const std::string tokens = (fixture("tasks") / "hellaswag.bin").string();
  const Json by_tokens = figures({"model", "--task", tokens})["tasks"][0];
  fs::copy(fixture("tokenizers/gpt2.json"), model / "tokenizer.json");
  const Json reference = Json::parse(read_file(fixture("tasks") / "reference.json"))["files"]["hellaswag"];
  const Json by_text = figures({"model", "--task", hellaswag})["tasks"][0];
  EXPECT_EQ(by_text["accuracy"], reference["right"]["sum"].get<double>() / 80);
  EXPECT_EQ(by_text["accuracy_by_token"], reference["right"]["token"].get<double>() / 80);
  EXPECT_EQ(by_text["accuracy_by_byte"], reference["right"]["byte"].get<double>() / 80);
  EXPECT_EQ(by_tokens["accuracy_by_token"], by_text["accuracy_by_token"]);
  EXPECT_NE(out.find("left out"), std::string::npos) << out;
  // The text of a file is encoded as ./prepare encodes it.
  const Json text = figures({"model", "--data", "text.txt", "--sequences", "20"});
  ASSERT_EQ(run_process(PREPARE_BINARY, {"--input", "text.txt", "--tokenizer", "model", "--output", "shards"},
                        {.folder = folder})
                .status,
            0);
  EXPECT_EQ(figures({"model", "--data", "shards", "--sequences", "20"})["loss"], text["loss"]);
}

// Weights that are finite, and so large that sums of them are not
TEST_F(Evaluate, FailsWhereTheLossIsNoNumber) {
  const fs::path model = folder / "model";
  fs::create_directory(model);
  for (const char* file : {"config.json", "model.safetensors"}) fs::copy(fixture("tasks") / file, model);
  fs::permissions(model / "model.safetensors", fs::perms::owner_write, fs::perm_options::add);
  std::fstream file(model / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  const std::vector<float> largest(4096, std::numeric_limits<float>::max());
  file.seekp(-static_cast<std::streamoff>(largest.size() * sizeof(float)), std::ios::end);
  file.write(reinterpret_cast<const char*>(largest.data()), std::ssize(largest) * sizeof(float));
  file.close();
  evaluate_refused({"model", "--tokenizer", fixture("tokenizers/gpt2.json").string(), "--data", "text.txt"},
                   {"the loss is", "weights of model", "damaged"});
}

TEST_F(Evaluate, WritesNamesThatAreNoUtf8) {
  trains(short_run("one"));
  fs::rename(folder / "one", folder / "one\xff");
  EXPECT_TRUE(figures({"one\xff"})["model"].get<std::string>().starts_with("one\ufffd/"));
}

TEST_F(Evaluate, FailsWhereItsFiguresAreLost) {
  trains(short_run("one"));
  const auto lost = [&](const std::string& rest) {
    return run_shell("\"$0\" one " + rest + " > /dev/full", {EVALUATE_BINARY}, {.folder = folder});
  };
  const ProcessResult result = lost("");
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.error.find("standard output"), std::string::npos) << result.error;
  EXPECT_EQ(lost("--json figures.json").status, 0);
}

// Processes that start at different moments may find different checkpoints to be the run's newest.
TEST_F(Evaluate, RanksEvaluateTheSameCheckpoint) {
  trains(short_run("one"));
  const int port = port_of(listen_at("127.0.0.1", 0, Reach::kThisMachine));
  const auto rank = [&](int number) {
    const std::string text = std::to_string(number);
    return Process("/usr/bin/env",
                   {"RANK=" + text, "WORLD_SIZE=2", "LOCAL_RANK=" + text, "LOCAL_WORLD_SIZE=2",
                    "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(port), EVALUATE_BINARY,
                    checkpoint((folder / "one").string(), 10 + 10 * number), "--data",
                    (folder / "text.txt").string(), "--sequences", "2"},
                   {.folder = number == 0 ? folder : folder / "one"});
  };
  Process other = rank(1), first = rank(0);
  const ProcessResult results[] = {first.finish(), other.finish()};
  for (const ProcessResult& result : results) EXPECT_NE(result.status, 0) << result.out;
  const std::string error = results[0].error + results[1].error;  // the first that finds it says so
  for (const char* part : {"the model", "step_00000010", "step_00000020", "name a checkpoint"})
    EXPECT_NE(error.find(part), std::string::npos) << error;
}

TEST_F(Evaluate, RefusesWhatIsWrong) {
  trains(short_run("one"));
  evaluate_refused({"nowhere"}, {"no folder nowhere"});
  evaluate_refused({}, {"model"});
  evaluate_refused({"one", "--data", "nothing.txt"}, {"nothing.txt does not exist"});
  evaluate_refused({"one", "--sequence-length", "64"}, {"at most 32 tokens"});
  evaluate_refused({"one", "--task", "text.txt"}, {"text.txt:1"});
  evaluate_refused({"one", "--json", "no/such/folder.json"}, {"folder.json"});
  write("bad.jsonl", R"({"context": "a", "choices": ["b", "c"], "label": 0, "more": 1})");
  evaluate_refused({"one", "--task", "bad.jsonl"}, {"bad.jsonl:1", "more"});
  write("bad.jsonl", R"({"context": "a", "choices": ["b", ""], "label": 0})");
  evaluate_refused({"one", "--task", "bad.jsonl"}, {"bad.jsonl:1: choice 1 is empty"});
  write("bad.jsonl", "{\"context\": \"a\",\n");
  evaluate_refused({"one", "--task", "bad.jsonl"}, {"bad.jsonl:1:17: not JSON"});
  evaluate_refused({"one", "--task", "questions.jsonl", "--by-position"}, {"--by-position", "loss"});
  evaluate_refused({"one", "--task", "questions.jsonl", "--sequences", "2"}, {"--sequences", "loss"});
  setenv("CUDA_VISIBLE_DEVICES", "", 1);  // the same with and without a GPU
  evaluate_refused({"one", "--gpus", "2"}, {"--gpus 2 was asked for", "--ranks 2 --device cpu"});
  unsetenv("CUDA_VISIBLE_DEVICES");
  evaluate_refused({"one", "--items", "2"}, {"--items is of tasks", "--sequences N"});
  evaluate_refused({"one", "--data", ""}, {"--data", "name"});
  write("bad.jsonl", R"({"context": "a", "choices": ["b", "c"], "label": 0, "more": 1})");
  const Words with_tasks = sets({"evaluation.tasks=bad.jsonl", "train.folder=bad"});
  refused(with_tasks, {"bad.jsonl:1", "more"});
  EXPECT_FALSE(fs::exists(folder / "bad"));
  refused(sets({"evaluation.tasks=questions.jsonl", "evaluation.every=0"}),
          {"evaluation.tasks", "needs evaluations"});
  refused(sets({"evaluation.tasks={a: 1}"}), {"evaluation.tasks", "none", "[a, b]"});
  refused(sets({"evaluation.tasks=[a, a]"}), {"names \"a\" twice"});
  // Other data than the run's has no validation loss of the run.
  write("text.txt", "another text, and a short one\n" + std::string(3000, 'x'));
  evaluate_refused({"one"}, {"other data", "--data PATH"});
  fs::remove(folder / checkpoint("one", 20) / "model.safetensors");
  evaluate_refused({checkpoint("one", 20), "--data", "text.txt"}, {"model.safetensors"});
}

}  // namespace
}  // namespace tessera::testing
