#include "train/session/train_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/nan.h"
#include "kernels/base/ordered_float.h"
#include "model/fp8_places.h"
#include "model/preference_loss.h"
#include "train/session/mean_loss.h"
#include "train/session/store_homes.h"

namespace tessera {
namespace {

std::optional<Arena> host_arena(const Arena& arena, const RunShape& shape) {
  if (!shape.offload) return {};
  return arena.is_plan() ? Arena::plan(arena.device()) : Arena::mapped(arena.device());
}

Fp8Run fp8_run(const ParamStore& store, const RunShape& shape, int64_t rank) {
  return {.config = shape.fp8,
          .places = fp8_places(store, shape.fp8),
          .rows = shape.rows(),
          .mlp_rows = rows_at_a_time(shape.mlp_chunk, shape.rows()),
          .logit_rows = rows_at_a_time(shape.classifier_chunk, shape.rows()),
          .rank = rank,
          .ranks = shape.ranks()};
}

// [E] of [ranks, E]
Tensor own_counts(const Tensor& choice_counts, int64_t rank) {
  return choice_counts.rows(rank, 1).view({choice_counts.shape[1]});
}

}  // namespace

TrainState::TrainState(Backend& be, Arena& arena, const RunShape& shape, const StepAxes& axes)
    : arena_(arena),
      shape_(shape),
      all_(axes.all),
      offloaded_(host_arena(arena, shape)),
      session_(be, arena, shape.session(rank()), training_homes(shape, axes, offloaded_), axes.context),
      fp8_(arena, shape.model, fp8_run(store(), shape, rank())),
      model_(session_.training_model(shape.keep)),
      optimizer_(arena, store(), shape.rule),
      host_(arena.is_plan() ? Arena::plan(Device::kCpu) : Arena::pinned(be.device())),
      inputs_(stream(), arena, host_, shape_, session_.shape().context) {
  model_.fp8 = fp8_.layers();
  model_.fused_head = shape.fused_head;
  model_.loss = shape.loss;
  model_.router_losses = shape.router_losses;
  // The reference rounds as the model does, so that equal weights have equal log-probabilities.
  if (shape.loss.needs_reference && shape.reference_without_adapters) {
    Model& without = without_adapters_.emplace(session_.without_adapters());
    without.fp8 = fp8_.layers();
    model_.reference = &without;
  } else if (shape.loss.needs_reference) {
    FixedModel& reference = reference_.emplace(be, arena, reference_shape(session_.shape()),
                                               reference_homes(shape), axes.context);
    if (fp8_) reference.model.fp8 = fp8_.layers_of(fp8_places(reference.session.store(), shape.fp8));
    model_.reference = &reference.model;
  }
  if (shape.loss.teacher_rows) {
    const ModelConfig& teacher = present(shape.teacher);
    model_.teacher = &teacher_
                          .emplace(be, arena, teacher_shape(session_.shape(), teacher),
                                   teacher_homes(shape, teacher), axes.context)
                          .model;
  }
  if (shape.offload.activations) {
    model_.offloaded_blocks = static_cast<size_t>(std::min(shape.offload.blocks, shape.model.layers));
    model_.offload = &activations_.emplace(stream(), present(offloaded_), model_, shape.poison);
  }
  const auto take = [&](const char* name, DType dtype, const Shape& of) {
    return arena.alloc(MemoryTag::kData, name, dtype, of);
  };
  losses_ = {stream(), host_, take("losses", DType::kF32, {shape.micro_steps, shape.rows()})};
  if (shape.loss.pairs)
    figures_ = {stream(), host_,
                take("figures of pairs", DType::kF32,
                     {shape.micro_steps, PreferenceFigures::kCount, shape.pair_rows()})};
  norms_ = {stream(), host_, optimizer_.grad_norms()};
  gradient_scale_ = {stream(), host_, take("gradient scale", DType::kF32, {1})};
  loss_sums_ = take("sums of losses", DType::kF32, {shape.ranks()});
  if (shape.loss.pairs && shape.loss.pairs->has_labels()) {
    divergences_ = take("divergences of micro-batches", DType::kF32, {shape.micro_steps});
    divergence_sums_ = take("divergences of ranks", DType::kF32, {shape.ranks()});
    divergence_ = take("divergence of the step", DType::kF32, {1});
  }
  if (shape.counts_choices())
    model_.choice_counts = choice_counts_ =
        take("choices of experts", DType::kI32, {shape.ranks(), shape.model.experts.count});
  device_limits_ = {stream(), host_, take("limits of an update", DType::kF32, {2})};
  verdict_ = {stream(), host_, take("verdict on an update", DType::kF32, {1})};
  if (shape.inside_every > 0 || shape.qk_clip > 0) {
    largest_scores_ =
        take("largest scores of heads", DType::kI32, {shape.ranks(), shape.model.layers, shape.model.heads});
    fetched_scores_ = {stream(), host_, largest_scores_};
  }
  if (shape.inside_every > 0) inside_.emplace(stream(), arena, host_, store(), shape.rows(), fp8_.places());
  set_counted(shape.tokens_per_step());
}

void TrainState::initialize(uint64_t seed, InitialOf which) {
  store().kept().clear();
  fp8_.forget();
  graphs_ = {};  // they have the scales of FP8 that were forgotten
  init_weights(shape_.model, seed, {.values = store().writer(), .normal = store().normal_writer()}, which);
}

// As far as one rank can tell
void TrainState::check_counted(const SequencesView& sequences, double counted_tokens) const {
  if (shape_.weights) {
    const double mine =
        shape_.loss.pairs ? weight_of_pairs(sequences, shape_.sequence_length) : weight_of_targets(sequences);
    check(counted_tokens > 0 && counted_tokens >= mine * (1 - 1e-12),
          "counted_tokens must be above 0, and at least the sum of this rank's weights, {}, found {}", mine,
          counted_tokens);
    return;
  }
  const int64_t mine =
      shape_.loss.pairs ? count_pairs(sequences, shape_.sequence_length) : counted(sequences.targets);
  const int64_t own = shape_.sequences_per_rank() * shape_.sequence_length,
                others = shape_.tokens_per_step() - own, least = std::max<int64_t>(mine, 1);
  check(
      static_cast<double>(least) <= counted_tokens && counted_tokens <= static_cast<double>(mine + others),
      "counted_tokens must be {} to {}, found {}: {} of this rank's {} targets count{}, and the other ranks "
      "have {} tokens",
      least, mine + others, counted_tokens, mine, own, shape_.loss.pairs ? ", a pair as one" : "", others);
}

void TrainState::set_counted(double counted_tokens) {
  counted_tokens_ = counted_tokens;
  const auto scale = static_cast<float>(1.0 / counted_tokens);
  gradient_scale_.send(std::span(&scale, 1));
}

// The device compares the sum of the losses.
void TrainState::send_limits() {
  static constexpr double kMost = std::numeric_limits<float>::max();
  const auto rounded = [](double x) { return static_cast<float>(std::clamp(x, -kMost, kMost)); };
  const std::array<float, 2> limits{rounded(limits_.loss * counted_tokens_), rounded(limits_.grad_norm)};
  if (std::exchange(limits_sent_, limits) != limits) device_limits_.send(std::span<const float>(limits));
}

bool TrainState::step(const SequencesView& sequences, double counted_tokens, const OptimizerConfig& config,
                      double learning_rate, int64_t step, const std::function<bool(int64_t)>& continues) {
  check_counted(sequences, counted_tokens);
  inputs_.send(sequences);
  if (counted_tokens != counted_tokens_) set_counted(counted_tokens);
  send_limits();
  return compute_step(shape_.micro_steps, config, learning_rate, step, continues);
}

void TrainState::walk_step(int64_t micro_steps) { compute_step(micro_steps, {}, 0, 1, {}); }

bool TrainState::compute_step(int64_t micro_steps, const OptimizerConfig& config, double learning_rate,
                              int64_t step, const std::function<bool(int64_t)>& continues) {
  // This rank's first sequence in the step
  const int64_t first = shape_.mesh.place(Axis::kData, rank()).rank * shape_.sequences_per_rank();
  const auto copy_row = [&](const Tensor& rows, int64_t from, int64_t to) {
    if (rows && from != to) stream().run(Copy{rows.rows(from, 1), rows.rows(to, 1)});
  };
  // Of the step before, if nobody asked for them
  losses_.values(), norms_.values(), verdict_.values(), inside();
  if (shape_.loss.pairs) figures_.values();
  observed_ = inside_ && step % shape_.inside_every == 0;
  if (finds_scores()) {
    fetched_scores_.values();
    stream().run(FillZero{largest_scores_});
  }
  fp8_.begin_step(stream());
  store().begin_step();
  const auto dropout_of = [&](int64_t m) -> ActiveDropout {
    return {.probabilities = shape_.model.dropout,
            .key = dropout_key(shape_.seed, step),
            .first_sequence = static_cast<uint32_t>(first + m * shape_.micro_batch)};
  };
  if (choice_counts_) stream().run(FillZero{choice_counts_});
  if (counts_apart()) count_choices(micro_steps, dropout_of);
  if (has_divergence() && shape_.micro_steps > 1) measure_divergences(micro_steps);
  for (int64_t m = 0; m < micro_steps; ++m) {
    Arena::Phase phase(arena_, "micro-batch", m + 1, Arena::Phase::kRecordFirstFew);
    const bool last = m + 1 == micro_steps;
    stream().backend().place() = {.micro_batch = m};
    store().gradient_home().begin_micro_step({.first = m == 0, .last = last});
    inputs_.copy_to_first(stream(), m);
    run({.first = m == 0, .last = last, .observed = observed_, .dropout = dropout_of(m)});
    copy_row(losses_.device(), shape_.micro_steps - 1, m);
    copy_row(figures_.device(), shape_.micro_steps - 1, m);
    keep_pace();
    if (continues && !continues(m + 1) && !last) return false;
  }
  losses_.start();
  if (shape_.loss.pairs) figures_.start();
  stream().backend().place() = {};
  store().gradient_home().wait();
  update_weights(config, learning_rate, step);
  stepped_ = true;
  return true;
}

// CUDA graphs are enqueued at once. A host that waits for the micro-step before this one still stays ahead of
// the device, and can drop a step while it runs.
void TrainState::keep_pace() {
  if (arena_.is_plan() || shape_.micro_steps == 1) return;
  if (!enqueued_) {
    enqueued_ = make_timer(stream());
  } else {
    enqueued_->milliseconds();
  }
  enqueued_->start();
  enqueued_->stop();
}

// The inputs of that row, and where its micro-step writes figures
Batch TrainState::batch_of(int64_t row) {
  Batch batch = inputs_.batch(row);
  if (shape_.loss.pairs)
    batch.figures = figures_.device()
                        .rows(shape_.micro_steps - 1, 1)
                        .view({PreferenceFigures::kCount, shape_.pair_rows()});
  if (has_divergence()) {
    const bool alone = shape_.micro_steps == 1;
    batch.divergence = {.of_step = divergence_,
                        .own = alone ? divergences_ : Tensor{},
                        .gradient_scale = gradient_scale_.device(),
                        .share = [this] { share_divergence(); }};
  }
  return batch;
}

// A balance loss is a product of two means over the step, of which one, the share of each expert, is needed
// before the first backward. With one micro-batch its own forward gives it, else a forward
// of all of them that comes before.
void TrainState::count_choices(int64_t micro_steps, const std::function<ActiveDropout(int64_t)>& dropout) {
  for (int64_t m = 0; m < micro_steps; ++m) {
    stream().backend().place() = {.micro_batch = m};
    tessera::count_choices(stream(), arena_,
                           {.model = model_,
                            .batch = batch_of(m),
                            .dropout = dropout(m),
                            .counts = own_counts(choice_counts_, rank())});
  }
  share_row(choice_counts_);
}

void TrainState::share_row(const Tensor& rows) {
  if (shape_.ranks() == 1) return;
  all_->all_gather({.part = rows.rows(rank(), 1), .whole = rows});
  all_->wait();
}

void TrainState::measure_divergences(int64_t micro_steps) {
  for (int64_t m = 0; m < micro_steps; ++m) {
    stream().backend().place() = {.micro_batch = m};
    const Tensor sum = divergences_.rows(m, 1);
    measure_divergence(stream(), arena_, {.model = model_, .batch = batch_of(m), .sum = sum});
  }
  share_divergence();
}

void TrainState::share_divergence() {
  stream().run(SumLosses{.losses = divergences_, .sum = divergence_sums_.rows(rank(), 1)});
  share_row(divergence_sums_);
  stream().run(SumLosses{.losses = divergence_sums_, .sum = divergence_});
}

void TrainState::compute(const MicroStep& micro_step) {
  const Tensor& losses = losses_.device();
  const Batch batch = batch_of(0);
  const bool counts = choice_counts_ && !counts_apart();
  train_batch(
      stream(), arena_,
      {.model = model_,
       .batch = batch,
       .gradient_scale = gradient_scale_.device(),
       .losses = losses.rows(shape_.micro_steps - 1, 1).view({shape_.rows()}),
       .dropout = micro_step.dropout,
       .accumulate = store().gradient_home().accumulates_in_place({micro_step.first, micro_step.last}),
       .choice_counts = counts ? own_counts(choice_counts_, rank()) : Tensor{},
       .largest_scores = finds_scores() ? own_scores() : Tensor{},
       .after_forward = counts ? std::function<void()>([this] { share_row(choice_counts_); }) : nullptr,
       .probe = micro_step.first && micro_step.observed ? &present(inside_).probe() : nullptr});
}

bool TrainState::can_be_graph(const MicroStep& micro_step) {
  return shape_.cuda_graphs && stepped_ && !micro_step.dropout.probabilities &&
         !store().communicates({micro_step.first, micro_step.last}) &&
         (!(choice_counts_ || has_divergence()) || shape_.micro_steps > 1 || shape_.ranks() == 1) &&
         !activations_ && !model_.context && !arena_.ledger().recording();
}

// At a place where it has run before, a micro-step allocates nothing from the driver, and its libraries have
// loaded what they load at their first use: neither may happen while its graph is made.
void TrainState::run(const MicroStep& micro_step) {
  MicroStepGraph& graph = graphs_[micro_step.first][micro_step.observed];
  if (!can_be_graph(micro_step) || graph.place != arena_.place()) {
    graph = {.operations = {}, .place = arena_.place()};
    return compute(micro_step);
  }
  if (!graph.operations)
    graph.operations = stream().backend().make_graph(
        stream().queue(), [this, first = micro_step.first, observed = micro_step.observed] {
          compute({.first = first, .last = false, .observed = observed});
        });
  graph.operations->run();
}

void TrainState::update_weights(const OptimizerConfig& config, double learning_rate, int64_t step) {
  Arena::Phase phase(arena_, "optimizer");
  optimizer_.measure(stream());
  if (fp8_) {
    share_row(fp8_.amaxes());
    fp8_.end_step(stream());
  }
  optimizer_.share_norms();
  norms_.start();
  judge();
  if (finds_scores()) {
    share_row(largest_scores_.view({shape_.ranks(), own_scores().numel()}));
    fetched_scores_.start();
  }
  const Optimizer::Update update{.config = config,
                                 .learning_rate = learning_rate,
                                 .number = step - skipped_updates_,
                                 .verdict = verdict_.device(),
                                 .norms = observed_ ? present(inside_).norms() : Tensor{},
                                 .largest_scores = shape_.qk_clip > 0 ? largest_scores_ : Tensor{},
                                 .most_score = shape_.qk_clip};
  optimizer_.update(stream(), update);
  if (observed_) present(inside_).gather();
}

// All ranks come to the same verdict, from the same numbers.
void TrainState::judge() {
  stream().run(SumLosses{.losses = losses_.device(), .sum = loss_sums_.rows(rank(), 1)});
  share_row(loss_sums_);
  stream().run(JudgeStep{.losses = loss_sums_,
                         .grad_norm = optimizer_.grad_norms(),
                         .limits = device_limits_.device(),
                         .verdict = verdict_.device()});
  verdict_.start();
}

std::string TrainState::name_at(const void* address) {
  std::string name = store().name_at(address);
  if (!name.empty()) return name;
  for (const MemoryLedger* ledger : {&arena_.ledger(), host_ledger()})
    if (const MemoryLedger::Entry* entry = ledger ? ledger->holding(address) : nullptr) return entry->name;
  return "";
}

TrainState::StepResult TrainState::finish_step() {
  const double counted_per_rank = counted_tokens_ / static_cast<double>(shape_.ranks()),
               loss = mean_loss(losses_.values(), counted_per_rank);
  double squares = 0;
  for (const float norm : norms_.values()) squares += static_cast<double>(norm) * norm;
  return {.loss = without_sign_if_nan(loss),
          .grad_norm = without_sign_if_nan(std::sqrt(squares)),
          .verdict = static_cast<StepVerdict>(verdict_.values()[0]),
          .figures = pair_figures(),
          .scores = clipped_scores()};
}

// By layer and head, over the ranks
std::vector<std::vector<double>> TrainState::largest_scores() {
  const std::span<const uint32_t> words = fetched_scores_.values<uint32_t>();
  const auto layers = static_cast<size_t>(shape_.model.layers),
             heads = static_cast<size_t>(shape_.model.heads);
  std::vector<uint32_t> largest(layers * heads);
  for (size_t i = 0; i < words.size(); ++i)
    largest[i % largest.size()] = std::max(largest[i % largest.size()], words[i]);
  std::vector<std::vector<double>> scores(layers);
  for (size_t i = 0; i < largest.size(); ++i) scores[i / heads].push_back(float_of_ordered(largest[i]));
  return scores;
}

std::optional<TrainState::StepResult::Scores> TrainState::clipped_scores() {
  if (shape_.qk_clip == 0) return {};
  StepResult::Scores scores{.largest = -std::numeric_limits<double>::infinity()};
  const double most = static_cast<float>(shape_.qk_clip);  // as ClipHeads compares
  for (const std::vector<double>& layer : largest_scores())
    for (const double score : layer) {
      scores.largest = std::max(scores.largest, score);
      scores.clipped += score > most;
    }
  return scores;
}

std::vector<double> TrainState::pair_figures() {
  if (!shape_.loss.pairs) return {};
  std::vector<double> sums(PreferenceFigures::kCount);
  const std::span<const float> all = figures_.values();
  if (session_.shape().context.rank > 0) return sums;  // the first rank of a context has all of its pairs
  const auto rows = static_cast<size_t>(shape_.pair_rows());
  for (size_t i = 0; i < all.size(); ++i) sums[i / rows % sums.size()] += static_cast<double>(all[i]);
  return sums;
}

std::vector<float> TrainState::reference_losses(const SequencesView& sequences, int64_t count, int64_t T) {
  return shape_.reference_without_adapters ? session_.losses(sequences, count, T, Adapters::kOff)
                                           : reference().losses(sequences, count, T);
}

std::vector<double> TrainState::sequence_losses() {
  const std::span<const float> losses = losses_.values();
  std::vector<double> sums;
  const auto T = static_cast<size_t>(shape_.tokens());
  for (size_t first = 0; first < losses.size(); first += T)
    sums.push_back(std::accumulate(losses.begin() + first, losses.begin() + first + T, 0.0));
  return sums;
}

std::optional<InsideFigures> TrainState::inside() {
  if (!observed_) return {};
  InsideFigures figures = present(inside_).figures();
  figures.largest_scores = largest_scores();
  return figures;
}

}  // namespace tessera
