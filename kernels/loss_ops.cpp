#include "kernels/loss_ops.h"

#include <cmath>

#include "kernels/base/check.h"
#include "kernels/op_checks.h"

namespace tessera {

void CapLogits::check_on(Device device) const {
  check_anchor(kName, "logits", logits, 2, device);
  check(cap > 0, "{}: cap must be above 0, found {}", kName, cap);
}

void CrossEntropy::check_on(Device device) const {
  check_anchor(kName, "logits", logits, 2, device);
  const int64_t N = logits.shape[0];
  check_fields(kName, device,
               {{"targets", targets, DType::kI32, {N}},
                {"losses", losses, DType::kF32, {N}},
                {"gradient_scale", gradient_scale, DType::kF32, {1}, true},
                {"weights", weights, DType::kF32, {N}, true}});
  if (vocab_size <= 0 || vocab_size > logits.shape[1])
    fail("{}: vocab_size {} does not fit logits {}", kName, vocab_size, logits.to_string());
  check(cap >= 0, "{}: cap must be at least 0, found {}", kName, cap);
  check(z_loss >= 0, "{}: z_loss must be at least 0, found {}", kName, z_loss);
  check(label_smoothing >= 0 && label_smoothing < 1,
        "{}: label_smoothing must be at least 0 and below 1, found {}", kName, label_smoothing);
  check(want_gradient || !fp8_dlogits, "{}: fp8_dlogits needs want_gradient", kName);
  check_fp8_output(kName, device, "fp8_dlogits", fp8_dlogits, DType::kE5M2, logits);
}

void Distillation::check_on(Device device) const {
  check_anchor(kName, "logits", logits, 2, device);
  const char* const its = teacher ? "teacher" : "largest_ids";
  const Tensor& given = teacher ? teacher : largest_ids;
  check(given && given.shape.rank() == 2, "{}: {} must have 2 dimensions, found {}", kName, its,
        given.to_string());
  const int64_t N = logits.shape[0], columns = given.shape[1];
  check(!teacher || !largest_ids, "{}: teacher and largest_ids exclude each other", kName);
  check_fields(kName, device,
               {{its, given, teacher ? logits.dtype : DType::kI32, {N, columns}},
                {"largest", largest, DType::kF32, {N, columns + 1}, static_cast<bool>(teacher)},
                {"targets", targets, DType::kI32, {N}},
                {"losses", losses, DType::kF32, {N}},
                {"gradient_scale", gradient_scale, DType::kF32, {1}, true},
                {"weights", weights, DType::kF32, {N}, true}});
  const int64_t most = teacher ? std::min(logits.shape[1], columns) : logits.shape[1];
  if (vocab_size <= 0 || vocab_size > most || (!teacher && columns > vocab_size))
    fail("{}: vocab_size {} does not fit logits {} and {} {}", kName, vocab_size, logits.to_string(), its,
         given.to_string());
  check(temperature > 0, "{}: temperature must be above 0, found {}", kName, temperature);
  check(cross_entropy >= 0 && cross_entropy <= 1, "{}: cross_entropy must be 0 to 1, found {}", kName,
        cross_entropy);
  check(reverse >= 0 && reverse <= 1, "{}: reverse must be 0 to 1, found {}", kName, reverse);
}

void LargestLogits::check_on(Device device) const {
  check_anchor(kName, "logits", logits, 2, device);
  check(ids && ids.shape.rank() == 2, "{}: ids must have 2 dimensions, found {}", kName, ids.to_string());
  const int64_t N = logits.shape[0], K = ids.shape[1];
  check_fields(kName, device,
               {{"ids", ids, DType::kI32, {N, K}}, {"values", values, DType::kF32, {N, K + 1}}});
  if (K < 1 || K > vocab_size || vocab_size > logits.shape[1])
    fail("{}: ids {} and vocab_size {} do not fit logits {}", kName, ids.to_string(), vocab_size,
         logits.to_string());
  check(temperature > 0, "{}: temperature must be above 0, found {}", kName, temperature);
}

void PreferenceLoss::check_on(Device device) const {
  check_anchor(kName, "losses", losses, 1, device);
  check(kinds && kinds.shape.rank() == 2, "{}: kinds must have 2 dimensions, found {}", kName,
        kinds.to_string());
  const int64_t B = kinds.shape[0], T = kinds.shape[1], N = B * T;
  const int given = (reference ? 1 : 0) + (stored ? 1 : 0), needed = rule.needs_reference() ? 1 : 0;
  check(!divergence || (rule.has_labels() && gradient_scale),
        "{}: divergence is of a rule with labels, and needs gradient_scale", kName);
  check(given == needed, "{}: of reference and stored {} are given, and the rule needs {}", kName, given,
        needed);
  check_fields(kName, device,
               {{"kinds", kinds, DType::kI32, {B, T}},
                {"documents", documents, DType::kI32, {B, T, 2}},
                {"targets", targets, DType::kI32, {N}},
                {"losses", losses, DType::kF32, {N}},
                {"reference", reference, DType::kF32, {N}, true},
                {"stored", stored, DType::kF32, {N, 2}, true},
                {"divergence", divergence, DType::kF32, {1}, true},
                {"gradient_scale", gradient_scale, DType::kF32, {1}, true},
                {"pair_weights", pair_weights, DType::kF32, {N}, true},
                {"weights", weights, DType::kF32, {N}},
                {"figures", figures, DType::kF32, {PreferenceFigures::kCount, N}}});
}

void HeadLoss::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_anchor(kName, "weight", weight, 2, device);
  const int64_t N = x.shape[0], C = x.shape[1], padded = weight.shape[0];
  check_fields(kName, device,
               {{"weight", weight, x.dtype, {padded, C}},
                {"targets", targets, DType::kI32, {N}},
                {"gradient_scale", gradient_scale, DType::kF32, {1}, true},
                {"weights", weights, DType::kF32, {N}, true},
                {"e", e, x.dtype, {N, padded}},
                {"losses", losses, DType::kF32, {N}},
                {"scaled_x", scaled_x, x.dtype, {N, C}},
                {"factors", factors, DType::kF32, {2, N}},
                {"sums", sums, DType::kF32, {(padded + kSumColumns - 1) / kSumColumns, N}}});
  if (vocab_size <= 0 || vocab_size > padded)
    fail("{}: vocab_size {} does not fit weight {}", kName, vocab_size, weight.to_string());
}

void HeadGradient::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_anchor(kName, "weight", weight, 2, device);
  const int64_t N = x.shape[0], C = x.shape[1], padded = weight.shape[0];
  check_fields(kName, device,
               {{"product", product, x.dtype, {N, C}},
                {"targets", targets, DType::kI32, {N}},
                {"factors", factors, DType::kF32, {2, N}},
                {"weight", weight, x.dtype, {padded, C}},
                {"dweight", dweight, x.dtype, {padded, C}}});
}

void SumLosses::check_on(Device device) const {
  check(losses && losses.dtype == DType::kF32 && losses.device == device,
        "{}: losses must be in fp32 on {}, found {}", kName, name_of(device), losses.to_string());
  check_fields(kName, device, {{"sum", sum, DType::kF32, {1}}});
}

}  // namespace tessera
