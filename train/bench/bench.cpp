// ./bench step --config gpt2_small.yaml
#include "train/bench/bench.h"

#include <optional>

#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/command_line.h"
#include "kernels/base/process.h"
#include "kernels/base/text.h"
#include "model/kv_cache.h"
#include "train/bench/sequence_lengths.h"
#include "train/config/check_config.h"
#include "train/config/config_keys.h"
#include "train/config/find_config.h"
#include "train/config/load_config.h"
#include "train/launch/process_group.h"
#include "train/memory/plan_target.h"
#include "train/run/ignored_fields.h"
#include "train/run/model_folder.h"
#include "train/run/rank_options.h"
#include "train/run/start_ranks.h"
#include "train/run/threads.h"

namespace tessera {
namespace {

constexpr const char* kSeqLens =
    "Sequence lengths N: 512,1024 and 512..65536, which is 512 doubled up to 65536";

void add_attention_options(Options& command, BenchAttentionOptions& o, std::optional<std::string>& seq_lens) {
  command.add_word("--device", o.device, "auto, cpu or cuda").show_default(name_of(o.device));
  command.add("--rungs", o.rungs, "Kernels to measure, or all; default: the fastest of the device, and cudnn")
      .separated_by(',');
  command.add("--head-dims", o.head_dims, "Head dims").separated_by(',').positive().show_default();
  command
      .add("--masks", o.masks,
           "causal, full; causal and: window:N (the last N keys), documents:N (documents of N tokens), "
           "documents:mixed (of log-normal lengths, 700 tokens on average), blocks:W+G+R (of blocks of 128 "
           "the last W, the first G and R at random), chosen:KxN (each query chooses K blocks of N tokens)")
      .separated_by(',')
      .show_default();
  command.add("--seq-lens", seq_lens, std::string(kSeqLens) + "; default 512..32768, on the CPU 128..1024")
      .type_name("LENGTHS");
  command.add("--tokens", o.tokens, "Tokens of a problem, batch x N; default 32768, on the CPU 1024")
      .positive();
  command
      .add("--channels", o.channels,
           "Channels, heads x head dim; default 2048, with --decode 4096, on the CPU 256")
      .positive();
  command.add("--group", o.group, "Query heads that share a head of keys and values")
      .positive()
      .show_default();
  command.add_flag("--decode", o.decode,
                   "One new query of each sequence over a cache of --seq-lens tokens, beside the time that "
                   "reading the cache takes; default 1024, 8192, 32768, 131072, on the CPU 128, 1024");
  command.add("--batches", o.batches, "With --decode: sequences").separated_by(',').positive().show_default();
  command
      .add("--cache-dtypes", o.caches,
           "With --decode: caches to measure: auto (as is computed), fp8, int8, int4; default: auto")
      .separated_by(',');
  command.add("--shape", o.shapes, "A further problem, as in 64,1024,12,64; may be given many times")
      .type_name("B,N,H,D")
      .one_at_a_time();
  command
      .add(
          "--with", o.extras,
          "Also measure Tessera's kernels with each of these, and what it costs: dropout:P (a share P of the "
          "probabilities), sinks, alibi, cap:C (scores s as C tanh(s / C))")
      .separated_by(',');
  command.add("--repeats", o.repeats, "Calls timed, of which the median is reported")
      .positive()
      .show_default();
  command
      .add("--cudnn-deterministic", o.cudnn_deterministic,
           "cuDNN's backward gives the same bits each time, as Tessera's always does, and takes more time "
           "and memory")
      .show_default("false");
  command.add("--longest-ms", o.longest_ms, "Skip kernels of which a call should take longer than this")
      .positive()
      .show_default();
  command.add("--json", o.json, "Also write the figures to this file").type_name("FILE");
  command.add("--svg", o.svg, "Also plot TFLOP/s against N into this file").type_name("FILE");
}

void add_needle_options(Options& command, BenchNeedleOptions& o) {
  command.add("model,--model", o.model, std::string("The model: ") + kModelSources)
      .type_name("FOLDER")
      .required();
  command
      .add("--contexts", o.contexts,
           "Tokens of the texts; default: the model's context, and of 1/2, 1/4, 1/8 those that are "
           "long enough")
      .separated_by(',')
      .positive();
  command.add("--depths", o.depths, "Depths of the fact, from the beginning of the text to its end")
      .within(1, 101)
      .show_default();
  command.add("--needles", o.needles, "Facts tried in each cell, each in a text of its own")
      .positive()
      .show_default();
  add_ignore_field_option(command, o.ignored_fields);
  command.add("--filler", o.filler, "A text file that fills the texts; default: Tessera's own sources")
      .type_name("FILE");
  command.add("--tokenizer", o.tokenizer, std::string(kTokenizerSources) + "; default: the model's")
      .type_name("PATH");
  command.add("--seed", o.seed, "Seed of the facts, and of the place where their filler begins")
      .non_negative()
      .show_default();
  command.add_word("--device", o.device, "auto, cpu or cuda").show_default(name_of(o.device));
  command.add_word("--precision", o.precision, "auto, bf16 or fp32").show_default(name_of(o.precision));
  command.add_word("--attention", o.attention, "flash, naive, cudnn or flash_fp8")
      .show_default(name_of(o.attention));
  command.add_word("--cache-dtype", o.cache, kCacheDtypes).show_default(name_of(o.cache));
  command.add("--json", o.json, "Also write the figures to this file").type_name("FILE");
  command.add("--svg", o.svg, "Also draw the grid into this file").type_name("FILE");
}

// What the command line says
struct Command {
  std::string config_name = "gpt2_small.yaml";
  std::vector<std::string> overrides;
  AskedRanks asked;
  BenchStepOptions step;
  BenchGemmOptions gemm;
  BenchMemoryOptions memory;
  std::string memory_seq_lens = "256..2048";
  std::vector<std::string> memory_attention;
  BenchAttentionOptions attention;
  std::optional<std::string> attention_seq_lens;
  BenchDecodeOptions decode;
  std::string decode_model;
  BenchNeedleOptions needle;
  BenchLinksOptions links;
  AskedRanks needle_ranks = {.on_cpu = "--device cpu"}, links_ranks = needle_ranks;
};

void add_common_options(Options& command, Command& c, std::string& json) {
  command.add("config,--config", c.config_name, "YAML file, as for ./train").type_name("FILE").show_default();
  command.add("--set", c.overrides, "Override a key, as for ./train").type_name("KEY=VALUE").one_at_a_time();
  command.add("--json", json, "Also write the figures to this file").type_name("FILE");
}

Options& add_step(Options& app, Command& c) {
  Options& step = app.add_subcommand(
      "step",
      "A training step: tokens/s, TFLOP/s, share of the GEMM peak, milliseconds by operation.\n"
      "The step is the configuration's; of many micro-batches only a few are made.");
  add_common_options(step, c, c.step.json);
  step.add("--steps", c.step.steps,
           "Steps to time. As many, but at most 3, follow for the milliseconds by operation")
      .positive()
      .show_default();
  add_rank_options(step, c.asked);
  step.add("--warmup", c.step.warmup, "Steps before the clock starts; before those by operation, at most one")
      .non_negative()
      .show_default();
  step.add_flag("--roofline", c.step.roofline,
                "Also print each kind of operation beside the time that its bytes need at the speed of a "
                "copy, and its arithmetic at the GEMM peak");
  step.add("--markdown", c.step.markdown, "Also write that table to this file as Markdown").type_name("FILE");
  step.add("--trace", c.step.trace,
           "Also write a trace of one step of all ranks to this file, for ui.perfetto.dev: each operation "
           "beside what bounds it, each kernel, copy and collective (on a GPU by NVIDIA's CUPTI)")
      .type_name("FILE");
  step.footer(
      "Examples:\n"
      "  ./bench step gpt2_small.yaml --set train.micro_batch=16\n"
      "  ./bench step gpt2_small.yaml --gpus 4 --json step.json\n"
      "  ./bench step gpt2_small.yaml --roofline --markdown roofline.md\n"
      "  ./bench step gpt2_small.yaml --trace step.json");
  return step;
}

Options& add_gemm(Options& app, Command& c) {
  Options& gemm = app.add_subcommand(
      "gemm",
      "The GEMMs of a training step, by each algorithm that cuBLASLt offers: milliseconds of its "
      "first and of the fastest, TFLOP/s, share of the GEMM peak. train.tune=auto uses the fastest. Of a "
      "model with experts, the products of a layer of them too.");
  add_common_options(gemm, c, c.gemm.json);
  gemm.add("--write", c.gemm.write, "Add the fastest to this table, as those in configs/gemms")
      .type_name("FILE");
  gemm.footer(
      "Examples:\n"
      "  ./bench gemm gpt2_small.yaml --set train.micro_batch=64\n"
      "  ./bench gemm gpt2_xl.yaml --set train.micro_batch=16 --write table.jsonl\n"
      "  ./bench gemm qwen3_30b_a3b.yaml --set train.micro_batch=8");
  return gemm;
}

Options& add_decode(Options& app, Command& c) {
  Options& decode = app.add_subcommand(
      "decode",
      "A generated token: ms, tokens/s, and the share of the speed that the bytes of weights "
      "and cache allow at the measured bandwidth of a copy. Random weights and texts.");
  add_common_options(decode, c, c.decode.json);
  decode
      .add("--model", c.decode_model,
           std::string("Take these weights, not a configuration's: ") + kModelSources)
      .excludes("--config")
      .type_name("FOLDER");
  decode.add("--contexts", c.decode.contexts, "Tokens of each text")
      .separated_by(',')
      .positive()
      .show_default();
  decode.add("--batches", c.decode.batches, "Texts that are continued together")
      .separated_by(',')
      .positive()
      .show_default();
  decode.add("--steps", c.decode.steps, "Tokens to time").positive().show_default();
  decode.add_flag("--without-cache", c.decode.without_cache, "Also time the forward over a whole text");
  decode.add_flag(
      "--separate-kernels", c.decode.separate_kernels,
      "Compute each operation by a kernel of its own, also where a token can be one kernel: of one "
      "text in bf16, on a Hopper GPU");
  decode.add_flag("--by-operation", c.decode.by_operation,
                  "Also print the time of every operation; implies --separate-kernels");
  decode.add_word("--cache-dtype", c.decode.cache, kCacheDtypes).show_default(name_of(c.decode.cache));
  decode.footer(
      "Examples:\n"
      "  ./bench decode gpt2_small.yaml --contexts 128,4096,32768 --batches 1,64\n"
      "  ./bench decode quickstart.yaml --without-cache\n"
      "  ./bench decode qwen3_0.6b.yaml --contexts 32768 --cache-dtype int4\n"
      "  ./bench decode --model runs/mine --set train.precision=fp32");
  return decode;
}

Options& add_memory(Options& app, Command& c) {
  Options& memory = app.add_subcommand(
      "memory",
      "A training step of one sequence at several lengths N, with each kind of attention: the memory that "
      "attention saves for the backward, the step's peak and time, and the power of N that memory grows "
      "with.\n"
      "Lengths that do not fit by plan are listed, not tried; a step must take exactly the memory of its "
      "plan.");
  add_common_options(memory, c, c.memory.json);
  memory.add("--seq-lens", c.memory_seq_lens, kSeqLens).type_name("LENGTHS").show_default();
  memory
      .add("--attention", c.memory_attention,
           "Kinds of attention: naive, flash, cudnn, flash_fp8; default: all that can run")
      .separated_by(',');
  memory.add("--steps", c.memory.steps, "Steps timed, of which the median is reported")
      .positive()
      .show_default();
  memory
      .add("--device-memory", c.memory.device_memory,
           "Assume that the device has this much memory, as in 80GiB; default: what is free on it")
      .type_name("SIZE");
  memory.add("--svg", c.memory.svg, "Also plot memory against N into this file").type_name("FILE");
  memory.footer(
      "Examples:\n"
      "  ./bench memory gpt2_small.yaml --seq-lens 1024..65536 --svg memory.svg\n"
      "  ./bench memory quickstart.yaml --attention naive,flash --device-memory 2GiB");
  return memory;
}

Options& add_attention(Options& app, Command& c) {
  Options& attention = app.add_subcommand(
      "attention",
      "Attention alone, forward and backward: every rung of the ladder (naive, row, tiled, tensor_cores, "
      "hopper, hopper_fp8, mixture) and cuDNN side by side, over head dims, masks and sequence lengths. "
      "Milliseconds, TFLOP/s, "
      "share of the GEMM peak, times as fast as cuDNN, memory, and by formula the bytes that cross device "
      "memory.\n"
      "On the CPU: naive and flash.");
  add_attention_options(attention, c.attention, c.attention_seq_lens);
  attention.footer(
      "Examples:\n"
      "  ./bench attention --rungs all --head-dims 64 --masks causal --seq-lens 1024,4096\n"
      "  ./bench attention --shape 64,1024,12,64 --json attention.json\n"
      "  ./bench attention --with dropout:0.1,sinks,alibi,cap:50 --head-dims 64 --seq-lens 1024\n"
      "  ./bench attention --head-dims 64 --seq-lens 1024,32768 --masks causal,window:1024,documents:1024\n"
      "  ./bench attention --decode --head-dims 128 --group 4 --batches 1,16 --seq-lens 1024..131072");
  return attention;
}

Options& add_needle(Options& app, Command& c) {
  Options& needle = app.add_subcommand(
      "needle",
      "Whether a trained model uses all of its context: a fact, \"The secret number of Lima is 48213.\", "
      "stands at "
      "several depths of texts of several lengths, which end with \"The secret number of Lima is\". Counts "
      "how "
      "often greedy decoding continues with the number, and the mean log-probability of its tokens.\n"
      "Each text takes one forward.");
  add_needle_options(needle, c.needle);
  add_rank_options(needle, c.needle_ranks);
  needle.footer(
      "Examples:\n"
      "  ./bench needle runs/mine/checkpoints/step_00001000 --svg needle.svg\n"
      "  ./bench needle FOLDER --contexts 1024,4096,32768 --depths 5 --needles 10 --filler book.txt");
  return needle;
}

Options& add_links(Options& app, Command& c) {
  Options& links = app.add_subcommand(
      "links",
      "What the ranks of a run have, before the run: of each the speed of a GEMM, of a copy in its device's "
      "and its host's memory, and to the ranks of its machine; of each machine the disk; of each pair of "
      "machines, or of ranks where there is one machine, rate and latency in both directions. Names what is "
      "below 0.7 of the median.");
  links.add_word("--device", c.links.device, "auto, cpu or cuda").show_default(name_of(c.links.device));
  links.add("--folder", c.links.folder, "The folder whose disk is measured, as train.folder")
      .type_name("FOLDER")
      .show_default();
  links.add("--json", c.links.json, "Also write the figures to this file").type_name("FILE");
  add_rank_options(links, c.links_ranks);
  links.footer(
      "Examples:\n"
      "  ./bench links --gpus 8\n"
      "  srun --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 ./bench links --folder runs");
  return links;
}

// A configuration that finetunes has no model of its own to measure.
Config config_of(const Command& c) {
  Config config = load_config(find_config(c.config_name), c.overrides);
  check_init_from(config);
  return config;
}

void run_attention(Command& c) {
  if (c.attention_seq_lens) c.attention.seq_lens = parse_sequence_lengths(*c.attention_seq_lens);
  c.attention.decode ? bench_decode_attention(c.attention) : bench_attention(c.attention);
}

void run_memory(Command& c) {
  c.memory.sequence_lengths = parse_sequence_lengths(c.memory_seq_lens);
  for (const std::string& word : c.memory_attention)
    c.memory.attention.push_back(parse_word<AttentionKind>("attention", word));
  check_plan_options({.device_memory = c.memory.device_memory});
  bench_memory(config_of(c), c.memory);
}

void run_decode(Command& c) {
  if (c.decode_model.empty()) return bench_decode(config_of(c), c.decode);
  // An empty configuration, whose steps of one token suit every context: the folder says what the model is.
  c.overrides.insert(c.overrides.begin(), {"train.sequence_length=1", "train.tokens_per_step=1"});
  c.overrides.push_back("train.init_from=" + in_quotes(find_model_folder(c.decode_model).path.string()));
  bench_decode(load_config("/dev/null", c.overrides), c.decode);
}

void run_step(Command& c, char** argv) {
  check(c.step.markdown.empty() || c.step.roofline, "--markdown writes the table of --roofline: add it");
  Config config = config_of(c);
  const World world = start_ranks(config.device, c.asked, argv);
  config.ranks = world.size;
  bench_step(config, c.step, world);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  start_process();
  wait_without_spinning(argv);
  Options app{"Measures Tessera on this machine.", "bench"};
  app.footer(
      "Examples:\n"
      "  ./bench step gpt2_small.yaml --set train.micro_batch=16\n"
      "  ./bench gemm gpt2_small.yaml --set train.micro_batch=16\n"
      "  ./bench attention --seq-lens 512..8192 --svg attention.svg\n"
      "  ./bench memory gpt2_small.yaml --seq-lens 1024..65536\n"
      "  ./bench needle runs/quickstart/checkpoints/step_00001200\n"
      "  ./bench links --ranks 4 --device cpu\n"
      "  ./bench step --help\n\n"
      "Exit codes: 0: measured; 1: the command line is wrong, or the benchmark was refused or failed, and "
      "the message says why; 3, with several ranks: another rank failed and printed the message.");
  app.require_subcommand();
  Command command;
  const Options& step = add_step(app, command);
  const Options& gemm = add_gemm(app, command);
  const Options& memory = add_memory(app, command);
  const Options& attention = add_attention(app, command);
  const Options& decode = add_decode(app, command);
  const Options& needle = add_needle(app, command);
  const Options& links = add_links(app, command);
  const auto advice = [&](std::string_view word) {
    return attention.parsed() || needle.parsed() || links.parsed() ? "" : option_is_a_key(word);
  };
  if (const auto exit_code = parse_command_line({app, argc, argv, advice})) return *exit_code;
  return exit_code_of("bench", [&] {
    if (step.parsed()) run_step(command, argv);
    if (gemm.parsed()) bench_gemm(config_of(command), command.gemm);
    if (memory.parsed()) run_memory(command);
    if (attention.parsed()) run_attention(command);
    if (decode.parsed()) run_decode(command);
    if (needle.parsed())
      bench_needle(command.needle, start_ranks(command.needle.device, command.needle_ranks, argv));
    if (links.parsed())
      bench_links(command.links, start_ranks(command.links.device, command.links_ranks, argv));
    return 0;
  });
}
