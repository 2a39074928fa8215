#include "train/session/decoder.h"

#include <algorithm>
#include <limits>

#include "model/rope.h"
#include "train/session/token_ids.h"

namespace tessera {
namespace {

Decoder::Settings checked(Decoder::Settings settings, const Session& session) {
  const ModelConfig& model = session.shape().model;
  check(
      settings.slots > 0 && settings.prefill > 0,
      "a decoder must have at least 1 slot and read at least 1 token of a prompt at a time, found {} and {}",
      settings.slots, settings.prefill);
  check(settings.capacity > 0 && settings.capacity <= model.context,
        "the capacity of a decoder must be 1 to {} tokens, the model's context, found {}", model.context,
        settings.capacity);
  const Tensor& angles = session.model().angles;
  check(!angles || settings.capacity <= angles.shape[0],
        "a decoder of texts of {} tokens needs a session whose sample_tokens is that, found positions for {}",
        settings.capacity, angles.shape[0]);
  check(!settings.factors_by_length || settings.capacity <= session.shape().sequence_length,
        "a decoder whose factors go by the length of a text needs a session of sequences of {} tokens, found "
        "{}",
        settings.capacity, session.shape().sequence_length);
  if (settings.known == 0) settings.known = model.vocab_size;
  check(settings.known > 0 && settings.known <= model.vocab_size,
        "a decoder draws ids below 1 to {}, the model's vocabulary, found {}", model.vocab_size,
        settings.known);
  return settings;
}

void copy_to(const Stream& stream, std::span<const int32_t> numbers, const Tensor& to) {
  stream.run(Copy{{const_cast<int32_t*>(numbers.data()), DType::kI32, to.shape, Device::kCpu}, to});
}

// Of layers that are rings
void copy_rings(const Stream& stream, const std::vector<KvCache::Layer>& from,
                const std::vector<KvCache::Layer>& to) {
  for (size_t l = 0; l < from.size(); ++l) {
    if (!from[l].ring) continue;
    stream.run(Copy{from[l].k, to[l].k});
    stream.run(Copy{from[l].v, to[l].v});
  }
}

int64_t words_of_bits(int64_t bits) { return (bits + 31) / 32; }

}  // namespace

Decoder::Decoder(Session& session, const Settings& settings)
    : session_(session),
      settings_(checked(settings, session)),
      scope_(session.arena()),
      cache_(allocate_kv_cache(session.arena(), session.shape().model, session.shape().dtype, settings_.slots,
                               settings_.capacity, checked_cache(settings_.cache, session.shape().dtype))),
      model_(decoding(session.model(), cache_, session.stream().backend().traits())),
      lengths_(static_cast<size_t>(settings_.slots)),
      texts_(static_cast<size_t>(settings_.slots)),
      host_(session.arena().is_plan() ? Arena::plan(Device::kCpu)
                                      : Arena::pinned(session.stream().device())) {
  Arena& arena = session.arena();
  Arena::Phase phase(arena, "decoder");
  const int64_t slots = settings_.slots;
  const ModelConfig& config = session.shape().model;
  const bool by_length = settings_.factors_by_length && config.positions == Positions::kRope &&
                         config.rope.scaling == RopeScaling::kLongrope;
  if (by_length && session.shape().sequence_length > short_context(config)) {
    short_context_ = short_context(config);
    angles_ = allocate_angles_by_length(session.stream(), arena, config, session.model().angles);
    model_.angles = angles_;
  }
  const Saved saved = allocate_saved(arena, model_, Keep::nothing());
  logits_ = arena.alloc(MemoryTag::kActivations, "logits", session.shape().dtype,
                        {slots, model_.config.padded_vocab()});
  prompt_logits_ =
      arena.alloc(MemoryTag::kActivations, "logits of the prompt", logits_.dtype, {1, logits_.shape[1]});
  for (const KvCache::Layer& layer : cache_.layers) {
    KvCache::Layer& own = prompt_rings_.emplace_back();
    own.ring = layer.ring;
    if (!own.ring) continue;
    const Shape shape{1, layer.rows(), layer.k.shape[2], layer.k.shape[3]};
    own.k = arena.alloc(MemoryTag::kCache, "keys of a prompt's window", layer.k.dtype, shape);
    own.v = arena.alloc(MemoryTag::kCache, "values of a prompt's window", layer.k.dtype, shape);
  }
  tokens_ = arena.alloc(MemoryTag::kData, "tokens drawn", DType::kI32, {slots});
  // As large as the whole vocabulary needs, so that a plan needs no tokenizer
  const int64_t words = words_of_bits(settings_.known);
  seen_ = arena
              .alloc(MemoryTag::kData, "tokens in the texts", DType::kI32,
                     {slots * words_of_bits(model_.config.vocab_size)})
              .rows(0, slots * words)
              .view({slots, words});
  draws_ = arena.alloc(MemoryTag::kData, "draws", DType::kI32, {slots, 2});
  drawn_ = host_.alloc(MemoryTag::kData, "tokens drawn", DType::kI32, {slots});
  copy_to(session.stream(), std::vector<int32_t>(static_cast<size_t>(slots), -1), cache_.starts);
  const Stream& stream = session.stream();
  step_ = prepare_decode(stream, arena,
                         {.model = model_,
                          .cache = cache_,
                          .tokens = tokens_.view({slots, 1}),
                          .saved = saved,
                          .logits = logits_,
                          .separate_kernels = settings_.separate_kernels});
  fetch_ = stream.backend().fetch(stream.queue(), tokens_, drawn_);
  if (model_.params->has_whole_weights())
    read_ = stream.backend().make_graph(stream.queue(), [this, stream] { decode(stream, step_); });
}

std::string Decoder::kernels_text() const {
  if (is_one_kernel()) return "one kernel a token";
  return "separate kernels a token: " + step_.why_separate_kernels;
}

void Decoder::record_sample(const SamplingRule& rule, uint64_t seed) {
  if (sample_ && rule == rule_ && seed == seed_) return;
  const Stream& stream = session_.stream();
  rule_ = rule, seed_ = seed;
  sample_ = stream.backend().make_graph(stream.queue(), [this, stream] {
    stream.run(SampleTokens{.logits = logits_,
                            .vocab_size = settings_.known,
                            .rule = rule_,
                            .seed = seed_,
                            .seen = seen_,
                            .draws = draws_,
                            .starts = cache_.starts,
                            .tokens = tokens_});
  });
}

void Decoder::start(int64_t slot, std::span<const int32_t> tokens, int64_t sequence, int64_t drawn) {
  stop(slot);
  last_read_ = {};
  set_draws(slot, sequence, drawn);
  std::vector<int32_t> seen(static_cast<size_t>(seen_.shape[1]));
  read(slot, tokens, seen);
  session_.stream().run(Copy{logits_.rows(slot, 1), prompt_logits_});
  copy_rings(session_.stream(), cache_.slot(slot).layers, prompt_rings_);
  last_read_ = {.slot = slot, .tokens = std::ssize(tokens), .seen = std::move(seen)};
  if (short_context_ > 0) last_read_.text.assign(tokens.begin(), tokens.end());
}

void Decoder::start_copy(int64_t slot, int64_t sequence, int64_t drawn) {
  stop(slot);
  check(last_read_.slot >= 0, "a decoder copies the text of the last start(), and there is none");
  if (last_read_.was_read_anew) {
    const std::vector<int32_t> text = last_read_.text;
    return start(slot, text, sequence, drawn);
  }
  set_draws(slot, sequence, drawn);
  copy_prompt_to(slot);
  lengths_[static_cast<size_t>(slot)] = last_read_.tokens;
  texts_[static_cast<size_t>(slot)] = last_read_.text;
}

void Decoder::set_draws(int64_t slot, int64_t sequence, int64_t drawn) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  check(sequence >= 0 && sequence <= kMost && drawn >= 0 && drawn <= kMost,
        "the number of a text and its draws must be 0 to {}, found {} and {}", kMost, sequence, drawn);
  copy_to(session_.stream(), std::array{static_cast<int32_t>(sequence), static_cast<int32_t>(drawn)},
          draws_.rows(slot, 1));
}

void Decoder::copy_prompt_to(int64_t slot) {
  const Stream& stream = session_.stream();
  const auto rows_of = [&](const Tensor& all) {
    return all.view({all.shape[1], all.shape[2] * all.shape[3]}).rows(0, last_read_.tokens);
  };
  const KvCache from = cache_.slot(last_read_.slot), to = cache_.slot(slot);
  copy_rings(stream, prompt_rings_, to.layers);
  if (slot != last_read_.slot) {
    for (size_t l = 0; l < from.layers.size(); ++l) {
      if (from.layers[l].groups) stream.run(Copy{from.layers[l].groups, to.layers[l].groups});
      if (from.layers[l].means) stream.run(Copy{from.layers[l].means, to.layers[l].means});
      if (from.layers[l].ring) continue;
      stream.run(Copy{rows_of(from.layers[l].k), rows_of(to.layers[l].k)});
      stream.run(Copy{rows_of(from.layers[l].v), rows_of(to.layers[l].v)});
    }
  }
  stream.run(Copy{prompt_logits_, logits_.rows(slot, 1)});
  copy_to(stream, last_read_.seen, seen_.rows(slot, 1));
  copy_to(stream, std::array{static_cast<int32_t>(last_read_.tokens - 1)}, cache_.starts.rows(slot, 1));
}

void Decoder::append(int64_t slot, std::span<const int32_t> tokens) {
  check(!is_idle(slot), "slot {} is idle: it has no text to append to", slot);
  if (outgrows(length(slot), length(slot) + std::ssize(tokens))) {
    std::vector<int32_t>& text = texts_[static_cast<size_t>(slot)];
    text.insert(text.end(), tokens.begin(), tokens.end());
    return read_anew(slot);
  }
  std::vector<int32_t> seen(static_cast<size_t>(seen_.shape[1]));
  const Tensor row = seen_.rows(slot, 1);
  session_.stream().run(Copy{row, {seen.data(), DType::kI32, row.shape, Device::kCpu}});
  session_.stream().synchronize();
  read(slot, tokens, seen);
}

// The whole text of a slot, whose keys have angles of the long factors from now on
void Decoder::read_anew(int64_t slot) {
  const std::vector<int32_t> text = texts_[static_cast<size_t>(slot)];
  stop(slot);
  if (last_read_.slot == slot) last_read_.was_read_anew = true;
  std::vector<int32_t> seen(static_cast<size_t>(seen_.shape[1]));
  read(slot, text, seen);
}

// After the tokens that the slot has; `seen` of these, and then of all
void Decoder::read(int64_t slot, std::span<const int32_t> tokens, std::vector<int32_t>& seen) {
  const Stream& stream = session_.stream();
  Arena& arena = session_.arena();
  const int64_t before = length(slot), count = std::ssize(tokens), left = settings_.capacity - before;
  check(count > 0 && count <= left, "a text must have 1 to {} tokens, {}, found {}", left,
        before == 0 ? "the decoder's capacity" : "what is left of the decoder's capacity", count);
  Arena::Scope scope(arena);
  Arena::Phase phase(arena, "prompt", MemoryRecording::kNone, Arena::Phase::kRecordFirstFew);
  const Tensor prompt = arena.alloc(MemoryTag::kData, "prompt", DType::kI32, {count, 1});
  copy_ids(stream, Ids::kTokens, tokens, model_.config.vocab_size, prompt);
  stop(slot);
  Model model = session_.model();
  if (before + count <= short_context_) model.angles = angles_;
  KvCache own = cache_.slot(slot);
  own.starts = arena.alloc(MemoryTag::kData, "tokens read", DType::kI32, {1});  // the slot is idle until then
  for (int64_t first = 0, T = 0; first < count; first += T) {
    const int64_t start = before + first;
    T = std::min(settings_.prefill, prompt_tokens_at_once(model_.config, start, count - first));
    copy_to(stream, std::array{static_cast<int32_t>(start)}, own.starts);
    prefill(stream, arena,
            {.model = model,
             .cache = own,
             .tokens = prompt.rows(first, T).view({1, T}),
             .start = start,
             .logits = first + T == count ? logits_.rows(slot, 1) : Tensor{}});
  }
  for (const int32_t token : tokens)
    if (token < settings_.known) seen[static_cast<size_t>(token / 32)] |= int32_t{1} << token % 32;
  copy_to(stream, seen, seen_.rows(slot, 1));
  copy_to(stream, std::array{static_cast<int32_t>(before + count - 1)}, cache_.starts.rows(slot, 1));
  lengths_[static_cast<size_t>(slot)] = before + count;
  if (short_context_ == 0) return;
  std::vector<int32_t>& text = texts_[static_cast<size_t>(slot)];
  text.resize(static_cast<size_t>(before));
  text.insert(text.end(), tokens.begin(), tokens.end());
}

void Decoder::read_through(std::span<const int32_t> tokens, const VisitLogits& visit) {
  stop(0);
  last_read_ = {};
  const Stream& stream = session_.stream();
  Arena& arena = session_.arena();
  const int64_t count = std::ssize(tokens), V = model_.config.vocab_size, padded = logits_.shape[1];
  check(count > 0 && count <= settings_.capacity,
        "a text must have 1 to {} tokens, the decoder's capacity, found {}", settings_.capacity, count);
  Arena::Scope scope(arena);
  const Tensor text = arena.alloc(MemoryTag::kData, "prompt", DType::kI32, {count, 1});
  copy_ids(stream, Ids::kTokens, tokens, V, text);
  Model model = session_.model();
  if (count <= short_context_) model.angles = angles_;
  KvCache own = cache_.slot(0);
  own.starts = arena.alloc(MemoryTag::kData, "tokens read", DType::kI32, {1});
  for (int64_t first = 0; first < count; first += settings_.prefill) {
    const int64_t T = std::min(settings_.prefill, count - first);
    Arena::Scope of_chunk(arena);
    const Tensor logits = arena.alloc(MemoryTag::kActivations, "logits", logits_.dtype, {T, padded});
    copy_to(stream, std::array{static_cast<int32_t>(first)}, own.starts);
    prefill(stream, arena,
            {.model = model,
             .cache = own,
             .tokens = text.rows(first, T).view({1, T}),
             .start = first,
             .logits = logits});
    std::vector<float> host(static_cast<size_t>(T * padded));
    stream.run(Copy{logits, {host.data(), DType::kF32, logits.shape, Device::kCpu}});
    stream.synchronize();
    for (int64_t row = 1; row < T; ++row)  // without the padding
      std::copy_n(host.begin() + row * padded, V, host.begin() + row * V);
    host.resize(static_cast<size_t>(T * V));
    visit(first, host);
  }
}

void Decoder::stop(int64_t slot) {
  if (is_idle(slot)) return;
  copy_to(session_.stream(), std::array{-1}, cache_.starts.rows(slot, 1));
  lengths_[static_cast<size_t>(slot)] = 0;
}

std::span<const int32_t> Decoder::next(const SamplingRule& rule, uint64_t seed) {
  const auto is_full = [&](int64_t length) { return length == settings_.capacity; };
  const bool any_full = std::ranges::any_of(lengths_, is_full);
  const bool any_outgrows =
      std::ranges::any_of(lengths_, [&](int64_t length) { return outgrows(length, length + 1); });
  const bool reads =
      std::ranges::any_of(lengths_, [&](int64_t length) { return length > 0 && !is_full(length); });
  record_sample(rule, seed);
  sample_->run();
  fetch_->start();
  // The next logits while the caller is busy with the tokens. A slot that was full must stop before: it has
  // no room for its token.
  const bool waits = any_full || any_outgrows;
  if (reads && !waits) read_tokens();
  fetch_->wait();
  const std::span drawn(drawn_.as<int32_t>(), lengths_.size());
  std::vector<int64_t> outgrown;
  for (int64_t slot = 0; slot < settings_.slots; ++slot) {
    int64_t& length = lengths_[static_cast<size_t>(slot)];
    if (length == 0) continue;
    if (is_full(length) || drawn[static_cast<size_t>(slot)] == kBadLogits) {
      stop(slot);
      continue;
    }
    if (short_context_ > 0) texts_[static_cast<size_t>(slot)].push_back(drawn[static_cast<size_t>(slot)]);
    if (outgrows(length, length + 1)) outgrown.push_back(slot);
    ++length;
  }
  if (reads && waits) read_tokens();
  for (const int64_t slot : outgrown) read_anew(slot);
  return drawn;
}

// A graph cannot wait for other ranks.
void Decoder::read_tokens() { read_ ? read_->run() : decode(session_.stream(), step_); }

int64_t Decoder::length(int64_t slot) const {
  check(slot >= 0 && slot < settings_.slots, "slot {} of a decoder that has 0 to {}", slot,
        settings_.slots - 1);
  return lengths_[static_cast<size_t>(slot)];
}

std::vector<float> Decoder::logits(int64_t slot) const {
  check(!is_idle(slot), "slot {} is idle: it has no logits", slot);
  const Tensor row = logits_.rows(slot, 1);
  std::vector<float> host(static_cast<size_t>(row.numel()));
  session_.stream().run(Copy{row, {host.data(), DType::kF32, row.shape, Device::kCpu}});
  session_.stream().synchronize();
  host.resize(static_cast<size_t>(model_.config.vocab_size));
  return host;
}

}  // namespace tessera
