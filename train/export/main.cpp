// export: a checkpoint in, a model for other programs out.
#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/command_line.h"
#include "kernels/base/signals.h"
#include "train/export/export_folder.h"
#include "train/run/ignored_fields.h"
#include "train/run/threads.h"
#include "train/session/memory_limit.h"

namespace tessera {
namespace {

void declare_options(Options& app, ExportOptions& options, std::string& shard_size) {
  app.description(
      "Writes a model for other programs: Hugging Face's transformers (hf), llama.cpp (gguf), llm.c (llm.c), "
      "PEFT (peft: the adapter alone, of a run with train.lora). "
      "What was written is read back and compared with the model before it gets its name.");
  app.add("folder", options.folder,
          "A checkpoint, a run's folder (its newest checkpoint), or a folder of Hugging Face")
      .required()
      .type_name("FOLDER");
  app.add_word("--format", options.format, "hf, peft: a folder; gguf, llm.c: a file").required();
  app.add("--output", options.output, "The folder or the file to write").required().type_name("PATH");
  app.add_word(
      "--dtype", options.numbers,
      "fp32, bf16; hf and gguf also fp16; gguf also q8_0 (blocks of 32 int8) and mxfp4 (experts in 4 bits, "
      "all else in bf16); default: as in FOLDER");
  app.add("--shard-size", shard_size, "hf: the most bytes of a file with weights, such as 5GB or 500MB")
      .show_default()
      .type_name("SIZE");
  app.add("--tokenizer", options.tokenizer,
          std::string("The tokenizer, if not that of FOLDER. ") + kTokenizerSources)
      .type_name("PATH");
  app.add(
         "--base", options.base,
         "Of a run with train.lora: add its adapter to the weights of this folder. By default it is added to "
         "those that it was trained on, which train.lora.base and train.gemm_dtype may have rounded")
      .type_name("FOLDER");
  add_ignore_field_option(app, options.ignored_fields);
  app.add_flag("--force", options.force, "Replace the output if it is an earlier export");
  app.footer(
      "Examples:\n"
      "  ./export runs/gpt2_small --format hf --dtype bf16 --output gpt2-mine\n"
      "  ./export runs/gpt2_small --format gguf --dtype q8_0 --output gpt2-mine.gguf\n"
      "  ./export runs/gpt2_small --format llm.c --output gpt2-mine.bin\n"
      "  ./export runs/lora_finetune --format peft --output adapter-mine\n"
      "Exit codes: 0: done; 1: the command line is wrong, or the work was refused or failed, and the message "
      "says why.");
}

int run(int argc, char** argv) {
  Options app("", "export");
  ExportOptions options;
  std::string shard_size = "5GB";
  declare_options(app, options, shard_size);
  if (const auto exit_code = parse_command_line({app, argc, argv})) return *exit_code;
  try {
    options.shard_bytes = parse_bytes(shard_size);
  } catch (const Error& error) {
    fail("--shard-size: {}", error.what());
  }
  check(!app.given("--shard-size") || options.format == ExportFormat::kHuggingFace,
        "--shard-size is of --format hf, found --format {}", name_of(options.format));
  record_stop_signals({});  // they end an export with an Error, so that destructors clean up
  export_folder(options);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::wait_without_spinning(argv);
  return tessera::run_program("export", tessera::run, argc, argv);
}
