// ./train --config gpt2_small.yaml
#include <algorithm>
#include <iostream>
#include <string_view>

#include "kernels/base/check.h"
#include "kernels/base/command_line.h"
#include "kernels/base/process.h"
#include "train/config/config.h"
#include "train/config/config_keys.h"
#include "train/config/find_config.h"
#include "train/config/load_config.h"
#include "train/config/print_config.h"
#include "train/launch/process_group.h"
#include "train/memory/plan_command.h"
#include "train/run/rank_options.h"
#include "train/run/start_ranks.h"
#include "train/run/threads.h"
#include "train/run/trainer.h"
#include "train/run/verify_command.h"

namespace {

// `--resume auto` becomes `--resume=auto`: for the parser --resume is a flag, which takes no value, so that
// another argument may follow it.
void join_resume_auto(int& argc, char** argv) {
  static char joined[] = "--resume=auto";
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) != "--resume" || std::string_view(argv[i + 1]) != "auto") continue;
    argv[i] = joined;
    std::copy(argv + i + 2, argv + argc + 1, argv + i + 1);
    --argc;
    return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  tessera::start_process();
  tessera::wait_without_spinning(argv);
  join_resume_auto(argc, argv);
  CLI::App app{
      "Trains a GPT: reads a configuration, trains on GPUs or on the CPU, and writes metrics, samples and "
      "checkpoints to the run's folder.",
      "train"};
  std::string config_name;
  std::vector<std::string> overrides;
  tessera::TrainerOptions options;
  bool print_config = false;
  app.add_option("config,--config", config_name,
                 "YAML file; a bare name is looked up in the current folder, then in configs/")
      ->type_name("FILE");
  app.add_option("--set", overrides,
                 "Override a key, as in --set model.attention=naive; may be given many times")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  CLI::Option* print = app.add_flag("--print-config", print_config,
                                    "Print every key with its value and documentation, and exit");
  std::string resume_word;
  CLI::Option* resume = app.add_flag("--resume{newest}", resume_word,
                                     "Resume from the newest checkpoint in the run's folder (train.folder); "
                                     "--resume auto: start a new run if there is none")
                            ->check(CLI::IsMember({"newest", "auto"}));
  std::string verified;
  app.add_option(
         "--verify", verified,
         "Read a checkpoint, all checkpoints of a run or a folder of shards, compare with the checksums, and "
         "exit")
      ->type_name("FOLDER");
  CLI::Option* overwrite = app.add_flag("--overwrite", options.overwrite,
                                        "Remove the checkpoints of an earlier run in the run's folder")
                               ->excludes(resume);
  tessera::AskedRanks asked;
  tessera::add_rank_options(app, asked);
  tessera::PlanOptions plan_options;
  bool only_plan = false;
  CLI::Option* plan =
      app.add_flag("--plan", only_plan,
                   "Print the exact memory of the run and whether it fits, and exit; needs no GPU")
          ->excludes(print)
          ->excludes(resume)
          ->excludes(overwrite);
  app.add_option("--device-memory", plan_options.device_memory,
                 "With --plan: the memory to fit, such as 80GiB or 141GB; default: what is free on this "
                 "machine's device")
      ->type_name("SIZE")
      ->needs(plan);
  app.add_option("--arch", plan_options.arch,
                 "With --plan: the compute capability of the GPU times ten; no such GPU need be present")
      ->type_name("80|90|...")
      ->needs(plan);
  app.add_option("--fit", plan_options.fit, "With --plan: find the largest context or micro-batch that fits")
      ->check(CLI::IsMember({"context", "batch"}))
      ->needs(plan);
  app.add_option("--json", plan_options.json, "With --plan: also write the figures to this file")
      ->type_name("FILE")
      ->needs(plan);
  app.add_option("--memory-profile", options.memory_profile,
                 "Record every allocation of the setup, the first two steps and the first two evaluations "
                 "and samples, and write memory.html, memory_trace.json (Perfetto) and memory.json there")
      ->type_name("FOLDER")
      ->excludes(plan);
  app.footer(
      "Examples:\n"
      "  ./train quickstart.yaml\n"
      "  ./train gpt2_small.yaml --set data.train=data/mine --set train.steps=50\n"
      "  ./train gpt2_small.yaml --resume --gpus 4\n"
      "  ./train gpt2_small.yaml --plan --device-memory 80GiB\n\n"
      "Ctrl-C, SIGTERM or SIGHUP stops the run after the current step. A long step is dropped after the "
      "current micro-batch. A checkpoint is written, and the exit code is 0. A second signal, at least a "
      "second later, ends the program at once.\n\n"
      "Exit codes: 0: finished, or stopped by a signal; 1: the command line is wrong, or the run was refused "
      "or failed, and the message says why; 2: --plan found that the run does not fit; 3, with several "
      "ranks: another rank failed and printed the message.");
  if (const auto exit_code = tessera::parse_command_line({app, argc, argv, tessera::option_is_a_key}))
    return *exit_code;

  try {
    if (!verified.empty()) return tessera::verify_command(verified);
    options.resume = !resume_word.empty();
    options.or_start = resume_word == "auto";
    tessera::Config config =
        tessera::load_config(tessera::find_config(config_name), overrides, options.resume);
    if (print_config) {
      std::cout << tessera::print_config(config);
      return 0;
    }
    if (only_plan) {
      tessera::check_asked(config.device, asked);
      if (asked.gpus > 0) config.device = tessera::DeviceRequest::kCuda;  // even if none is present
      config.ranks = asked.count() > 0 ? asked.count() : tessera::default_ranks(config.device);
      plan_options.config_name = config_name;
      plan_options.overrides = overrides;
      return tessera::plan_command(config, plan_options);
    }
    tessera::outlive_readers();
    const tessera::World world = tessera::start_ranks(config.device, asked, argv);
    config.ranks = world.size;
    tessera::train(config, options, world);
    return 0;
  } catch (const tessera::PeerFailed&) {
    return tessera::kExitPeerFailed;
  } catch (const std::exception& error) {
    std::cerr << "train: error: " << error.what() << '\n';
    return 1;
  }
}
