// Runs on packed documents and on several sources: what they print, refuse, and resume into.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/base/checksum.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct PackedRun : TrainProgram {
  PackedRun()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 32\n  layers: 1\n  heads: 2\n  channels: 16\n"
            "data:\n  train: poems\n  documents: mask\n"
            "train:\n  folder: out\n  steps: 24\n  tokens_per_step: 128\n  micro_batch: 2\n"
            "optimizer:\n  learning_rate: 1e-2\n  min_learning_rate: 1e-3\n  warmup_steps: 2\n"
            "evaluation:\n  every: 8\n  sequences: 4\nsampling:\n  every: 0\n"
            "checkpoint:\n  every: 4\n  keep: 0\n") {
    prepare("poems", 60, 3);
    prepare("notes", 90, 5);
  }

  // Documents of 4 to 67 bytes, some longer than a sequence
  void prepare(const std::string& name, int documents, int factor) const {
    std::string lines;
    for (int i = 0; i < documents; ++i) {
      std::string text = fmt::format("{} {} ", name, i);
      while (static_cast<int>(text.size()) < 4 + factor * i * 7 % 64) text += static_cast<char>('a' + i % 26);
      lines += fmt::format("{{\"text\": \"{}\"}}\n", text);
    }
    write(name + ".jsonl", lines);
    const auto result =
        run_process(PREPARE_BINARY, {name + ".jsonl", "--output", name, "--force"}, {.folder = folder});
    ASSERT_EQ(result.status, 0) << result.error;
  }

  std::string trains(const std::vector<std::string>& settings, bool resume = false) const {
    const ProcessResult result = train(switches(settings, resume));
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    return result.out;
  }
  static std::vector<std::string> switches(const std::vector<std::string>& settings, bool resume = false) {
    std::vector<std::string> arguments;
    if (resume) arguments.push_back("--resume");
    for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
    return arguments;
  }
  static void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
    for (const char* part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
  }
  // As if the run had been killed after the checkpoint of `step`
  void kill_after(int64_t step) const {
    for (int64_t later = step + 4; later <= 24; later += 4)
      fs::remove_all(folder / fmt::format("out/checkpoints/step_{:08}", later));
  }
};

TEST_F(PackedRun, TellsOfItsDocumentsAndResumesIntoTheSameSequences) {
  const std::string out = trains({"train.folder=whole"});
  expect_parts(out, {"sequences of 32 tokens", "held out, of", "documents", "% padding", "are cut"});
  trains({});
  for (const int64_t step : {20, 12, 4}) {  // in the first epoch and in later ones
    kill_after(step);
    trains({}, true);
    EXPECT_EQ(losses("out"), losses("whole")) << step;
  }
  trains({"train.folder=joined", "data.documents=join"});
  EXPECT_NE(losses("joined"), losses("whole"));
}

TEST_F(PackedRun, RefusesAnotherPackingAtResume) {
  trains({});
  const auto refuses = [&](const std::vector<std::string>& settings,
                           std::initializer_list<const char*> parts) {
    std::vector<std::string> all = settings;
    all.push_back("train.steps=28");
    refused(switches(all, true), parts);
  };
  refuses({"data.documents=join"}, {"data.documents mask", "has join", "order of the data"});
  refuses({"train.seed=1"}, {"train.seed"});
  refuses({"train.sequence_length=16"}, {"32 tokens", "has 16"});
  refuses({"data.train=notes"}, {"other data", "data.train=notes"});
  refuses({"data.train={poems: 1, notes: 1}"}, {"1 sources, poems", "2, poems (1), notes (1)"});
  refuses({"data.validation_fraction=0.3"}, {"held out"});
  // The same tokens, and documents that begin elsewhere: the second one, a token earlier
  const fs::path manifest = folder / "poems/dataset.json";
  auto dataset = nlohmann::json::parse(read_file(manifest));
  std::string index = read_file(folder / "poems/train_000000.documents");
  index[48 + 4] = static_cast<char>(index[48 + 4] - 1);
  write("poems/train_000000.documents", index);
  dataset["files"]["train_000000.documents"]["xxh3_128"] = checksum_of(std::as_bytes(std::span(index)));
  write("poems/dataset.json", dataset.dump());
  refuses({}, {"other data", "data.train=poems", "documents begin"});
}

TEST_F(PackedRun, NeedsDocuments) {
  refused(switches({"data.train=text.txt"}),
          {"text.txt", "documents begin", "./prepare", "data.documents=join"});
  refused(switches({"data.validation=text.txt"}), {"text.txt", "documents begin"});
  write("old.bin", shard_bytes(std::vector<uint32_t>(1000, 7)));
  refused(switches({"data.train=old.bin"}), {"old.bin", "documents begin"});
  prepare("one", 1, 1);
  refused(switches({"data.train=one"}), {"one document", "data.validation"});
  trains({"data.train=poems", "data.validation=notes"});
}

TEST_F(PackedRun, OfSeveralSourcesResumesAndNamesAChangedWeight) {
  const std::vector<std::string> mixed = {"data.train={poems: 0.75, notes: 0.25}"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), mixed.begin(), mixed.end());
    return more;
  };
  for (const char* documents : {"mask", "join"}) {
    SCOPED_TRACE(documents);
    const std::string how = fmt::format("data.documents={}", documents),
                      whole = fmt::format("whole_{}", documents);
    const std::string out = trains(with({how, "train.folder=" + whole}));
    expect_parts(out, {"poems: ", "notes: ", "75% of the run's", "25% of the run's", "2 sources: "});
    trains(with({how}));
    kill_after(8);
    expect_parts(trains(with({how}), true), {"resumed from out/checkpoints/step_00000008"});
    EXPECT_EQ(losses("out"), losses(whole));
    const std::string longer = "train.steps=28";
    refused(switches({how, longer, "data.train={poems: 0.5, notes: 0.25}"}, true),
            {"weight 0.75 of poems", "has 0.5", "order of the data"});
    refused(switches({how, longer, "data.train={notes: 0.25, poems: 0.75}"}, true), {"weight 0.75 of notes"});
    refused(switches({how, longer, "data.train=poems"}, true), {"2 sources", "has 1, poems"});
    fs::remove_all(folder / "out");
  }
}

TEST_F(PackedRun, SourcesAreOfOneTokenizer) {
  const std::string tokenizer = std::string(TESSERA_SOURCE_DIR) + "/tests/fixtures/tokenizers/gpt2.json";
  const auto result = run_process(
      PREPARE_BINARY, {"notes.jsonl", "--tokenizer", tokenizer, "--output", "bpe"}, {.folder = folder});
  ASSERT_EQ(result.status, 0) << result.error;
  refused(switches({"data.train={poems: 1, bpe: 1}", "model.vocab_size=704"}),
          {"poems", "`bytes`", "`bpe-", "./prepare"});
  write("plain.bin", shard_bytes(std::vector<uint32_t>(1000, 7)));
  expect_parts(trains({"data.train={poems: 1, plain.bin: 1}", "data.documents=join"}),
               {"plain.bin", "not known", "the same"});
}

}  // namespace
}  // namespace tessera::testing
