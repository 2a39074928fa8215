// Runs on pairs: a reference whose log-probabilities are stored beside the data, what is refused of one that
// is stale, what a resumed run must have, and ranks with unequal numbers of pairs and tokens.
#include <algorithm>
#include <set>
#include <sstream>

#include "tests/browser.h"
#include "tests/tolerances.h"
#include "tests/train_ranks.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct PreferenceRun : TrainRanks {
  PreferenceRun() {
    std::string lines;
    for (int i = 0; i < 60; ++i) {
      const std::string prompt(static_cast<size_t>(1 + i % 5), static_cast<char>('a' + i % 7)),
          answer(static_cast<size_t>(i % 4), static_cast<char>('k' + i % 3));
      lines +=
          nlohmann::json{{"prompt", prompt}, {"chosen", answer + "!"}, {"rejected", "." + answer}}.dump() +
          "\n";
    }
    write("pairs.jsonl", lines);
    prepare("pairs");
    make_model("base", 5);
    make_model("other", 6);
  }

  void prepare(const std::string& to) const { prepare_lines("pairs.jsonl", to); }

  static Words pairs(const Words& more = {}) {
    return with({"train.init_from=base", "train.loss=dpo", "data.train=pairs", "data.documents=mask",
                 "data.validation_fraction=0.2", "train.steps=6", "train.tokens_per_step=96",
                 "train.preference.beta=0.5", "evaluation.every=3", "sampling.every=0", "checkpoint.every=3"},
                more);
  }

  ProcessResult log_probs(const Words& more = {}) const {
    return run_process(EVALUATE_BINARY,
                       with({"base", "--data", "pairs", "--log-probs", "--device", "cpu"}, more),
                       {.folder = folder});
  }
  void store_log_probs(const Words& more = {}) const {
    const ProcessResult result = log_probs(more);
    ASSERT_EQ(result.status, 0) << result.error;
  }

  void expect_near(const std::vector<double>& ours, const std::vector<double>& theirs) const {
    ASSERT_EQ(ours.size(), theirs.size());
    ASSERT_FALSE(ours.empty());
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_NEAR(ours[i], theirs[i], tolerance::kLossesOfRanks * std::abs(theirs[i])) << "number " << i + 1;
  }
};

TEST_F(PreferenceRun, AStoredReferenceIsTheComputedOne) {
  trains(by(1, "computed", pairs()));
  refused(sets(pairs({"train.stored_reference=true"})),
          {"pairs/reference.log_probs does not exist", "./evaluate MODEL --data pairs --log-probs"});
  const ProcessResult result = log_probs({"--json", "figures.json"});
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_NE(result.out.find("60 pairs"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("pairs/reference.log_probs"), std::string::npos) << result.out;
  const auto figures = nlohmann::json::parse(read_file(folder / "figures.json"));
  EXPECT_EQ(figures["pairs"], 60);
  EXPECT_LT(figures["logp_chosen"], 0);
  trains(by(1, "stored", pairs({"train.stored_reference=true"})));
  for (const char* key : {"loss", "grad_norm", "validation_loss"})
    expect_near(values("stored", key), values("computed", key));
  EXPECT_NEAR(values("stored", "validation_loss")[0], std::log(2.0), 1e-6);
  EXPECT_LT(values("stored", "loss").back(), values("stored", "loss").front());
  // With adapters, the reference is the model without them: the same file
  const Words lora{"train.lora.rank=4"};
  trains(by(1, "lora", pairs(lora)));
  trains(by(1, "lora_stored", pairs(with(lora, {"train.stored_reference=true"}))));
  expect_near(values("lora_stored", "loss"), values("lora", "loss"));
  // and two ranks find the same numbers
  const std::string one = read_file(folder / "pairs/reference.log_probs");
  store_log_probs({"--ranks", "2"});
  EXPECT_EQ(read_file(folder / "pairs/reference.log_probs"), one);
  prepare("pairs");  // a prepared folder with such a file can be made again
  EXPECT_FALSE(fs::exists(folder / "pairs/reference.log_probs"));
}

TEST_F(PreferenceRun, AStaleReferenceIsRefused) {
  const Words stored = pairs({"train.stored_reference=true"});
  store_log_probs();
  refused(sets(with(stored, {"train.reference=other"})),
          {"were computed by base", "the reference other has", "./evaluate other --data pairs --log-probs"});
  refused(sets(with(stored, {"train.sequence_length=16", "train.tokens_per_step=96"})),
          {"tokens that count in sequences of 16", "--sequence-length 16"});
  refused(sets(with(stored, {"train.loss=orpo"})), {"train.stored_reference", "only dpo, ipo and kto"});
  // Other pairs, with the file of these
  fs::copy_file(folder / "pairs/reference.log_probs", folder / "kept");
  write("pairs.jsonl",
        read_file(folder / "pairs.jsonl") + R"({"prompt":"x","chosen":"y","rejected":"z"})" + "\n");
  prepare("pairs");
  fs::copy_file(folder / "kept", folder / "pairs/reference.log_probs");
  refused(sets(stored), {"was computed on other data than pairs now holds", "./evaluate MODEL --data pairs"});
  store_log_probs();
  std::string bytes = read_file(folder / "pairs/reference.log_probs");
  bytes[bytes.size() - 4 * 122 - 3] ^= 1;
  write("pairs/reference.log_probs", bytes);
  refused(sets(stored), {"pairs/reference.log_probs is damaged", "checksum"});
  write("pairs/reference.log_probs", bytes.substr(0, bytes.size() - 1));
  refused(sets(stored), {"pairs/reference.log_probs is damaged", "122 documents"});
  write("pairs/reference.log_probs", "tessdocs");
  refused(sets(stored), {"it does not begin with \"tesslogp\""});
  const ProcessResult run =
      run_process(EVALUATE_BINARY, {"base", "--data", "text.txt", "--log-probs"}, {.folder = folder});
  EXPECT_EQ(run.status, 1);
  EXPECT_NE(run.error.find("--log-probs"), std::string::npos) << run.error;
}

TEST_F(PreferenceRun, AResumedRunHasTheSameReference) {
  const auto resumes = [&](const std::string& run, const Words& settings) {
    return by(1, run, pairs(settings));
  };
  trains(by(1, "out", pairs({"train.steps=3"})));
  const Words on = with(resumes("out", {}), {"--resume"});
  refused(with(resumes("out", {"train.reference=other"}), {"--resume"}),
          {"step_00000003", "other weights of the reference", "train.init_from="});
  refused(with(resumes("out", {"train.init_from=other"}), {"--resume"}), {"other weights of the reference"});
  const ProcessResult said =
      train(with(resumes("out", {"train.preference.beta=0.25", "train.loss=ipo"}), {"--resume"}));
  EXPECT_EQ(said.status, 0) << said.error;
  EXPECT_NE(said.out.find("changed: train.loss: dpo, now ipo"), std::string::npos) << said.out;
  EXPECT_NE(said.out.find("changed: train.preference.beta: 0.5, now 0.25"), std::string::npos) << said.out;
  // A stored reference needs no folder of the model then
  store_log_probs();
  trains(by(1, "whole", pairs({"train.stored_reference=true"})));
  trains(by(1, "stored", pairs({"train.stored_reference=true"})));
  for (const char* step : {"step_00000006"}) fs::remove_all(folder / "stored/checkpoints" / step);
  fs::rename(folder / "base", folder / "gone");
  trains(with(resumes("stored", {"train.stored_reference=true"}), {"--resume"}));
  EXPECT_EQ(values("stored", "loss"), values("whole", "loss"));
}

TEST_F(PreferenceRun, ThreeRanksWithUnequalPairsHaveTheLossesOfOne) {
  store_log_probs();
  for (const bool stored : {false, true}) {
    const Words settings{stored ? "train.stored_reference=true" : "train.stored_reference=false",
                         "train.preference.cross_entropy=0.2"};
    const std::string kind = stored ? "stored" : "computed";
    trains(by(1, "one_" + kind, pairs(settings)));
    trains(by(3, "three_" + kind, pairs(settings)));
    trains(by(3, "split_" + kind, pairs(with(settings, {"parallel.shard=weights", "train.micro_batch=1"}))));
    trains(by(2, "shared_" + kind, pairs(with(settings, {"parallel.context=2"}))));
    trains(
        by(6, "both_" + kind,
           pairs(with(settings, {"parallel.context=2", "parallel.shard=weights", "train.micro_batch=1"}))));
    for (const std::string& run : {"three_" + kind, "split_" + kind, "shared_" + kind, "both_" + kind})
      for (const char* key : {"loss", "grad_norm", "validation_loss"})
        expect_near(values(run, key), values("one_" + kind, key));
  }
}

// The folder of a bad step has what a loss of pairs reads, and the reference is where it was.
TEST_F(PreferenceRun, ABadStepIsReplayed) {
  store_log_probs();
  for (const char* stored : {"false", "true"}) {
    const std::string run = std::string("bad_") + stored;
    const ProcessResult stopped = train(
        by(1, run, pairs({"optimizer.learning_rate=1e30", std::string("train.stored_reference=") + stored})));
    EXPECT_EQ(stopped.status, 1) << stopped.out;
    std::string bad;
    for (const auto& one : fs::directory_iterator(folder / run))
      if (const std::string name = one.path().filename().string(); name.starts_with("bad_step_")) bad = name;
    ASSERT_NE(bad, "") << stopped.error;
    const ProcessResult again = run_process(TRAIN_BINARY, {"--replay", run + "/" + bad}, {.folder = folder});
    EXPECT_NE((again.out + again.error).find("the step is bad again"), std::string::npos)
        << again.out << again.error;
  }
}

// ./prove on a run of pairs: packed = one by one, micro-batches of one, a checkpoint, two ranks
TEST_F(PreferenceRun, IsProven) {
  const auto proves = [&](const std::string& run) {
    const ProcessResult result = run_process(
        PROVE_BINARY, {run, "--device", "cpu", "--ranks", "2", "--sequences", "4", "--json", "proofs.json"},
        {.folder = folder});
    EXPECT_EQ(result.status, 0) << run << "\n" << result.out << result.error;
    EXPECT_NE(result.out.find("pairs, packed against each in a sequence of its own"), std::string::npos)
        << result.out;
    std::set<std::string> proven;
    const auto found = nlohmann::json::parse(read_file(folder / "proofs.json"));
    for (const auto& proof : found["proofs"])
      if (!proof["measures"].empty()) proven.insert(proof["name"]);
    for (const char* name : {"flash", "documents", "micro_batch", "resume", "ranks"})
      EXPECT_TRUE(proven.contains(name)) << name << "\n" << result.out;
  };
  trains(by(1, "dpo", pairs()));
  proves("dpo");
  store_log_probs();
  trains(by(1, "stored", pairs({"train.stored_reference=true", "train.loss=ipo"})));
  proves("stored");
}

TEST_F(PreferenceRun, APlanSaysWhatTheReferenceTakes) {
  const Words gpu{"--plan", "--device-memory", "80GiB"};
  const auto plan = [&](const Words& settings) { return train(with(gpu, sets(pairs(settings)))).out; };
  EXPECT_NE(plan({"device=cuda"}).find("of it the reference's forward"), std::string::npos);
  EXPECT_EQ(plan({"device=cuda", "train.stored_reference=true"}).find("of it the"), std::string::npos);
}

TEST_F(PreferenceRun, TheReportAndTensorBoardHaveRewards) {
  trains(by(1, "dpo", pairs({"train.tensorboard=true"})));
  std::string events;
  for (const auto& file : fs::directory_iterator(folder / "dpo/tensorboard"))
    events += read_file(file.path());
  for (const char* of : {"train", "validation"})
    for (const char* figure : {"reward_chosen", "reward_rejected", "reward_margin", "reward_accuracy",
                               "logp_chosen", "logp_rejected"})
      EXPECT_NE(events.find(fmt::format("{}/{}", of, figure)), std::string::npos) << of << ", " << figure;
  const std::string page = read_file(folder / "dpo/report.html");
  for (const char* part : {"\"pairs\":{", "\"pair_evaluations\":{", "\"reward_accuracy\":{\"mean\":[",
                           "\"logp_rejected\":{\"mean\":["})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  if (const std::string browser = find_browser(); !browser.empty()) {
    const ProcessResult drawn = open_in_browser(browser, folder, "dpo/report.html");
    for (const char* chart :
         {"Reward accuracy", "Reward margin", "Reward of chosen answers", "Reward of rejected answers",
          "Log-probability of chosen answers", "Log-probability of rejected answers"}) {
      const size_t label = drawn.out.find(fmt::format("aria-label=\"{} over step: ", chart));
      ASSERT_NE(label, std::string::npos) << chart;
      for (const char* line : {"training ends at", "validation ends at"})
        EXPECT_NE(drawn.out.substr(label, 400).find(line), std::string::npos) << chart;
    }
    for (const char* card : {"reward accuracy, training", "reward margin, validation"})
      EXPECT_NE(drawn.out.find(card), std::string::npos) << card;
  }
  trains(by(1, "plain", {"train.steps=3", "evaluation.every=0", "sampling.every=0"}));
  EXPECT_EQ(read_file(folder / "plain/report.html").find("\"pairs\":{"), std::string::npos);
}

TEST_F(PreferenceRun, WeightedPairsOfThreeRanksHaveTheLossesOfOne) {
  std::string lines, weighted;
  int number = 0;
  for (std::istringstream all(read_file(folder / "pairs.jsonl")); std::getline(all, lines);) {
    auto line = nlohmann::json::parse(lines);
    line["weight"] = 0.25 * (number++ % 5 + 1);
    weighted += line.dump() + "\n";
  }
  trains(by(1, "plain", pairs()));
  write("pairs.jsonl", weighted);
  prepare("pairs");
  trains(by(1, "one", pairs()));
  EXPECT_NE(values("one", "loss"), values("plain", "loss"));
  EXPECT_NEAR(values("one", "loss")[0], std::log(2.0), 1e-6);  // a mean, whatever the weights are
  trains(by(3, "three", pairs()));
  trains(by(3, "split", pairs({"parallel.shard=weights", "train.micro_batch=1"})));
  trains(by(2, "shared", pairs({"parallel.context=2"})));
  for (const char* run : {"three", "split", "shared"})
    for (const char* key : {"loss", "grad_norm", "validation_loss"})
      expect_near(values(run, key), values("one", key));
}

// With adapters the reference is the model without them, of which each rank of a context has some tokens.
TEST_F(PreferenceRun, AdaptersOfASharedContextHaveTheLossesOfOneRank) {
  const Words lora = pairs({"train.lora.rank=4"});
  trains(by(1, "one", lora));
  trains(by(3, "shared", with(lora, {"parallel.context=3"})));
  for (const char* key : {"loss", "grad_norm", "validation_loss"})
    expect_near(values("shared", key), values("one", key));
}

TEST_F(PreferenceRun, AnswersWithLabelsOfThreeRanksHaveTheLossesOfOne) {
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    const std::string prompt(static_cast<size_t>(1 + i % 5), static_cast<char>('a' + i % 7)),
        answer(static_cast<size_t>(i % 4), static_cast<char>('k' + i % 3));
    lines += nlohmann::json{{"prompt", prompt},
                            {"completion", i % 2 == 0 ? answer + "!" : "." + answer},
                            {"label", i % 2 == 0}}
                 .dump() +
             "\n";
  }
  write("pairs.jsonl", lines);
  prepare("pairs");
  refused(sets(pairs()), {"train.loss=dpo is a loss of pairs"});
  const Words kto = pairs({"train.loss=kto", "train.preference.undesirable=1.5"});
  trains(by(1, "one", kto));
  EXPECT_NEAR(values("one", "validation_loss")[0], 7.0 / 11, 1e-6);  // 5 desirable and 6 undesirable ones
  EXPECT_LT(values("one", "loss").back(), 0.9 * values("one", "loss").front());
  store_log_probs();
  const Words stored = with(kto, {"train.stored_reference=true"});
  trains(by(1, "stored", stored));
  trains(by(3, "three", kto));
  trains(by(3, "split", with(stored, {"parallel.shard=weights"})));
  trains(by(1, "small", with(stored, {"train.micro_batch=1"})));
  trains(by(2, "shared", with(kto, {"parallel.context=2", "train.micro_batch=1"})));
  trains(by(6, "both", with(stored, {"parallel.context=2"})));
  for (const char* run : {"stored", "three", "split", "small", "shared", "both"})
    for (const char* key : {"loss", "grad_norm", "validation_loss"})
      expect_near(values(run, key), values("one", key));
  EXPECT_NE(read_file(folder / "one/metrics.jsonl").find("\"divergence\":0."), std::string::npos);
  trains(by(1, "plain", with(pairs({"train.loss=cross_entropy", "train.preference.beta=0.1"}), {})));
}

}  // namespace
}  // namespace tessera::testing
