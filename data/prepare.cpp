// prepare: text files and JSON lines in, a folder of token shards out.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data/document_index.h"
#include "data/documents.h"
#include "data/manifest.h"
#include "data/pending_folder.h"
#include "data/shard.h"
#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/command_line.h"
#include "kernels/base/process.h"
#include "kernels/base/status_line.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<fs::path> inputs;
  std::string tokenizer{kBytesTokenizer};
  std::string end_of_text;
  fs::path output;
  int64_t shard_tokens = ShardWriterOptions{}.tokens_per_shard;
  std::string text_field = "text";
  bool force = false;
};

void declare_options(CLI::App& app, Options& options) {
  app.description(
      "Turns text into a folder of token shards (llm.c's format) that the trainer reads.\n"
      "An end-of-text token follows every document. The folder gets its name only when it is complete.");
  app.footer(
      "Inputs:   *.jsonl        one JSON object a line; each is a document\n"
      "          anything else  plain text; each file is a document\n"
      "Output:   train_000000.bin, train_000001.bin, ..., dataset.json, and the tokenizer's tokenizer.json\n"
      "\n"
      "Examples:\n"
      "  ./prepare book.txt articles.jsonl --output data/mine\n"
      "  ./prepare part_*.jsonl --text-field content --output data/mine --force\n"
      "  ./prepare book.txt --tokenizer models/gpt2 --output data/mine\n\n"
      "Exit codes: 0: the folder is complete; 1: the command line is wrong, or the work was refused, failed "
      "or was interrupted, and the message says why.");
  app.add_option("input,--input", options.inputs, "Files to read, in this order")
      ->required()
      ->type_name("FILE");
  app.add_option("--output", options.output, "Folder to make")->required()->type_name("FOLDER");
  app.add_option("--tokenizer", options.tokenizer,
                 std::string(kTokenizerSources) + ": ids 0 to 255 are the bytes, 256 is the end of text")
      ->capture_default_str()
      ->type_name("PATH");
  app.add_option("--end-of-text", options.end_of_text,
                 "Token that ends documents, if it is not the usual one")
      ->type_name("TOKEN");
  app.add_option("--shard-tokens", options.shard_tokens,
                 "Tokens in one shard, at most; 100M is 100000000 (also K, G)")
      ->capture_default_str()
      ->transform(CLI::AsNumberWithUnit(
          std::map<std::string, int64_t>{{"K", 1'000}, {"M", 1'000'000}, {"G", 1'000'000'000}},
          CLI::AsNumberWithUnit::CASE_SENSITIVE))
      ->type_name("COUNT");
  app.add_option("--text-field", options.text_field, "Field of a JSON line that holds its text")
      ->capture_default_str()
      ->type_name("FIELD");
  app.add_flag("--force", options.force, "Replace the output folder if it is an earlier dataset");
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
}

// Progress: the share of the inputs that was read, the speed and the time that remains. If an input is a
// pipe, whose size is not known, only the speed.
class Progress {
 public:
  explicit Progress(const std::vector<fs::path>& inputs) {
    for (const fs::path& input : inputs) {
      std::error_code none;
      const bool sized = fs::is_regular_file(input, none);
      total_ = sized && total_ >= 0 ? total_ + static_cast<double>(fs::file_size(input, none)) : -1;
    }
  }
  void update(const fs::path& input, int64_t read_bytes, int64_t documents) {
    if (!line_.due()) return;
    const double done = static_cast<double>(read_bytes);
    const double rate = done / std::max(1e-9, std::chrono::duration<double>(Clock::now() - start_).count());
    const bool sized = total_ > 0;
    const std::string of = sized ? fmt::format("{:.0f}% | ", 100 * done / total_) : "";
    std::vector<StatusPart> parts{{fmt::format("prepare: {}{:.1f} MB", of, done / 1e6), 1},
                                  {fmt::format("{:.1f} MB/s", rate / 1e6), 3}};
    if (sized) parts.push_back({format_duration((total_ - done) / std::max(rate, 1.0)) + " left", 2});
    parts.push_back({fmt::format("documents {}", documents), 4});
    parts.push_back({input.filename().string(), 5});
    line_.show(parts);
  }
  void clear() { line_.clear(); }

 private:
  static constexpr double kQuietSeconds = 5;  // between lines in a log
  StatusLine line_{STDERR_FILENO, kQuietSeconds};
  double total_ = 0;  // bytes of all inputs; -1: not known
  Clock::time_point start_ = Clock::now();
};

// Encodes documents on all cores, and hands their ids on in the order of the documents.
class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, ShardWriter& shards, DocumentIndexWriter& documents)
      : tokenizer_(tokenizer), shards_(shards), documents_(documents) {}

  void add_text(std::string_view text) {
    begin_document();
    batch_.text += text;
    batch_.parts.back().bytes += text.size();
    if (batch_.text.size() >= kBatchBytes) start();
  }
  void end_document() {
    begin_document();
    batch_.parts.back().ends = true;
    is_open_ = false;
  }
  void finish() {
    start();
    while (!running_.empty()) take_first();
  }

 private:
  static constexpr size_t kBatchBytes = 1 << 20;
  struct Part {  // of a document
    size_t bytes = 0;
    bool begins = false, ends = false;  // the document
  };
  struct Encoded {
    std::vector<int32_t> ids;
    DocumentMarks marks;
  };
  struct Batch {
    std::string text;
    std::vector<Part> parts;
  };

  void begin_document() {
    if (!is_open_ || batch_.parts.empty()) batch_.parts.push_back({.begins = !is_open_});
    is_open_ = true;
  }

  void start() {
    if (running_.size() >= std::max(1u, std::thread::hardware_concurrency())) take_first();
    const auto encode = [this, batch = std::exchange(batch_, {})] { return ids_of(batch); };
    running_.push_back(std::async(std::launch::async, encode));
  }

  void take_first() {
    const Encoded encoded = running_.front().get();
    shards_.append(encoded.ids);
    documents_.append(std::ssize(encoded.ids), encoded.marks);
    running_.pop_front();
  }

  Encoded ids_of(const Batch& batch) const {
    Encoded encoded;
    std::vector<int32_t>& ids = encoded.ids;
    const auto append = [&](std::span<const int32_t> more) {
      ids.insert(ids.end(), more.begin(), more.end());
    };
    const auto after = tokenizer_.after_text();
    std::string_view rest = batch.text;
    for (const Part& part : batch.parts) {
      if (part.begins) {
        encoded.marks.starts.push_back(std::ssize(ids));
        append(tokenizer_.before_text());
      }
      tokenizer_.encode(rest.substr(0, part.bytes), SpecialTokens::kAsText, ids);
      rest.remove_prefix(part.bytes);
      if (!part.ends) continue;
      append(after);
      if (after.empty() || after.back() != tokenizer_.end_of_text()) ids.push_back(tokenizer_.end_of_text());
    }
    return encoded;
  }

  const Tokenizer& tokenizer_;
  ShardWriter& shards_;
  DocumentIndexWriter& documents_;
  Batch batch_;
  bool is_open_ = false;                      // a document has begun
  std::deque<std::future<Encoded>> running_;  // waits for its threads when it is destroyed
};

void prepare(const Options& options) {
  const auto start = Clock::now();
  const auto tokenizer = load_tokenizer(options.tokenizer, {.content = options.end_of_text});
  check(tokenizer->end_of_text() >= 0,
        "the tokenizer {} does not say which token ends a text: name one with --end-of-text TOKEN",
        options.tokenizer);
  for (const fs::path& input : options.inputs) check_input(input);

  PendingFolder folder(options.output, options.force);
  ShardWriter shards({.folder = folder.path(),
                      .tokens_per_shard = options.shard_tokens,
                      .bits = bits_for(tokenizer->vocab_size())});
  DocumentIndexWriter index({.folder = folder.path(), .tokens_per_shard = options.shard_tokens});
  Encoder encoder(*tokenizer, shards, index);
  Progress progress(options.inputs);
  int64_t read_bytes = 0, documents = 0;
  for (const fs::path& input : options.inputs) {
    const auto on_text = [&](std::string_view text) {
      check(!interrupted, "interrupted");
      encoder.add_text(text);
    };
    const auto on_end = [&] {
      encoder.end_document();
      ++documents;
    };
    const auto on_read = [&](int64_t bytes) {
      read_bytes += bytes;
      progress.update(input, read_bytes, documents);
    };
    const auto cut = [&](std::string_view text) { return tokenizer->last_cut(text); };
    read_documents(input, options.text_field,
                   {.on_text = on_text, .on_end = on_end, .on_read = on_read, .cut = cut});
  }
  encoder.finish();
  shards.finish();
  index.finish();
  FileChecksums files = shards.checksums();
  files.insert(index.checksums().begin(), index.checksums().end());
  if (!tokenizer->json().empty()) write_file(folder.path() / kTokenizerFile, tokenizer->json());
  write_manifest(folder.path(), {.tokenizer = std::string(tokenizer->name()),
                                 .tokenizer_from = tokenizer->json().empty() ? "" : options.tokenizer,
                                 .end_of_text = tokenizer->end_of_text(),
                                 .vocab_size = tokenizer->vocab_size(),
                                 .tokens = shards.token_count(),
                                 .documents = documents,
                                 .shards = shards.shard_count(),
                                 .files = files});
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

int main(int argc, char** argv) try {
  tessera::start_process();
  tessera::outlive_readers();
  return tessera::run(argc, argv);
} catch (const std::exception& error) {
  fmt::print(stderr, "prepare: error: {}\n", error.what());
  return 1;
}
