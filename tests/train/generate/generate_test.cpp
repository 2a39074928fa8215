// The program generate, on a model that is trained here: its texts, its JSON, what it refuses, how it stops.
#include <atomic>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/reference_folder.h"
#include "tests/says.h"
#include "tests/terminal.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

using nlohmann::json;

constexpr int kSteps = 120, kSampleTokens = 24;

class TrainedModel : public TrainProgram {
 public:
  TrainedModel()
      : TrainProgram(fmt::format(R"(
device: cpu
model: {{vocab_size: 257, context: 160, layers: 2, heads: 2, channels: 32}}
train: {{folder: run, steps: {}, tokens_per_step: 640, micro_batch: 4, seed: 5, report: false}}
optimizer: {{learning_rate: 1e-2, warmup_steps: 10}}
data: {{train: text.txt}}
evaluation: {{every: 0}}
sampling: {{every: {}, prompt: "line 1", tokens: {}, temperature: 0.9, top_k: 40}}
checkpoint: {{every: 60}}
)",
                                 kSteps, kSteps, kSampleTokens)) {
    const ProcessResult result = train({});
    EXPECT_EQ(result.status, 0) << result.error;
  }
  const std::filesystem::path& path() const { return folder_; }
  void TestBody() override {}
};

class GenerateTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = std::make_unique<TrainedModel>(); }
  static void TearDownTestSuite() { model_.reset(); }

  std::filesystem::path folder() const { return model_->path(); }

  ProcessResult generate(std::vector<std::string> arguments, const std::string& model = "run") const {
    arguments.insert(arguments.begin(), {model, "--device", "cpu"});
    return run_process(GENERATE_BINARY, arguments, {.folder = folder()});
  }
  // `rest` follows the program's name in a shell
  ProcessResult in_shell(const std::string& before, const std::string& rest) const {
    return run_shell(before + "\"$0\" run --device cpu " + rest, {GENERATE_BINARY}, {.folder = folder()});
  }
  std::string text(const std::vector<std::string>& arguments) const {
    const ProcessResult result = generate(arguments);
    EXPECT_EQ(result.status, 0) << result.error;
    return result.out;
  }
  std::vector<json> objects(std::vector<std::string> arguments, const std::string& model = "run") const {
    arguments.emplace_back("--json");
    return objects_of(generate(arguments, model));
  }
  static std::vector<json> objects_of(const ProcessResult& result) {
    EXPECT_EQ(result.status, 0) << result.error;
    std::vector<json> found;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) found.push_back(json::parse(line));
    return found;
  }
  void refused(const std::vector<std::string>& arguments, std::initializer_list<const char*> parts,
               const std::string& model = "run") const {
    const ProcessResult result = generate(arguments, model);
    EXPECT_EQ(result.status, 1) << result.out;
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(result.error.starts_with("generate: error: ")) << result.error;
    for (const char* part : parts)
      EXPECT_NE(result.error.find(part), std::string::npos)
          << "wanted: " << part << "\nfound:  " << result.error;
  }

  static inline std::unique_ptr<TrainedModel> model_;
};

TEST_F(GenerateTest, PrintsThePromptAndItsContinuation) {
  const ProcessResult result = generate({"--prompt", "line 3 of a ", "--temperature", "0", "--tokens", "30"});
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(result.out.size(), 12 + 30 + 1u) << result.out;
  EXPECT_TRUE(result.out.starts_with("line 3 of a t")) << result.out;
  EXPECT_TRUE(result.out.ends_with("\n"));
  for (const char* part :
       {"parameters, context 160, tokenizer bytes", "device   CPU", "cache    1 x 42 tokens",
        "prompt   12 tokens in ", "text     30 tokens in ", " tok/s"})
    EXPECT_NE(result.error.find(part), std::string::npos) << part << "\n" << result.error;
  EXPECT_EQ(result.error.find("e+"), std::string::npos) << result.error;  // "1.2e+04 tok/s"
}

TEST_F(GenerateTest, TheSeedDecides) {
  const std::vector<std::string> arguments{"--prompt", "line ", "--tokens", "40", "--temperature", "1.5"};
  const auto with_seed = [&](const char* seed) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--seed", seed});
    return text(all);
  };
  EXPECT_EQ(with_seed("1"), with_seed("1"));
  EXPECT_NE(with_seed("1"), with_seed("2"));
}

// A sample after the last step has the weights of the last checkpoint.
TEST_F(GenerateTest, WritesTheSampleOfTheTrainingRun) {
  std::string sample;
  std::ifstream metrics(folder() / "run" / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);)
    if (const json entry = json::parse(line); entry.contains("sample")) sample = entry["sample"];
  ASSERT_FALSE(sample.empty());
  const auto found =
      objects({"--prompt", "line 1", "--seed", "5", "--first-sample", std::to_string(kSteps), "--tokens",
               std::to_string(kSampleTokens), "--temperature", "0.9", "--top-k", "40"});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].at("text"), sample);
}

TEST_F(GenerateTest, ACheckpointIsNamedByItselfOrByItsRun) {
  const std::vector<std::string> arguments{"--prompt", "line 2", "--temperature", "0", "--tokens", "20"};
  const std::string newest = generate(arguments, "run").out;
  EXPECT_EQ(generate(arguments, "run/checkpoints").out, newest);
  EXPECT_EQ(generate(arguments, "run/checkpoints/step_00000120").out, newest);
  EXPECT_EQ(generate(arguments, "run/checkpoints/step_00000060").status, 0);
}

// Prompts of several lengths in slots: the same texts in any number of slots, and alone.
TEST_F(GenerateTest, ABatchWritesWhatEachWritesAlone) {
  std::ofstream(folder() / "prompts.txt") << "line 1\n\nthe text of a line that is longer \nx\r\n";
  const std::vector<std::string> arguments{"--prompts", "prompts.txt", "--samples",     "3",
                                           "--tokens",  "20",          "--top-p",       "0.95",
                                           "--seed",    "9",           "--temperature", "1.2"};
  const auto in_slots = [&](const char* batch) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--batch", batch});
    std::vector<json> found = objects(all);
    for (json& one : found) one.erase("seconds");
    return found;
  };
  const std::vector<json> together = in_slots("9");
  ASSERT_EQ(together.size(), 9u);
  EXPECT_EQ(in_slots("1"), together);
  EXPECT_EQ(in_slots("4"), together);
  EXPECT_EQ(together[3].at("prompt"), "the text of a line that is longer ");
  EXPECT_EQ(together[8].at("prompt"), "x");
  std::set<std::string> texts;
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(together[i].at("prompt_number"), i / 3);
    EXPECT_EQ(together[i].at("sample"), i % 3);
    texts.insert(together[i].at("text").get<std::string>());
  }
  EXPECT_GT(texts.size(), 7u);
  const auto alone = objects({"--prompt", "x", "--tokens", "20", "--top-p", "0.95", "--seed", "9",
                              "--temperature", "1.2", "--first-sample", "8"});
  EXPECT_EQ(alone.at(0).at("text"), together[8].at("text"));
  // As text they come one after another. Each prompt is read once, whatever its samples.
  const ProcessResult as_text = generate(arguments);
  EXPECT_NE(as_text.error.find("prompt   41 tokens in "), std::string::npos) << as_text.error;
  std::string wanted;
  for (const json& one : together)
    wanted += fmt::format("--- prompt {}, sample {} ---\n{}{}\n", one["prompt_number"].get<int>() + 1,
                          one["sample"].get<int>() + 1, one["prompt"].get<std::string>(),
                          one["text"].get<std::string>());
  EXPECT_EQ(as_text.out, wanted);
}

TEST_F(GenerateTest, SaysWhyATextEnded) {
  const auto ended = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--prompt", "line 3 of a ", "--temperature", "0"});
    return objects(arguments).at(0);
  };
  const json length = ended({"--tokens", "11"});
  EXPECT_EQ(length["ended"], "length");
  EXPECT_EQ(length["tokens"], 11);
  EXPECT_EQ(length["prompt_tokens"], 12);
  EXPECT_GT(length["seconds"], 0);
  const std::string whole = length["text"];
  const json full = ended({"--context", "20", "--tokens", "64"});
  EXPECT_EQ(full["ended"], "context full");
  EXPECT_EQ(full["tokens"], 9);  // 8 that the cache has room for, and one that is not read
  EXPECT_EQ(full["text"], whole.substr(0, 9));
  const std::string stop = whole.substr(4, 3);
  const json stopped = ended({"--stop", "\x01nowhere", "--stop", stop});
  EXPECT_EQ(stopped["ended"], "stop string");
  EXPECT_EQ(stopped["text"], whole.substr(0, whole.find(stop)));
}

TEST_F(GenerateTest, SaysThatATextWasCutOffByTheContext) {
  const auto told = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--prompt", "line 3 of a ", "--temperature", "0"});
    const ProcessResult result = generate(arguments);
    EXPECT_EQ(result.status, 0) << result.error;
    const size_t at = result.error.find("notice");
    return at == std::string::npos ? "" : result.error.substr(at, result.error.find('\n', at) - at);
  };
  EXPECT_EQ(told({"--tokens", "8"}), "");
  EXPECT_EQ(told({"--context", "20", "--tokens", "8"}), "");
  EXPECT_TRUE(says(told({"--context", "20", "--tokens", "64"}),
                   {"cut off", "context of 20 tokens", "--context", "160"}));
  EXPECT_TRUE(says(told({"--tokens", "160"}), {"cut off", "context of 160 tokens", "reads no more"}));
  EXPECT_TRUE(says(told({"--context", "20", "--tokens", "64", "--samples", "3", "--json"}),
                   {"3 of 3", "context of 20 tokens"}));
}

// The end of text is never the most probable token of this model, so its id is made to be that of a newline.
TEST_F(GenerateTest, EndsAtTheTokensThatTheFolderSays) {
  const auto copy = folder() / "with_end";
  std::filesystem::copy(folder() / "run/checkpoints/step_00000120", copy);
  std::filesystem::remove(copy / "checksums.json");
  std::filesystem::remove(copy / "state.json");
  std::ofstream(copy / "generation_config.json") << R"({"eos_token_id": [10, 3]})";
  const json found = objects({"--prompt", "line 3 of a text", "--temperature", "0"}, "with_end").at(0);
  EXPECT_EQ(found["ended"], "end of text");
  EXPECT_EQ(found["text"].get<std::string>().find('\n'), std::string::npos);
  EXPECT_EQ(found["tokens"], found["text"].get<std::string>().size());
}

TEST_F(GenerateTest, ReadsPromptsFromFilesAndStandardInput) {
  const std::string rest = "--json --tokens 2 ";
  const auto prompts = [&](const ProcessResult& result) {
    std::vector<std::string> found;
    for (const json& one : objects_of(result)) found.push_back(one["prompt"]);
    return found;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(prompts(in_shell("printf 'a\\nb\\n' | ", rest + "--prompt -")), Texts{"a\nb"});
  EXPECT_EQ(prompts(in_shell("printf 'a\\n\\nb' | ", rest + "--prompts -")), (Texts{"a", "b"}));
  EXPECT_EQ(prompts(in_shell("printf 'b' | ", rest + "--prompt a --prompts -")), (Texts{"a", "b"}));
  std::ofstream(folder() / "p.jsonl") << R"({"prompt": "one\ntwo", "id": 3})"
                                         "\n\n"
                                         R"({"prompt": "three"})";
  EXPECT_EQ(prompts(generate({"--json", "--tokens", "2", "--prompts", "p.jsonl"})),
            (Texts{"one\ntwo", "three"}));
  EXPECT_EQ(prompts(in_shell("cat p.jsonl | ", rest + "--prompts - --prompts-format jsonl")),
            (Texts{"one\ntwo", "three"}));
}

TEST_F(GenerateTest, RefusesWrongInputs) {
  const std::vector<std::string> fine{"--prompt", "x"};
  refused(fine, {"no folder nowhere", "checkpoint"}, "nowhere");
  refused(fine, {"text.txt is a file"}, "text.txt");
  std::filesystem::create_directories(folder() / "empty");
  refused(fine, {"empty has no config.json"}, "empty");
  std::filesystem::create_directories(folder() / "begun/checkpoints/step_00000001.unfinished");
  refused(fine, {"the run in begun", "no finished checkpoint"}, "begun");
  refused(fine, {"no finished checkpoint"}, "begun/checkpoints");
  refused(fine, {"being written"}, "begun/checkpoints/step_00000001.unfinished");
  refused({}, {"--prompt TEXT"});
  refused({"--prompt", std::string(161, 'x')}, {"--prompt has 161 tokens", "reads at most 160"});
  refused({"--prompt", "xxx", "--context", "2"}, {"--prompt has 3 tokens", "--context is 2", "up to 160"});
  refused({"--prompt", "x", "--context", "161"}, {"--context 161", "at most 160 tokens"});
  refused({"--prompt", "x", "--tokens", "161"}, {"--tokens 161", "at most 160 tokens"});
  refused({"--prompt", "x", "--tokens", "0"}, {"--tokens", "positive"});
  refused({"--prompt", "x", "--samples", "9223372036854775807"}, {"samples", "2147483647"});
  refused({"--prompt", "x", "--prompt", "y", "--first-sample", "2147483647"},
          {"--first-sample is 2147483647"});
  refused({"--prompt", "x", "--temperature", "-0.5"}, {"--temperature", "at least 0", "-0.5"});
  refused({"--prompt", "x", "--temperature", "nan"}, {"--temperature", "nan"});
  refused({"--prompt", "x", "--top-p", "0"}, {"--top-p", "above 0 and at most 1", "found 0"});
  refused({"--prompt", "x", "--min-p", "1.5"}, {"--min-p", "0 to 1", "found 1.5"});
  refused({"--prompt", "x", "--top-k", "-1"}, {"--top-k", "-1"});
  refused({"--prompt", "x", "--repetition-penalty", "0"}, {"--repetition-penalty", "above 0"});
  refused({"--prompt", "x", "--stop", ""}, {"--stop", "empty"});
  refused({"--prompts", "nothing.txt"}, {"nothing.txt"});
  std::ofstream(folder() / "blank.txt") << "\n\n";
  refused({"--prompts", "blank.txt"}, {"--prompts blank.txt has no prompt"});
  std::ofstream(folder() / "bad.jsonl") << "{\"prompt\": \"x\"}\n{\"text\": \"x\"}\n";
  refused({"--prompts", "bad.jsonl"}, {"bad.jsonl:2", "prompt"});
  std::ofstream(folder() / "cut.jsonl") << "{\"prompt\": \"x\"}\r\n{\"prompt\": \"y\"\r\n";
  refused({"--prompts", "cut.jsonl"}, {"cut.jsonl:2:15: not JSON"});
  refused({"--prompts", "."}, {"is a folder", "./*.txt"});
  refused({"--prompt", "-", "--prompts", "-"}, {"standard input"});
  refused({"--prompt", "x", "--system", "y"}, {"--system", "add --chat"});
  refused({"--chat", "--prompt", "x"}, {"--chat-template chatml", "./generate run --prompt TEXT"});
  refused({"--chat", "--chat-template", "llama3", "--prompt", "x"}, {"llama3", "special tokens"});
  refused({"--chat", "--chat-template", "chatml"}, {"standard input", "--prompt TEXT"});
  refused({"--prompt", "x", "--precision", "bf16"}, {"--precision bf16 needs a GPU"});
  refused({"--prompt", "x", "--device-memory", "1GiB"}, {"--plan"});
  refused({"--prompt", "x", "--tokenizer", "nowhere"}, {"nowhere"});
  refused({"--prompt", "x of", "--tokenizer", fixture("tokenizers/gpt2.json").string()},
          {"--prompt: the tokenizer bpe-", "has a vocabulary of 257", "--tokenizer"});
  refused({"--plan", "--json"}, {"--plan", "--json"});
  refused({"--chat", "--json"}, {"--json", "--prompt"});
  refused({"--promt", "x"}, {"did you mean --prompt"});
}

TEST_F(GenerateTest, RefusesADamagedCheckpoint) {
  std::filesystem::copy(folder() / "run/checkpoints/step_00000060", folder() / "damaged");
  std::fstream file(folder() / "damaged/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-8, std::ios::end);
  file << "damaged!";
  file.close();
  refused({"--prompt", "x"}, {"model.safetensors"}, "damaged");
}

// NaN in the weights: a checkpoint of another program has no checksum to find it by.
TEST_F(GenerateTest, FailsWhereTheLogitsAreNoNumbers) {
  std::filesystem::copy(folder() / "run/checkpoints/step_00000060", folder() / "nan");
  std::filesystem::remove(folder() / "nan/checksums.json");
  std::filesystem::remove(folder() / "nan/state.json");
  std::fstream file(folder() / "nan/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-64, std::ios::end);
  for (int i = 0; i < 64; ++i) file.put('\xff');
  file.close();
  const ProcessResult result = generate({"--prompt", "x"}, "nan");
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.error.find("not finite"), std::string::npos) << result.error;
}

TEST_F(GenerateTest, OutlivesItsReader) {
  const ProcessResult result = in_shell(
      "", "--prompt 'line 1' --samples 200 --tokens 150 | head -c 20 > /dev/null; exit ${PIPESTATUS[0]}");
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(result.error.find("error"), std::string::npos) << result.error;
}

// Nobody reads what it says beside the text.
TEST_F(GenerateTest, WritesItsTextWithoutStandardError) {
  const std::string wanted = text({"--prompt", "line 1", "--tokens", "9"});
  const ProcessResult full = in_shell("", "--prompt 'line 1' --tokens 9 2> /dev/full");
  EXPECT_EQ(full.status, 0);
  EXPECT_EQ(full.out, wanted);
  const ProcessResult gone = in_shell("(sleep 0.2; ", "--prompt 'line 1' --tokens 9) 2> >(true)");
  EXPECT_EQ(gone.status, 0);
  EXPECT_EQ(gone.out, wanted);
  EXPECT_EQ(in_shell("", "--prompts missing.txt 2> /dev/full").status, 1);
}

TEST_F(GenerateTest, AFullDiskIsAnError) {
  for (const char* rest : {"--prompt x --tokens 2", "--prompt x --tokens 2 --json", "--plan", "--help"}) {
    const ProcessResult result = in_shell("", rest + std::string(" > /dev/full"));
    EXPECT_EQ(result.status, 1) << rest;
    EXPECT_NE(result.error.find("error: cannot write to standard output"), std::string::npos)
        << rest << result.error;
  }
}

TEST_F(GenerateTest, ASignalEndsItWithWhatWasWritten) {
  for (const bool as_json : {false, true}) {
    std::vector<std::string> arguments{"run",    "--device", "cpu", "--prompt", "line 1", "--samples",
                                       "100000", "--tokens", "150", "--batch",  "2"};
    if (as_json) arguments.emplace_back("--json");
    Process process(GENERATE_BINARY, arguments, {.folder = folder()});
    const auto out = std::filesystem::absolute(folder()).string() + "_stdout";
    ASSERT_TRUE(wait_until([&] {  // until it writes
      std::error_code error;
      return std::filesystem::file_size(out, error) > 500 && !error;
    }));
    process.signal(SIGINT);
    const ProcessResult result = process.finish();
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_TRUE(result.out.ends_with("\n"));
    EXPECT_NE(result.error.find("text     "), std::string::npos) << result.error;
    if (!as_json) continue;
    const std::vector<json> found = objects_of(result);
    ASSERT_GT(found.size(), 2u);
    EXPECT_EQ(found.back()["ended"], "interrupted");
    EXPECT_EQ(found.front()["ended"], "length");
  }
}

TEST_F(GenerateTest, PlansItsMemory) {
  const ProcessResult result = generate({"--plan", "--samples", "4", "--context", "32"});
  EXPECT_EQ(result.status, 0) << result.error;
  // 2 layers of keys and values, 32 channels of 4 bytes
  for (const char* part : {"cache    4 texts of up to 32 tokens: 64.0 KiB, 512 B a token", "fits?    yes",
                           "longest  --context 160, the model's, fits with 4 texts"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  const ProcessResult no = generate({"--plan", "--samples", "4", "--device-memory", "100KiB"});
  EXPECT_EQ(no.status, 2) << no.out;
  EXPECT_NE(no.out.find("fits?    no"), std::string::npos) << no.out;
  // Of a model that is not downloaded yet: neither weights nor a tokenizer
  std::filesystem::create_directories(folder() / "bare");
  json config = json::parse(std::ifstream(folder() / "run/checkpoints/step_00000060/config.json"));
  config["vocab_size"] = 300;
  std::ofstream(folder() / "bare/config.json") << config;
  EXPECT_EQ(generate({"--plan", "--chat"}, "bare").status, 0);
  const ProcessResult gpu = run_process(
      GENERATE_BINARY, {"run", "--plan", "--arch", "90", "--device-memory", "80GiB"}, {.folder = folder()});
  EXPECT_EQ(gpu.status, 0) << gpu.error;
  EXPECT_NE(gpu.out.find("compute capability 9.0"), std::string::npos) << gpu.out;
  EXPECT_NE(gpu.out.find("256 B a token"), std::string::npos) << gpu.out;  // bf16
}

// A conversation on a terminal. Its tokens are bytes, so its whole text can be given as a prompt, too: the
// answers must be the same as without the turns kept.
TEST_F(GenerateTest, AConversationKeepsItsTurns) {
  const auto chat = [&](const std::vector<std::string>& more, const std::vector<std::string>& messages) {
    std::vector<std::string> arguments{"run",    "--device",      "cpu", "--chat", "--chat-template",
                                       "chatml", "--temperature", "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    size_t answered = 0, searched = 0;
    return Terminal{.folder = folder()}.run(
        GENERATE_BINARY, arguments, [&](const std::string& seen, int terminal) {
          const size_t asks = seen.find("> ", searched);
          if (asks == seen.npos) return;
          searched = asks + 2;
          const std::string line = answered < messages.size() ? messages[answered] + "\n" : "\x04";
          ++answered;
          EXPECT_EQ(write(terminal, line.data(), line.size()), static_cast<ssize_t>(line.size()));
        });
  };
  const auto answer_to = [&](const std::string& prompt) {
    return objects({"--prompt", prompt, "--temperature", "0", "--tokens", "5", "--stop", "<|im_end|>"})
        .at(0)["text"]
        .get<std::string>();
  };
  // 51 bytes, an answer of 5, 66 bytes, an answer: a third message does not fit 160 tokens.
  const std::string opening = "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n";
  const std::string again = "<|im_start|>user\nagain<|im_end|>\n<|im_start|>assistant\n";
  const std::string first = answer_to(opening), second = answer_to(opening + first + "<|im_end|>\n" + again),
                    third = answer_to(again);
  ASSERT_NE(second, third);
  const TerminalResult result = chat({"--tokens", "5"}, {"?", "again", "again"});
  EXPECT_EQ(result.status, 0) << result.output;
  const size_t at_first = result.output.find("> ?\r\n" + first + "\r\n"),
               at_second = result.output.find("> again\r\n" + second + "\r\n"),
               at_notice = result.output.find("the conversation begins anew\r\n" + third + "\r\n");
  EXPECT_LT(at_first, at_second) << result.output;
  EXPECT_LT(at_second, at_notice) << result.output;
  EXPECT_NE(at_notice, std::string::npos) << result.output;
  EXPECT_NE(chat({}, {std::string(120, 'x')}).output.find("no room"), std::string::npos);
  EXPECT_TRUE(says(chat({"--stop", "nowhere"}, {"?"}).output, {"cut off", "160 tokens", "new conversation"}));
}

TEST_F(GenerateTest, APromptOfChatIsAMessage) {
  const auto found = objects(
      {"--chat", "--chat-template", "chatml", "--prompt", "?", "--temperature", "0", "--tokens", "5"});
  const auto same = objects({"--prompt", "<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n",
                             "--temperature", "0", "--tokens", "5"});
  EXPECT_EQ(found.at(0)["text"], same.at(0)["text"]);
  EXPECT_EQ(found.at(0)["prompt"], "?");
  EXPECT_EQ(found.at(0)["prompt_tokens"], 51);
}

// An answer to a prompt is as long as any continuation, whatever is beside it.
TEST_F(GenerateTest, APromptOfChatHasAnAnswerOf256Tokens) {
  const ProcessResult trained =
      run_process(TRAIN_BINARY,
                  {"--config", "small.yaml", "--set", "model.context=512", "--set",
                   "train.sequence_length=160", "--set", "train.steps=1", "--set", "train.folder=wide"},
                  {.folder = folder()});
  ASSERT_EQ(trained.status, 0) << trained.error;
  const auto found = objects({"--chat", "--chat-template", "chatml", "--prompt", "?", "--prompt",
                              std::string(100, 'x'), "--temperature", "0"},
                             "wide");
  for (const json& one : found) {
    EXPECT_EQ(one["tokens"], 256) << one;
    EXPECT_EQ(one["ended"], "length");
  }
}

// Another process replaces the checkpoints all the time, as a run with checkpoint.keep=1 does.
TEST_F(GenerateTest, ReadsARunThatReplacesItsCheckpoints) {
  const std::filesystem::path checkpoints = folder() / "replaced/checkpoints";
  std::filesystem::create_directories(checkpoints);
  const std::string unfinished = (checkpoints / "step_00000002.unfinished").string();
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    while (!stop) {
      std::filesystem::copy(folder() / "run/checkpoints/step_00000060", unfinished);
      std::filesystem::rename(unfinished, checkpoints / "step_00000002");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::filesystem::rename(checkpoints / "step_00000002", unfinished);
      std::filesystem::remove_all(unfinished);
    }
  });
  for (int i = 0; i < 30; ++i) {
    const ProcessResult result = generate({"--prompt", "x", "--tokens", "1"}, "replaced");
    if (result.status == 0) continue;
    EXPECT_EQ(result.status, 1);
    EXPECT_TRUE(result.error.find("was removed while") != std::string::npos ||
                result.error.find("no finished checkpoint") != std::string::npos)
        << result.error;
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace tessera::testing
