// Multiple-choice tasks: a context, and choices to continue it, of which one is right. A model answers with
// the choice that it finds most probable.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/words.h"

namespace tessera {

enum class TaskFormat : uint8_t { kHellaSwag, kArc, kChoices, kLlmC };
constexpr auto words_of(TaskFormat) {  // of --task
  return std::array{Word{"hellaswag", TaskFormat::kHellaSwag}, Word{"arc", TaskFormat::kArc},
                    Word{"choices", TaskFormat::kChoices}, Word{"llm.c", TaskFormat::kLlmC}};
}

struct Choice {
  std::vector<int32_t> tokens;  // at least one
  int64_t bytes = 0;            // of its text, without the blanks before it; 0: not known
};

struct TaskItem {
  std::vector<int32_t> context;  // at least one token
  std::vector<Choice> choices;   // at least two
  int64_t answer = 0;            // the number of the right choice, from 0
  int64_t place = 0;             // where it is in the file: its line, or its number in llm.c's format; from 1
  bool apart = false;            // some choice adds no token to the context, and is encoded by itself
};

struct Task {
  std::string name;  // the file's name, without folders and endings
  std::filesystem::path path;
  TaskFormat format = TaskFormat::kChoices;
  std::vector<TaskItem> items;  // at least one

  bool has_bytes() const { return format != TaskFormat::kLlmC; }
  std::string place_of(const TaskItem& item) const {  // file:line, for messages
    return fmt::format("{}:{}{}", path.string(), format == TaskFormat::kLlmC ? " item " : "", item.place);
  }
};

}  // namespace tessera
