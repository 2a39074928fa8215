// The program prove: what must agree does, on models of every family; and it finds planted faults, each where
// it was planted.
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/browser.h"
#include "tests/planted_faults.h"
#include "tests/proofs.h"

namespace tessera::testing {
namespace {

using Json = nlohmann::json;

const std::vector<std::string> kQwen3 = {"model.norm=rmsnorm", "model.positions=rope", "model.mlp=swiglu",
                                         "model.bias=none",    "model.tied=false",     "model.kv_heads=1",
                                         "model.qk_norm=true"},
                               kLlama(kQwen3.begin(), kQwen3.end() - 1);

const std::set<std::string> kHeld = {"flash", "rows", "documents", "micro_batch", "resume"},
                            kSkipped = {"device", "fp8", "ranks"};

TEST_F(Prove, EveryFamilyAgrees) {
  for (const auto& settings : {std::vector<std::string>{}, kLlama, kQwen3}) {
    const std::vector<Proof> all = proofs(options(settings));
    EXPECT_EQ(names(all, Verdict::kOk), kHeld) << proof_table(all);
    EXPECT_EQ(names(all, Verdict::kSkipped), kSkipped);
    EXPECT_EQ(verdict_line(all), "ok: flash, rows, documents, micro_batch, resume");
    const Proof& flash = of(all, "flash");
    EXPECT_EQ(flash.tokens, 8 * 32);
    std::set<std::string> compared;
    for (const Measure& m : flash.measures) {
      compared.insert(m.what);
      EXPECT_GT(m.allowed, 0) << m.where;
    }
    EXPECT_EQ(compared, (std::set<std::string>{"attention output", "loss", "gradient"}));
    EXPECT_EQ(of(all, "rows").worst().size(), 5u);  // output, log-sum-exp, dQ, dK, dV
    const Json json = Json::parse(read_file(folder / "proofs.json"));
    EXPECT_EQ(json["ok"], true);
    EXPECT_EQ(json["proofs"].size(), all.size());
  }
}

// Rows are computed again with the pairs that the blocks show; documents elsewhere in a sequence see others.
TEST_F(Prove, AModelWithSparseBlocksAgrees) {
  const std::vector<Proof> all =
      proofs(options({"model.context=300", "train.tokens_per_step=1200", "train.micro_batch=2",
                      "model.sparse=window:1+global:1,full"}));
  EXPECT_EQ(names(all, Verdict::kOk), kHeld) << proof_table(all);
  std::set<std::string> skipped = kSkipped;
  skipped.insert("documents");
  EXPECT_EQ(names(all, Verdict::kSkipped), skipped) << "but for their rows";
}

TEST_F(Prove, ACheckpointWithItsDataAndWithAdapters) {
  trains(by(1, "one", {"train.steps=4", "checkpoint.every=4", "evaluation.every=4", "sampling.every=0"}));
  trains(by(1, "adapted",
            {"train.steps=4", "checkpoint.every=4", "evaluation.every=4", "sampling.every=0",
             "train.init_from=one/checkpoints/step_00000004", "train.lora.rank=2"}));
  for (const char* run : {"one", "adapted"}) {
    const ProcessResult result = program({run, "--device", "cpu"});
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    EXPECT_NE(result.out.find("ok: flash, rows, documents, micro_batch, resume\n"), std::string::npos)
        << result.out;
    EXPECT_NE(result.out.find("from sequence "), std::string::npos) << result.out;
  }
}

TEST_F(Prove, RanksAgree) {
  const std::vector<std::string> sparse{
      "--set", "model.context=300",   "--set", "train.tokens_per_step=1200",
      "--set", "train.micro_batch=2", "--set", "model.sparse=window:1+global:1,full"};
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, sparse}) {
    std::vector<std::string> arguments{"--config", "small.yaml", "--device", "cpu",
                                       "--ranks",  "2",          "--only",   "ranks"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProcessResult result = program(arguments);
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    for (const char* what : {"sequences dealt", "weights split", "each sequence shared", "ok: ranks\n"})
      EXPECT_NE(result.out.find(what), std::string::npos) << what << result.out;
  }
}

TEST_F(Prove, FindsAHeadThatIsWrongByOnePartInAHundred) {
  Fault fault({}, wrong_head_of_second_block());
  const std::vector<Proof> all = proofs(options(), planted(fault));
  EXPECT_FALSE(all_hold(all));
  EXPECT_EQ(names(all, Verdict::kFailed), (std::set<std::string>{"documents", "flash", "rows"}))
      << proof_table(all);
  for (const char* name : {"flash", "rows"})
    for (const Measure& m : of(all, name).measures) {
      if (m.what == "attention output") {
        EXPECT_EQ(m.ok(), m.where != "block 1" && m.where != "block 1, head 1") << name << m.where;
      }
    }
  EXPECT_TRUE(verdict_line(all).starts_with("FAILED: flash: ")) << verdict_line(all);
  EXPECT_EQ(Json::parse(read_file(folder / "proofs.json"))["ok"], false);
}

// The first token of a packed document, which sees itself alone, also sees the one before it, in one head.
TEST_F(Prove, FindsAMaskThatLeaksATokenBetweenDocuments) {
  Fault fault({}, [&](const AnyOp& op, Backend&, const Launch&) {
    const auto* forward = std::get_if<const AttentionForward*>(&op);
    if (!forward || !(*forward)->tables.documents) return;
    const AttentionForward& a = **forward;
    const int64_t begin = a.tables.documents.as<int32_t>()[1], D = a.plan.shape.head_dim;
    const auto at = [&](const Heads& heads, int64_t t) {
      const View<float> view = heads_of<float>(heads);
      return view.row_begin(t);
    };
    const float* q = at(a.q, begin);
    double scores[2] = {};
    for (int64_t n = 0; n < 2; ++n)
      for (int64_t d = 0; d < D; ++d)
        scores[n] += static_cast<double>(a.plan.scale * q[d] * at(a.k, begin - n)[d]);
    const auto leak = static_cast<float>(1 / (1 + std::exp(scores[0] - scores[1])));
    for (int64_t d = 0; d < D; ++d)
      at(a.y, begin)[d] = (1 - leak) * at(a.v, begin)[d] + leak * at(a.v, begin - 1)[d];
  });
  const std::vector<Proof> all = proofs(options(), planted(fault));
  EXPECT_EQ(names(all, Verdict::kFailed), std::set<std::string>{"documents"}) << proof_table(all);
  for (const Measure* m : of(all, "documents").worst()) EXPECT_FALSE(m->ok()) << m->what;
}

TEST_F(Prove, FindsAMicroBatchWhoseGradientCountsTwice) {
  Fault fault({}, second_micro_batch_twice());
  ProveOptions o = options();
  o.only = {"micro_batch"};
  const std::vector<Proof> all = proofs(o, planted(fault));
  const Proof& proof = of(all, "micro_batch");
  EXPECT_EQ(proof.verdict(), Verdict::kFailed) << proof_table(all);
  for (const Measure& m : proof.measures)
    EXPECT_EQ(m.ok(), m.where != "token_table" && m.where != "position_table") << m.where;
}

// A weight that a checkpoint does not keep to the bit
TEST_F(Prove, FindsAStepThatDoesNotResume) {
  int64_t updates = 0;
  Fault fault({}, [&](const AnyOp& op, Backend&, const Launch&) {
    const auto* adamw = std::get_if<const AdamW*>(&op);
    if (!adamw || ++updates != 3) return;  // that of the step after the checkpoint was read
    float& first = (*adamw)->parts[0].param.as<float>()[0];
    first = std::nextafter(first, 1.0f);
  });
  ProveOptions o = options();
  o.only = {"resume"};
  const std::vector<Proof> all = proofs(o, planted(fault));
  ASSERT_EQ(names(all, Verdict::kFailed), std::set<std::string>{"resume"}) << proof_table(all);
  EXPECT_EQ(of(all, "resume").worst().back()->what, "weight after it");
}

// The page draws every proof and every tensor, in a browser, and its script has no error.
TEST_F(Prove, ThePageDrawsEveryTensor) {
  ProveOptions o = options();
  o.html = (folder / "prove.html").string();
  const std::vector<Proof> all = proofs(o);
  std::string page = read_file(folder / "prove.html");
  EXPECT_NE(page.find("ok: flash, rows, documents, micro_batch, resume"), std::string::npos);
  const std::string browser = find_browser();
  if (browser.empty()) GTEST_SKIP() << "no Chromium is installed: the page was not opened";
  page.replace(page.find("</head>"), 0,
               "<script>onerror = (message) => document.body.setAttribute('data-error', message)</script>");
  write("tried.html", page);
  const ProcessResult result = open_in_browser(browser, folder, "tried.html");
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(result.out.find("data-error="), std::string::npos);
  const auto count = [&](const std::string& part) {
    size_t found = 0;
    for (size_t at = 0; (at = result.out.find(part, at)) != std::string::npos; at += part.size()) ++found;
    return found;
  };
  size_t dots = 0;
  for (const Proof& proof : all)
    for (const Measure* worst : proof.worst()) {
      const auto of_kind = std::ranges::count(proof.measures, worst->what, &Measure::what);
      if (of_kind > 1) dots += static_cast<size_t>(of_kind);
    }
  EXPECT_EQ(count("<circle"), dots);
  EXPECT_EQ(count("<section"), all.size());
}

TEST_F(Prove, WrongArguments) {
  const auto refused_with = [&](const Words& arguments, const char* part) {
    const ProcessResult result = program(arguments);
    EXPECT_EQ(result.status, 1) << result.out;
    EXPECT_NE(result.error.find(part), std::string::npos) << result.error;
  };
  refused_with({}, "--config FILE");
  refused_with({"nowhere"}, "there is no folder nowhere");
  refused_with({"--config", "small.yaml", "--only", "everything"}, "--only");
  refused_with({"--config", "small.yaml", "--sequence-length", "64"}, "reads at most 32 tokens");
  refused_with({"--config", "small.yaml", "--device", "cpu", "--precision", "bf16"}, "needs a GPU");
  refused_with({"--config", "small.yaml", "--device", "cpu", "--ranks", "2", "--sequences", "3"},
               "Name a multiple of 2");
  refused_with({"--config", "small.yaml", "--data", "none.txt"}, "none.txt");
}

}  // namespace
}  // namespace tessera::testing
