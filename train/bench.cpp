// ./bench step --config gpt2_small.yaml
#include "train/bench.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "kernels/base/check.h"
#include "train/threads.h"

int main(int argc, char** argv) {
  tessera::wait_without_spinning(argv);
  CLI::App app{"Measures Tessera on this machine."};
  app.require_subcommand(1);
  std::string config_name = "gpt2_small.yaml";
  std::vector<std::string> overrides;
  const auto add_common = [&](CLI::App* command, std::string& json) {
    command->add_option("--config", config_name, "YAML file, as for ./train")->capture_default_str();
    command->add_option("--set", overrides, "Override a key, as for ./train")
        ->type_name("KEY=VALUE")
        ->expected(1)
        ->take_all();
    command->add_option("--json", json, "Also write the figures to this file");
  };

  tessera::BenchStepOptions step_options;
  CLI::App* step = app.add_subcommand(
      "step",
      "A training step: tokens/s, TFLOP/s, share of the GEMM peak, milliseconds by operation.\n"
      "One step is one micro-batch (train.micro_batch, train.sequence_length) and an optimizer update.");
  add_common(step, step_options.json);
  step->add_option("--steps", step_options.steps, "Steps to time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  step->add_option("--warmup", step_options.warmup, "Steps before the clock starts")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();

  tessera::BenchMemoryOptions memory_options{
      .sequence_lengths = {256, 512, 1024, 2048}, .attention = {"naive", "flash"}, .json = ""};
  CLI::App* memory = app.add_subcommand(
      "memory",
      "A training step of one sequence at several lengths: memory of attention and of all, and time.");
  add_common(memory, memory_options.json);
  memory->add_option("--seq-lens", memory_options.sequence_lengths, "Sequence lengths, in tokens")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  memory->add_option("--attention", memory_options.attention, "Kinds of attention")
      ->delimiter(',')
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  try {
    const tessera::Config config = tessera::load_config(tessera::find_config(config_name), overrides);
    if (*step) tessera::bench_step(config, step_options);
    if (*memory) tessera::bench_memory(config, memory_options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "bench: error: " << error.what() << '\n';
    return 1;
  }
}
