// Reading the files of multiple-choice tasks.
#pragma once

#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "train/tasks/task.h"

namespace tessera {

// `source` is FILE or FORMAT:FILE, where FORMAT is a word of TaskFormat. Without FORMAT the content tells:
//   hellaswag  JSON lines with ctx, endings, label (Zellers et al., 2019). A blank precedes each ending.
//   arc        JSON lines with question, choices (text, label), answerKey (Clark et al., 2018). The context
//              is "Question: ...\nAnswer:", and a blank precedes each choice.
//   choices    JSON lines with context, choices, label. Choices follow the context as they are.
//   llm.c      llm.c's .bin of tokens: magic number 20240522
// A label is counted from 0. JSON lines may be compressed (.gz, .zst), and need a tokenizer.
//
// Context and choice are encoded together. The tokens beyond those of the context by itself are the choice's;
// blanks at the end of the context belong to the choice. If there are no tokens beyond, the choice is encoded
// by itself. Names of special tokens become these tokens. A context begins with what the tokenizer's template
// puts before a text. If the context would be empty, it is the end-of-text token.
//
// `most_items`: reads the first items only; 0: all. Error: the file cannot be read; a line, field or value is
// none of these, with file:line.
Task read_task(const std::string& source, const Tokenizer* tokenizer, int64_t most_items = 0);

// Checks a source before it is read. Error: FORMAT is not a format, or FILE does not exist.
void check_task_source(const std::string& source);

struct TaskReader {
  const Tokenizer* tokenizer = nullptr;  // of the model; null: not known
  int64_t vocab_size = 0;                // of the model
  int64_t sequence_length = 0;
  int64_t most_items = 0;  // the most of each task; 0: all
};
// Reads tasks that a model can answer. Error: as read_task(); a token outside the vocabulary; a choice with
// more tokens than a sequence; two tasks of the same name.
std::vector<Task> read_tasks(const std::vector<std::string>& sources, const TaskReader& reader);

}  // namespace tessera
