#include "train/tasks/task_line.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <span>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

using nlohmann::json;

// The fields of a format: those that decide, and those that a line may have besides.
struct Fields {
  std::vector<std::string_view> required, others;
};
Fields fields_of(TaskFormat format) {
  switch (format) {
    case TaskFormat::kHellaSwag:
      return {.required = {"ctx", "endings", "label"},
              .others = {"activity_label", "ctx_a", "ctx_b", "dataset", "ind", "source_id", "split",
                         "split_type"}};
    case TaskFormat::kArc:
      return {.required = {"question", "choices", "answerKey"}, .others = {"id"}};
    case TaskFormat::kChoices:
      return {.required = {"context", "choices", "label"}, .others = {"id"}};
    case TaskFormat::kLlmC:
      break;
  }
  fail("the format {} has no lines", name_of(format));
}

std::string names_in(const json& object) {
  std::vector<std::string_view> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names.empty() ? "none" : join_words(names, " and ");
}

void check_fields(const json& object, const Fields& fields, TaskFormat format, const std::string& where) {
  check(object.is_object(), "{}: a line must be a JSON object, found {}", where, brief(object));
  for (const std::string_view field : fields.required)
    check(object.contains(field), "{}: a line of {} must have the fields {}, found {}", where,
          name_of(format), join_words(fields.required, " and "), names_in(object));
  std::vector<std::string_view> known = fields.required;
  known.insert(known.end(), fields.others.begin(), fields.others.end());
  for (const auto& [name, value] : object.items())
    check(std::ranges::find(known, name) != known.end(), "{}: {}", where,
          unknown_word(fmt::format("field of {}", name_of(format)), name, known));
}

// A number, or a number in quotes
int64_t label_in(const json& value, const std::string& where) {
  int64_t label = -1;
  if (value.is_number_integer()) label = value.get<int64_t>();
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
    if (error != std::errc{} || end != text.data() + text.size()) label = -1;
  }
  check(label >= 0, "{}: label must be the number of the right choice, from 0, found {}", where,
        brief(value));
  return label;
}

std::vector<std::string> texts_in(const json& list, const char* field, const std::string& where) {
  check(list.is_array(), "{}: {} must be a list of texts, found {}", where, field, brief(list));
  std::vector<std::string> texts;
  for (const json& text : list) {
    check(text.is_string(), "{}: {} must be a list of texts, found {} in it", where, field, brief(text));
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

// The choices of ARC are a list of {text, label}, or two lists: one of texts, one of labels.
struct Labelled {
  std::vector<std::string> texts, labels;
};
Labelled labelled_in(const json& choices, const std::string& where) {
  Labelled found;
  if (choices.is_array()) {
    for (const json& choice : choices) {
      found.texts.push_back(text_value(choice, "text", where));
      found.labels.push_back(text_value(choice, "label", where));
    }
    return found;
  }
  check(choices.is_object() && choices.contains("text") && choices.contains("label"),
        "{}: choices must be a list of text and label, or a list of each, found {}", where, brief(choices));
  found = {.texts = texts_in(choices["text"], "choices.text", where),
           .labels = texts_in(choices["label"], "choices.label", where)};
  check(found.texts.size() == found.labels.size(), "{}: choices has {} texts and {} labels", where,
        found.texts.size(), found.labels.size());
  return found;
}

// As ARC was published, question is an object with the stem and the choices.
QuestionText arc_question(const json& line, const std::string& where) {
  const json& question = line["question"];
  const bool nested = question.is_object();
  if (nested)
    for (const auto& [name, value] : question.items())
      check(name == "stem" || name == "choices", "{}: {}", where,
            unknown_word("field of question", name, std::vector<std::string_view>{"stem", "choices"}));
  const Labelled choices = labelled_in(nested ? question.value("choices", json()) : line["choices"], where);
  const std::string key = text_value(line, "answerKey", where);
  const auto right = std::ranges::find(choices.labels, key);
  check(right != choices.labels.end(), "{}: answerKey is {}, and the labels of the choices are {}", where,
        in_quotes(key),
        join_words(std::vector<std::string_view>(choices.labels.begin(), choices.labels.end()), " and "));
  return {.context = fmt::format("Question: {}\nAnswer:", nested ? text_value(question, "stem", where)
                                                                 : text_value(line, "question", where)),
          .joint = " ",
          .choices = choices.texts,
          .answer = right - choices.labels.begin()};
}

QuestionText read_question(const json& line, TaskFormat format, const std::string& where) {
  switch (format) {
    case TaskFormat::kHellaSwag:
      return {.context = text_value(line, "ctx", where),
              .joint = " ",
              .choices = texts_in(line["endings"], "endings", where),
              .answer = label_in(line["label"], where)};
    case TaskFormat::kArc:
      return arc_question(line, where);
    case TaskFormat::kChoices:
      return {.context = text_value(line, "context", where),
              .choices = texts_in(line["choices"], "choices", where),
              .answer = label_in(line["label"], where)};
    case TaskFormat::kLlmC:
      break;
  }
  fail("the format {} has no lines", name_of(format));
}

}  // namespace

TaskFormat format_of_line(const json& line, const std::string& where) {
  check(line.is_object(), "{}: a line must be a JSON object, found {}", where, brief(line));
  if (line.contains("endings")) return TaskFormat::kHellaSwag;
  if (line.contains("answerKey")) return TaskFormat::kArc;
  if (line.contains("context")) return TaskFormat::kChoices;
  fail(
      "{}: a line must have the fields ctx, endings and label (HellaSwag), question, choices and answerKey "
      "(ARC), or context, choices and label, found {}",
      where, names_in(line));
}

QuestionText question_of(const json& line, TaskFormat format, const std::string& where) {
  Fields fields = fields_of(format);
  const bool nested = format == TaskFormat::kArc && line.is_object() && line.contains("question") &&
                      line["question"].is_object();
  if (nested) std::erase(fields.required, "choices");
  check_fields(line, fields, format, where);
  QuestionText question = read_question(line, format, where);
  const size_t count = question.choices.size();
  check(count >= 2, "{}: a question must have at least 2 choices, found {}", where, count);
  for (size_t c = 0; c < count; ++c) check(!question.choices[c].empty(), "{}: choice {} is empty", where, c);
  check(question.answer < static_cast<int64_t>(count), "{}: label is {}, and there are {} choices, 0 to {}",
        where, question.answer, count, count - 1);
  return question;
}

}  // namespace tessera
