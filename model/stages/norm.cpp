#include "model/stages/rows.h"

namespace tessera {
namespace {

// norm1: y = norm(x). In a decode step it is a part of the linear layer behind it.

void save_norm(NormSaved& saved, const SavedShape& shape, const TakeSaved& take,
               const std::array<const char*, 3>& names) {
  visit_norm_saved(saved,
                   {.kind = shape.kind.spec.norm,
                    .shape = {shape.rows(), shape.config.channels},
                    .dtype = shape.plan.dtype,
                    .names = names},
                   take);
}
// `gradients`: of the norm's weights
void backward_of_norm(const Block& b, const Norm& norm, const NormWeights& gradients, const BlockGradients& g,
                      const Neighbours& n) {
  norm_backward(b.stream, norm,
                {.gradients = gradients,
                 .dx = g.d,
                 .add = g.d,
                 .dx_sum = n.to_reader.bias,
                 .fp8_dx = n.to_reader.dy(g.d),
                 .accumulate = g.accumulate});
}

void norm1_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  save_norm(s.norm1, shape, take, {"norm 1", "norm 1 mean", "norm 1 rstd"});
}
void norm1_forward(const Block& b, const Neighbours& n) {
  norm_forward(b.stream, b.norm1(), n.to_reader.x(b.s.norm1.y));
}
void norm1_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  backward_of_norm(b, b.norm1(), g.w.norm1, g, n);
}
void norm1_decode(const Block& b, DecodeBuilder& to) { put_norm_in(b.norm1(), to.norm()); }

// norm2: y = norm(residual_mid)

void norm2_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  save_norm(s.norm2, shape, take, {"norm 2", "norm 2 mean", "norm 2 rstd"});
}
void norm2_forward(const Block& b, const Neighbours& n) {
  norm_forward(b.stream, b.norm2(), n.to_reader.x(b.s.norm2.y));
}
void norm2_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  backward_of_norm(b, b.norm2(), g.w.norm2, g, n);
}
void norm2_decode(const Block& b, DecodeBuilder& to) { put_norm_in(b.norm2(), to.norm()); }

// norm1 after: residual_mid = x + norm(branch), an RMSNorm. Its backward, and norm2 after's, leave d as it
// is: d is also the gradient of the residual stream below.

struct NormAfter {
  const NormWeights& weights;
  const BranchSaved& saved;
};
void norm_after_forward(const Block& b, const NormAfter& norm, const Tensor& add, const Tensor& y) {
  b.stream.run(RmsNormForward{.x = norm.saved.x,
                              .weight = norm.weights.weight,
                              .y = y,
                              .rstd = norm.saved.rstd,
                              .epsilon = b.config.norm_epsilon,
                              .offset = b.config.norm_offset(),
                              .add = add});
}
void norm_after_backward(const Block& b, const NormAfter& norm, const NormWeights& gradients,
                         const BlockGradients& g, const Neighbours& n) {
  b.stream.run(RmsNormBackward{.dy = g.d,
                               .x = norm.saved.x,
                               .weight = norm.weights.weight,
                               .rstd = norm.saved.rstd,
                               .offset = b.config.norm_offset(),
                               .dx = g.branch,
                               .dweight = gradients.weight,
                               .dx_sum = n.to_reader.bias,
                               .accumulate = g.accumulate,
                               .fp8_dx = n.to_reader.dy(g.branch)});
}
void norm1_after_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  take({"rstd of norm 1 after", DType::kF32, {shape.rows()}}, s.attention_branch.rstd);
  take({"residual after attention", shape.plan.dtype, {shape.rows(), shape.config.channels}}, s.residual_mid);
}
void norm1_after_forward(const Block& b, const Neighbours&) {
  norm_after_forward(b, {b.w.norm1_after, b.s.attention_branch}, b.x, b.s.residual_mid);
}
void norm1_after_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  norm_after_backward(b, {b.w.norm1_after, b.s.attention_branch}, g.w.norm1_after, g, n);
}

// norm2 after: residual_out = residual_mid + norm(branch)

void norm2_after_saved(BlockSaved& s, const SavedShape& shape, const TakeSaved& take) {
  take({"rstd of norm 2 after", DType::kF32, {shape.rows()}}, s.mlp_branch.rstd);
  take({"residual after MLP", shape.plan.dtype, {shape.rows(), shape.config.channels}}, s.residual_out);
}
void norm2_after_forward(const Block& b, const Neighbours&) {
  norm_after_forward(b, {b.w.norm2_after, b.s.mlp_branch}, b.s.residual_mid, b.s.residual_out);
}
void norm2_after_backward(const Block& b, const BlockGradients& g, const Neighbours& n) {
  norm_after_backward(b, {b.w.norm2_after, b.s.mlp_branch}, g.w.norm2_after, g, n);
}

// The weights of a norm
template <NormWeights BlockParams::*kNorm>
std::vector<VectorOfStage> vectors_of(const char* name, const ModelConfig& config, const BlockSpec& spec) {
  std::vector<VectorOfStage> all;
  all.push_back({.name = fmt::format("{}.weight", name),
                 .size = config.channels,
                 .init = norm_init(config),
                 .tensor = [](const BlockParams& w) -> const Tensor& { return (w.*kNorm).weight; }});
  if (spec.norm == NormKind::kLayerNorm)
    all.push_back({.name = fmt::format("{}.bias", name),
                   .size = config.channels,
                   .init = Init::kZero,
                   .tensor = [](const BlockParams& w) -> const Tensor& { return (w.*kNorm).bias; }});
  return all;
}

Offers offers_of_norm(const BlockSpec&) { return {.fp8_y = true, .fp8_dx = true, .dx_sum = true}; }
Offers offers_of_norm_after(const BlockSpec&) { return {.fp8_dx = true, .dx_sum = true}; }

}  // namespace

constinit const StageRow kNorm1Row{
    .stage = Stage::kNorm1,
    .name = "a norm before attention",
    .dropped_by = {Recomputed::kNorms, Recomputed::kLinear, Recomputed::kBlock},
    .exists = [](const BlockSpec& spec) { return spec.norms_before(); },
    .vectors = [](const ModelConfig& config,
                  const BlockSpec& spec) { return vectors_of<&BlockParams::norm1>("norm1", config, spec); },
    .offers = offers_of_norm,
    .saved = norm1_saved,
    .forward = norm1_forward,
    .backward = norm1_backward,
    .decode = DecodeForm{.add = norm1_decode, .lacks = norm_not_in_decode}};

constinit const StageRow kNorm1AfterRow{
    .stage = Stage::kNorm1After,
    .name = "a norm after attention",
    .dropped_by = {Recomputed::kAttention, Recomputed::kLinear, Recomputed::kBlock},
    .exists = [](const BlockSpec& spec) { return spec.norms_after(); },
    .vectors =
        [](const ModelConfig& config, const BlockSpec& spec) {
          return vectors_of<&BlockParams::norm1_after>("norm1_after", config, spec);
        },
    .offers = offers_of_norm_after,
    .saved = norm1_after_saved,
    .forward = norm1_after_forward,
    .backward = norm1_after_backward};

constinit const StageRow kNorm2Row{
    .stage = Stage::kNorm2,
    .name = "a norm before the MLP",
    .dropped_by = {Recomputed::kNorms, Recomputed::kMlp, Recomputed::kLinear, Recomputed::kBlock},
    .exists = [](const BlockSpec& spec) { return spec.norms_before(); },
    .vectors = [](const ModelConfig& config,
                  const BlockSpec& spec) { return vectors_of<&BlockParams::norm2>("norm2", config, spec); },
    .offers = offers_of_norm,
    .saved = norm2_saved,
    .forward = norm2_forward,
    .backward = norm2_backward,
    .decode = DecodeForm{.add = norm2_decode, .lacks = norm_not_in_decode}};

constinit const StageRow kNorm2AfterRow{.stage = Stage::kNorm2After,
                                        .name = "a norm after the MLP",
                                        .exists = [](const BlockSpec& spec) { return spec.norms_after(); },
                                        .vectors =
                                            [](const ModelConfig& config, const BlockSpec& spec) {
                                              return vectors_of<&BlockParams::norm2_after>("norm2_after",
                                                                                           config, spec);
                                            },
                                        .in_chunks = true,
                                        .offers = offers_of_norm_after,
                                        .saved = norm2_after_saved,
                                        .forward = norm2_after_forward,
                                        .backward = norm2_after_backward};

}  // namespace tessera
