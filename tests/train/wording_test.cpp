// The wording of messages: tests/wording.txt has what users do wrong most often, and what the programs
// answer. Other tests check the facts of messages alone, so that their English can be mended.
// TESSERA_UPDATE_DOCS=1 makes this test write the file anew: read it as a user would.
#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>

#include "kernels/base/file.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

// Each is answered with exit code 1 and one message on standard error.
struct WrongInput {
  std::string what;
  const char* program;
  std::vector<std::string> arguments;
  std::string yaml = {};  // of bad.yaml
};

// `key: value` of a section, in bad.yaml
WrongInput wrong_key(const std::string& what, const std::string& section, const std::string& line) {
  return {what, TRAIN_BINARY, {"bad.yaml"}, section + ":\n  " + line + "\n"};
}

WrongInput wrong_setting(const std::string& what, const std::vector<std::string>& settings) {
  WrongInput wrong{what, TRAIN_BINARY, {"small.yaml"}};
  for (const std::string& setting : settings)
    wrong.arguments.insert(wrong.arguments.end(), {"--set", setting});
  return wrong;
}

std::vector<WrongInput> wrong_files() {
  return {wrong_key("A key that does not exist", "model", "atention: flash"),
          wrong_key("A key in the wrong section", "train", "learning_rate: 1"),
          {"A section that does not exist", TRAIN_BINARY, {"bad.yaml"}, "network:\n  layers: 1\n"},
          {"A dotted key in a file", TRAIN_BINARY, {"bad.yaml"}, "model.layers: 1\n"},
          wrong_key("A word for a number", "model", "layers: twelve"),
          wrong_key("No value", "model", "layers:"),
          wrong_key("A number that is too small", "optimizer", "learning_rate: 0"),
          wrong_key("A number that is too large", "model", "layers: 10001"),
          wrong_key("A number that is not a multiple", "model", "channels: 100"),
          wrong_key("A number in quotes", "model", "layers: \"12\""),
          wrong_key("A misspelled word", "optimizer", "schedule: cosnie"),
          wrong_key("Another word", "model", "attention: fast"),
          wrong_key("No boolean", "data", "shuffle: yes"),
          wrong_key("A list for a word", "train", "precision: [bf16]"),
          wrong_key("A map for a text", "train", "folder: {a: b}"),
          wrong_key("A list of sources", "data", "train: [a, b]"),
          wrong_key("A weight of 0", "data", "train: {a: 1, b: 0}"),
          wrong_key("A key given twice", "model", "layers: 2\n  layers: 3"),
          {"A value for a section", TRAIN_BINARY, {"bad.yaml"}, "checkpoint: 3\n"},
          {"No map", TRAIN_BINARY, {"bad.yaml"}, "- model\n"},
          {"Two documents", TRAIN_BINARY, {"bad.yaml"}, "device: cpu\n---\ndevice: cpu\n"},
          wrong_key("Not YAML", "model", "layers: a: b"),
          wrong_key("A star without quotes", "data", "train: *.bin"),
          wrong_key("A tab", "model", "\tlayers: 2"),
          {"No such configuration", TRAIN_BINARY, {"quickstrat"}}};
}

std::vector<WrongInput> wrong_settings() {
  return {
      {"--set without a value", TRAIN_BINARY, {"small.yaml", "--set", "model.layers"}},
      wrong_setting("An empty value", {"train.steps="}),
      wrong_setting("A dropout probability that rounds to 0", {"model.dropout.attention=0.001"}),
      wrong_setting("Heads that do not divide the channels", {"model.heads=7"}),
      wrong_setting("Heads of K and V that do not divide the heads", {"model.heads=4", "model.kv_heads=3"}),
      wrong_setting("A key of rotary positions", {"model.rope.theta=5e5"}),
      wrong_setting("Tokens of a step that are no whole micro-batches", {"train.micro_batch=3"}),
      wrong_setting("A sequence longer than the context", {"train.sequence_length=128"}),
      wrong_setting("Steps and epochs", {"train.epochs=2"}),
      wrong_setting("Neither steps nor epochs", {"train.steps=auto"}),
      wrong_setting("A schedule with the same phase twice",
                    {"train.context_schedule={0: 32, 8: 32}", "train.sequence_length=auto"}),
      wrong_setting("FP8 with adapters", {"train.gemm_dtype=fp8", "train.lora.rank=4", "train.fp8.dw=true"}),
      wrong_setting("FP8 and a width of the MLP", {"train.gemm_dtype=fp8", "model.mlp_width=72"}),
      wrong_setting("A key of FP8 without it", {"train.fp8.head=true"}),
      wrong_setting("A word to recompute that is none", {"train.recompute=norms+mpl"}),
      wrong_setting("A block to freeze that is none", {"train.freeze=blocks:1-2"}),
      wrong_setting("Everything frozen", {"train.freeze=embeddings+attention+mlp+norms"}),
      wrong_setting("A warm-up that is no share", {"optimizer.warmup=101%"}),
      wrong_setting("Patience without evaluations", {"train.patience=3", "evaluation.every=0"}),
      wrong_setting("A preset that does not exist", {"model.preset=qwen3"}),
      wrong_setting("A model to start from that is not there", {"train.init_from=nowhere"}),
      wrong_setting("Data that is not there", {"data.train=nowhere.txt"}),
      wrong_setting("Sources of which one is not there", {"data.train={text.txt: 1, nowhere: 1}"})};
}

std::vector<WrongInput> wrong_command_lines() {
  return {
      {"No configuration", TRAIN_BINARY, {}},
      {"A misspelled option", TRAIN_BINARY, {"--confg", "small.yaml"}},
      {"A setting without --set", TRAIN_BINARY, {"small.yaml", "model.layers=2"}},
      {"A word for --ranks", TRAIN_BINARY, {"small.yaml", "--ranks", "x"}},
      {"Options that contradict each other", TRAIN_BINARY, {"small.yaml", "--plan", "--overwrite"}},
      {"A size that is none", TRAIN_BINARY, {"small.yaml", "--plan", "--device-memory", "much"}},
      {"A size without a unit", TRAIN_BINARY, {"small.yaml", "--plan", "--device-memory", "80"}},
      {"A GPU that is none", TRAIN_BINARY, {"small.yaml", "--plan", "--arch", "9"}},
      {"Ranks that cannot share a step", TRAIN_BINARY, {"small.yaml", "--ranks", "5"}},
      {"Nothing to resume", TRAIN_BINARY, {"small.yaml", "--resume"}},
      {"No benchmark", BENCH_BINARY, {"stp"}},
      {"Sequence lengths that are none", BENCH_BINARY, {"attention", "--seq-lens", "512..64"}},
      {"A shape that is none", BENCH_BINARY, {"attention", "--shape", "1,2,3"}},
      {"A share that is none", BENCH_BINARY, {"attention", "--with", "dropout:1"}},
      {"No prompt", GENERATE_BINARY, {"finished"}},
      {"A temperature below 0", GENERATE_BINARY, {"finished", "--prompt", "x", "--temperature", "-1"}},
      {"An empty --stop", GENERATE_BINARY, {"finished", "--prompt", "x", "--stop", ""}},
      {"A prompt longer than --context",
       GENERATE_BINARY,
       {"finished", "--prompt", "a long prompt", "--context", "4"}},
      {"No folder of a model", GENERATE_BINARY, {"nowhere", "--prompt", "x"}},
      {"A file for a folder", GENERATE_BINARY, {"text.txt", "--prompt", "x"}},
      {"A task that is none", EVALUATE_BINARY, {"finished", "--task", "arcs:x.jsonl"}},
      {"A line of a task without its fields", EVALUATE_BINARY, {"finished", "--task", "task.jsonl"}},
      {"Longer than the model reads", EVALUATE_BINARY, {"finished", "--sequence-length", "128"}},
      {"No format to export to", EXPORT_BINARY, {"finished", "--output", "new"}},
      {"A file for the new folder", EXPORT_BINARY, {"finished", "--format", "hf", "--output", "text.txt"}},
      {"A run that is not there", REPORT_BINARY, {"nowhere"}},
      {"Nothing to prepare", PREPARE_BINARY, {}},
      {"An input that is not there", PREPARE_BINARY, {"nowhere.txt", "--output", "data"}},
      {"No tokenizer", TOKENIZE_BINARY, {"encode", "--tokenizer", "nowhere", "text.txt"}}};
}

// Of the run in finished/, and of copies of it that are damaged
std::vector<WrongInput> wrong_checkpoints() {
  const auto resume = [](const std::string& what, const std::string& run,
                         const std::vector<std::string>& settings = {}) {
    WrongInput wrong = wrong_setting(what, settings);
    wrong.arguments.insert(wrong.arguments.end(), {"--set", "train.folder=" + run, "--resume"});
    return wrong;
  };
  return {wrong_setting("A folder with another run", {"train.folder=finished"}),
          resume("Another seed", "finished", {"train.seed=2"}),
          resume("Another model", "finished", {"model.layers=2"}),
          resume("Other data", "finished", {"data.train=other.txt"}),
          resume("Weights that were cut", "cut"),
          resume("A state that is no JSON", "no_json"),
          resume("A state with a wrong value", "wrong_value"),
          resume("A file that is missing", "missing"),
          {"Weights that were cut, to continue a text", GENERATE_BINARY, {"cut", "--prompt", "x"}}};
}

struct Wording : TrainProgram {
  Wording()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 64\n  layers: 1\n  heads: 1\n  channels: 32\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 1\n  tokens_per_step: 512\n"
            "sampling:\n  every: 0\n") {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);  // the same with and without a GPU
  }
  ~Wording() override { unsetenv("CUDA_VISIBLE_DEVICES"); }

  void damage(const std::string& run, const std::function<void(const fs::path& checkpoint)>& how) const {
    fs::copy(folder / "finished", folder / run, fs::copy_options::recursive);
    how(folder / run / "checkpoints/step_00000001");
  }

  void make_runs() const {
    std::string other;
    for (int i = 0; i < 1000; ++i) other += "another text of many lines\n";
    write("other.txt", other);
    const ProcessResult trained = train({"--set", "train.folder=finished"});
    ASSERT_EQ(trained.status, 0) << trained.error;
    damage("cut", [](const fs::path& c) { fs::resize_file(c / "model.safetensors", 1000); });
    damage("no_json", [](const fs::path& c) { write_file(c / "state.json", "{\"step\": 1,\n"); });
    damage("missing", [](const fs::path& c) { fs::remove(c / "optimizer.safetensors"); });
    damage("wrong_value", [](const fs::path& c) {
      const std::string text = read_file(c / "state.json");
      write_file(c / "state.json", std::regex_replace(text, std::regex("\"step\": ?1\\b"), "\"step\": -1"));
    });
    write("task.jsonl", "{\"context\": \"a\", \"choices\": [\"b\", \"c\"]}\n");
  }

  // What is not the same on every machine and in every run has a name in its place.
  std::string without_places(std::string text) const {
    const std::pair<std::string, std::string> places[] = {
        {folder.string(), "<folder>"},
        {fs::path(TRAIN_BINARY).parent_path().string(), "<build>"},
        {fs::path(TRAIN_BINARY).parent_path().parent_path().string(), "<above>"}};
    for (const auto& [place, name] : places)
      for (size_t at; (at = text.find(place)) != text.npos;) text.replace(at, place.size(), name);
    // The rank that was first to see it
    return std::regex_replace(text, std::regex("\\brank [0-9]+: train: error"), "rank <R>: train: error");
  }

  std::string said_of(const WrongInput& wrong) const {
    std::string shown = "\n## " + wrong.what + "\n";
    if (!wrong.yaml.empty()) {
      write("bad.yaml", wrong.yaml);
      shown += std::regex_replace(wrong.yaml, std::regex("\t"), "<tab>");
    }
    const ProcessResult result = run_process(wrong.program, wrong.arguments, {.folder = folder});
    EXPECT_EQ(result.status, 1) << wrong.what << "\n" << result.out << result.error;
    shown += "$ ./" + fs::path(wrong.program).filename().string();
    for (const std::string& word : wrong.arguments) {
      const bool plain = !word.empty() && word.find_first_of(" {\"") == word.npos;
      shown += plain ? " " + word : " '" + word + "'";
    }
    return shown + "\n" + without_places(result.error);
  }
};

TEST_F(Wording, IsThatOfTheSnapshot) {
  make_runs();
  std::string text =
      "What the programs answer to wrong inputs. `TESSERA_UPDATE_DOCS=1 tools/test train "
      "--gtest_filter='Wording.*'`\nwrites this file: read the changed messages as a user would.\n";
  for (const auto& list : {wrong_files(), wrong_settings(), wrong_command_lines(), wrong_checkpoints()})
    for (const WrongInput& wrong : list) text += said_of(wrong);
  const fs::path path = fs::path(TESSERA_SOURCE_DIR) / "tests/wording.txt";
  if (std::getenv("TESSERA_UPDATE_DOCS") != nullptr) {
    write_file(path, text);
    return;
  }
  EXPECT_EQ(read_file(path), text)
      << path << " has another wording; to write it anew, run this test with TESSERA_UPDATE_DOCS=1";
}

}  // namespace
}  // namespace tessera::testing
