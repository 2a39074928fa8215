// ./train --config gpt2_small.yaml
#include <CLI/CLI.hpp>
#include <iostream>

#include "kernels/base/check.h"
#include "train/config.h"
#include "train/threads.h"
#include "train/trainer.h"

int main(int argc, char** argv) {
  tessera::wait_without_spinning(argv);
  CLI::App app{
      "Trains a GPT: reads a configuration, trains on a GPU or on the CPU, and leaves metrics, samples and "
      "checkpoints in\n"
      "the run's folder.\n\n"
      "  ./train --config quickstart.yaml\n"
      "  ./train --config gpt2_small.yaml --set data.train=data/mine --set train.steps=50\n"
      "  ./train --config gpt2_small.yaml --resume\n"};
  std::string config_name;
  std::vector<std::string> overrides;
  tessera::TrainerOptions options;
  bool print_config = false;
  app.add_option("--config", config_name,
                 "YAML file; a bare name is looked up in the current folder, then in configs/")
      ->required();
  app.add_option("--set", overrides,
                 "Override a key, as in --set model.attention=naive; may be given many times")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  app.add_flag("--print-config", print_config, "Print every key with its value and documentation, and leave");
  CLI::Option* resume = app.add_flag("--resume", options.resume,
                                     "Go on from the newest checkpoint in the run's folder (train.folder)");
  app.add_flag("--overwrite", options.overwrite,
               "Remove the checkpoints that an earlier run left in the run's folder")
      ->excludes(resume);
  app.add_option(
         "--memory-profile", options.memory_profile,
         "Record every tensor's birth and death in the setup, the first two steps and the first two "
         "evaluations and samples, and write memory.html, memory_trace.json (Perfetto) and memory.json there")
      ->type_name("FOLDER")
      ->check([](const std::string& folder) {
        return folder.empty() ? std::string("wants the name of a folder") : std::string();
      });
  app.footer(
      "Ctrl-C or SIGTERM finishes the current step, writes a checkpoint and exits with 0; another, later one "
      "ends the\n"
      "program at once. Exit code 1: the run was refused or failed, and the message says why.");
  CLI11_PARSE(app, argc, argv);

  try {
    const tessera::Config config = tessera::load_config(tessera::find_config(config_name), overrides);
    if (print_config) {
      std::cout << tessera::print_config(config);
      return 0;
    }
    tessera::train(config, options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "train: error: " << error.what() << '\n';
    return 1;
  }
}
