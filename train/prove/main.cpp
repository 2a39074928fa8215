// ./prove runs/quickstart

#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/command_line.h"
#include "kernels/base/process.h"
#include "kernels/base/signals.h"
#include "kernels/base/version.h"
#include "train/launch/process_group.h"
#include "train/prove/other_build.h"
#include "train/prove/prove.h"
#include "train/run/ignored_fields.h"
#include "train/run/model_folder.h"
#include "train/run/rank_options.h"
#include "train/run/start_ranks.h"
#include "train/run/threads.h"
#include "train/session/device.h"

namespace tessera {
namespace {

struct Command {
  ProveOptions options;
  AskedRanks asked = {.on_cpu = "--device cpu"};
};

void add_options(Options& app, Command& c) {
  ProveOptions& o = c.options;
  app.add("model,--model", o.model, std::string("The model: ") + kModelSources).type_name("FOLDER");
  app.add("--config", o.config,
          "In place of a model: a configuration, with random weights or those of its train.init_from")
      .type_name("FILE");
  app.add("--set", o.settings, "Overrides a key of the configuration; may be given many times")
      .type_name("KEY=VALUE")
      .one_at_a_time();
  add_ignore_field_option(app, o.ignored_fields);
  app.add("--only", o.only,
          "One proof: attention, rows, documents, micro_batch, resume, ranks, device or fp8; may be given "
          "many times; default: all, beside --against or --record none")
      .type_name("NAME")
      .one_of({"attention", "rows", "documents", "micro_batch", "resume", "ranks", "device", "fp8"})
      .one_at_a_time();
  app.add(
         "--data", o.data,
         "What to compute on: a text file, a shard, a folder of shards or a pattern, as data.train; default: "
         "the sequences that the run would train on next")
      .type_name("PATH");
  app.add("--tokenizer", o.tokenizer,
          fmt::format("Of a text of --data: {}; default: the model's", kTokenizerSources))
      .type_name("PATH");
  app.add("--sequences", o.sequences,
          fmt::format("Sequences of a step; default: {}, of long ones fewer", kProvedSequences))
      .positive()
      .type_name("N");
  app.add("--sequence-length", o.sequence_length, "Tokens of a sequence; default: the run's")
      .positive()
      .type_name("N");
  app.add("--against", o.against, std::string("Compares the step with that of ") + kAgainstSources)
      .type_name("NAME");
  app.add("--record", o.record,
          "Writes what the step computed to this file: losses, attention's output and log-sum-exp, every "
          "gradient, as safetensors")
      .type_name("FILE");
  app.add_word("--device", o.device, "auto, cpu or cuda").show_default(name_of(o.device));
  app.add_word("--precision", o.precision, "auto, bf16 or fp32; default: the run's");
  app.add_word("--attention", o.attention,
               "naive, flash, cudnn or flash_fp8: only this one; default: all, and the run's");
  app.add("--ratio", o.ratio, "In bf16: how large an error may be, as a multiple of naive's")
      .type_name("P")
      .show_default();
  app.add("--json", o.json, "Also write the figures, of every block and parameter, to this file")
      .type_name("FILE");
  add_rank_options(app, c.asked);
  app.add("--html", o.html, "Also write a page with every tensor as a dot to this file").type_name("FILE");
  app.footer(
      "Examples:\n"
      "  ./prove runs/quickstart\n"
      "  ./prove --config quickstart.yaml --only attention\n"
      "  ./prove FOLDER --data book.txt --sequence-length 8192\n"
      "  ./prove runs/quickstart --ranks 2 --only ranks --json proofs.json\n"
      "  ./prove runs/quickstart --against runs/quickstart/checkpoints/step_00000100\n"
      "  ./prove runs/quickstart --against ../build_of_main\n"
      "Exit codes: 0: all that was compared agrees; 1: something does not, or the command line is wrong, or "
      "the work was refused or failed, and the message says why; 3: another rank failed.");
}

bool run(const Command& c, char** argv) {
  ProveOptions o = c.options;
  o.build = version_text("prove");
  const ProvedModel model = open_proved(o);
  AskedRanks asked = c.asked;
  if (!o.against.empty() || !o.record.empty()) {
    check(asked.count() <= 1, "--against and --record compute the step on one rank: leave out --{} {}",
          asked.gpus > 0 ? "gpus" : "ranks", asked.count());
    if (asked.count() == 0) asked.ranks = 1;
  }
  outlive_readers();
  record_stop_signals({.calls = BlockedCalls::kGoOn, .second_ends = true});  // a step ends with an Error
  return all_hold(prove(model, o, start_ranks(o.device, asked, argv), make_backend));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  start_process();
  wait_without_spinning(argv);
  Options app{
      "Proves on a model of yours that flash attends as naive does, and that ways to train agree that must.",
      "prove"};
  Command command;
  add_options(app, command);
  if (const auto exit_code = parse_command_line({app, argc, argv})) return *exit_code;
  return exit_code_of("prove", [&] { return run(command, argv) ? 0 : 1; });
}
