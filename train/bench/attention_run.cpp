#include "train/bench/attention_run.h"

#include <algorithm>

#include "kernels/attention/cudnn.h"
#include "kernels/attention/mask.h"
#include "kernels/base/check.h"
#include "kernels/base/random.h"
#include "train/bench/attention_results.h"
#include "train/session/device.h"

namespace tessera {
namespace {

bool is_cudnn(const Contender& contender) { return contender.name == kYardstick; }

Tensor bytes_of(Arena& arena, MemoryTag tag, const char* name, int64_t bytes) {
  return arena.alloc(tag, name, DType::kF32, {(bytes + 3) / 4});
}

AttentionShape shape_of(const AttnProblem& p) {
  AttentionMask mask(p.mask.causal != 0, p.mask.documents != nullptr);
  mask.window = p.mask.window;
  mask.blocks = BlockShape::of(p.mask.blocks);
  mask.choice = {.size = p.mask.choice.size, .count = p.mask.choice.count};
  return {.batch = p.batch,
          .tokens = p.tokens,
          .heads = p.heads,
          .head_dim = p.head_dim,
          .mask = mask,
          .kv_heads = p.kv_heads,
          .kv_tokens = p.kv_tokens,
          .scores = {.sinks = p.sinks != 0, .alibi_heads = p.alibi_heads, .cap = p.score_cap}};
}

// Through the Backend, as the model calls it: naive, and on the CPU all kinds.
class BackendRun final : public AttentionRun {
 public:
  BackendRun(AttentionKind kind, const Stream& stream, const AttentionInputs& inputs)
      : stream_(stream), arena_(make_arena(stream.backend().traits())) {
    AttnProblem p = inputs.problem;
    inputs.extra.add_to(p);
    plan_ = choose_attention({.kind = kind,
                              .shape = shape_of(p),
                              .dtype = inputs.qkv.dtype,
                              .device = stream.backend().traits(),
                              .dropout = static_cast<bool>(inputs.extra.dropout)});
    dropout_ = inputs.extra.dropout;
    documents_ = inputs.documents;
    blocks_ = inputs.blocks;
    qkv_ = inputs.qkv;
    dout_ = inputs.dout;
    out_ = arena_.alloc(MemoryTag::kAttention, "output", qkv_.dtype, dout_.shape);
    dqkv_ = arena_.alloc(MemoryTag::kAttention, "gradients", qkv_.dtype, qkv_.shape);
    if (inputs.extra.sinks) {
      sinks_ = inputs.sinks;
      dsinks_ = arena_.alloc(MemoryTag::kAttention, "gradients of sinks", sinks_.dtype, sinks_.shape);
    }
    saved_ = arena_.alloc(MemoryTag::kAttention, plan_.saved_name, plan_.saved_dtype, plan_.saved_shape);
    saved_bytes_ = static_cast<int64_t>(saved_.bytes());
    workspace_bytes_ = std::max(plan_.forward_workspace_bytes, plan_.backward_workspace_bytes);
    if (workspace_bytes_ > 0)
      workspace_ = bytes_of(arena_, MemoryTag::kAttention, "workspace", workspace_bytes_);
  }
  void forward() override {
    const PackedHeads in(qkv_, plan_.shape);
    stream_.run(AttentionForward{.plan = plan_,
                                 .q = in.q,
                                 .k = in.k,
                                 .v = in.v,
                                 .y = all_heads(out_),
                                 .saved = saved_,
                                 .workspace = workspace_,
                                 .dropout = dropout_,
                                 .tables = {.documents = documents_, .blocks = blocks_},
                                 .sinks = sinks_});
  }
  void backward() override {
    const PackedHeads in(qkv_, plan_.shape), out(dqkv_, plan_.shape);
    stream_.run(AttentionBackward{.plan = plan_,
                                  .q = in.q,
                                  .k = in.k,
                                  .v = in.v,
                                  .y = all_heads(out_),
                                  .saved = saved_,
                                  .dy = all_heads(dout_),
                                  .dq = out.q,
                                  .dk = out.k,
                                  .dv = out.v,
                                  .workspace = workspace_,
                                  .dropout = dropout_,
                                  .tables = {.documents = documents_, .blocks = blocks_},
                                  .sinks = sinks_,
                                  .dsinks = dsinks_,
                                  .accumulate = false});
  }

 private:
  Stream stream_;
  Arena arena_;
  AttentionPlan plan_;
  Dropout dropout_;
  Tensor documents_, blocks_, qkv_, dout_, sinks_, dsinks_, out_, dqkv_, saved_, workspace_;
};

#ifdef TESSERA_HAS_CUDA
// Through the structs of attention.h: the fused rungs, and cuDNN.
class FusedRun final : public AttentionRun {
 public:
  FusedRun(const Contender& contender, const Stream& stream, const AttentionInputs& inputs,
           bool cudnn_deterministic)
      : rung_(contender.rung), stream_(stream), arena_(make_arena(stream.backend().traits())) {
    AttnProblem p = inputs.problem;
    inputs.extra.add_to(p);
    if (inputs.documents) p.mask.documents = inputs.documents.as<int32_t>();
    if (inputs.blocks) p.mask.blocks = BlockShape::of(p.mask.blocks).at(inputs.blocks.as<int32_t>());
    if (is_cudnn(contender)) {
      cudnn_ = std::make_unique<attention::CudnnAttention>();
      workspace_bytes_ = std::max(
          attention::cudnn_forward_workspace(p),
          attention::cudnn_backward_workspace(p, attention::cudnn_sums(arch(), cudnn_deterministic)));
    } else {
      p = rung_->of_rung(p);
      workspace_bytes_ = static_cast<int64_t>(
          std::max(attention::forward_workspace(*rung_->family, p),
                   attention::backward_workspace(*rung_->family, p)));
    }
    const auto alloc = [&](const char* name, DType dtype, Shape shape) {
      return arena_.alloc(MemoryTag::kAttention, name, dtype, shape);
    };
    const Tensor out = alloc("output", inputs.dout.dtype, inputs.dout.shape);
    const Tensor dqkv = alloc("gradients", inputs.qkv.dtype, inputs.qkv.shape);
    const Tensor lse = alloc("log-sum-exp", DType::kF32, {p.batch, p.heads, p.tokens});
    const Tensor workspace = bytes_of(arena_, MemoryTag::kAttention, "workspace", workspace_bytes_);
    saved_bytes_ = static_cast<int64_t>(lse.bytes());
    const AttentionShape shape = shape_of(inputs.problem);
    const PackedHeads from(inputs.qkv, shape), to(dqkv, shape);
    forward_ = {.q = attn_tensor(from.q),
                .k = attn_tensor(from.k),
                .v = attn_tensor(from.v),
                .out = attn_tensor(out),
                .lse = lse.as<float>(),
                .workspace = workspace.data,
                .workspace_bytes = workspace.bytes(),
                .sinks = p.sinks ? inputs.sinks.data : nullptr,
                .problem = p};
    void* dsinks = nullptr;
    if (p.sinks) dsinks = alloc("gradients of sinks", inputs.sinks.dtype, inputs.sinks.shape).data;
    backward_ = {.q = forward_.q,
                 .k = forward_.k,
                 .v = forward_.v,
                 .out = forward_.out,
                 .dout = attn_tensor(inputs.dout),
                 .lse = lse.as<float>(),
                 .dq = attn_tensor(to.q),
                 .dk = attn_tensor(to.k),
                 .dv = attn_tensor(to.v),
                 .workspace = workspace.data,
                 .workspace_bytes = workspace.bytes(),
                 .deterministic = cudnn_deterministic,
                 .sinks = forward_.sinks,
                 .dsinks = dsinks,
                 .problem = p};
  }
  void forward() override {
    if (cudnn_) {
      cudnn_->forward(forward_, backward_.workspace, backward_.workspace_bytes, stream_.queue());
    } else {
      succeed(attention::run_forward(*rung_->family, forward_, arch(), stream_.queue()));
    }
  }
  void backward() override {
    if (cudnn_) {
      cudnn_->backward(backward_, stream_.queue());
    } else {
      succeed(attention::run_backward(*rung_->family, backward_, arch(), stream_.queue()));
    }
  }

 private:
  int arch() const { return stream_.backend().traits().arch; }
  void succeed(AttnStatus status) const {
    check(status == ATTN_OK, "attention rung {}: {}", rung_->name, attn_status_text(status));
  }

  const attention::Rung* rung_;
  Stream stream_;
  Arena arena_;
  std::unique_ptr<attention::CudnnAttention> cudnn_;
  AttnForward forward_{};
  AttnBackward backward_{};
};
#endif

}  // namespace

// A block is drawn on the host and repeated: drawing all would take longer than the
// benchmark. Its length has a large prime factor, so that rows repeat at other columns.
void fill_random(const Stream& stream, const Tensor& tensor) {
  constexpr int64_t kBlock = 8 * 131071;
  static std::vector<float> block;
  if (block.empty()) {
    block.resize(static_cast<size_t>(kBlock));
    const Philox random(1, 0);
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<float>(random.normal(i));
  }
  const Tensor flat = tensor.view({tensor.numel()});
  int64_t filled = std::min(kBlock, tensor.numel());
  stream.run(Copy{{block.data(), DType::kF32, {filled}, Device::kCpu}, flat.rows(0, filled)});
  for (; filled < tensor.numel(); filled *= 2) {
    const int64_t count = std::min(filled, tensor.numel() - filled);
    if (stream.device() == Device::kCuda) {
      stream.run(Copy{flat.rows(0, count), flat.rows(filled, count)});
    } else {
      std::copy_n(flat.as<float>(), count, flat.as<float>() + filled);
    }
  }
}

DType Contender::dtype(Device device) const {
  if (device == Device::kCpu) return DType::kF32;
  return rung ? rung->dtype() : DType::kBF16;
}

std::string Contender::why_not(const AttnProblem& problem, const DeviceTraits& device) const {
  if (rung) return rung->why_not(problem, device);
  if (device.device == Device::kCpu) return "";
#ifdef TESSERA_HAS_CUDA
  std::string why;
  if (!attention::cudnn_available(why)) return "not available";
  if (!attention::mask_of(problem).plain()) return "mask";
  return attention::cudnn_refusal(problem, device.arch) ? "not served" : "";
#else
  return "not available";
#endif
}

void AttentionExtra::add_to(AttnProblem& problem) const {
  problem.dropout = attn_dropout(dropout);
  problem.sinks = sinks;
  problem.alibi_heads = alibi ? static_cast<int>(problem.heads) : 0;
  problem.score_cap = cap;
}

double Contender::least_flops(Device device) const {
  if (device == Device::kCpu) return 1e10;
  constexpr double kCudnn = 3e13;
  return rung ? rung->least_flops : kCudnn;
}

std::vector<Contender> all_contenders(Device device) {
  std::vector<Contender> all;
  if (device == Device::kCpu) return {{.name = "naive"}, {.name = "flash"}};
  for (const attention::Rung& rung : attention::ladder()) all.push_back({.name = rung.name, .rung = &rung});
  all.push_back({.name = kYardstick});
  return all;
}

AttentionInputs random_inputs(const Stream& stream, Arena& arena, const AttnProblem& p) {
  const DType dtype = p.dtype == ATTN_BF16 ? DType::kBF16 : DType::kF32;
  const int64_t H = p.heads, K = p.kv_heads;
  AttentionInputs inputs{
      p, arena.alloc(MemoryTag::kData, "projections", dtype, {p.batch, p.tokens, H + 2 * K, p.head_dim}),
      arena.alloc(MemoryTag::kData, "output gradient", dtype, {p.batch, p.tokens, H, p.head_dim}),
      arena.alloc(MemoryTag::kData, "sinks", dtype, {H})};
  if (p.mask.documents != nullptr) {
    inputs.documents = arena.alloc(MemoryTag::kData, "documents", DType::kI32, {p.batch, p.tokens, 2});
    auto* from = const_cast<int32_t*>(p.mask.documents);  // a Tensor has no const
    stream.run(Copy{{from, DType::kI32, inputs.documents.shape, Device::kCpu}, inputs.documents});
  }
  if (const BlockShape blocks = BlockShape::of(p.mask.blocks); blocks.size > 0) {
    inputs.blocks = arena.alloc(MemoryTag::kData, "sparse blocks", DType::kI32, {blocks.numbers()});
    auto* from = const_cast<int32_t*>(p.mask.blocks.begins);  // the first of them
    stream.run(Copy{{from, DType::kI32, inputs.blocks.shape, Device::kCpu}, inputs.blocks});
  }
  for (const Tensor& tensor : {inputs.qkv, inputs.dout, inputs.sinks}) fill_random(stream, tensor);
  return inputs;
}

std::unique_ptr<AttentionRun> make_attention_run(const Contender& contender, const Stream& stream,
                                                 const AttentionInputs& inputs,
                                                 [[maybe_unused]] bool cudnn_deterministic) {
  if (!contender.rung && !is_cudnn(contender))
    return std::make_unique<BackendRun>(parse_word<AttentionKind>("attention", contender.name), stream,
                                        inputs);
#ifdef TESSERA_HAS_CUDA
  if (is_cudnn(contender) || contender.rung->family)
    return std::make_unique<FusedRun>(contender, stream, inputs, cudnn_deterministic);
#endif
  return std::make_unique<BackendRun>(AttentionKind::kNaive, stream, inputs);
}

}  // namespace tessera
