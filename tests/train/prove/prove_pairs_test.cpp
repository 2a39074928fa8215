// The program prove with losses of pairs, and of answers with labels: packed pairs agree with pairs one by
// one, several ranks agree with one, and faults of the loss are found.
#include "tests/planted_faults.h"
#include "tests/proofs.h"

namespace tessera::testing {
namespace {

struct ProvePairs : Prove {
  ProvePairs() {
    std::string pairs, answers;
    for (int i = 0; i < 60; ++i) {
      const std::string prompt(static_cast<size_t>(1 + i % 5), static_cast<char>('a' + i % 7)),
          answer(static_cast<size_t>(i % 4), static_cast<char>('k' + i % 3));
      pairs +=
          nlohmann::json{{"prompt", prompt}, {"chosen", answer + "!"}, {"rejected", "." + answer}}.dump() +
          "\n";
      answers += nlohmann::json{{"prompt", prompt},
                                {"completion", i % 2 == 0 ? answer + "!" : "." + answer},
                                {"label", i % 2 == 0}}
                     .dump() +
                 "\n";
    }
    write("pairs.jsonl", pairs), write("answers.jsonl", answers);
    prepare_lines("pairs.jsonl", "pairs"), prepare_lines("answers.jsonl", "answers");
    make_model("base", 5), make_model("other", 6);
  }

  // The reference is another model, so that no sum is zero.
  Words settings(const std::string& loss) const {
    return {"train.loss=" + loss,
            "data.train=" + (folder / (loss == "kto" ? "answers" : "pairs")).string(),
            "data.documents=mask",
            "train.init_from=" + (folder / "base").string(),
            "train.reference=" + (folder / "other").string(),
            "train.preference.beta=0.5"};
  }
  ProveOptions options_of(const std::string& loss) const {
    ProveOptions o = options();
    o.settings = settings(loss);
    return o;
  }
};

TEST_F(ProvePairs, PackedPairsArePairsOneByOne) {
  for (const char* loss : {"dpo", "kto"}) {
    const std::vector<Proof> all = proofs(options_of(loss));
    EXPECT_EQ(names(all, Verdict::kFailed), std::set<std::string>{}) << loss << proof_table(all);
    const std::set<std::string> held = names(all, Verdict::kOk);
    for (const char* proof : {"documents", "micro_batch", "resume"})
      EXPECT_TRUE(held.contains(proof)) << loss << ", " << proof << proof_table(all);
    EXPECT_NE(of(all, "documents").compared.find("pairs, packed against each"), std::string::npos);
  }
}

TEST_F(ProvePairs, RanksAgree) {
  for (const char* loss : {"dpo", "kto"}) {
    Words words = sets(settings(loss));
    for (const char* word : {"--config", "small.yaml", "--device", "cpu", "--ranks", "2", "--only", "ranks"})
      words.push_back(word);
    const ProcessResult result = program(words);
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    for (const char* what : {"sequences dealt", "weights split", "each sequence shared", "ok: ranks\n"})
      EXPECT_NE(result.out.find(what), std::string::npos) << what << result.out;
  }
}

// A fault: gradients of packed pairs, but not of pairs one by one, are a hundredth too large.
TEST_F(ProvePairs, FindsALossThatDependsOnThePacking) {
  for (const char* loss : {"dpo", "kto"}) {
    Fault fault({}, [](const AnyOp& op, Backend& be, const Launch& on) {
      const auto* pairs = std::get_if<const PreferenceLoss*>(&op);
      if (!pairs || (*pairs)->documents.shape[1] != 32) return;
      change_values((*pairs)->weights, be, on, [](std::span<float> weights) {
        for (float& weight : weights) weight *= 1.01f;
      });
    });
    ProveOptions o = options_of(loss);
    o.only = {"documents"};
    const std::vector<Proof> all = proofs(o, planted(fault));
    EXPECT_EQ(names(all, Verdict::kFailed), std::set<std::string>{"documents"}) << loss << proof_table(all);
  }
}

}  // namespace
}  // namespace tessera::testing
