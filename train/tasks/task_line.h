// Reads a line of JSON as a question, with the fields of HellaSwag, of ARC, or our own
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

// Finds the format from the fields of `line`. Error: they belong to no format.
TaskFormat format_of_line(const nlohmann::json& line, const std::string& where);

// Error, with `where` at its beginning: a field is missing, unknown or mistyped; there are fewer than two
// choices, or an empty one; the answer is none of the choices.
QuestionText question_of(const nlohmann::json& line, TaskFormat format, const std::string& where);

}  // namespace tessera
