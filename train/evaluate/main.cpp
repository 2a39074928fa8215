// ./evaluate --model FOLDER

#include "data/log_probs.h"
#include "data/teacher_logits.h"
#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/command_line.h"
#include "kernels/base/process.h"
#include "train/evaluate/evaluate.h"
#include "train/launch/process_group.h"
#include "train/run/ignored_fields.h"
#include "train/run/model_folder.h"
#include "train/run/rank_options.h"
#include "train/run/start_ranks.h"
#include "train/run/threads.h"

namespace tessera {
namespace {

struct Command {
  EvaluateOptions options;
  AskedRanks asked = {.on_cpu = "--device cpu"};
};

void add_options(Options& app, Command& c) {
  EvaluateOptions& o = c.options;
  app.add("model,--model", o.model, std::string("The model: ") + kModelSources)
      .type_name("FOLDER")
      .required();
  app.add("--data", o.data,
          "What to measure the loss on: a text file, a shard, a folder of shards or a pattern, as "
          "data.train; run: the validation data of the model's run, the default without --task")
      .type_name("PATH");
  app.add("--task", o.tasks,
          "A multiple-choice task: HellaSwag's or ARC's JSON lines, JSON lines with context, choices and "
          "label, or llm.c's .bin; may be given many times")
      .type_name("[FORMAT:]FILE")
      .one_at_a_time();
  app.add("--items", o.task_items, "Items of each task, at most: the first ones; default: all")
      .positive()
      .type_name("N");
  app.add("--sequences", o.sequences,
          "Sequences of the data, at most: the first ones; default: all, of a run's validation data "
          "evaluation.sequences")
      .positive()
      .type_name("N");
  app.add("--sequence-length", o.sequence_length,
          fmt::format("Tokens of a sequence; default: the run's, else the model's context, at most {}",
                      kSequenceLength))
      .positive()
      .type_name("N");
  app.add("--batch", o.batch, "Sequences of a batch; default: the run's micro-batch, else what fits")
      .positive()
      .type_name("N");
  app.add_flag("--by-position", o.by_position, "Also print the loss by position in the sequence");
  app.add_flag("--log-probs", o.log_probs,
               fmt::format("Write the log-probabilities of pairs to {} beside the data, for "
                           "train.stored_reference",
                           kLogProbsName));
  app.add("--teacher-logits", o.teacher_logits,
          fmt::format("Write so many logits after each token, the largest, to {} beside the data, for "
                      "train.teacher_logits",
                      kTeacherLogitsName))
      .positive()
      .type_name("K");
  app.add("--temperature", o.temperature,
          "Of --teacher-logits: train.distillation.temperature of the training; default: 1")
      .type_name("T");
  app.add("--tokenizer", o.tokenizer, fmt::format("{}; default: the model's", kTokenizerSources))
      .type_name("PATH");
  add_ignore_field_option(app, o.ignored_fields);
  app.add_word("--device", o.device, "auto, cpu or cuda").show_default(name_of(o.device));
  app.add_word("--precision", o.precision, "auto, bf16 or fp32; default: the run's");
  app.add_word("--attention", o.attention, "naive, flash, cudnn or flash_fp8; default: the run's");
  app.add_word("--documents", o.documents,
               "join: attention crosses documents; mask: it does not; default: the run's");
  app.add_word(
      "--cache-dtype", o.cache,
      "Read each sequence 64 tokens at a time over a cache of keys and values whose older tokens are "
      "codes: fp8, int8, int4; auto: without a cache");
  app.add("--json", o.json, "Also write the figures to this file").type_name("FILE");
  add_rank_options(app, c.asked);
  app.footer(
      "Examples:\n"
      "  ./evaluate runs/quickstart\n"
      "  ./evaluate runs/quickstart --data book.txt --by-position\n"
      "  ./evaluate FOLDER --data book.txt --by-position --cache-dtype int4\n"
      "  ./evaluate FOLDER --task hellaswag_val.jsonl --task ARC-Easy-Test.jsonl --json results.json\n"
      "  ./evaluate FOLDER --task hellaswag_val.jsonl --gpus 4\n"
      "  ./evaluate FOLDER --data data/pairs --log-probs\n"
      "  ./evaluate TEACHER --data data/mine --teacher-logits 64 --temperature 2\n"
      "Exit codes: 0: done; 1: the command line is wrong, or the work was refused or failed, and the message "
      "says why; 3: another rank failed.");
}

void run(const Command& c, char** argv) {
  const EvaluatedModel model = open_evaluated(c.options);
  outlive_readers();
  evaluate(model, c.options, start_ranks(c.options.device, c.asked, argv));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  start_process();
  wait_without_spinning(argv);
  Options app{
      "Evaluates a model: the loss and perplexity on data, and the accuracy on multiple-choice tasks.",
      "evaluate"};
  Command command;
  add_options(app, command);
  if (const auto exit_code = parse_command_line({app, argc, argv})) return *exit_code;
  return exit_code_of("evaluate", [&] {
    run(command, argv);
    return 0;
  });
}
