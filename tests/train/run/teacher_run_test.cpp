// Runs with a teacher whose largest logits are stored beside the data, what is refused of stale ones, and
// runs whose samples have weights.
#include <algorithm>

#include "tests/tolerances.h"
#include "tests/train_ranks.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct TeacherRun : TrainRanks {
  TeacherRun() {
    write_samples(40);
    prepare();
    make_model("teacher", 5);
    make_model("other", 6);
  }

  // Completions of 1 to 44 tokens: some are longer than a sequence
  void write_samples(int count, const std::function<nlohmann::json(int)>& weight = {}) const {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      nlohmann::json line{
          {"prompt", std::string(static_cast<size_t>(1 + i % 5), static_cast<char>('a' + i % 7))},
          {"completion", std::string(static_cast<size_t>(i * i % 43), static_cast<char>('k' + i % 3)) + "."}};
      if (weight) line["weight"] = weight(i);
      lines += line.dump() + "\n";
    }
    write("mine.jsonl", lines);
  }
  void prepare() const { prepare_lines("mine.jsonl", "mine"); }

  static Words mine(const Words& more = {}) {
    return with({"data.train=mine", "data.documents=mask", "data.validation_fraction=0.2", "train.steps=6",
                 "train.tokens_per_step=192", "train.distillation.cross_entropy=0.25", "evaluation.every=3",
                 "sampling.every=0", "checkpoint.every=3"},
                more);
  }
  static Words taught(const Words& more = {}) {
    return with(mine({"train.distillation.temperature=2", "train.distillation.reverse=0.5"}), more);
  }
  static Words stored(int K, const Words& more = {}) {
    return with(taught({fmt::format("train.teacher_logits={}", K)}), more);
  }

  ProcessResult logits(int K, const Words& more = {}) const {
    return run_process(EVALUATE_BINARY,
                       with({"teacher", "--data", "mine", "--teacher-logits", std::to_string(K),
                             "--temperature", "2", "--device", "cpu"},
                            more),
                       {.folder = folder});
  }
  void store(int K, const Words& more = {}) const {
    const ProcessResult result = logits(K, more);
    ASSERT_EQ(result.status, 0) << result.error;
  }
  std::string file() const { return read_file(folder / "mine/teacher.logits"); }

  void expect_near(const std::string& run, const std::string& other) const {
    for (const char* key : {"loss", "grad_norm", "validation_loss"}) {
      const std::vector<double> ours = values(run, key), theirs = values(other, key);
      ASSERT_EQ(ours.size(), theirs.size());
      ASSERT_FALSE(ours.empty());
      for (size_t i = 0; i < ours.size(); ++i)
        EXPECT_NEAR(ours[i], theirs[i], tolerance::kLossesOfRanks * std::abs(theirs[i]))
            << run << ", " << key << ", number " << i + 1;
    }
  }
};

TEST_F(TeacherRun, AllStoredLogitsAreTheTeacherInMemory) {
  trains(by(1, "computed", taught({"train.teacher=teacher"})));
  refused(sets(stored(257)),
          {"mine/teacher.logits does not exist", "./evaluate TEACHER --data mine --teacher-logits"});
  const ProcessResult result = logits(257, {"--json", "figures.json"});
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_NE(result.out.find("mine/teacher.logits"), std::string::npos) << result.out;
  const auto figures = nlohmann::json::parse(read_file(folder / "figures.json"));
  EXPECT_EQ(figures["bytes"], fs::file_size(folder / "mine/teacher.logits"));
  trains(by(1, "all", stored(257)));
  expect_near("all", "computed");
  trains(by(1, "named", stored(257, {"train.teacher=teacher"})));
  trains(by(3, "three", stored(257)));
  trains(by(2, "split", stored(257, {"parallel.shard=weights", "train.micro_batch=1"})));
  trains(by(1, "small", stored(257, {"train.micro_batch=1", "train.classifier_chunk=7"})));
  trains(by(2, "shared", stored(257, {"parallel.context=2"})));
  trains(by(4, "both", taught({"train.teacher=teacher", "parallel.context=2", "parallel.shard=weights"})));
  for (const char* run : {"named", "three", "split", "small", "shared", "both"}) expect_near(run, "all");
  const std::string one = file();
  store(257, {"--ranks", "2", "--batch", "3"});
  EXPECT_EQ(file(), one);
  prepare();  // a prepared folder with such a file can be made again
  EXPECT_FALSE(fs::exists(folder / "mine/teacher.logits"));
  // A few logits are nearly as good, and take a 20th of the room.
  store(12);
  EXPECT_LT(file().size(), one.size() / 15);
  trains(by(1, "few", stored(12)));
  EXPECT_LT(values("few", "loss").back(), values("few", "loss").front());
}

TEST_F(TeacherRun, StaleLogitsAreRefused) {
  store(8);
  refused(sets(stored(8, {"train.teacher=other"})),
          {"were computed by teacher", "train.teacher, other, has", "./evaluate other --data mine"});
  refused(sets(stored(9)), {"has 8 logits of each token", "train.teacher_logits=8", "--teacher-logits 9"});
  refused(sets(stored(8, {"train.distillation.temperature=1"})),
          {"at the temperature 2", "train.distillation.temperature is 1", "--temperature 1"});
  refused(sets(stored(8, {"train.sequence_length=16"})),
          {"tokens", "is of sequences of 32", "those of 16", "--sequence-length 16"});
  refused(sets(stored(8, {"train.loss=orpo"})), {"train.teacher_logits", "train.loss"});
  refused(sets(stored(8, {"data.documents=join"})), {"train.teacher_logits", "data.documents=mask"});
  fs::copy_file(folder / "mine/teacher.logits", folder / "kept");
  write_samples(41);
  prepare();
  fs::copy_file(folder / "kept", folder / "mine/teacher.logits");
  refused(sets(stored(8)), {"was computed on other data than mine now holds"});
  store(8);
  std::string bytes = file();
  bytes[bytes.size() - 3] ^= 1;
  write("mine/teacher.logits", bytes);
  refused(sets(stored(8)), {"mine/teacher.logits is damaged", "checksum"});
  write("mine/teacher.logits", bytes.substr(0, bytes.size() - 1));
  refused(sets(stored(8)), {"mine/teacher.logits is damaged", "records"});
  write("mine/teacher.logits", "tesslogp");
  refused(sets(stored(8)), {"it does not begin with \"tesslogi\""});
  const auto fails = [&](const Words& words, const Words& parts) {
    const ProcessResult run = run_process(EVALUATE_BINARY, with({"teacher"}, words), {.folder = folder});
    EXPECT_EQ(run.status, 1);
    for (const std::string& part : parts) EXPECT_NE(run.error.find(part), std::string::npos) << run.error;
  };
  fails({"--teacher-logits", "8"}, {"--data PATH"});
  fails({"--data", "mine", "--teacher-logits", "300"}, {"the vocabulary of the model has 257 tokens"});
  fails({"--data", "mine", "--temperature", "2"}, {"--teacher-logits K"});
  EXPECT_FALSE(fs::exists(folder / "mine/teacher.logits.tmp"));
}

// A teacher that reads other ids than those of the data
TEST_F(TeacherRun, AnotherTokenizerIsRefusedByName) {
  fs::copy_file(std::string(TESSERA_SOURCE_DIR) + "/tests/fixtures/tokenizers/gpt2.json",
                folder / "other/tokenizer.json");
  refused(sets(taught({"train.teacher=other"})),
          {"mine, is encoded by the tokenizer `bytes` (257 ids)",
           "train.teacher, other, has the tokenizer `bpe-", "./prepare --tokenizer other"});
}

TEST_F(TeacherRun, AResumedRunHasTheSameLogits) {
  store(8);
  trains(by(1, "whole", stored(8, {"train.teacher=teacher"})));
  trains(by(1, "out", stored(8, {"train.teacher=teacher"})));
  fs::remove_all(folder / "out/checkpoints/step_00000006");
  fs::rename(folder / "teacher", folder / "gone");  // which is not needed then
  trains(with(by(1, "out", stored(8, {"train.teacher=teacher"})), {"--resume"}));
  EXPECT_EQ(values("out", "loss"), values("whole", "loss"));
  fs::remove_all(folder / "out/checkpoints/step_00000006");
  fs::rename(folder / "other", folder / "teacher");
  store(8);
  refused(with(by(1, "out", stored(8)), {"--resume"}), {"step_00000003", "other weights of the teacher"});
}

// A weight of a sample is a share of the loss: all alike are none, and 0 is as good as leaving it out.
TEST_F(TeacherRun, SamplesHaveWeights) {
  trains(by(1, "plain", mine()));
  write_samples(40, [](int) { return 0.5; });
  prepare();
  trains(by(1, "alike", mine()));
  expect_near("alike", "plain");
  write_samples(40,
                [](int i) { return i % 3 == 0 ? nlohmann::json(0.25 * (i % 7 + 1)) : nlohmann::json(1); });
  prepare();
  trains(by(1, "one", mine()));
  EXPECT_NE(values("one", "loss"), values("plain", "loss"));
  trains(by(3, "three", mine()));
  trains(by(2, "split", mine({"parallel.shard=weights", "train.micro_batch=1"})));
  trains(by(1, "small", mine({"train.micro_batch=1", "train.classifier_chunk=7"})));
  trains(by(2, "shared", mine({"parallel.context=2"})));
  trains(by(4, "both", mine({"parallel.context=2", "parallel.shard=weights", "train.micro_batch=1"})));
  for (const char* run : {"three", "split", "small", "shared", "both"}) expect_near(run, "one");
  refused(sets(mine({"data.documents=join"})), {"mine has samples with weights", "data.documents=mask"});
}

// Weights take 4 bytes a token, which a plan knows from the data: it is what the run then has, to the byte.
TEST_F(TeacherRun, APlanCountsTheWeightsOfItsData) {
  const auto planned = [&](const Words& more) {
    const ProcessResult plan =
        train(with({"--plan", "--json", "plan.json"}, with(sets(mine({"train.micro_batch=2"})), more)));
    EXPECT_EQ(plan.status, 0) << plan.error;
    return nlohmann::json::parse(read_file(folder / "plan.json"));
  };
  const auto plain = planned({});
  write_samples(40, [](int i) { return 0.25 * (i % 7 + 1); });
  prepare();
  const auto weighted = planned({});
  EXPECT_EQ(weighted["peak_bytes"].get<int64_t>() - plain["peak_bytes"].get<int64_t>(), 4 * 192);
  trains(by(1, "out", mine({"train.micro_batch=2"})));
  std::istringstream lines(read_file(folder / "out/metrics.jsonl"));
  std::string found;
  for (std::string line; std::getline(lines, line);)
    if (const auto json = nlohmann::json::parse(line); json.contains("bytes_by_tag"))
      found = json["bytes_by_tag"].dump();
  EXPECT_EQ(found, weighted["bytes_by_tag"].dump());
  // The search for what fits counts them too: the largest that fits does so by its plan.
  const auto fit = planned({"--fit", "batch", "--device-memory", "8MiB"});
  EXPECT_EQ(fit["fits"], true);
}

// The sequences in its folder have the weights that they had.
TEST_F(TeacherRun, ABadStepOfWeightedSamplesIsReplayed) {
  write_samples(40, [](int i) { return 0.25 * (i % 7 + 1); });
  prepare();
  const ProcessResult run = train(by(1, "out", mine({"optimizer.learning_rate=1e30"})));
  EXPECT_EQ(run.status, 1) << run.out;
  std::string bad;
  for (const auto& one : fs::directory_iterator(folder / "out"))
    if (one.path().filename().string().starts_with("bad_step_")) bad = one.path().filename().string();
  ASSERT_NE(bad, "") << run.error;
  EXPECT_EQ(fs::file_size(folder / "out" / bad / "batch.bin"), 5u * 4 * 192);
  const ProcessResult again = run_process(TRAIN_BINARY, {"--replay", "out/" + bad}, {.folder = folder});
  EXPECT_NE((again.out + again.error).find("the step is bad again"), std::string::npos)
      << again.out << again.error;
}

}  // namespace
}  // namespace tessera::testing
