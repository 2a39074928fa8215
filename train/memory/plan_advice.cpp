#include "train/memory/plan_advice.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "model/stages.h"
#include "train/memory/data_weights.h"
#include "train/session/fastest_shape.h"
#include "train/session/step_estimate.h"

namespace tessera {
namespace {

constexpr int64_t kLogitsChunk = 8192;  // tokens

// Finds changes for one run.
class Adviser {
 public:
  Adviser(const Config& config, const RunPlan& plan, bool resuming)
      : start_{config, {}}, plan_(plan), resuming_(resuming) {}

  std::vector<Advice> find() {
    if (const std::optional<Change> change = fastest(start_); change && fits(*change)) offer(*change);
    if (!plan_.fits_host()) offer(with_offload(start_, Offload{}));
    const auto single = {chunked_logits(start_),
                         split_weights(start_),
                         recompute(start_),
                         chunked_mlp(start_),
                         offload(start_, Offloaded::kOptimizer),
                         offload(start_, Offloaded::kActivations),
                         offload(start_, Offloaded::kGradients),
                         offload(start_, Offloaded::kWeights),
                         smaller_micro_batch(start_),
                         flash(start_),
                         shorter_sequences(start_),
                         smaller_step(start_)};
    for (const std::optional<Change>& change : single)
      if (change) offer(*change);
    offer_bf16_moments(start_);
    const auto fit = [&] { return std::ranges::any_of(found_, &Advice::fits); };
    if (fit()) return found_;

    Change together = start_;
    const auto add = [&](const std::optional<Change>& change) {
      if (change && peak(*change) < peak(together)) together = *change;
    };
    add(flash(together));
    add(chunked_logits(together));
    add(fastest(together));
    add(smaller_step(together));
    const Change same_sequences = together;
    add(shorter_sequences(together));
    offer(together);
    offer_bf16_moments(same_sequences);
    offer_bf16_moments(together);
    if (!fit() && !resuming_) offer(fewer_layers(same_sequences));
    return found_;
  }

 private:
  std::optional<RunPlan> planned(const Change& change) const {
    try {
      return with_weights(
          plan_run(change.config, plan_.device, plan_.limit, {.micro_batch = plan_.shape.micro_batch}),
          plan_.shape.weights);
    } catch (const Error&) {  // no kernel supports the change
      return std::nullopt;
    }
  }
  bool fits(const Change& change) const {
    const std::optional<RunPlan> plan = planned(change);
    return plan && plan->fits();
  }
  int64_t peak(const Change& change) const {
    const std::optional<RunPlan> plan = planned(change);
    return plan ? plan->peak() : std::numeric_limits<int64_t>::max();
  }

  void offer(const Change& change) {
    const std::optional<RunPlan> plan = planned(change);
    if (!plan || !needs_less(*plan)) return;
    const auto same = [&](const Advice& a) { return a.switches == change.switches; };
    if (std::none_of(found_.begin(), found_.end(), same))
      found_.push_back({.switches = change.switches,
                        .peak = plan->peak(),
                        .fits = plan->fits(),
                        .tokens_per_second = tokens_per_second(plan->shape, plan_.device),
                        .on_gpu = plan_.device.device == Device::kCuda,
                        .host_bytes = plan_.fits_host() ? 0 : plan->memory.host_bytes});
  }
  bool needs_less(const RunPlan& plan) const {
    return plan_.fits_host() ? plan.peak() < plan_.peak() : plan.memory.host_bytes < plan_.memory.host_bytes;
  }

  // bf16 moments change the losses, so they are offered only where the run fits with them, and without them
  // does not fit unless the optimizer is offloaded.
  void offer_bf16_moments(const Change& from) {
    const Change rest = fastest(from, /*may_offload=*/false).value_or(from),
                 change = with_moments(rest, DType::kBF16);
    const bool already_offered = std::ranges::any_of(
        found_, [](const Advice& a) { return a.switches.back() == "optimizer.moments=bf16"; });
    if (!already_offered && !fits(rest) && fits(change)) offer(change);
  }

  std::optional<Change> chunked_logits(const Change& from) const {
    const int64_t asked = from.config.train.classifier_chunk;
    const int64_t now = asked == kAutoChunk ? plan_.shape.classifier_chunk : asked;
    if (plan_.shape.rows() <= kLogitsChunk || (now > 0 && now <= kLogitsChunk)) return std::nullopt;
    return with_classifier_chunk(from, kLogitsChunk);
  }

  std::optional<Change> split_weights(const Change& from) const {
    if (from.config.ranks == 1 || from.config.parallel.shard == Shard::kWeights) return std::nullopt;
    return with_shard(from, Shard::kWeights);
  }

  std::optional<Change> offload(const Change& from, Offloaded what) const {
    const bool on_gpu = plan_.device.device == Device::kCuda;
    Offload more = from.config.memory.offload.value_or(Offload{});
    more.add(what);
    if (!on_gpu || from.config.memory.offload == more) return std::nullopt;
    const Change change = with_offload(from, more);
    const bool splits = from.config.ranks > 1 && from.config.parallel.shard != Shard::kWeights;
    return what == Offloaded::kWeights && splits ? with_shard(change, Shard::kWeights) : change;
  }

  // What auto would find for all keys that have it
  std::optional<Change> fastest(const Change& from, bool may_offload = true) const {
    Config free = from.config;
    free.train.micro_batch = 0;
    free.train.recompute.reset(), free.parallel.shard.reset();
    free.parallel.replicas = 0;
    free.train.mlp_chunk = kAutoChunk;
    if (may_offload) free.memory.offload.reset();
    RunShape shape;
    try {
      shape = run_shape(free, plan_.device, plan_.limit);
    } catch (const Error&) {
      return std::nullopt;
    }
    Change change = from;
    if (from.config.train.recompute != shape.keep) change = with_recompute(change, shape.keep);
    if (from.config.train.mlp_chunk != shape.mlp_chunk) change = with_mlp_chunk(change, shape.mlp_chunk);
    if (from.config.ranks > 1 && from.config.parallel.shard != shape.shard)
      change = with_shard(change, shape.shard);
    if (from.config.parallel.replicas > 0 && from.config.parallel.replicas != shape.mesh.replicas)
      change = with_replicas(change, shape.mesh.replicas);
    if (from.config.memory.offload != shape.offload) change = with_offload(change, shape.offload);
    if (from.config.train.micro_batch != shape.micro_batch)
      change = with_micro_batch(change, shape.micro_batch);
    return change;
  }

  // The least recomputation that is enough
  std::optional<Change> recompute(const Change& from) const {
    std::optional<Change> found;
    for (const Keep keep : {kKeepAllButMlp, kKeepOutputs}) {
      if (plan_.shape.keep.all_of([&](Keep each) { return covers(each, keep); })) continue;
      found = with_recompute(from, keep);
      if (fits(*found)) break;
    }
    return found;
  }

  // The largest that is enough
  std::optional<Change> chunked_mlp(const Change& from) const {
    const int64_t now = rows_at_a_time(plan_.shape.mlp_chunk, plan_.shape.rows());
    std::optional<Change> found;
    for (const int64_t chunk : kMlpChunks) {
      if (chunk >= now) continue;
      found = with_mlp_chunk(from, chunk);
      if (fits(*found)) break;
    }
    return found;
  }

  // The largest that fits and still divides the step, or 1.
  std::optional<Change> smaller_micro_batch(const Change& from) const {
    const int64_t now = plan_.shape.micro_batch;
    const int64_t sequences =
        from.config.train.tokens_per_step / from.config.sequence_length() / from.config.data_ranks();
    for (int64_t b = now - 1; b >= 1; --b) {
      if (sequences % b != 0) continue;
      const Change change = with_micro_batch(from, b);
      if (b == 1 || fits(change)) return change;
    }
    return std::nullopt;
  }

  std::optional<Change> flash(const Change& from) const {
    if (from.config.model.attention == AttentionKind::kFlash) return std::nullopt;
    return with_attention(from, AttentionKind::kFlash);
  }

  std::optional<Change> shorter_sequences(const Change& from) const {
    const int64_t now = from.config.sequence_length();
    // A checkpoint fixes the sequence length, and so does train.context_schedule.
    if (resuming_ || from.config.phases() > 1 || now <= kContextStep) return std::nullopt;
    const int64_t largest = largest_that_fits(
        kContextStep, now - 1, [&](int64_t tokens) { return fits(with_sequence_length(from, tokens)); });
    return with_sequence_length(from, std::max(largest, kContextStep));
  }

  // One micro-batch a step: the least memory for the buffers of a step's tokens
  std::optional<Change> smaller_step(const Change& from) const {
    Change change = from;
    const int64_t micro_batch = std::max<int64_t>(from.config.train.micro_batch, 1);
    change.config.train.tokens_per_step =
        micro_batch * from.config.sequence_length() * from.config.data_ranks();
    const bool worth_it = peak(from) - peak(change) > peak(from) / 20;
    if (!worth_it) return std::nullopt;
    change.switches.push_back(fmt::format("train.tokens_per_step={}", change.config.train.tokens_per_step));
    return change;
  }

  Change fewer_layers(const Change& from) const {
    const auto with_layers = [&](int64_t layers) {
      Change change = from;
      change.config.model.layers = layers;
      change.switches.push_back(fmt::format("model.layers={}", layers));
      return change;
    };
    const int64_t largest = largest_that_fits(1, from.config.model.layers - 1,
                                              [&](int64_t layers) { return fits(with_layers(layers)); });
    return with_layers(std::max<int64_t>(largest, 1));
  }

  Change start_;
  const RunPlan& plan_;
  bool resuming_;
  std::vector<Advice> found_;
};

}  // namespace

std::string in_shell(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::vector<Advice> advice(const Config& config, const RunPlan& plan, bool resuming) {
  return Adviser(config, plan, resuming).find();
}

std::string set_switches(const std::vector<std::string>& switches) {
  std::string text;
  for (const std::string& s : switches) text += (text.empty() ? "--set " : " --set ") + in_shell(s);
  return text;
}

std::string advice_text(const std::vector<Advice>& advice) {
  if (advice.empty()) return "No change needs less memory: the model is too large.\n";
  std::string text = "These changes need less memory:\n";
  for (const Advice& a : advice)
    text += fmt::format("  {:>10}  {:<9} {}{}{}\n", format_bytes(a.peak), a.fits ? "fits" : "too much",
                        a.host_bytes ? fmt::format("{:>10} of the host  ", format_bytes(a.host_bytes)) : "",
                        a.on_gpu ? fmt::format("{:>9} tokens/s  ", format_count(a.tokens_per_second)) : "",
                        set_switches(a.switches));
  if (std::none_of(advice.begin(), advice.end(), [](const Advice& a) { return a.fits; }))
    text += "None of these is enough: the model is too large.\n";
  return text;
}

std::string describe(const MemoryLimit& limit, const DeviceTraits& device) {
  if (!limit.known()) return "an unknown limit";
  if (limit.given) return fmt::format("the {} given by --device-memory", format_bytes(limit.bytes));
  return fmt::format(
      "the {} that are free now, of {}, on {}{}{}", format_bytes(limit.bytes + limit.not_ours),
      format_bytes(limit.total), device.name,
      limit.not_ours ? fmt::format(", less {} for kernels and libraries", format_bytes(limit.not_ours)) : "",
      limit.others.empty() ? "" : fmt::format(" ({})", limit.others));
}

namespace {

std::string refusal_of_device(const RunPlan& plan) {
  return fmt::format(
      "this run does not fit: it needs {} ({}), {} more than {}.\nIts micro-batch is {} x {} tokens, "
      "attention {}; the peak is in {}, at \"{}\".\n",
      format_bytes(plan.peak()), format_by_tag(plan.memory.ledger.at_peak()), format_bytes(-plan.spare()),
      describe(plan.limit, plan.device), plan.shape.micro_batch, plan.shape.sequence_length,
      name_of(plan.shape.attention), plan.memory.peak_stage, plan.memory.ledger.peak_name());
}

std::string refusal_of_host(const RunPlan& plan) {
  const bool shared = plan.shape.ranks() > 1;
  return fmt::format(
      "this run does not fit the host's memory: memory.offload={} needs {} there{}, {} more than the {} that "
      "are free for it.\n{}",
      text_of(plan.shape.offload), format_bytes(plan.memory.host_bytes), shared ? " for each rank" : "",
      format_bytes(-plan.spare_of_host()), format_bytes(plan.limit.pinned),
      shared ? "Fewer ranks on each machine have more each.\n" : "");
}

}  // namespace

std::string refusal(const Config& config, const RunPlan& plan, bool resuming) {
  std::string text = plan.fits_device() ? refusal_of_host(plan) : refusal_of_device(plan);
  text += advice_text(advice(config, plan, resuming));
  text.pop_back();  // main() prints the last line break
  return text;
}

}  // namespace tessera
