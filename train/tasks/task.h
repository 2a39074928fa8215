// Multiple-choice tasks: a context, and choices to continue it, of which one is right. A model answers with
// the choice that it finds most probable.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "kernels/base/words.h"

namespace tessera {

enum class TaskFormat : uint8_t { kHellaSwag, kArc, kChoices, kLlmC };
constexpr auto words_of(TaskFormat) {  // of --task
  return std::array{Word{"hellaswag", TaskFormat::kHellaSwag}, Word{"arc", TaskFormat::kArc},
                    Word{"choices", TaskFormat::kChoices}, Word{"llm.c", TaskFormat::kLlmC}};
}

struct Choice {
  std::vector<int32_t> tokens;  // at least one
  int64_t bytes = 0;            // of its text; 0: not known
};

struct TaskItem {
  std::vector<int32_t> context;  // at least one token
  std::vector<Choice> choices;   // at least two
  int64_t answer = 0;            // the right one, from 0
  int64_t place = 0;             // in the file: its line, or its number in llm.c's format; from 1
};

struct Task {
  std::string name;  // of the file, without its folders and endings
  std::filesystem::path path;
  TaskFormat format = TaskFormat::kChoices;
  std::vector<TaskItem> items;  // at least one

  bool has_bytes() const { return format != TaskFormat::kLlmC; }
  std::string place_of(const TaskItem& item) const;  // file:line, for messages
};

// `source` is FILE or FORMAT:FILE, with a word of TaskFormat; without one the content tells:
//   hellaswag  JSON lines with ctx, endings, label (Zellers et al., 2019). A blank stands before an ending.
//   arc        JSON lines with question, choices (text, label), answerKey (Clark et al., 2018). The context
//              is "Question: ...\nAnswer:", a blank stands before a choice.
//   choices    JSON lines with context, choices, label. Choices follow the context as they are.
//   llm.c      llm.c's .bin of tokens: magic number 20240522
// A label is counted from 0. JSON lines may be compressed (.gz, .zst), and need a tokenizer.
//
// A choice's tokens are those that context and choice together have beyond the tokens of the context; blanks
// at the end of the context belong to the choice. What the tokenizer's template puts before a text begins a
// context; where that leaves it empty, the end-of-text token is it.
//
// `most_items`: the first ones; 0: all.
// Error: a file that cannot be read; a line, field or value that is none of these, with file:line.
Task read_task(const std::string& source, const Tokenizer* tokenizer, int64_t most_items = 0);

struct TaskReader {
  const Tokenizer* tokenizer = nullptr;  // of the model; null: none is known
  int64_t vocab_size = 0;                // of the model
  int64_t sequence_length = 0;
  int64_t most_items = 0;  // of each task
};
// Tasks that a model can be given. Error: as read_task(), and a token outside the vocabulary, a choice of more
// tokens than a sequence has, two tasks of one name.
std::vector<Task> read_tasks(const std::vector<std::string>& sources, const TaskReader& reader);

}  // namespace tessera
