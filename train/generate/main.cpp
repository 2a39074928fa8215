// ./generate runs/quickstart --prompt "#include <"
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/base/process.h"
#include "kernels/base/signals.h"
#include "kernels/base/status_line.h"
#include "kernels/base/text.h"
#include "model/formats/folder.h"
#include "train/generate/conversation.h"
#include "train/generate/generate_plan.h"
#include "train/generate/options.h"
#include "train/run/checkpoint.h"
#include "train/run/model_folder.h"
#include "train/run/threads.h"
#include "train/run/verify_checkpoint.h"
#include "train/session/device.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostSamples = int64_t{1} << 31;  // a sample's number is an int32

// What all of the work needs, found and checked before anything slow
struct Request {
  ModelFolder folder;
  ModelConfig model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat;
  std::vector<Prompt> prompts;
  std::vector<std::vector<int32_t>> ids;  // of the prompts
  GenerationRule rule;
  int64_t known = 0, context = 0;

  bool converses() const { return prompts.empty(); }
};

// Tokens that the cache must have room for
int64_t context_of(const GenerateOptions& o, const Request& r) {
  const int64_t most = r.model.context;
  check(o.context <= most, "--context {}: the model of {} reads at most {} tokens. Use --context {}",
        o.context, o.model, most, most);
  const int64_t tokens = o.tokens.value_or(0);
  check(tokens <= most, "--tokens {}: the model of {} reads at most {} tokens. Use fewer", tokens, o.model,
        most);
  if (o.context > 0) return o.context;
  if (o.plan) return most;
  if (r.converses()) return std::min(most, kDefaultChatContext);
  int64_t longest = 0;
  for (const auto& ids : r.ids) longest = std::max(longest, std::ssize(ids));
  return std::min(most, longest + o.tokens.value_or(kDefaultTokens));
}

void tell_special_names(const GenerateOptions& o, const Request& r) {
  if (o.chat_request.special != SpecialTokens::kAsText) return;
  const SpecialTokenFinder specials(*r.tokenizer);
  int64_t count = 0;
  for (const Prompt& prompt : r.prompts) count += specials.count(prompt.text);
  if (count > 0)
    print_stderr(labelled("notice", fmt::format("{} of special tokens in the prompts: read as characters; "
                                                "--special-tokens parse reads them as the tokens",
                                                count == 1 ? "1 name" : fmt::format("{} names", count))) +
                 "\n");
}

void add_prompts(const GenerateOptions& o, Request& r) {
  r.prompts = read_prompts(o.prompts);
  check(std::ssize(r.prompts) <= (kMostSamples - o.first_sample) / o.samples,
        "--samples {}: samples have numbers of 0 to {}, --first-sample is {}, and the prompts are {}. Use "
        "fewer",
        o.samples, kMostSamples - 1, o.first_sample, r.prompts.size());
  tell_special_names(o, r);
  for (const Prompt& prompt : r.prompts) {
    r.ids.push_back(r.chat ? ChatTurns(*r.chat, *r.tokenizer, o.system).ask(prompt.text).ids
                           : encode_prompt(*r.tokenizer, prompt, o.chat_request.special));
    const int32_t largest = std::ranges::max(r.ids.back());
    check(largest < r.model.vocab_size,
          "{}: the tokenizer {} makes the token {} of it, and the model of {} has a vocabulary of {}: it is "
          "another model's tokenizer. Name the right one with --tokenizer",
          prompt.place, r.tokenizer->name(), largest, o.model, r.model.vocab_size);
  }
}

void check_lengths(const GenerateOptions& o, const Request& r) {
  for (size_t i = 0; i < r.ids.size(); ++i) {
    const int64_t count = std::ssize(r.ids[i]);
    const bool can_grow = r.context < r.model.context;
    check(count <= r.context, "{} has {} tokens, and {} {}. {}", r.prompts[i].place, count,
          can_grow ? "--context is" : fmt::format("the model of {} reads at most", o.model), r.context,
          can_grow ? fmt::format("Use a --context of up to {}, or a shorter prompt", r.model.context)
                   : "Use a shorter prompt");
  }
}

// All that the folder says, but the weights
Request read_folder(const GenerateOptions& o, const ModelFolder& folder) {
  Request r;
  r.folder = folder;
  r.model = read_model_config(folder.path, o.ignored_fields).model;
  r.known = r.model.vocab_size;
  if (o.plan) return r;  // of which config.json says enough
  r.tokenizer = find_tokenizer(folder.path, o.tokenizer, r.model);
  r.known = std::min<int64_t>(r.tokenizer->vocab_size(), r.model.vocab_size);
  r.rule = {.sampling = o.sampling,
            .seed = static_cast<uint64_t>(o.seed),
            .tokens = o.tokens.value_or(kDefaultTokens),
            .ends = find_end_tokens(folder.path, *r.tokenizer),
            .text = {.stops = o.stops, .show_special = o.show_special}};
  return r;
}

Request read_request(const GenerateOptions& o) {
  Request r = read_model_folder(o.model, [&](const ModelFolder& folder) { return read_folder(o, folder); });
  if (o.chat && !o.plan) {
    // A tokenizer of another place comes with its own template.
    const fs::path folder = o.tokenizer.empty() ? r.folder.path : folder_of_tokenizer(o.tokenizer);
    r.chat = choose_chat_template(o.chat_request, folder, *r.tokenizer);
    check(
        r.chat != nullptr,
        "--chat: {}. A model that has learned no conversations continues a text: ./generate {} --prompt TEXT",
        no_chat_template(*r.tokenizer), o.model);
    const ChatTemplate::TurnEnd end = r.chat->turn_end();
    if (end.token >= 0) r.rule.ends.push_back(end.token);
    if (!end.marker.empty()) r.rule.text.stops.push_back(end.marker);
  }
  if (!o.plan) add_prompts(o, r);
  if (r.converses() && !o.tokens) r.rule.tokens = std::numeric_limits<int64_t>::max();
  r.context = context_of(o, r);
  check_lengths(o, r);
  check(o.plan || !r.converses() || isatty(STDIN_FILENO),
        "--chat without a prompt is a conversation on a terminal, and standard input is none. Give the "
        "message with --prompt TEXT; --prompt - reads it from standard input");
  return r;
}

void print_header(const GenerateOptions& o, const Request& r, const DeviceTraits& device,
                  const GeneratePlan& plan) {
  const auto line = [](std::string_view label, const std::string& text) {
    print_stderr(labelled(label, text) + "\n");
  };
  line("model", fmt::format("{}: {} parameters, context {}, tokenizer {}", r.folder.path.string(),
                            format_count(static_cast<double>(r.model.parameters())), r.model.context,
                            r.tokenizer->name()));
  line("device",
       fmt::format("{}, {}, {} attention", device.name, name_of(plan.shape.dtype), name_of(o.attention)));
  line("cache", fmt::format("{} x {} tokens{}, {}; all memory {}", plan.settings.slots,
                            plan.settings.capacity, cache_text(plan.settings.cache),
                            format_bytes(plan.cache_bytes), format_bytes(plan.peak())));
}

// A text that was cut off looks like one that has ended.
void tell_full_contexts(const Request& r, int64_t full, int64_t texts) {
  if (full == 0) return;
  print_stderr(
      labelled("notice",
               fmt::format("{} where the context of {} tokens was full, the prompt's included: {}",
                           texts == 1 ? "the text was cut off"
                                      : fmt::format("{} of {} texts were cut off", full, texts),
                           r.context,
                           r.context < r.model.context
                               ? fmt::format("--context {} is the most of this model", r.model.context)
                               : "this model reads no more")) +
      "\n");
}

Throughput print_samples(const GenerateOptions& o, const Request& r, Session& session, Decoder& decoder,
                         TextOutput& out) {
  std::vector<SampleJob> jobs;
  std::vector<SampleOutput::Sample> samples;
  const bool several = std::ssize(r.prompts) * o.samples > 1;
  for (size_t p = 0; p < r.prompts.size(); ++p)
    for (int64_t s = 0; s < o.samples; ++s) {
      jobs.push_back({.prompt = r.ids[p], .sequence = o.first_sample + std::ssize(jobs)});
      samples.push_back({.prompt = r.prompts[p].text,
                         .prompt_tokens = std::ssize(r.ids[p]),
                         .name = several ? fmt::format("prompt {}, sample {}", p + 1, s + 1) : "",
                         .prompt_number = static_cast<int64_t>(p),
                         .sample_number = s});
      // A question is not the beginning of its answer.
      if (r.chat && !o.json) samples.back().prompt = {};
    }
  SampleOutput output(out, std::move(samples),
                      o.json ? SampleOutput::Form::kJsonLines : SampleOutput::Form::kText);
  int64_t full = 0;
  const Throughput total =
      generate_samples(session, decoder, *r.tokenizer, r.rule, jobs,
                       {.on_text = [&](size_t job, const std::string& text) { output.add(job, text); },
                        .on_end =
                            [&](size_t job, const SampleResult& result) {
                              output.end(job, result);
                              full += result.ended == Ended::kContext;
                            },
                        .stop = [&] { return stop_signal() != 0 || out.reader_is_gone(); }});
  tell_full_contexts(r, full, std::ssize(jobs));
  return total;
}

void load(const ModelFolder& folder, const GenerateOptions& o, Session& session) {
  try {
    check_undamaged(folder.path, CheckpointPart::kWeights);
    load_weights(folder.path, session, {.ignored_fields = o.ignored_fields});
  } catch (const std::exception&) {
    check_present(folder);
    throw;
  }
}

int run(const GenerateOptions& o) {
  check_options(o);
  const Request r = read_request(o);
  const int64_t texts = o.plan ? o.samples : r.converses() ? 1 : std::ssize(r.prompts) * o.samples;
  const GenerateShape shape{.model = r.model,
                            .precision = o.precision,
                            .attention = o.attention,
                            .slots = std::min(o.batch, texts),
                            .context = r.context,
                            .known = r.known,
                            .cache = o.cache};
  if (o.plan)
    return print_generate_plan(
        shape, choose_plan_target(o.device, 1, {.device_memory = o.device_memory, .arch = o.arch}));

  const DeviceTraits device = choose_device(o.device).traits;
  const GeneratePlan plan = plan_generate(shape, device);
  check_fits(shape, plan, device, present_memory(device.device));
  const std::unique_ptr<Backend> be = make_backend(device);
  Arena arena = make_arena(device);
  Session session(*be, arena, plan.shape);
  load(r.folder, o, session);
  Decoder decoder(session, plan.settings);
  print_header(o, r, device, plan);
  record_stop_signals({.second_ends = true});  // a read that waits for a person ends
  TextOutput out;
  const auto talk = [&] {
    ChatTurns turns(*r.chat, *r.tokenizer, o.system);
    return converse(session, decoder, *r.tokenizer, turns, r.rule, out);
  };
  const Throughput total = r.converses() ? talk() : print_samples(o, r, session, decoder, out);
  total.print();
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  start_process();
  outlive_readers();
  wait_without_spinning(argv);
  Options app{"Continues texts: draws token after token from a trained model.", "generate"};
  GenerateOptions options;
  add_generate_options(app, options);
  if (const auto exit_code = parse_command_line({app, argc, argv})) return *exit_code;
  return exit_code_of("generate", [&] { return run(options); });
}
