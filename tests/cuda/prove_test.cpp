// The program prove on a GPU: the kernels hold what it allows, and planted faults do not.
#include "train/prove/prove.h"

#include <set>

#include "tests/cuda/train_on_gpu.h"
#include "tests/planted_faults.h"
#include "train/launch/process_group.h"

namespace tessera::testing {
namespace {

struct CudaProve : TrainOnGpu {
  CudaProve()
      : TrainOnGpu(
            "device: cuda\n"
            "model:\n  vocab_size: 257\n  context: 256\n  layers: 2\n  heads: 2\n  channels: 128\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 20\n  tokens_per_step: 2048\n") {}

  ProveOptions options(const std::vector<std::string>& settings = {}) const {
    ProveOptions o;
    o.config = (folder / "small.yaml").string();
    o.settings = settings;
    o.settings.push_back("data.train=" + (folder / "text.txt").string());
    o.device = DeviceRequest::kCuda;
    return o;
  }
  static std::vector<Proof> proofs(const ProveOptions& o, const BackendMaker& make = make_backend) {
    return prove(open_proved(o), o, World{}, make);
  }
  static std::set<std::string> failed(const std::vector<Proof>& all) {
    std::set<std::string> names;
    for (const Proof& proof : all)
      if (proof.verdict() == Verdict::kFailed) names.insert(proof.name);
    return names;
  }
};

TEST_F(CudaProve, TheKernelsHold) {
  for (const auto& settings :
       {std::vector<std::string>{},
        {"train.precision=fp32"},
        {"model.heads=1"},
        {"model.norm=rmsnorm", "model.positions=rope", "model.mlp=swiglu", "model.bias=none",
         "model.tied=false", "model.kv_heads=1", "model.qk_norm=true"}}) {
    const std::vector<Proof> all = proofs(options(settings));
    EXPECT_TRUE(all_hold(all)) << proof_table(all);
    for (const char* name : {"flash", "rows", "documents", "micro_batch", "resume", "device"}) {
      const auto at = std::ranges::find(all, name, &Proof::name);
      ASSERT_NE(at, all.end()) << name;
      EXPECT_EQ(at->verdict(), Verdict::kOk) << name << ": " << at->skipped;
    }
  }
}

TEST_F(CudaProve, FindsAHeadThatIsWrongByOnePartInAHundred) {
  Fault fault({}, wrong_head_of_second_block());
  ProveOptions o = options();
  o.only = {"rows"};
  const std::vector<Proof> all = proofs(o, planted(fault));
  EXPECT_EQ(failed(all), std::set<std::string>{"rows"}) << proof_table(all);
  for (const Proof& proof : all)
    for (const Measure& m : proof.measures)
      if (!m.ok()) {
        EXPECT_EQ(m.where, "block 1, head 1") << m.what;
      }
}

// In one head, the first token of a document reads half of the value of the token before it.
TEST_F(CudaProve, FindsAMaskThatLeaksATokenBetweenDocuments) {
  Fault fault({}, [&](const AnyOp& op, Backend& be, const Launch& on) {
    const auto* forward = std::get_if<const AttentionForward*>(&op);
    if (!forward || !(*forward)->tables.documents || (*forward)->plan.kind != AttentionKind::kFlash) return;
    const AttentionForward& a = **forward;
    const int64_t D = a.plan.shape.head_dim, begin = 32;  // of the second document: an eighth of 256 tokens
    const auto at = [&](const Heads& heads, int64_t t) {
      const int64_t row = heads.tensor.shape[2] * heads.tensor.shape[3];
      return static_cast<size_t>(t * row + heads.first * D);
    };
    std::vector<float> v;
    change_values(a.v.tensor, be, on,
                  [&](std::span<float> values) { v.assign(values.begin(), values.end()); });
    change_values(a.y.tensor, be, on, [&](std::span<float> y) {
      for (int64_t d = 0; d < D; ++d) {
        const auto n = static_cast<size_t>(d);
        y[at(a.y, begin) + n] = 0.5f * (v[at(a.v, begin) + n] + v[at(a.v, begin - 1) + n]);
      }
    });
  });
  ProveOptions o = options();
  o.only = {"documents"};
  EXPECT_EQ(failed(proofs(o, planted(fault))), std::set<std::string>{"documents"});
}

TEST_F(CudaProve, FindsAMicroBatchWhoseGradientCountsTwice) {
  Fault fault({}, second_micro_batch_twice());
  ProveOptions o = options();
  o.only = {"micro_batch"};
  const std::vector<Proof> all = proofs(o, planted(fault));
  EXPECT_EQ(failed(all), std::set<std::string>{"micro_batch"}) << proof_table(all);
}

}  // namespace
}  // namespace tessera::testing
