// prepare: texts, completions and conversations in, a folder of token shards out.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data/document_index.h"
#include "data/documents.h"
#include "data/manifest.h"
#include "data/pending_folder.h"
#include "data/sample_encoder.h"
#include "data/sample_show.h"
#include "data/shard.h"
#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/command_line.h"
#include "kernels/base/status_line.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<fs::path> inputs;
  InputFormat format = InputFormat::kByName;
  std::string tokenizer{kBytesTokenizer};
  std::string end_of_text;
  fs::path output;
  int64_t shard_tokens = ShardWriterOptions{}.tokens_per_shard;
  std::string text_field = "text";
  std::optional<ChatTemplate> chat;
  CountedLoss loss = CountedLoss::kCompletions;
  bool strict = false;
  BytesWithoutToken bytes_without_token = BytesWithoutToken::kStop;
  int64_t show = 0;  // samples to print, instead of writing a folder
  bool force = false;
};

void declare_texts(CLI::App& app) {
  app.description(
      "Turns texts, completions and conversations into a folder of token shards (llm.c's format) that the "
      "trainer reads.\n"
      "An end-of-text token follows every document. The folder gets its name only when it is complete.");
  app.footer(
      "Inputs:   *.jsonl        one JSON object a line, each a document (a line has at most 1 GiB):\n"
      "                         {\"text\": \"...\"}, {\"prompt\": \"...\", \"completion\": \"...\"} or\n"
      "                         {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}\n"
      "          anything else  plain text; each file is a document\n"
      "          .gz, .zst      either of them, compressed: part.jsonl.zst\n"
      "          -              standard input, with --format\n"
      "Output:   train_000000.bin, train_000000.documents, ..., dataset.json, and the tokenizer's "
      "tokenizer.json\n"
      "\n"
      "The loss counts on texts, on completions and on what assistants say.\n"
      "\n"
      "Examples:\n"
      "  ./prepare book.txt articles.jsonl --output data/mine\n"
      "  ./prepare part_*.jsonl.zst --text-field content --output data/mine --force\n"
      "  ./prepare chats.jsonl --tokenizer models/qwen --show 3\n"
      "  ./prepare chats.jsonl --tokenizer models/qwen --output data/chats\n"
      "  zcat logs.gz | ./prepare - --format text --output data/logs\n\n"
      "Exit codes: 0: the folder is complete; 1: the command line is wrong, or the work was refused, failed "
      "or was interrupted, and the message says why.");
}

void declare_options(CLI::App& app, Options& options) {
  declare_texts(app);
  app.add_option("input,--input", options.inputs, "Files to read, in this order")
      ->required()
      ->type_name("FILE");
  add_word_option(app, "--format", options.format,
                  "Format of the inputs: text, jsonl, or name, by the names of the files")
      ->default_str(name_of(options.format));
  app.add_option("--output", options.output, "Folder to make; required without --show")->type_name("FOLDER");
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
  const auto set_chat = [&options](const std::string& word) { options.chat = from_word<ChatTemplate>(word); };
  app.add_option_function<std::string>("--chat-template", set_chat,
                                       "How conversations are written: chatml or llama3; by default the one "
                                       "whose special tokens the tokenizer has")
      ->check(CLI::IsMember(names_of<ChatTemplate>(values_with_words<ChatTemplate>())))
      ->type_name("NAME");
  add_word_option(app, "--loss", options.loss,
                  "Where the loss counts in prompts and conversations: completions (and assistants), or all")
      ->default_str(name_of(options.loss));
  app.add_flag("--strict", options.strict,
               "Refuse a sample of which no token counts, instead of dropping it");
  add_word_option(app, "--bytes-without-token", options.bytes_without_token,
                  "Bytes for which the tokenizer has no token: stop at the first one, or skip and count them")
      ->default_str(name_of(options.bytes_without_token));
  app.add_option("--show", options.show, "Print the first samples with the part that counts marked, and stop")
      ->check(CLI::PositiveNumber)
      ->type_name("COUNT");
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

// Encodes pieces on all cores, and writes their ids in the order of the pieces.
class Pipeline {
 public:
  Pipeline(const SampleEncoder& encoder, const ShardWriterOptions& options)
      : encoder_(encoder),
        shards_(options),
        index_({.folder = options.folder, .tokens_per_shard = options.tokens_per_shard}) {}

  void add(Piece piece) {
    const size_t bytes = piece.bytes.size();
    while (!running_.empty() && (running_.size() >= std::max(1u, std::thread::hardware_concurrency()) ||
                                 bytes_running_ + bytes > kMostBytesRunning))
      take_first();
    bytes_running_ += bytes;
    running_.push_back({bytes, std::async(std::launch::async, [this, piece = std::move(piece)] {
                          return encoder_.encode(piece);
                        })});
  }
  // The checksums of the files
  FileChecksums finish() {
    while (!running_.empty()) take_first();
    shards_.finish();
    index_.finish();
    FileChecksums files = shards_.checksums();
    files.insert(index_.checksums().begin(), index_.checksums().end());
    return files;
  }

  int64_t documents() const { return documents_; }
  int64_t conversations() const { return conversations_; }
  int64_t dropped() const { return dropped_; }
  int64_t skipped_bytes() const { return skipped_bytes_; }
  const std::vector<std::string>& first_dropped() const { return first_dropped_; }
  int64_t tokens() const { return shards_.token_count(); }
  int64_t counted_tokens() const { return tokens() - index_.uncounted_tokens(); }
  int64_t shards() const { return shards_.shard_count(); }

 private:
  static constexpr size_t kMostBytesRunning = size_t{256} << 20;  // unless one piece alone has more
  static constexpr size_t kMostDroppedNamed = 3;
  struct Running {
    size_t bytes;
    std::future<EncodedPiece> encoded;  // waits for its thread when it is destroyed
  };

  void take_first() {
    const EncodedPiece encoded = running_.front().encoded.get();
    bytes_running_ -= running_.front().bytes;
    running_.pop_front();
    shards_.append(encoded.ids);
    index_.append(std::ssize(encoded.ids), encoded.marks);
    documents_ += encoded.documents;
    conversations_ += encoded.conversations;
    dropped_ += std::ssize(encoded.dropped);
    skipped_bytes_ += encoded.skipped_bytes;
    for (const std::string& place : encoded.dropped)
      if (first_dropped_.size() < kMostDroppedNamed) first_dropped_.push_back(place);
  }

  const SampleEncoder& encoder_;
  ShardWriter shards_;
  DocumentIndexWriter index_;
  int64_t documents_ = 0, conversations_ = 0, dropped_ = 0, skipped_bytes_ = 0;
  std::vector<std::string> first_dropped_;  // file:line
  size_t bytes_running_ = 0;
  std::deque<Running> running_;
};

// Reads an input, piece by piece, until on_piece returns false.
void read_input(const fs::path& input, InputFormat format, const Tokenizer& tokenizer,
                const std::function<bool(Piece)>& on_piece,
                const std::function<void(int64_t)>& on_read = {}) {
  read_pieces(input, format,
              {.on_piece =
                   [&](Piece piece) {
                     check(!interrupted, "interrupted");
                     return on_piece(std::move(piece));
                   },
               .on_read = on_read,
               .cut = [&](std::string_view text) { return tokenizer.last_cut(text); }});
}

void tell_dropped(const Pipeline& pipeline) {
  if (pipeline.dropped() == 0) return;
  std::string places;
  for (const std::string& place : pipeline.first_dropped()) places += (places.empty() ? "" : ", ") + place;
  const int64_t more = pipeline.dropped() - std::ssize(pipeline.first_dropped());
  print_stderr(fmt::format(
      "prepare: notice: {} dropped, since no token of them counts (no assistant speaks, or "
      "the completion is empty): {}{}; --strict refuses them\n",
      pipeline.dropped() == 1 ? "1 sample was" : fmt::format("{} samples were", pipeline.dropped()), places,
      more > 0 ? fmt::format(" and {} more", more) : ""));
}

void tell_skipped(const Pipeline& pipeline) {
  const int64_t bytes = pipeline.skipped_bytes();
  if (bytes > 0)
    print_stderr(fmt::format("prepare: notice: {} skipped, for which the tokenizer has no token\n",
                             bytes == 1 ? "1 byte was" : fmt::format("{} bytes were", bytes)));
}

void prepare(const Options& options, const Tokenizer& tokenizer, const SampleEncoder& encoder,
             std::optional<ChatTemplate> chat) {
  const auto start = Clock::now();
  PendingFolder folder(options.output, options.force);
  Pipeline pipeline(encoder, {.folder = folder.path(),
                              .tokens_per_shard = options.shard_tokens,
                              .bits = bits_for(tokenizer.vocab_size())});
  Progress progress(options.inputs);
  int64_t read_bytes = 0;
  const auto on_piece = [&](Piece piece) {
    pipeline.add(std::move(piece));
    return true;
  };
  for (const fs::path& input : options.inputs)
    read_input(input, options.format, tokenizer, on_piece, [&](int64_t bytes) {
      read_bytes += bytes;
      progress.update(input, read_bytes, pipeline.documents());
    });
  const FileChecksums files = pipeline.finish();
  progress.clear();
  tell_dropped(pipeline);
  tell_skipped(pipeline);
  check(pipeline.documents() > 0,
        "no sample is left: there is nothing to write. --loss all counts every token, and drops none");
  if (!tokenizer.json().empty()) write_file(folder.path() / kTokenizerFile, tokenizer.json());
  write_manifest(folder.path(), {.tokenizer = std::string(tokenizer.name()),
                                 .tokenizer_from = tokenizer.json().empty() ? "" : options.tokenizer,
                                 .end_of_text = tokenizer.end_of_text(),
                                 .vocab_size = tokenizer.vocab_size(),
                                 .tokens = pipeline.tokens(),
                                 .documents = pipeline.documents(),
                                 .counted_tokens = pipeline.counted_tokens(),
                                 .dropped_samples = pipeline.dropped(),
                                 .skipped_bytes = pipeline.skipped_bytes(),
                                 .chat_template = pipeline.conversations() > 0 ? name_of(*chat) : "",
                                 .shards = pipeline.shards(),
                                 .files = files});
  check(!interrupted, "interrupted");
  folder.publish();
  const bool all_count = pipeline.counted_tokens() == pipeline.tokens();
  fmt::print("prepare: wrote {}: documents {}, tokens {}, {}shards {}, seconds {:.1f}\n",
             options.output.string(), pipeline.documents(), pipeline.tokens(),
             all_count ? "" : fmt::format("counted {}, ", pipeline.counted_tokens()), pipeline.shards(),
             std::chrono::duration<double>(Clock::now() - start).count());
}

void show(const Options& options, const Tokenizer& tokenizer, const SampleEncoder& encoder) {
  SampleShow shown(encoder, tokenizer, options.show);
  for (const fs::path& input : options.inputs)
    if (shown.wants_more())
      read_input(input, options.format, tokenizer, [&](const Piece& piece) { return shown.add(piece); });
}

void run(const Options& options) {
  const auto tokenizer = load_tokenizer(options.tokenizer, {.content = options.end_of_text});
  check(tokenizer->end_of_text() >= 0,
        "the tokenizer {} does not say which token ends a text: name one with --end-of-text TOKEN",
        options.tokenizer);
  for (const fs::path& input : options.inputs) check_input(input, options.format);
  const auto chat = options.chat ? options.chat : find_chat_template(*tokenizer);
  const SampleEncoder encoder({.tokenizer = tokenizer.get(),
                               .text_field = options.text_field,
                               .chat = chat,
                               .loss = options.loss,
                               .strict = options.strict,
                               .bytes_without_token = options.bytes_without_token});
  if (options.show > 0) {
    show(options, *tokenizer, encoder);
  } else {
    prepare(options, *tokenizer, encoder, chat);
  }
}

int run(int argc, char** argv) {
  CLI::App app("", "prepare");
  Options options;
  declare_options(app, options);
  if (const auto exit_code = parse_command_line({app, argc, argv})) return *exit_code;
  check(options.show > 0 || !options.output.empty(),
        "--output is required: name the folder to make, or print samples with --show COUNT (see ./prepare "
        "--help)");
  catch_signals();
  run(options);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::run_program("prepare", tessera::run, argc, argv); }
