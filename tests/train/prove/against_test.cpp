// ./prove --against: other weights, another build, a record; and what is planted there is found.
#include <sys/stat.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "model/formats/safetensors.h"
#include "tests/planted_faults.h"
#include "tests/proofs.h"
#include "train/prove/record_file.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct ProveAgainst : Prove {
  // The proofs of `options` against `name`: one
  Proof against(ProveOptions o, const std::string& name, const BackendMaker& make = make_backend) const {
    o.against = name;
    std::vector<Proof> all = proofs(o, make);
    EXPECT_EQ(all.size(), 1u);
    EXPECT_EQ(all.at(0).name, "against");
    return all.at(0);
  }
  std::string error_of(const ProveOptions& o, const std::string& name) const {
    try {
      against(o, name);
    } catch (const Error& error) {
      return error.what();
    }
    ADD_FAILURE() << name << " was not refused";
    return "";
  }
  static void expect_parts(const std::string& text, const Words& parts) {
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << "expected: " << part << "\nfound: " << text;
  }
  std::string record(ProveOptions o, const BackendMaker& make = make_backend) const {
    o.record = (folder / "step.safetensors").string();
    EXPECT_TRUE(proofs(o, make).empty());
    return o.record;
  }
  ProveOptions of_run(const std::string& name) const {
    ProveOptions o = options();
    o.model = (folder / name).string(), o.config.clear(), o.settings.clear();
    o.data = (folder / "text.txt").string();
    return o;
  }
  std::string checkpoint(const std::string& run, int step) const {
    return (folder / run / "checkpoints" / fmt::format("step_{:08}", step)).string();
  }
  void train_in(const std::string& run, const Words& more = {}) const {
    trains(by(1, run,
              with({"train.steps=6", "checkpoint.every=3", "evaluation.every=6", "sampling.every=0"}, more)));
  }
  // A program that is named as a build's
  std::string script(const std::string& name, const std::string& text) const {
    fs::create_directories(folder / name);
    write(name + "/prove", "#!/bin/sh\n" + text);
    fs::permissions(folder / name / "prove", fs::perms::owner_all);
    return (folder / name).string();
  }
  static const Measure& measure(const Proof& proof, const std::string& what, const std::string& where) {
    return *std::ranges::find_if(proof.measures,
                                 [&](const Measure& m) { return m.what == what && m.where == where; });
  }
  static Words differing(const Proof& proof) {
    Words all;
    for (const Measure& m : proof.measures)
      if (m.difference != 0) all.push_back(m.what + " of " + m.where);
    return all;
  }
};

// Changes the values of a tensor where they lie in a safetensors file.
void change_in_file(const fs::path& path, const std::string& tensor,
                    const std::function<void(std::span<float>)>& change) {
  std::string file = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const auto header = nlohmann::json::parse(file.substr(8, length));
  const auto offsets = header.at(tensor).at("data_offsets").get<std::vector<size_t>>();
  std::vector<float> values((offsets[1] - offsets[0]) / sizeof(float));
  char* const begin = file.data() + 8 + length + offsets[0];
  std::memcpy(values.data(), begin, offsets[1] - offsets[0]);
  change(values);
  std::memcpy(begin, values.data(), offsets[1] - offsets[0]);
  std::ofstream(path, std::ios::binary) << file;
}

TEST_F(ProveAgainst, TheSameCheckpointHasTheSameBits) {
  train_in("one");
  const Proof same = against(of_run("one"), checkpoint("one", 6));
  EXPECT_EQ(same.verdict(), Verdict::kOk);
  EXPECT_EQ(differing(same), Words{});
  expect_parts(same.summary, {"same weights, same bits; loss "});
}

TEST_F(ProveAgainst, ALaterCheckpointIsReported) {
  train_in("one");
  ProveOptions o = of_run("one");
  o.html = (folder / "page.html").string();
  const Proof later = against(o, checkpoint("one", 3));
  EXPECT_EQ(later.verdict(), Verdict::kReported);
  const int64_t weights = std::ranges::count(later.measures, "weight", &Measure::what);
  EXPECT_EQ(weights, std::ranges::count(later.measures, "gradient", &Measure::what));
  expect_parts(later.summary, {fmt::format("{0} of {0} weights differ; the largest change is ", weights),
                               "; loss ", " against "});
  EXPECT_GT(measure(later, "loss", "each token").difference, 1e-3);
  const auto json = nlohmann::json::parse(read_file(folder / "proofs.json"));
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["verdict"], "reported: against");
  EXPECT_EQ(json["proofs"][0]["summary"], later.summary);
  EXPECT_EQ(json["proofs"][0]["measures"].size(), later.measures.size());
  expect_parts(read_file(folder / "page.html"), {"proof.summary", "weights differ"});
  // The line of each kind is the worst of it.
  for (const Measure* worst : later.worst())
    for (const Measure& m : later.measures)
      if (m.what == worst->what) {
        EXPECT_LE(m.difference, worst->difference) << m.where;
      }
}

TEST_F(ProveAgainst, OneBitOfOneWeightIsNamed) {
  train_in("one");
  fs::copy(checkpoint("one", 6), folder / "changed", fs::copy_options::recursive);
  change_in_file(folder / "changed" / "model.safetensors", "transformer.h.1.mlp.c_fc.bias",
                 [](std::span<float> values) { values[5] = std::nextafter(values[5], 1.0f); });
  const Proof proof = against(of_run("one"), (folder / "changed").string());
  EXPECT_EQ(proof.verdict(), Verdict::kReported);
  expect_parts(proof.summary, {"1 of ", " weights differ", "of blocks.1.mlp.expand.bias; loss "});
  EXPECT_EQ(differing(proof).at(0), "weight of blocks.1.mlp.expand.bias");
}

TEST_F(ProveAgainst, AnotherModelIsRefused) {
  train_in("one");
  train_in("wide", {"model.channels=64"});
  train_in("deep", {"model.layers=3"});
  expect_parts(
      error_of(of_run("one"), checkpoint("wide", 6)),
      {"parameter blocks.0.attention.out.bias is [32] in ", "one/checkpoints/step_00000006 and [64] in "});
  expect_parts(error_of(of_run("one"), checkpoint("deep", 6)),
               {"deep/checkpoints/step_00000006 has the parameter blocks.2.", "one/checkpoints"});
  expect_parts(error_of(of_run("deep"), checkpoint("one", 6)), {" has no parameter blocks.2."});
  expect_parts(error_of(of_run("one"), (folder / "nothing").string()), {"there is nothing of this name"});
}

TEST_F(ProveAgainst, Adapters) {
  train_in("one");
  const Words adapted = {"train.init_from=one/checkpoints/step_00000006", "train.lora.rank=2"};
  train_in("adapted", adapted);
  train_in("other", with(adapted, {"train.lora.rank=4"}));
  const fs::path before = fs::current_path();
  fs::current_path(folder);  // train.init_from is relative
  const Proof earlier = against(of_run("adapted"), checkpoint("adapted", 3)),
              same = against(of_run("adapted"), checkpoint("adapted", 6)),
              base = against(of_run("adapted"), checkpoint("one", 6));
  const std::string refused = error_of(of_run("adapted"), checkpoint("other", 6)),
                    other_base = error_of(of_run("adapted"), checkpoint("one", 3));
  fs::current_path(before);
  EXPECT_EQ(same.verdict(), Verdict::kOk) << same.summary;
  for (const Proof* proof : {&earlier, &base}) {
    EXPECT_EQ(proof->verdict(), Verdict::kReported);
    EXPECT_GT(measure(*proof, "loss", "each token").difference, 0);
    for (const Measure& m : proof->measures)
      EXPECT_TRUE(m.what != "weight" || m.where.find("lora") != std::string::npos ||
                  m.where.find("adapter") != std::string::npos)
          << m.where;
  }
  expect_parts(refused, {"have rank 2, and those of ", " rank 4"});
  expect_parts(other_base, {"are not those that the adapters of "});
}

TEST_F(ProveAgainst, ThisBuildHasTheSameBits) {
  const Proof proof = against(options(), fs::path(PROVE_BINARY).parent_path().string());
  EXPECT_EQ(proof.verdict(), Verdict::kOk);
  EXPECT_EQ(differing(proof), Words{});
  std::set<std::string> compared;
  for (const Measure& m : proof.measures) compared.insert(m.what);
  EXPECT_EQ(compared, (std::set<std::string>{"attention output", "log-sum-exp", "loss", "gradient"}));
  expect_parts(proof.summary, {fmt::format("same bits: {} tensors, loss ", proof.measures.size())});
  // Of a run, with its own settings and the built-in text
  train_in("one", {"data.train=builtin"});
  const ProcessResult result = program({"one", "--device", "cpu", "--against", PROVE_BINARY});
  EXPECT_EQ(result.status, 0) << result.error;
  expect_parts(result.out, {"same bits: ", "ok: against\n"});
}

TEST_F(ProveAgainst, ABuildThatDoesNotRecordIsRefusedWithWhatItPrinted) {
  struct Case {
    std::string text;
    Words parts;
  };
  const std::string many = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i; done; exit 3";
  for (const Case& one :
       {Case{"echo rubbish", {"ended without a record", "rubbish"}},
        Case{many, {"ended with exit code 3", "before --record", "line 12"}},
        Case{"exit 1", {"ended with exit code 1", "It printed nothing"}},
        Case{"echo begun; kill -9 $$", {"was ended by SIGKILL", "begun"}},
        Case{"for last; do :; done; echo no tensors > \"$last\"", {"is not a safetensors file"}}}) {
    const std::string error = error_of(options(), script("rubbish", one.text));
    expect_parts(error, one.parts);
    EXPECT_EQ(error.find("line 4\n"), std::string::npos) << error;  // the last lines alone
  }
}

// Nothing is left: neither the program nor its folder.
TEST_F(ProveAgainst, ASignalEndsTheOtherBuild) {
  fs::create_directories(folder / "temporary");
  setenv("TMPDIR", (folder / "temporary").c_str(), 1);
  const std::string build = script("slow", "echo $$ > pid; sleep 100 & wait\n");
  Process prove(PROVE_BINARY,
                {"--config", "small.yaml", "--device", "cpu", "--against", build, "--json", "j.json"},
                {.folder = folder});
  unsetenv("TMPDIR");
  ASSERT_TRUE(wait_until([&] { return read_file(folder / "pid").ends_with("\n"); }));
  prove.signal(SIGTERM);
  const ProcessResult result = prove.finish();
  EXPECT_EQ(result.status, 1);
  expect_parts(result.error, {"prove: error: stopped by SIGTERM", "nothing was written"});
  EXPECT_TRUE(is_gone(std::stoi(read_file(folder / "pid"))));
  EXPECT_TRUE(fs::is_empty(folder / "temporary"));
  EXPECT_FALSE(fs::exists(folder / "j.json"));
}

// Of the proofs, too, whose checkpoint lies in that folder
TEST_F(ProveAgainst, ASignalEndsAProof) {
  fs::create_directories(folder / "temporary");
  setenv("TMPDIR", (folder / "temporary").c_str(), 1);
  Process prove(PROVE_BINARY,
                {"--config", "small.yaml", "--device", "cpu", "--only", "resume", "--sequences", "4096"},
                {.folder = folder});
  unsetenv("TMPDIR");
  ASSERT_TRUE(wait_until([&] { return !fs::is_empty(folder / "temporary"); }));
  prove.signal(SIGINT);
  const ProcessResult result = prove.finish();
  EXPECT_EQ(result.status, 1) << result.out;
  expect_parts(result.error, {"stopped by SIGINT"});
  EXPECT_TRUE(fs::is_empty(folder / "temporary"));
}

TEST_F(ProveAgainst, ARecordHasWhatTheStepComputed) {
  const ProveOptions o = options();
  const std::string file = record(o);
  const SafetensorsReader reader(file);
  EXPECT_EQ(reader.metadata().at("tessera.record"), "1");
  expect_parts(reader.metadata().at("configuration"), {"model.layers: 2\n"});
  for (const char* name : {"mean_loss", "loss", "attention.1.y", "attention.1.lse"})
    EXPECT_TRUE(reader.contains(name)) << name;
  EXPECT_EQ(reader.entries().at("gradient.blocks.1.mlp.expand.weight").shape,
            (std::vector<int64_t>{128, 32}));
  const Proof same = against(o, file);
  EXPECT_EQ(same.verdict(), Verdict::kOk);
  EXPECT_EQ(differing(same), Words{});
  ProveOptions naive = o;
  naive.attention = AttentionKind::kNaive;
  const Proof other = against(naive, file);
  EXPECT_EQ(other.verdict(), Verdict::kOk) << other.summary;
  expect_parts(other.compared, {"naive in fp32 on CPU, against ", ": flash on CPU"});
  expect_parts(other.summary, {" tensors differ; loss "});
}

TEST_F(ProveAgainst, AHeadThatDiffersByOnePartInAHundredIsFound) {
  const std::string file = record(options());
  change_in_file(file, "attention.1.y", [](std::span<float> values) {
    for (size_t i = 0; i < values.size(); ++i)
      if (i % 32 >= 16) values[i] *= 1.01f;  // head 1 of 2, of width 16
  });
  ProveOptions o = options();
  const Proof proof = against(o, file);
  EXPECT_EQ(proof.verdict(), Verdict::kFailed);
  EXPECT_EQ(differing(proof), Words{"attention output of block 1"});
  expect_parts(verdict_line({proof}), {"FAILED: against: attention output of block 1 differs by "});
  // Of a build that computes it so, gradients differ as well.
  Fault fault({}, wrong_head_of_second_block());
  const Proof wrong = against(o, record(o), planted(fault));
  EXPECT_EQ(wrong.verdict(), Verdict::kFailed);
  EXPECT_FALSE(measure(wrong, "attention output", "block 1").ok());
  EXPECT_FALSE(measure(wrong, "gradient", "blocks.1.attention.out.weight").ok());
  EXPECT_TRUE(measure(wrong, "attention output", "block 0").ok());
  const ProcessResult result =
      program({"--config", "small.yaml", "--device", "cpu", "--set",
               "data.train=" + (folder / "text.txt").string(), "--against", PROVE_BINARY});
  EXPECT_EQ(result.status, 0) << result.error;
}

TEST_F(ProveAgainst, ARecordOfSomethingElseIsRefused) {
  const ProveOptions o = options({"data.shuffle=false"});
  const std::string file = record(o);
  ProveOptions fewer = o;
  fewer.sequences = 4;
  expect_parts(error_of(fewer, file), {"is of other sequences", "4 sequences of 32", "8 sequences of 32"});
  expect_parts(error_of(options({"data.shuffle=false", "model.norm_epsilon=1e-6"}), file),
               {"of another configuration: model.norm_epsilon is 1.0e-06, and 1.0e-05 there"});
  expect_parts(error_of(options({"data.shuffle=false", "model.layers=1"}), file),
               {"model.layers is 1, and 2 there"});
  expect_parts(error_of(options({"data.shuffle=false", "train.seed=5"}), file),
               {"is of other weights: here random weights of seed 5, there random weights of seed 1337",
                "--against CHECKPOINT"});
  StepSubject here = read_record(file).subject, there = here;
  check_comparable(here, there, "a");
  there.dtype = "bf16";
  EXPECT_THROW(check_comparable(here, there, "a"), Error);
  write("no_record.txt", "some text");
  expect_parts(error_of(o, (folder / "no_record.txt").string()), {"not a safetensors file"});
  train_in("one");
  expect_parts(error_of(o, checkpoint("one", 6) + "/model.safetensors"),
               {"is no record of ./prove --record"});
}

TEST_F(ProveAgainst, WrongArguments) {
  const auto refused_with = [&](const Words& arguments, const char* part) {
    const ProcessResult result = program(with({"--config", "small.yaml", "--device", "cpu"}, arguments));
    EXPECT_EQ(result.status, 1) << result.out;
    expect_parts(result.error, {part});
  };
  refused_with({"--against", "nowhere"}, "there is nothing of this name");
  refused_with({"--record", "step.safetensors", "--ranks", "2"}, "on one rank: leave out --ranks 2");
  refused_with({"--record", "."}, "it is a folder");
  refused_with({"--record", "/dev/null"}, "it is no file");
  refused_with({"--record", "no/such/step.safetensors"}, "no/such");
}

}  // namespace
}  // namespace tessera::testing
