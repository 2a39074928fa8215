#include "kernels/attention/fallback.h"

#include <fmt/format.h>

#include "kernels/attention/family.h"

namespace tessera {

std::string fallback_note(const AttentionPlan& plan) {
  if (plan.kind != AttentionKind::kFlash || plan.arch != attention::kHopper || plan.dtype != DType::kBF16)
    return "";
  const AttnProblem problem = attn_problem(plan, {.threshold = plan.dropout}, planned_tables(plan));
  if (problem.mask.choice.size != 0) return "";  // the kernels of its rows are chosen call by call
  for (const auto* family : attention::families()) {
    if (family->by_name_only || family->in_fp8 || family->dtype != problem.dtype) continue;
    const AttnStatus status = attention::supports(*family, problem, plan.arch);
    if (status == ATTN_OK) return "";
    if (family->lowest_arch != attention::kHopper) continue;
    const std::string arch = fmt::format("{}.{}", attention::kLowestArch / 10, attention::kLowestArch % 10);
    if (status == ATTN_BAD_HEAD_DIM)
      return fmt::format(
          "head dim {} runs the attention kernels for compute capability {}: those for 9.0 serve {}",
          problem.head_dim, arch, family->head_dims.text());
    if (status == ATTN_BAD_DROPOUT && problem.head_dim > family->most_with_dropout)
      return fmt::format(
          "head dim {} with dropout runs the attention kernels for compute capability {}: those for 9.0 drop "
          "up to head dim {}",
          problem.head_dim, arch, family->most_with_dropout);
    return fmt::format(
        "attention with {}{} runs the kernels for compute capability {}: those for 9.0 do not serve it",
        to_string(plan.shape.mask), plan.dropout ? " and dropout" : "", arch);
  }
  return "";
}

}  // namespace tessera
