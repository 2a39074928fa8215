// tokenize: text to token ids and back, what a tokenizer is made of, and the training of one.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "data/documents.h"
#include "data/samples.h"
#include "data/tokenizers/bpe_tokenizer.h"
#include "data/tokenizers/bpe_trainer.h"
#include "data/tokenizers/load_tokenizer.h"
#include "data/tokenizers/pre_tokenizer.h"
#include "data/tokenizers/tokenizer_json.h"
#include "kernels/base/check.h"
#include "kernels/base/command_line.h"
#include "kernels/base/file.h"
#include "kernels/base/lfs_pointer.h"
#include "kernels/base/status_line.h"
#include "kernels/base/system_error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Command {
  std::string tokenizer, end_of_text;
  std::string file;  // "": none was named; "-": standard input
  std::optional<std::string> text;
  bool json = false, pieces = false, special = false, with_template = false;
  std::vector<int64_t> ids;

  std::vector<fs::path> inputs;
  fs::path output;
  std::string text_field = "text";
  bool force = false;
  BpeTrainerOptions train{.vocab_size = 0, .special = {"<|endoftext|>"}};
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string read_all(const std::string& name) {
  std::FILE* const opened = name == "-" ? stdin : std::fopen(name.c_str(), "rb");
  check_system(opened != nullptr, "cannot read {}: {}", name);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(opened, std::fclose);
  std::string text;
  constexpr size_t kPiece = 1 << 20;
  size_t read = kPiece;
  while (read == kPiece) {
    const size_t before = text.size();
    text.resize(before + kPiece);
    read = std::fread(text.data() + before, 1, kPiece, file.get());
    text.resize(before + read);
  }
  check_system(std::ferror(file.get()) == 0, "cannot read {}: {}", name);
  refuse_lfs_pointer(text, name);
  return text;
}

Option add_tokenizer(Options& command, Command& c) {
  command.add("--end-of-text", c.end_of_text, "Token that ends texts, if it is not the usual one")
      .type_name("TOKEN");
  return command.add("--tokenizer", c.tokenizer, kTokenizerSources).required().type_name("PATH");
}

Options& add_encode(Options& app, Command& c) {
  Options& command = app.add_subcommand("encode", "Prints the token ids of a text, in one line.");
  add_tokenizer(command, c);
  Option file =
      command.add("file,--file", c.file, "The text; -, the default: standard input").type_name("FILE");
  command.add("--text", c.text, "The text itself").type_name("TEXT").excludes(file);
  command.add_flag("--special", c.special,
                   "Names of special tokens in the text are these tokens; else they are text");
  command.add_flag("--template", c.with_template,
                   "Put the template's tokens around the text, such as <|begin_of_text|>");
  Option json = command.add_flag("--json", c.json, "Print a JSON list");
  command.add_flag("--pieces", c.pieces, "Print a line for each token, with its id and its text")
      .excludes(json);
  command.footer(
      "Examples:\n"
      "  ./tokenize encode --tokenizer gpt2 --text \"Hello, world\" --pieces\n"
      "  ./tokenize encode --tokenizer gpt2 book.txt > ids.txt");
  return command;
}

Options& add_decode(Options& app, Command& c) {
  Options& command = app.add_subcommand("decode", "Prints the bytes of token ids.");
  add_tokenizer(command, c);
  Option ids = command.add("ids", c.ids, "The ids; default: they are read, see --file").type_name("ID");
  command
      .add("--file", c.file,
           "Ids with blanks or line ends between them, or a JSON list; -, the default: standard input")
      .type_name("FILE")
      .excludes(ids);
  command.add_flag("--special", c.special, "Special tokens are printed by their names; else not at all");
  command.footer("Example:\n  ./tokenize decode --tokenizer gpt2 15496 11 995");
  return command;
}

Options& add_info(Options& app, Command& c) {
  Options& command = app.add_subcommand(
      "info",
      "Prints what a tokenizer is made of and, with a text, bytes per token and the speed of encoding.");
  add_tokenizer(command, c);
  command.add("file,--file", c.file, "A text to measure; -: standard input").type_name("FILE");
  command.footer("Example:\n  ./tokenize info --tokenizer gpt2 book.txt");
  return command;
}

Options& add_train(Options& app, Command& c) {
  Options& command = app.add_subcommand(
      "train",
      "Learns a byte-level BPE tokenizer from texts and writes tokenizer.json, which Hugging Face's "
      "tokenizers reads, too. The same texts give the same file.");
  command
      .add("input,--input", c.inputs, "Files to read: *.jsonl, else plain text; both also with .gz or .zst")
      .required()
      .type_name("FILE");
  command.add("--vocab-size", c.train.vocab_size, "Tokens: special ones, the 256 bytes, and merges")
      .required()
      .within(int64_t{257}, kMostTokenIds);
  command.add("--output", c.output, "Folder for tokenizer.json").required().type_name("FOLDER");
  command.add_word("--pre-tokenizer", c.train.kind, "How texts are split: gpt2, llama3, qwen2, smollm2, gpt4o")
      .show_default(name_of(c.train.kind));
  command.add("--special", c.train.special, "Special tokens, which get the first ids")
      .show_default()
      .type_name("TOKEN");
  command.add("--min-count", c.train.min_count, "Pairs that occur more seldom are not merged")
      .positive()
      .show_default();
  command.add("--text-field", c.text_field, "Field of a JSON line that holds its text")
      .show_default()
      .type_name("FIELD");
  command.add_flag("--force", c.force, "Replace a tokenizer.json that is there");
  command.footer("Example:\n  ./tokenize train --vocab-size 8192 book.txt --output my_tokenizer");
  return command;
}

void encode(const Command& c) {
  const auto tokenizer = load_tokenizer(c.tokenizer, {.content = c.end_of_text});
  const std::string text = c.text ? *c.text : read_all(c.file.empty() ? "-" : c.file);
  std::vector<int32_t> ids;
  const auto append = [&](std::span<const int32_t> more) { ids.insert(ids.end(), more.begin(), more.end()); };
  if (c.with_template) append(tokenizer->before_text());
  tokenizer->encode(text, c.special ? SpecialTokens::kMatched : SpecialTokens::kAsText, ids);
  if (c.with_template) append(tokenizer->after_text());
  std::string out;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string_view separator = i == 0 || c.pieces ? "" : c.json ? ", " : " ";
    out += fmt::format("{}{}", separator, ids[i]);
    if (c.pieces) out += fmt::format("\t{}\n", in_quotes(tokenizer->token_text(ids[i], true)));
  }
  if (!c.pieces) out = (c.json ? "[" + out + "]" : out) + "\n";
  print_stdout(out);
}

std::vector<int32_t> parse_ids(const std::string& text, const std::string& name) {
  std::vector<int32_t> ids;
  constexpr std::string_view kSeparators = " \t\r\n,[]";
  for (size_t at = text.find_first_not_of(kSeparators); at != text.npos;
       at = text.find_first_not_of(kSeparators, at)) {
    const size_t end = std::min(text.find_first_of(kSeparators, at), text.size());
    const std::string word = text.substr(at, end - at);
    const bool is_number = word.size() < 10 && word.find_first_not_of("0123456789") == word.npos;
    check(is_number, "{}: expected ids with blanks between them, found {} at byte {}", name,
          in_quotes(printable(word.substr(0, 40))), at);
    ids.push_back(std::stoi(word));
    at = end;
  }
  return ids;
}

void decode(const Command& c) {
  const auto tokenizer = load_tokenizer(c.tokenizer, {.content = c.end_of_text});
  std::vector<int32_t> ids;
  for (const int64_t id : c.ids) {
    check(id >= 0 && id <= INT32_MAX, "an id must be 0 to {}, found {}", tokenizer->vocab_size() - 1, id);
    ids.push_back(static_cast<int32_t>(id));
  }
  if (c.ids.empty()) {
    const std::string name = c.file.empty() ? "-" : c.file;
    ids = parse_ids(read_all(name), name == "-" ? "standard input" : name);
  }
  print_stdout(tokenizer->decode(ids, c.special));
}

void info(const Command& c) {
  const auto start = Clock::now();
  const auto tokenizer = load_tokenizer(c.tokenizer, {.content = c.end_of_text});
  const double load_seconds = seconds_since(start);
  const auto line = [](std::string_view what, std::string_view value) {
    fmt::print("{:<22} {}\n", std::string(what) + ":", value);
  };
  line("name", tokenizer->name());
  line("vocabulary", fmt::format("{}", tokenizer->vocab_size()));
  const int32_t end = tokenizer->end_of_text();
  line("end of text", end < 0 ? "none: --end-of-text names one" : fmt::format("{}", end));
  for (const auto& [what, value] : tokenizer->facts()) line(what, value);
  line("loaded in", fmt::format("{:.2f} s", load_seconds));
  if (c.file.empty()) return;
  const std::string text = read_all(c.file);
  check(!text.empty(), "{} is empty: there is nothing to measure", c.file);
  double best = 0;
  size_t count = 0;
  for (int i = 0; i < 3; ++i) {
    const std::clock_t begin = std::clock();  // of this process, which has one thread here
    count = tokenizer->encode(text).size();
    const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    best = std::max(best, static_cast<double>(text.size()) / 1e6 / std::max(seconds, 1e-6));
  }
  line("text", fmt::format("{}: {} bytes, {} tokens", c.file, text.size(), count));
  line("bytes per token",
       fmt::format("{:.3f}", static_cast<double>(text.size()) / static_cast<double>(count)));
  line("speed", fmt::format("{:.1f} MB/s on one core, the best of 3 times", best));
}

// Counts the pieces of documents on all cores.
class PieceCounter {
 public:
  explicit PieceCounter(PreTokenizerKind kind) : kind_(kind), all_(kind) {}

  void add(Piece piece, const std::string& text_field) {
    if (running_.size() >= std::max(1u, std::thread::hardware_concurrency())) take_first();
    running_.push_back(std::async(std::launch::async, [kind = kind_, piece = std::move(piece), text_field] {
      PieceCounts counts(kind);
      for_each_text(piece, text_field, [&](std::string_view text) { counts.add(text); });
      return counts;
    }));
  }
  const PieceCounts& finish() {
    while (!running_.empty()) take_first();
    return all_;
  }

 private:
  void take_first() {
    all_.add(running_.front().get());
    running_.pop_front();
  }

  PreTokenizerKind kind_;
  PieceCounts all_;
  std::deque<std::future<PieceCounts>> running_;
};

void train(Command& c) {
  const auto start = Clock::now();
  for (const fs::path& input : c.inputs) check_input(input);
  const fs::path path = c.output / kTokenizerFile;
  check(c.force || !fs::exists(path), "{} exists: choose another folder, or replace it with --force",
        path.string());
  StatusLine status(STDERR_FILENO, 5);
  PieceCounter counter(c.train.kind);
  int64_t bytes = 0;
  const auto on_piece = [&](Piece piece) {
    counter.add(std::move(piece), c.text_field);
    return true;
  };
  const auto on_read = [&](int64_t read) {
    bytes += read;
    if (status.due())
      status.show({{fmt::format("tokenize: read {:.1f} MB", static_cast<double>(bytes) / 1e6), 1}});
  };
  for (const fs::path& input : c.inputs)
    read_pieces(input, InputFormat::kByName,
                {.on_piece = on_piece, .on_read = on_read, .cut = last_blank_between_words});
  const PieceCounts& pieces = counter.finish();
  c.train.on_merge = [&](int64_t tokens) {
    if (status.due())
      status.show({{fmt::format("tokenize: {} of {} tokens", tokens, c.train.vocab_size), 1}});
  };
  const TokenizerDefinition made = train_bpe(pieces.counts(), c.train);
  const auto tokens = std::ssize(made.tokens);
  const auto tokenizer = make_bpe_tokenizer(made, -1, "", path.string());
  std::error_code error;
  fs::create_directories(c.output, error);
  check(!error, "cannot make the folder {}: {}", c.output.string(), error.message());
  write_file(path, tokenizer->json());
  status.clear();
  if (tokens < c.train.vocab_size)
    print_stderr(fmt::format("tokenize: notice: {} tokens instead of {}: no pair occurs {} times\n", tokens,
                             c.train.vocab_size, c.train.min_count));
  fmt::print("tokenize: wrote {}: tokens {}, merges {}, different pieces {}, {}, seconds {:.1f}\n",
             path.string(), tokens, made.merges.size(), pieces.counts().size(), tokenizer->name(),
             seconds_since(start));
}

int run(int argc, char** argv) {
  Options app("Text to token ids and back.", "tokenize");
  Command c;
  app.require_subcommand();
  const Options& encode_command = add_encode(app, c);
  const Options& decode_command = add_decode(app, c);
  const Options& info_command = add_info(app, c);
  add_train(app, c);
  app.footer(
      "Exit codes: 0: done; 1: the command line is wrong, or the work was refused or failed, and the message "
      "says why.");
  const CommandLine line{
      .options = app, .argc = argc, .argv = argv, .subcommand = "command", .request = "name a command"};
  if (const auto exit_code = parse_command_line(line)) return *exit_code;
  if (encode_command.parsed()) {
    encode(c);
  } else if (decode_command.parsed()) {
    decode(c);
  } else if (info_command.parsed()) {
    info(c);
  } else {
    train(c);
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::run_program("tokenize", tessera::run, argc, argv); }
