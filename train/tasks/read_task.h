// Reading the files of multiple-choice tasks.
#pragma once

#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "train/tasks/task.h"

namespace tessera {

// `source` is FILE or FORMAT:FILE, with a word of TaskFormat; without one the content tells:
//   hellaswag  JSON lines with ctx, endings, label (Zellers et al., 2019). A blank stands before an ending.
//   arc        JSON lines with question, choices (text, label), answerKey (Clark et al., 2018). The context
//              is "Question: ...\nAnswer:", a blank stands before a choice.
//   choices    JSON lines with context, choices, label. Choices follow the context as they are.
//   llm.c      llm.c's .bin of tokens: magic number 20240522
// A label is counted from 0. JSON lines may be compressed (.gz, .zst), and need a tokenizer.
//
// A choice's tokens are those that context and choice together have beyond the tokens of the context; blanks
// at the end of the context belong to the choice. Where together they have none beyond, the choice is encoded
// by itself. Names of special tokens are these tokens. What the tokenizer's template puts before a text
// begins a context; where that leaves it empty, the end-of-text token is it.
//
// `most_items`: the first ones; 0: all.
// Error: a file that cannot be read; a line, field or value that is none of these, with file:line.
Task read_task(const std::string& source, const Tokenizer* tokenizer, int64_t most_items = 0);

// What is wrong with a source before it is read. Error: FORMAT is none, or FILE does not exist.
void check_task_source(const std::string& source);

struct TaskReader {
  const Tokenizer* tokenizer = nullptr;  // of the model; null: none is known
  int64_t vocab_size = 0;                // of the model
  int64_t sequence_length = 0;
  int64_t most_items = 0;  // of each task
};
// Tasks that a model can be given. Error: as read_task(), and a token outside the vocabulary, a choice of
// more tokens than a sequence has, two tasks of one name.
std::vector<Task> read_tasks(const std::vector<std::string>& sources, const TaskReader& reader);

}  // namespace tessera
