#include "train/generate/options.h"

#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "model/kv_cache.h"
#include "train/memory/plan_target.h"
#include "train/run/ignored_fields.h"
#include "train/run/model_folder.h"

namespace tessera {
namespace {

Option add_many(Options& app, const char* name, std::vector<std::string>& values, const char* help) {
  return app.add(name, values, help).type_name("TEXT").one_at_a_time();
}

void add_prompt_options(Options& app, GenerateOptions& o) {
  app.add("model,--model", o.model, std::string("The model: ") + kModelSources)
      .type_name("FOLDER")
      .required();
  add_many(app, "--prompt", o.prompts.texts,
           "The text to continue; may be given many times. -: all of standard input");
  app.add("--prompts", o.prompts.file,
          "Prompts, one a line; *.jsonl: in \"prompt\" of each line. -: standard input")
      .type_name("FILE");
  app.add_word("--prompts-format", o.prompts.format,
               "Format of --prompts: text, jsonl, or name, by the name of the file")
      .show_default(name_of(o.prompts.format));
  app.add_flag(
      "--chat", o.chat,
      "Prompts are messages of a user, in the model's chat template. Without a prompt: a conversation "
      "on the terminal");
  add_chat_options(app, o.chat_request, "prompts and messages");
  app.add_flag_function(
         "--prompt-as-text", [&o] { o.chat_request.special = SpecialTokens::kAsText; },
         "The same as --special-tokens text")
      .hidden();
  app.add("--system", o.system, "With --chat: a system message before the user's").type_name("TEXT");
}

void add_sampling_options(Options& app, GenerateOptions& o) {
  app.add("--temperature", o.sampling.temperature,
          "Logits are divided by it; 0: always the most probable token")
      .show_default();
  app.add("--top-k", o.sampling.top_k, "Draw from the K most probable tokens; 0: from all")
      .type_name("K")
      .show_default();
  app.add("--top-p", o.sampling.top_p,
          "Draw from the most probable tokens that together reach this probability; 1: from all")
      .type_name("P")
      .show_default();
  app.add("--min-p", o.sampling.min_p,
          "Draw from tokens of at least this share of the highest probability; 0: from all")
      .type_name("P")
      .show_default();
  app.add("--repetition-penalty", o.sampling.repetition_penalty,
          "Above 1: tokens that occur in the text become less probable")
      .show_default();
  app.add("--seed", o.seed, "Seed of the draws: the same seed gives the same text")
      .non_negative()
      .show_default();
  add_many(app, "--stop", o.stops, "A text that ends the continuation; may be given many times");
  app.add("--samples", o.samples, "Continuations of each prompt").positive().show_default();
  app.add("--first-sample", o.first_sample,
          "Number of the first sample; a seed and a number give the same draws. That of a training run "
          "after step S is number S")
      .non_negative()
      .type_name("N")
      .show_default();
  app.add_function<int64_t>(
         "--tokens", [&o](int64_t tokens) { o.tokens = tokens; },
         "The most tokens of a continuation; default 256, in a conversation as many as fit")
      .positive()
      .type_name("N");
}

void add_output_options(Options& app, GenerateOptions& o) {
  app.add_flag("--show-special", o.show_special, "Print special tokens by their names; else not at all");
  app.add_flag("--json", o.json, "Print a JSON object a sample, each in a line");
}

void add_device_options(Options& app, GenerateOptions& o) {
  app.add("--context", o.context,
          "Tokens of a text that the cache has room for; default: what the prompts and --tokens need, "
          "in a conversation 4096 or the model's context")
      .positive()
      .type_name("N");
  app.add("--batch", o.batch, "Texts that are continued together, at most").positive().show_default();
  app.add("--tokenizer", o.tokenizer, std::string(kTokenizerSources) + "; default: the model's")
      .type_name("PATH");
  add_ignore_field_option(app, o.ignored_fields);
  app.add_word("--device", o.device, "auto, cpu or cuda").show_default(name_of(o.device));
  app.add_word("--precision", o.precision, "auto, bf16 or fp32").show_default(name_of(o.precision));
  app.add_word("--attention", o.attention, "Attention of prompts: flash, naive, cudnn or flash_fp8")
      .show_default(name_of(o.attention));
  app.add_word("--cache-dtype", o.cache, kCacheDtypes).show_default(name_of(o.cache));
  Option plan = app.add_flag("--plan", o.plan,
                             "Print the memory for --samples texts of --context tokens and the longest "
                             "context that fits, and exit; needs no GPU");
  app.add("--device-memory", o.device_memory,
          "With --plan: the memory to fit, such as 80GiB; default: what is free on this machine's "
          "device")
      .type_name("SIZE")
      .needs(plan);
  app.add("--arch", o.arch,
          "With --plan: the compute capability of the GPU times ten; no such GPU need be present")
      .type_name("80|90|...")
      .needs(plan);
}

}  // namespace

void add_generate_options(Options& app, GenerateOptions& options) {
  add_prompt_options(app, options);
  add_sampling_options(app, options);
  add_output_options(app, options);
  add_device_options(app, options);
  app.footer(
      "Examples:\n"
      "  ./generate runs/quickstart --prompt \"#include <\" --temperature 0.8 --top-k 50\n"
      "  ./generate models/gpt2 --prompts prompts.txt --samples 4 --json > samples.jsonl\n"
      "  ./generate models/qwen --chat --system \"Answer in one sentence.\"\n"
      "  ./generate models/llama --plan --context 32768 --samples 8 --device-memory 80GiB\n\n"
      "Texts go to standard output, everything else to standard error. Ctrl-C ends the texts that have "
      "begun; in a conversation it ends the answer, and where a message is expected, the conversation.\n\n"
      "Exit codes: 0: done, or stopped by a signal; 1: the command line is wrong, or the work was refused or "
      "failed, and the message says why; 2: --plan found that it does not fit.");
}

void check_options(const GenerateOptions& o) {
  const SamplingRule& rule = o.sampling;
  const auto expect = [](bool holds, const char* option, const char* expected, auto found) {
    check(holds, "{} must be {}, found {}", option, expected, found);
  };
  expect(rule.temperature >= 0, "--temperature", "a number of at least 0", rule.temperature);
  expect(rule.top_k >= 0, "--top-k", "a number of at least 0", rule.top_k);
  expect(rule.top_p > 0 && rule.top_p <= 1, "--top-p", "a number above 0 and at most 1", rule.top_p);
  expect(rule.min_p >= 0 && rule.min_p <= 1, "--min-p", "a number from 0 to 1", rule.min_p);
  expect(rule.repetition_penalty > 0 && std::isfinite(rule.repetition_penalty), "--repetition-penalty",
         "a number above 0", rule.repetition_penalty);
  for (const std::string& stop : o.stops) expect(!stop.empty(), "--stop", "a text that is not empty", "\"\"");
  check_plan_options({.device_memory = o.device_memory, .arch = o.arch});
  check(!o.plan || !o.json, "--plan prints the memory, and --json samples: remove one of them");
  check(!o.json || o.has_prompts(),
        "--json prints samples of prompts, not a conversation: give --prompt TEXT");
  check(o.chat || o.system.empty(), "--system is a message of a conversation: add --chat");
  const ChatRequest& chat = o.chat_request;
  check(o.chat || (chat.named.empty() && chat.values.empty() && chat.date.empty()),
        "--chat-template, --template-value and --date are about the template of a conversation: add --chat");
  check(o.has_prompts() || o.chat || o.plan,
        "there is nothing to continue: give --prompt TEXT, --prompts FILE or, for a conversation, --chat");
  check(o.prompts.format == InputFormat::kByName || !o.prompts.file.empty(),
        "--prompts-format is the format of the file of --prompts, and none is named");
}

}  // namespace tessera
