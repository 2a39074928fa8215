// prepare: text files and JSON lines in, a folder of token shards out.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "data/documents.h"
#include "data/manifest.h"
#include "data/pending_folder.h"
#include "data/shard.h"
#include "data/tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/command_line.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<fs::path> inputs;
  std::string tokenizer{kBytesTokenizer};
  fs::path output;
  int64_t shard_tokens = ShardWriterOptions{}.tokens_per_shard;
  std::string text_field = "text";
  bool force = false;
};

void declare_options(CLI::App& app, Options& options) {
  app.description(
      "Turns text into a folder of token shards (llm.c's format) that the trainer reads.\n"
      "Every document is followed by the tokenizer's end-of-text token. The folder appears only when it is "
      "complete.");
  app.footer(
      "Inputs:   *.jsonl        one JSON object a line; each is a document\n"
      "          anything else  plain text; each file is a document\n"
      "Output:   train_000000.bin, train_000001.bin, ... and dataset.json\n"
      "\n"
      "Examples:\n"
      "  ./prepare book.txt articles.jsonl --output data/mine\n"
      "  ./prepare part_*.jsonl --text-field content --output data/mine --force\n\n"
      "Exit codes: 0: the folder is complete; 1: the command line is wrong, or the work was refused, failed "
      "or "
      "was interrupted, and the message says why.");
  app.add_option("input,--input", options.inputs, "Files to read, in this order")
      ->required()
      ->type_name("FILE");
  app.add_option("--output", options.output, "Folder to make")->required()->type_name("FOLDER");
  app.add_option("--tokenizer", options.tokenizer,
                 "bytes: ids 0 to 255 are the bytes, 256 is the end of text")
      ->capture_default_str()
      ->type_name("NAME");
  app.add_option("--shard-tokens", options.shard_tokens,
                 "Most tokens in one shard; 100M is 100000000 (also K, G)")
      ->capture_default_str()
      ->transform(CLI::AsNumberWithUnit(
          std::map<std::string, int64_t>{{"K", 1'000}, {"M", 1'000'000}, {"G", 1'000'000'000}},
          CLI::AsNumberWithUnit::CASE_SENSITIVE))
      ->type_name("COUNT");
  app.add_option("--text-field", options.text_field, "Field of a JSON line that holds its text")
      ->capture_default_str()
      ->type_name("FIELD");
  app.add_flag("--force", options.force, "Replace the output folder if it is a dataset made earlier");
}

volatile std::sig_atomic_t interrupted = 0;

// Signals only set a flag, so that they end the program through an Error, and the destructors clean up.
void catch_signals() {
  struct sigaction action = {};  // without SA_RESTART: a read that waits on a pipe must end, too
  action.sa_handler = [](int) { interrupted = 1; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);  // nohup stays nohup
  }
  std::signal(SIGXFSZ, SIG_IGN);  // over a file size limit, write() then fails and says why
}

// One line on stderr that is overwritten about twice a second; silent when stderr is not a terminal.
class Progress {
 public:
  ~Progress() { clear(); }
  void update(const fs::path& input, int64_t text_bytes, int64_t documents) {
    if (!visible_ || Clock::now() < next_) return;
    next_ = Clock::now() + std::chrono::milliseconds(500);
    fmt::print(stderr, "\r\033[Kprepare: {}: {:.1f} MB of text, documents {}", input.string(),
               static_cast<double>(text_bytes) / 1e6, documents);
    std::fflush(stderr);
  }
  void clear() {
    if (visible_) fmt::print(stderr, "\r\033[K");
  }

 private:
  const bool visible_ = isatty(STDERR_FILENO) != 0;
  Clock::time_point next_ = Clock::now();
};

void prepare(const Options& options) {
  const auto start = Clock::now();
  const auto tokenizer = make_tokenizer(options.tokenizer);
  for (const fs::path& input : options.inputs) check_input(input);

  PendingFolder folder(options.output, options.force);
  ShardWriter shards({.folder = folder.path(), .tokens_per_shard = options.shard_tokens});
  const int32_t end_of_text = tokenizer->end_of_text();
  Progress progress;
  int64_t text_bytes = 0, documents = 0;
  for (const fs::path& input : options.inputs) {
    const auto on_text = [&](std::string_view text) {
      check(!interrupted, "interrupted");
      shards.append(tokenizer->encode(text));
      text_bytes += static_cast<int64_t>(text.size());
      progress.update(input, text_bytes, documents);
    };
    const auto on_end = [&] {
      shards.append({&end_of_text, 1});
      ++documents;
    };
    read_documents(input, options.text_field, {.on_text = on_text, .on_end = on_end});
  }
  shards.finish();
  write_manifest(folder.path(), {.tokenizer = options.tokenizer,
                                 .vocab_size = tokenizer->vocab_size(),
                                 .tokens = shards.token_count(),
                                 .documents = documents,
                                 .shards = shards.shard_count(),
                                 .files = shards.checksums()});
  check(!interrupted, "interrupted");
  folder.publish();
  progress.clear();
  fmt::print("prepare: wrote {}: documents {}, tokens {}, shards {}, seconds {:.1f}\n",
             options.output.string(), documents, shards.token_count(), shards.shard_count(),
             std::chrono::duration<double>(Clock::now() - start).count());
}

int run(int argc, char** argv) {
  CLI::App app("", "prepare");
  Options options;
  declare_options(app, options);
  if (const auto exit_code = parse_command_line({app, argc, argv})) return *exit_code;
  catch_signals();
  prepare(options);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try { return tessera::run(argc, argv); } catch (const std::exception& error) {
  fmt::print(stderr, "prepare: error: {}\n", error.what());
  return 1;
}
