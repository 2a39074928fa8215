// The proofs of attention: every kind beside naive in fp32, and rows computed again on the host.
#include "train/prove/allowed.h"
#include "train/prove/prover.h"

namespace tessera {
namespace {

std::vector<Measure> compare_all(const StepRecord& found, const StepRecord& expected, double allowed) {
  std::vector<Measure> all = compare_attention(found, expected, allowed);
  for (Measure& each : compare_records(found, expected, allowed)) all.push_back(std::move(each));
  return all;
}

// How many elements each of the measures of compare_all() has
std::vector<int64_t> element_counts(const StepRecord& of) {
  std::vector<int64_t> all;
  for (const std::vector<float>& block : of.attention) all.push_back(std::ssize(block));
  all.push_back(std::ssize(of.losses));
  for (const ParamValues& each : of.gradients) all.push_back(std::ssize(each.values));
  return all;
}

}  // namespace

// `naives`: how far naive is off in the same precision; empty: it is the reference itself, or does not fit
Proof Prover::prove_kind(const StepRecord& found, const std::vector<Measure>& naives, const StepRecord& exact,
                         AttentionKind kind) const {
  const DType dtype = base_shape().dtype;
  Proof proof{.name = name_of(kind), .compared = "", .tokens = S_ * T_};
  const double allowed = allowed::of_model(dtype, base_shape().model.layers);
  proof.measures = compare_all(found, exact, allowed);
  if (naives.empty()) {
    proof.compared = fmt::format("{} in {} against naive in fp32", name_of(kind), name_of(dtype));
    proof.reason = allowed::kModelReason;
    return proof;
  }
  proof.compared =
      fmt::format("{} and naive in {}, both against naive in fp32", name_of(kind), name_of(dtype));
  proof.reason = allowed::kRatioReason;
  const std::vector<int64_t> counts = element_counts(found);
  for (size_t i = 0; i < proof.measures.size(); ++i) {
    Measure& m = proof.measures[i];
    m.naive = naives[i].difference;
    m.allowed = allowed::beside_naive(m.naive, options_.ratio, counts[i], dtype);
  }
  return proof;
}

Proof Prover::proof_of_rows(const std::string& name, const RowCheck& rows, const std::string& of) const {
  return {.name = name,
          .compared = fmt::format("{} rows and keys of {}, again on the host in fp64", rows.rows(), of),
          .tokens = S_ * T_,
          .measures = rows.measures(),
          .reason = allowed::kRowReason};
}

void Prover::prove_attention() {
  const bool low = base_shape().dtype != DType::kF32;
  const AttentionKind own = own_attention();
  std::string why;
  Way exact_way = way();
  exact_way.attention = AttentionKind::kNaive, exact_way.precision = Precision::kFp32;
  const auto sees_attention = [](StepJob& job) { job.sees_attention = true; };
  std::optional<StepRecord> exact;
  std::vector<Measure> naives;
  if (asked(ProofKind::kAttention)) {
    show("naive in fp32");
    if (const auto shape = largest_shape(exact_way, device_, why))
      exact = record(*shape, device_, data_.sequences, sees_attention);
    else
      skip("attention", "naive in fp32 " + why + ": the rows below take its place");
  }
  if (exact && low) {
    show("naive");
    Way naive_way = way();
    naive_way.attention = AttentionKind::kNaive;
    if (const auto shape = largest_shape(naive_way, device_, why))
      naives = compare_all(record(*shape, device_, data_.sequences, sees_attention), *exact, 0);
  }
  for (const AttentionKind kind : {AttentionKind::kFlash, AttentionKind::kCudnn}) {
    if (kind == AttentionKind::kCudnn && device_.device != Device::kCuda) continue;
    if (options_.attention && kind != own) continue;
    Way of_kind = way();
    of_kind.attention = kind;
    const auto shape = largest_shape(of_kind, device_, why);
    if (!shape) {
      skip(name_of(kind), why);
      continue;
    }
    show(name_of(kind));
    RowCheck rows(data_.sequences, {.blocks = base_shape().model.layers,
                                    .sequences = S_,
                                    .sequence_length = T_,
                                    .sparse = base_shape().model.sparse});
    StepRecord found;
    try {
      found = record(*shape, device_, data_.sequences, [&](StepJob& job) {
        job.sees_attention = exact.has_value();
        if (asked(ProofKind::kRows)) job.rows = &rows;
      });
    } catch (const Error& error) {  // cuDNN says only when it runs that it does not serve a shape
      if (kind != AttentionKind::kCudnn) throw;
      skip(name_of(kind), error.what());
      continue;
    }
    if (exact) add(prove_kind(found, naives, *exact, kind));
    if (asked(ProofKind::kRows))
      add(proof_of_rows("rows", rows, fmt::format("{}'s attention", name_of(kind))));
    if (kind == own && shape->micro_batch == base_shape().micro_batch) base_ = std::move(found);
  }
  if (config_.model.attention == AttentionKind::kFlashFp8 && asked(ProofKind::kAttention)) prove_fp8_attention();
}

void Prover::prove_fp8_attention() {
  Way fp8 = way();
  fp8.attention = AttentionKind::kFlashFp8;
  std::string why;
  const auto shape = largest_shape(fp8, device_, why);
  if (!shape) return skip(name_of(fp8.attention), why);
  const StepRecord& expected = base();
  show(name_of(fp8.attention));
  add({.name = name_of(fp8.attention),
       .compared = "attention whose forward multiplies in FP8 beside the same in bf16",
       .tokens = S_ * T_,
       .measures = compare_records(record(*shape, device_, data_.sequences), expected, 0),
       .judged = false});
}

}  // namespace tessera
