// A line of JSON as a question: the fields of HellaSwag, of ARC, and our own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/tasks/task.h"

namespace tessera {

struct QuestionText {
  std::string context;
  const char* joint = "";  // between the context and a choice
  std::vector<std::string> choices;
  int64_t answer = 0;
};

// By the fields that `line` has. Error: they are of no format.
TaskFormat format_of_line(const nlohmann::json& line, const std::string& where);

// Error, which begins with `where`: a field that is missing, unknown or mistyped; fewer than two choices, an
// empty choice, an answer that is none of them.
QuestionText question_of(const nlohmann::json& line, TaskFormat format, const std::string& where);

}  // namespace tessera
