#include "train/session/bad_value.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/present.h"

namespace tessera {
namespace {

float float_of(int32_t order) { return std::bit_cast<float>(order_of(order)); }

// "[0, 3, 5]"
std::string index_text(uint64_t element, const Shape& shape) {
  std::string text;
  auto left = static_cast<int64_t>(element);
  for (int i = shape.rank() - 1; i >= 0; --i) {
    text = fmt::format("{}{}{}", left % shape[i], text.empty() ? "" : ", ", text);
    left /= shape[i];
  }
  return "[" + text + "]";
}

}  // namespace

std::string LookedAt::name() const {
  return memory.empty() ? fmt::format("{} ({})", field, tensor.to_string())
                        : fmt::format("{} ({}, {})", field, memory, tensor.to_string());
}

std::string LookedAt::range() const {
  if (!values.has_finite()) return "nothing finite";
  const float least = float_of(values.least), largest = float_of(values.largest);
  return fmt::format("{:.6g} to {:.6g}, largest magnitude {:.6g}", least, largest,
                     std::max(std::fabs(least), std::fabs(largest)));
}

std::string LookedAt::bad() const {
  return fmt::format("{} of {} values {} not finite, the first at {}", values.bad, tensor.numel(),
                     values.bad == 1 ? "is" : "are", index_text(values.first_bad, tensor.shape));
}

std::string place_of(const BadValue& bad, int64_t micro_steps) {
  const OpPlace& place = bad.place;
  std::string text = bad.operation;
  if (place.block >= 0) text += fmt::format(" in block {}", place.block);
  if (place.block == OpPlace::kTables) text += " of the embeddings";
  if (place.block == OpPlace::kHead) text += " in the head";
  if (place.block != OpPlace::kOutside) text += place.backward ? ", in the backward" : ", in the forward";
  if (place.micro_batch == OpPlace::kOutside) return text + ", after the micro-batches";
  return text + fmt::format(", micro-batch {} of {}", place.micro_batch + 1, micro_steps);
}

BadValueSearch::BadValueSearch(TrainState& state) : state_(state) {
  state.stream().backend().add_observer(*this);
}

BadValueSearch::~BadValueSearch() { state_.stream().backend().remove_observer(*this); }

// Operations that follow find nothing of it: each begins with a workspace that is undefined.
Inspected BadValueSearch::inspect(const Operand& operand) {
  const Stream& stream = state_.stream();
  const auto [field, x, first, heads] = operand;
  const int64_t D = heads > 0 ? x.shape[-1] : 0;
  Tensor result{stream.workspace().data, DType::kI32, {kInspectedWords}, stream.device()};
  std::array<int32_t, kInspectedWords> words{};
  own_ = true;
  stream.run(Inspect{.x = x,
                     .row = heads > 0 ? x.shape[2] * D : 0,
                     .first = first * D,
                     .count = heads * D,
                     .result = result});
  stream.run(Copy{result, {words.data(), DType::kI32, result.shape, Device::kCpu}});
  stream.synchronize();
  own_ = false;
  return std::bit_cast<Inspected>(words);
}

LookedAt BadValueSearch::look_at(const Operand& operand) {
  const Tensor& x = operand.tensor;
  return {.field = operand.field, .memory = state_.name_at(x.data), .tensor = x, .values = inspect(operand)};
}

void BadValueSearch::before(const AnyOp& op, Backend& backend, const Launch&) {
  if (own_ || found_) return;
  read_.clear();
  for (const Operand& operand : operands_of(op).read)
    if (operand.tensor.device == backend.device()) read_.push_back(look_at(operand));
}

// An operand that is bad says nothing as long as no result is: an operation need not read all of it, as a
// lookup in a table does not. A copy is judged by what reads it.
void BadValueSearch::after(const AnyOp& op, Backend& backend, const Launch&) {
  if (own_ || found_) return;
  ++number_;
  const bool is_copy = std::holds_alternative<const Copy*>(op);
  for (const Operand& operand : operands_of(op).written) {
    if (operand.tensor.device != backend.device()) continue;
    LookedAt written = look_at(operand);
    if (written.values.bad == 0) continue;
    const auto bad = std::ranges::find_if(read_, [](const LookedAt& one) { return one.values.bad > 0; });
    if (bad == read_.end()) return note(op, std::move(written), operand);
    if (is_copy) return;
    note(op, *bad, operand);
    present(found_).was_read = true;
    return;
  }
}

void BadValueSearch::note(const AnyOp& op, LookedAt bad, const Operand& written) {
  found_ = {.number = number_,
            .operation = name_of(op),
            .place = state_.stream().backend().place(),
            .found = std::move(bad),
            .read = read_};
  find_sequences(written);
}

// Of a tensor with a row, or a place in [B, T], for each token of the micro-batch
void BadValueSearch::find_sequences(const Operand& written) {
  auto& found = present(found_);
  const RunShape& shape = state_.shape();
  const int64_t B = shape.micro_batch, T = shape.tokens(), N = B * T;
  const Tensor& x = written.tensor;
  const bool by_sequence = x.shape.rank() >= 2 && x.shape[0] == B && x.shape[1] == T,
             by_row = !by_sequence && x.shape[0] == N;
  if ((!by_sequence && !by_row) || found.place.micro_batch == OpPlace::kOutside) return;
  const int64_t heads = written.heads > 0 ? x.shape[2] : 1;
  for (int64_t b = 0; b < B; ++b) {
    Operand part = written;
    part.tensor = x.view({B, T, heads, x.numel() / (N * heads)});
    part.tensor.data = x.as<char>() + static_cast<int64_t>(x.bytes()) / B * b;
    part.tensor.shape = {1, T, heads, part.tensor.shape[3]};
    const Inspected values = inspect(part);
    if (values.bad == 0) continue;
    if (found.sequences.empty() && shape.mesh.context == 1)
      found.token = b * T + static_cast<int64_t>(values.first_bad) / std::max<int64_t>(x.numel() / N, 1);
    found.sequences.push_back(b);
  }
}

}  // namespace tessera
