#include "train/tasks/read_task.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/documents.h"
#include "data/input_file.h"
#include "data/samples.h"
#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"
#include "kernels/base/present.h"
#include "kernels/base/text.h"
#include "train/tasks/eval_file.h"
#include "train/tasks/task_line.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostTaskLine = 16 << 20;  // bytes
constexpr std::string_view kBlanks = " \t\n\r\f\v";

// A source as the user wrote it
struct Named {
  std::optional<TaskFormat> format;
  fs::path path;
};

Named named(const std::string& source) {
  const size_t colon = source.find(':');
  std::error_code error;
  if (colon == source.npos || fs::exists(source, error)) return {.format = {}, .path = source};
  const std::string word = source.substr(0, colon);
  const std::optional<TaskFormat> format = from_word<TaskFormat>(word);
  constexpr auto formats = values_with_words<TaskFormat>();
  check(format.has_value(),
        "{}: there is no such file, and {} is no format of a task. Expected FILE, or FORMAT:FILE with the "
        "format {}",
        source, in_quotes(word), join_words(names_of<TaskFormat>(formats)));
  return {.format = format, .path = source.substr(colon + 1)};
}

// The name of hellaswag_val.jsonl.gz is hellaswag_val.
std::string name_of_file(const fs::path& path) { return uncompressed_name(path).stem().string(); }

// Whether a file begins as llm.c's does. Compressed files and pipes do not.
bool is_eval_file(const fs::path& path) {
  std::error_code error;
  if (path.extension() == ".gz" || path.extension() == ".zst" || !fs::is_regular_file(path, error))
    return false;
  return begins_as_eval_file(MappedFile(path).bytes());
}

// Without the blanks before it, unless it is blanks alone
int64_t bytes_of(std::string_view choice) {
  return std::ssize(choice) -
         static_cast<int64_t>(std::min(choice.find_first_not_of(kBlanks), choice.size()) % choice.size());
}

// Names of special tokens in the texts are these tokens, as in lm-evaluation-harness.
TaskItem encode(const Tokenizer& tokenizer, const QuestionText& question, const std::string& where) {
  const std::string_view whole = question.context;
  const size_t end = whole.find_last_not_of(kBlanks) + 1;  // npos + 1 is 0
  const std::string_view context = whole.substr(0, end), blanks = whole.substr(end);
  const std::vector<int32_t> own = tokenizer.encode(context, SpecialTokens::kMatched);
  TaskItem item{.context = {}, .choices = {}, .answer = question.answer};
  const auto before = tokenizer.before_text();
  item.context.assign(before.begin(), before.end());
  item.context.insert(item.context.end(), own.begin(), own.end());
  if (item.context.empty()) item.context.push_back(tokenizer.end_of_text());
  check(item.context[0] >= 0,
        "{}: the context is empty, and the tokenizer has no token that ends texts to put in its place",
        where);
  const TextPlace after = context.empty() ? TextPlace::kStart : TextPlace::kWithin;
  for (const std::string& choice : question.choices) {
    const std::string text = std::string(blanks) + question.joint + choice;
    std::vector<int32_t> ids = tokenizer.encode(std::string(context) + text, SpecialTokens::kMatched);
    const bool adds_tokens = ids.size() > own.size();
    if (adds_tokens) ids.erase(ids.begin(), ids.begin() + std::ssize(own));
    // Together they are no more tokens than the context alone, as where the first merge spans both.
    if (!adds_tokens) ids = tokenizer.encode(text, SpecialTokens::kMatched, after), item.apart = true;
    check(!ids.empty(), "{}: the choice {} has no tokens", where, item.choices.size());
    item.choices.push_back({.tokens = std::move(ids), .bytes = bytes_of(choice)});
  }
  return item;
}

Task read_lines(const Named& file, const Tokenizer* tokenizer, int64_t most) {
  const std::string path = file.path.string();
  check(tokenizer != nullptr,
        "{}: the text of a task needs a tokenizer, and there is none beside the model or its data; only "
        "llm.c's .bin holds tokens",
        path);
  Task task{.name = name_of_file(file.path), .path = file.path, .format = TaskFormat::kChoices, .items = {}};
  std::optional<TaskFormat> format = file.format;
  const auto wants_more = [&] { return most == 0 || std::ssize(task.items) < most; };
  read_pieces(file.path, InputFormat::kJsonLines,
              {.on_piece =
                   [&](const Piece& piece) {
                     for_each_line(piece, [&](std::string_view line, int64_t number) {
                       if (!wants_more()) return;
                       const std::string where = fmt::format("{}:{}", path, number);
                       const nlohmann::json json =
                           parse_json(line, path, {.bytes = kMostTaskLine, .first_line = number});
                       if (!format) format = format_of_line(json, where);
                       task.items.push_back(encode(*tokenizer, question_of(json, *format, where), where));
                       task.items.back().place = number;
                     });
                     return wants_more();
                   },
               .most_line_bytes = kMostTaskLine});
  check(!task.items.empty(), "{} holds no item of a task", path);
  task.format = present(format);
  return task;
}

}  // namespace

Task read_task(const std::string& source, const Tokenizer* tokenizer, int64_t most_items) {
  const Named file = named(source);
  if (file.format ? *file.format != TaskFormat::kLlmC : !is_eval_file(file.path))
    return read_lines(file, tokenizer, most_items);
  return {.name = name_of_file(file.path),
          .path = file.path,
          .format = TaskFormat::kLlmC,
          .items = read_eval_file(MappedFile(file.path), most_items)};
}

namespace {

void check_task(const Task& task, const TaskReader& reader) {
  const auto check_ids = [&](const TaskItem& item, const std::vector<int32_t>& ids) {
    const auto bad = std::ranges::find_if(ids, [&](int32_t id) { return id < 0 || id >= reader.vocab_size; });
    if (bad != ids.end())
      fail(
          "{}: the token {} is outside the model's vocabulary of {}: the task is of another tokenizer than "
          "the model",
          task.place_of(item), *bad, reader.vocab_size);
  };
  for (const TaskItem& item : task.items) {
    check_ids(item, item.context);
    for (const Choice& choice : item.choices) {
      check_ids(item, choice.tokens);
      check(std::ssize(choice.tokens) <= reader.sequence_length,
            "{}: choice {} has {} tokens, and a sequence has {}: it needs longer sequences",
            task.place_of(item), &choice - item.choices.data(), choice.tokens.size(), reader.sequence_length);
    }
  }
}

}  // namespace

void check_task_source(const std::string& source) {
  const fs::path path = named(source).path;
  std::error_code error;
  check(fs::exists(path, error), "the file of a task {} does not exist", path.string());
}

std::vector<Task> read_tasks(const std::vector<std::string>& sources, const TaskReader& reader) {
  std::vector<Task> tasks;
  for (const std::string& source : sources) {
    tasks.push_back(read_task(source, reader.tokenizer, reader.most_items));
    check_task(tasks.back(), reader);
    for (const Task& other : std::span(tasks).first(tasks.size() - 1))
      check(other.name != tasks.back().name, "{} and {} are both the task {}: rename one of the files",
            other.path.string(), tasks.back().path.string(), other.name);
  }
  return tasks;
}

}  // namespace tessera
