#include <algorithm>
#include <array>

#include "data/chat/arguments.h"
#include "data/chat/evaluation.h"
#include "data/chat/operators.h"
#include "data/chat/writing.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMostOfRange = 100'000;  // as jinja2's sandbox

Value range(const Arguments& a) {
  const auto bound = bind(a, "range", {"start", "stop", "step"}, 1);
  const int64_t first = bound[1] ? whole_of(bound[0], "range", 0) : 0;
  const int64_t last = whole_of(bound[1] ? bound[1] : bound[0], "range", 0),
                step = whole_of(bound[2], "range", 1);
  check(step != 0, "range: the step is 0");
  constexpr int64_t kFar = int64_t{1} << 40;
  check(first > -kFar && first < kFar && last > -kFar && last < kFar && step > -kFar && step < kFar,
        "range: a number is too large");
  List numbers;
  for (int64_t i = first; step > 0 ? i < last : i > last; i += step) {
    check(std::ssize(numbers) < kMostOfRange, "range has more than {} numbers", kMostOfRange);
    numbers.emplace_back(i);
  }
  Budget::spend_elements(numbers.size());
  return {Form::kRange, std::move(numbers), {first, last, step}};
}

// dict(mapping), dict(pairs), with named arguments after them; also of namespace()
Dict fields_of(const Arguments& a, const char* callee) {
  Dict fields;
  check(a.positional.size() <= 1, "{} takes a dictionary or pairs, and named arguments", callee);
  if (!a.positional.empty() && a.positional[0].dict()) {
    fields = *a.positional[0].dict();
  } else if (!a.positional.empty()) {
    for (const Value& one : elements_of(a.positional[0])) {
      const auto pair = elements_of(one);
      check(pair.size() == 2, "{} expects pairs, and one has {} parts", callee, pair.size());
      put(fields, pair[0], pair[1]);
    }
  }
  for (const auto& [name, value] : a.named) put(fields, Text(name), value);
  return fields;
}

Value strftime(const Arguments& a, const std::tm& now) {
  const std::string& format = text_of(bind(a, "strftime_now", {"format"}, 1)[0], "strftime_now").bytes();
  if (format.empty()) return "";
  std::string text(format.size() + 256, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &now));
  check(!text.empty(), "strftime_now: the format makes no text, or a long one");
  return Text(std::move(text));
}

[[noreturn]] void refuse(const Arguments& a) {
  const Value* message = bind(a, "raise_exception", {"message"}, 1)[0];
  fail("the template refuses this conversation: {}", to_text(*message).bytes());
}

void check_no_dunder(std::string_view name) {
  check(!name.starts_with('_'), "a namespace has no field {}: transformers refuses names that begin with _",
        name);
}

}  // namespace

Value global_function(std::string_view name, Evaluation& e, const std::tm& now) {
  if (name == "namespace")
    return Callable{.name = "namespace", .call = [&e](const Arguments& a) -> Value {
                      Dict fields = fields_of(a, "namespace");
                      for (const auto& [key, value] : fields) check_no_dunder(key.bytes());
                      return e.made_namespace(std::move(fields));
                    }};
  if (name == "dict")
    return Callable{.name = "dict", .call = [](const Arguments& a) -> Value { return fields_of(a, "dict"); }};
  if (name == "range") return Callable{.name = "range", .call = range};
  if (name == "strftime_now")
    return Callable{.name = "strftime_now", .call = [&now](const Arguments& a) { return strftime(a, now); }};
  if (name == "raise_exception")
    return Callable{.name = "raise_exception", .call = [](const Arguments& a) -> Value { refuse(a); }};
  static constexpr std::array kOthers{"cycler", "joiner", "lipsum", "self", "super"};
  check(std::ranges::find(kOthers, name) == kOthers.end(), "the global {} is not supported", name);
  return Undefined{std::string(name)};
}

}  // namespace tessera::jinja
