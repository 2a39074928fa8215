// ./train --config gpt2_small.yaml
#include <algorithm>
#include <iostream>
#include <string_view>

#include "kernels/base/check.h"
#include "kernels/base/command_line.h"
#include "kernels/base/process.h"
#include "kernels/base/text.h"
#include "train/config/config.h"
#include "train/config/config_keys.h"
#include "train/config/find_config.h"
#include "train/config/load_config.h"
#include "train/config/print_config.h"
#include "train/launch/process_group.h"
#include "train/memory/plan_command.h"
#include "train/memory/plan_target.h"
#include "train/run/ignored_fields.h"
#include "train/run/rank_options.h"
#include "train/run/replay.h"
#include "train/run/run_checks.h"
#include "train/run/start_ranks.h"
#include "train/run/threads.h"
#include "train/run/trainer.h"
#include "train/run/verify_command.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

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

// What the command line says
struct Command {
  std::string config_name;
  std::vector<std::string> overrides, ignored_fields;
  TrainerOptions options;
  std::string resume;          // "newest", "auto" or empty
  std::string verify, replay;  // a folder or empty
  bool print_config = false, plan = false;
  int64_t nodes = 1;     // of a plan
  LinkRates links = {};  // likewise; GB/s
  AskedRanks asked;
  PlanOptions plan_options;
};

void add_run_options(Options& app, Command& c) {
  app.add("config,--config", c.config_name,
          "YAML file; a bare name is looked up in the current folder, then in configs/. The folder of a "
          "run: its config.yaml")
      .type_name("FILE");
  app.add("--set", c.overrides, "Override a key, as in --set model.attention=naive; may be given many times")
      .type_name("KEY=VALUE")
      .one_at_a_time();
  add_ignore_field_option(app, c.ignored_fields);
  app.add_flag("--print-config", c.print_config,
               "Print every key with its value and documentation, and exit");
  Option resume = app.add_flag("--resume{newest}", c.resume,
                               "Resume from the newest checkpoint in the run's folder (train.folder); "
                               "--resume auto: start a new run if there is none")
                      .one_of({"newest", "auto"});
  app.add("--verify", c.verify,
          "Read a checkpoint, all checkpoints of a run or a folder of shards, compare with the "
          "checksums, and exit")
      .type_name("FOLDER");
  Option replay =
      app.add("--replay", c.replay,
              "Compute the step once more that has stopped a run, from the folder bad_step_N which the run "
              "named, look at every operation, and exit: 1 if the step is bad again, 0 if not")
          .type_name("FOLDER")
          .excludes(resume);
  app.add_flag("--overwrite", c.options.overwrite,
               "Remove the checkpoints of an earlier run in the run's folder")
      .excludes(resume)
      .excludes(replay);
  add_rank_options(app, c.asked);
}

void add_plan_options(Options& app, Command& c) {
  Option plan = app.add_flag("--plan", c.plan,
                             "Print the exact memory of the run and whether it fits, and exit; needs no GPU");
  for (const char* other : {"--print-config", "--resume", "--overwrite", "--replay"}) plan.excludes(other);
  app.add("--device-memory", c.plan_options.target.device_memory,
          "With --plan: the memory to fit, such as 80GiB or 141GB; default: what is free on this "
          "machine's device")
      .type_name("SIZE")
      .needs(plan);
  app.add("--host-memory", c.plan_options.target.host_memory,
          "With --plan: the memory of the host that all ranks together can pin for what memory.offload puts "
          "there, such as 512GiB; default: what is free on this machine, and with --device-memory as much as "
          "is needed")
      .type_name("SIZE")
      .needs(plan);
  app.add("--arch", c.plan_options.target.arch,
          "With --plan: the compute capability of the GPU times ten; no such GPU need be present")
      .type_name("80|90|...")
      .needs(plan);
  app.add("--nodes", c.nodes,
          "With --plan: the machines that the ranks are on, as many on each; default: one")
      .type_name("N")
      .needs(plan);
  app.add(
         "--link-rate", c.links.within,
         "With --plan: the GB/s that each rank sends to others of its machine, as ./bench links measures it; "
         "default: by the device")
      .type_name("GB/S")
      .needs(plan);
  app.add("--network-rate", c.links.between,
          "With --plan: the GB/s that each rank sends to another machine while all do, as a run prints it")
      .type_name("GB/S")
      .needs(plan);
  app.add_word("--fit", c.plan_options.fit, "With --plan: find the largest context or micro-batch that fits")
      .needs(plan);
  app.add("--json", c.plan_options.json, "With --plan: also write the figures to this file")
      .type_name("FILE")
      .needs(plan);
  app.add("--memory-profile", c.options.memory_profile,
          "Record every allocation of the setup, the first two steps and the first two evaluations "
          "and samples, and write memory.html, memory_trace.json (Perfetto) and memory.json there")
      .type_name("FOLDER")
      .excludes(plan);
}

constexpr const char* kFooter =
    "Examples:\n"
    "  ./train quickstart.yaml\n"
    "  ./train gpt2_small.yaml --set data.train=data/mine --set train.steps=50\n"
    "  ./train gpt2_small.yaml --resume --gpus 4\n"
    "  ./train runs/quickstart --resume\n"
    "  ./train gpt2_small.yaml --plan --device-memory 80GiB\n\n"
    "Ctrl-C, SIGTERM, SIGHUP or SIGUSR1 stops the run after the current step. A long step is dropped after "
    "the "
    "current micro-batch. A checkpoint is written, and the exit code is 0. A second signal other than "
    "SIGUSR1, "
    "at least a second later, ends the program at once.\n\n"
    "Exit codes: 0: finished, or stopped by a signal; 1: the command line is wrong, or the run was refused "
    "or failed, and the message says why, or --replay found a bad step; 2: --plan found that the run does "
    "not fit; 3, with several "
    "ranks: another rank failed and printed the message.";

int plan(Config config, Command& c) {
  check_asked(config.device, c.asked);
  if (c.asked.gpus > 0) config.device = DeviceRequest::kCuda;  // even if none is present
  config.ranks = c.asked.count() > 0 ? c.asked.count() : default_ranks(config.device);
  check(c.nodes >= 1 && config.ranks % c.nodes == 0,
        "--nodes {}: {} ranks are not as many on each of {} machines; give a divisor of them", c.nodes,
        config.ranks, c.nodes);
  for (const auto& [name, rate] :
       {std::pair("--link-rate", c.links.within), std::pair("--network-rate", c.links.between)})
    check(rate >= 0, "{} {}: a rate is above 0", name, rate);
  config.nodes = c.nodes;
  config.links = {.within = 1e9 * c.links.within, .between = 1e9 * c.links.between};
  c.plan_options.config_name = c.config_name;
  c.plan_options.overrides = c.overrides;
  c.plan_options.planned_run = planned_run;
  return plan_command(config, c.plan_options);
}

std::string folder_of(const fs::path& file) {
  const std::string folder = file.lexically_normal().parent_path().string();
  return folder.empty() ? "." : folder;
}

// By as many ranks as the step had, if none are asked for
int replay_step(Command& c, char** argv) {
  check(c.config_name.empty(), "--replay {} has its configuration with it: leave {} out", c.replay,
        c.config_name);
  const BadStepFolder folder = read_bad_step(c.replay);
  Config config = replay_config(folder, c.overrides);
  if (c.asked.count() == 0 && !world_of_environment()) c.asked.ranks = folder.kept.ranks;
  outlive_readers();
  const World world = start_ranks(config.device, c.asked, argv);
  config.ranks = world.size;
  return replay(config, folder, world);
}

int run(Command& c, char** argv) {
  if (!c.verify.empty()) return verify_command(c.verify);
  if (!c.replay.empty()) return replay_step(c, argv);
  check_plan_options(c.plan_options.target);
  c.options.resume = !c.resume.empty();
  c.options.or_start = c.resume == "auto";
  add_ignored_fields(c.ignored_fields, c.overrides);
  const fs::path file = find_config(c.config_name);
  // A run that was moved, or that is named from another folder, is where its configuration is.
  if (file == fs::path(c.config_name) / kRunConfig)
    c.overrides.insert(c.overrides.begin(), "train.folder=" + in_quotes(folder_of(file)));
  Config config = load_config(file, c.overrides, c.options.resume);
  if (c.print_config) {
    std::cout << print_config(config);
    return 0;
  }
  if (c.plan) return plan(config, c);
  outlive_readers();
  const World world = start_ranks(config.device, c.asked, argv);
  config.ranks = world.size;
  train(config, c.options, world);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  start_process();
  wait_without_spinning(argv);
  join_resume_auto(argc, argv);
  Options app{
      "Trains a GPT: reads a configuration, trains on GPUs or on the CPU, and writes metrics, samples and "
      "checkpoints to the run's folder.",
      "train"};
  Command command;
  add_run_options(app, command);
  add_plan_options(app, command);
  app.footer(kFooter);
  const auto advice = [](std::string_view word) {
    const std::string_view name = word.substr(0, word.find('='));
    return name == "-o" || name == "--output" ? "the folder of a run is set with --set train.folder=FOLDER"
                                              : option_is_a_key(word);
  };
  if (const auto exit_code = parse_command_line({app, argc, argv, advice})) return *exit_code;
  return exit_code_of("train", [&] { return run(command, argv); });
}
