// prepare: texts, completions and conversations in, a folder of token shards out.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data/chat/chat_request.h"
#include "data/document_index.h"
#include "data/documents.h"
#include "data/manifest.h"
#include "data/pending_folder.h"
#include "data/prepare_report.h"
#include "data/sample_encoder.h"
#include "data/sample_show.h"
#include "data/shard.h"
#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/command_line.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"
#include "kernels/base/signals.h"
#include "kernels/base/status_line.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct PrepareOptions {
  std::vector<fs::path> inputs;
  InputFormat format = InputFormat::kByName;
  std::string tokenizer{kBytesTokenizer};
  std::string end_of_text;
  fs::path output;
  int64_t shard_tokens = ShardWriterOptions{}.tokens_per_shard;
  std::string text_field = "text";
  ChatRequest chat;
  CountedLoss loss = CountedLoss::kCompletions;
  bool strict = false;
  BytesWithoutToken bytes_without_token = BytesWithoutToken::kStop;
  int64_t show = 0;  // samples to print, instead of writing a folder
  bool force = false;
};

void declare_texts(Options& app) {
  app.description(
      "Turns texts, completions and conversations into a folder of token shards (llm.c's format) that the "
      "trainer reads.\n"
      "An end-of-text token follows every document. The folder gets its name only when it is complete.");
  app.footer(
      "Inputs:   *.jsonl        one JSON object a line, each a document (a line has at most 1 GiB):\n"
      "                         {\"text\": \"...\"}, {\"prompt\": \"...\", \"completion\": \"...\"} or\n"
      "                         {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, ...]}; or a "
      "pair,\n"
      "                         {\"prompt\": \"...\", \"chosen\": \"...\", \"rejected\": \"...\"}\n"
      "          anything else  plain text; each file is a document\n"
      "          .gz, .zst      either of them, compressed: part.jsonl.zst\n"
      "          -              standard input, with --format\n"
      "Output:   train_000000.bin, train_000000.documents, ..., dataset.json, and the tokenizer's "
      "tokenizer.json\n"
      "          and chat_template.jinja\n"
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

void declare_options(Options& app, PrepareOptions& options) {
  declare_texts(app);
  app.add("input,--input", options.inputs, "Files to read, in this order").required().type_name("FILE");
  app.add_word("--format", options.format,
               "Format of the inputs: text, jsonl, or name, by the names of the files")
      .show_default(name_of(options.format));
  app.add("--output", options.output, "Folder to make; required without --show").type_name("FOLDER");
  app.add("--tokenizer", options.tokenizer,
          std::string(kTokenizerSources) + ": ids 0 to 255 are the bytes, 256 is the end of text")
      .show_default()
      .type_name("PATH");
  app.add("--end-of-text", options.end_of_text, "Token that ends documents, if it is not the usual one")
      .type_name("TOKEN");
  app.add("--shard-tokens", options.shard_tokens,
          "Tokens in one shard, at most; 100M is 100000000 (also K, G)")
      .show_default()
      .with_unit()
      .type_name("COUNT");
  app.add("--text-field", options.text_field, "Field of a JSON line that holds its text")
      .show_default()
      .type_name("FIELD");
  add_chat_options(app, options.chat, "texts, prompts, completions and messages");
  app.add_word("--loss", options.loss,
               "Where the loss counts in prompts and conversations: completions (and assistants), or all")
      .show_default(name_of(options.loss));
  app.add_flag(
      "--strict", options.strict,
      "Refuse a sample that would be dropped: no token of it counts, or its chat template refuses it");
  app.add_word("--bytes-without-token", options.bytes_without_token,
               "Bytes for which the tokenizer has no token: stop at the first one, or skip and count them")
      .show_default(name_of(options.bytes_without_token));
  app.add("--show", options.show, "Print the first samples with the part that counts marked, and stop")
      .positive()
      .type_name("COUNT");
  app.add_flag("--force", options.force, "Replace the output folder if it is an earlier dataset");
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
  // `on_wait` is called now and then while a piece takes long.
  Pipeline(const SampleEncoder& encoder, const ShardWriterOptions& options, std::function<void()> on_wait)
      : encoder_(encoder),
        on_wait_(std::move(on_wait)),
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

  const Totals& totals() const { return totals_; }
  int64_t tokens() const { return shards_.token_count(); }
  int64_t counted_tokens() const { return tokens() - index_.uncounted_tokens(); }
  int64_t shards() const { return shards_.shard_count(); }
  int64_t largest_token() const { return largest_token_; }

 private:
  static constexpr std::chrono::milliseconds kWait{200};
  static constexpr size_t kMostBytesRunning = size_t{256} << 20;  // unless one piece alone has more
  struct Running {
    size_t bytes;
    std::future<EncodedPiece> encoded;  // waits for its thread when it is destroyed
  };

  void take_first() {
    // An error ends the program once the other threads have seen the signal.
    while (running_.front().encoded.wait_for(kWait) != std::future_status::ready) {
      check(stop_signal() == 0, "interrupted");
      on_wait_();
    }
    const EncodedPiece encoded = running_.front().encoded.get();
    bytes_running_ -= running_.front().bytes;
    running_.pop_front();
    for (const int32_t id : encoded.ids) largest_token_ = std::max<int64_t>(largest_token_, id);
    totals_.add(encoded);
    check(
        totals_.first_pair.empty() || totals_.first_unpaired.empty(),
        "{} is a pair of a chosen and a rejected answer, and {} is not: a data set has only pairs, or none. "
        "Prepare them into two folders",
        totals_.first_pair, totals_.first_unpaired);
    shards_.append(encoded.ids);
    index_.append(std::ssize(encoded.ids), encoded.marks, !totals_.first_pair.empty());
  }

  const SampleEncoder& encoder_;
  std::function<void()> on_wait_;
  ShardWriter shards_;
  DocumentIndexWriter index_;
  Totals totals_;
  int64_t largest_token_ = 0;
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
                     check(stop_signal() == 0, "interrupted");
                     return on_piece(std::move(piece));
                   },
               .on_read =
                   [&](int64_t bytes) {
                     check(stop_signal() == 0, "interrupted");
                     if (on_read) on_read(bytes);
                   },
               .cut = [&](std::string_view text) { return tokenizer.last_cut(text); }});
}

struct ChosenTemplates {
  std::unique_ptr<ChatTemplate> usual, with_tools;
  std::string why_none;
};

// So that a model that is trained on the data is talked to in the same form, also by other programs
void write_chat_template(const fs::path& folder, const ChatTemplate& chat, const ChatTemplate* with_tools) {
  write_file(folder / kChatTemplateFile, chat.form().jinja);
  if (with_tools) {
    fs::create_directory(folder / kMoreTemplatesFolder);
    write_file(folder / kMoreTemplatesFolder / kToolTemplateFile, with_tools->form().jinja);
  }
  nlohmann::ordered_json tokens = nlohmann::ordered_json::object();
  for (const auto& [name, token] : chat.special_tokens()) tokens[name.bytes()] = token.text()->bytes();
  if (!tokens.empty()) write_json(folder / kSpecialTokensFile, tokens);
}

void prepare(const PrepareOptions& options, const Tokenizer& tokenizer, const SampleEncoder& encoder,
             const ChosenTemplates& templates) {
  const ChatTemplate* const chat = templates.usual.get();
  const auto start = Clock::now();
  PendingFolder folder(options.output, options.force);
  for (const fs::path& left : folder.remove_abandoned())
    notice(fmt::format("{} was removed: the ./prepare that wrote it was killed", left.string()));
  Progress progress(options.inputs);
  int64_t read_bytes = 0;
  fs::path reading;
  std::function<void()> show_progress;
  Pipeline pipeline(encoder,
                    {.folder = folder.path(),
                     .tokens_per_shard = options.shard_tokens,
                     .bits = bits_for(tokenizer.vocab_size())},
                    [&] { show_progress(); });
  show_progress = [&] { progress.update(reading, read_bytes, pipeline.totals().documents); };
  const auto on_piece = [&](Piece piece) {
    pipeline.add(std::move(piece));
    return true;
  };
  for (const fs::path& input : options.inputs) {
    reading = input;
    read_input(input, options.format, tokenizer, on_piece, [&](int64_t bytes) {
      read_bytes += bytes;
      show_progress();
    });
  }
  const FileChecksums files = pipeline.finish();
  progress.clear();
  const Totals& totals = pipeline.totals();
  tell_left_out(totals);
  tell_special_names(totals, options.chat.special);
  const int64_t refused = totals.count_refused();
  check(refused == 0 || totals.conversations > 0,
        "the chat template refuses every conversation ({}), the first with: {}. --chat-template names "
        "another template",
        refused, refused > 0 ? totals.refused.begin()->first : "");
  check(totals.documents > 0,
        "no sample is left: there is nothing to write. --loss all counts every token, and drops none");
  if (!tokenizer.json().empty()) write_file(folder.path() / kTokenizerFile, tokenizer.json());
  if (totals.conversations > 0) write_chat_template(folder.path(), *chat, templates.with_tools.get());
  write_manifest(folder.path(), {.tokenizer = std::string(tokenizer.name()),
                                 .tokenizer_from = tokenizer.json().empty() ? "" : options.tokenizer,
                                 .end_of_text = tokenizer.end_of_text(),
                                 .vocab_size = tokenizer.vocab_size(),
                                 .largest_token = pipeline.largest_token(),
                                 .tokens = pipeline.tokens(),
                                 .documents = totals.documents,
                                 .counted_tokens = pipeline.counted_tokens(),
                                 .dropped_samples = totals.dropped.count + totals.unfit.count + refused,
                                 .skipped_bytes = totals.skipped_bytes,
                                 .chat_template = totals.conversations > 0 ? chat->form().name : "",
                                 .turn_ends = std::vector(totals.turn_ends.begin(), totals.turn_ends.end()),
                                 .shards = pipeline.shards(),
                                 .files = files});
  check(stop_signal() == 0, "interrupted");
  folder.publish();
  if (chat) tell_turn_ends(totals, tokenizer, *chat);
  const bool all_count = pipeline.counted_tokens() == pipeline.tokens();
  fmt::print("prepare: wrote {}: documents {}, {}tokens {}, {}shards {}, seconds {:.1f}\n",
             options.output.string(), totals.documents,
             totals.pairs > 0 ? fmt::format("pairs {}, ", totals.pairs)
             : totals.desirable + totals.undesirable > 0
                 ? fmt::format("desirable {}, undesirable {}, ", totals.desirable, totals.undesirable)
                 : "",
             pipeline.tokens(), all_count ? "" : fmt::format("counted {}, ", pipeline.counted_tokens()),
             pipeline.shards(), std::chrono::duration<double>(Clock::now() - start).count());
}

void show(const PrepareOptions& options, const Tokenizer& tokenizer, const SampleEncoder& encoder) {
  SampleShow shown(encoder, tokenizer, options.show);
  for (const fs::path& input : options.inputs)
    if (shown.needs_more())
      read_input(input, options.format, tokenizer, [&](const Piece& piece) { return shown.add(piece); });
}

// A template that cannot be read matters only where there is a conversation; the first one then says why.
ChosenTemplates choose_templates(const PrepareOptions& options, const Tokenizer& tokenizer) {
  ChosenTemplates chosen;
  const fs::path folder = folder_of_tokenizer(options.tokenizer);
  try {
    chosen.usual = choose_chat_template(options.chat, folder, tokenizer);
    if (!chosen.usual) chosen.why_none = no_chat_template(tokenizer);
    auto with_tools = choose_chat_template(options.chat, folder, tokenizer, /*tools=*/true);
    if (chosen.usual && with_tools->form().jinja != chosen.usual->form().jinja)
      chosen.with_tools = std::move(with_tools);
  } catch (const Error& error) {
    if (!options.chat.named.empty() || !options.chat.date.empty()) throw;
    chosen.why_none =
        fmt::format("{}. --chat-template chatml, or a file, names another template", error.what());
  }
  return chosen;
}

void run(const PrepareOptions& options) {
  const auto tokenizer = load_tokenizer(options.tokenizer, {.content = options.end_of_text});
  check(tokenizer->end_of_text() >= 0,
        "the tokenizer {} does not say which token ends a text: name one with --end-of-text TOKEN",
        options.tokenizer);
  for (const fs::path& input : options.inputs) check_input(input, options.format);
  const ChosenTemplates chat = choose_templates(options, *tokenizer);
  const SampleEncoder encoder({.tokenizer = tokenizer.get(),
                               .text_field = options.text_field,
                               .chat = chat.usual.get(),
                               .chat_with_tools = chat.with_tools.get(),
                               .no_chat = chat.why_none,
                               .special = options.chat.special,
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
  Options app("", "prepare");
  PrepareOptions options;
  declare_options(app, options);
  if (const auto exit_code = parse_command_line({app, argc, argv})) return *exit_code;
  check(options.show > 0 || !options.output.empty(),
        "--output is required: name the folder to make, or print samples with --show COUNT (see ./prepare "
        "--help)");
  record_stop_signals({});  // they end the program with an Error, so that destructors clean up
  run(options);
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::run_program("prepare", tessera::run, argc, argv); }
