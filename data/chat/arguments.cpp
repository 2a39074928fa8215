#include "data/chat/arguments.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera::jinja {

std::vector<const Value*> bind(const Arguments& arguments, std::string_view callee,
                               std::initializer_list<std::string_view> names, size_t required) {
  check(arguments.positional.size() <= names.size(), "{} takes at most {} arguments, and {} are given",
        callee, names.size(), arguments.positional.size());
  std::vector<const Value*> bound(names.size(), nullptr);
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto* const at = std::ranges::find(names, name);
    check(at != names.end(), "{} takes no argument {}", callee, name);
    const Value*& place = bound[static_cast<size_t>(at - names.begin())];
    check(place == nullptr, "{} is given the argument {} twice", callee, name);
    place = &value;
  }
  for (size_t i = 0; i < required; ++i)
    check(bound[i] != nullptr, "{} needs the argument {}", callee, names.begin()[i]);
  return bound;
}

const Text& text_of(const Value* argument, std::string_view callee, const Text& fallback) {
  if (argument == nullptr) return fallback;
  check_defined(*argument);
  check(argument->text() != nullptr, "{} expects a text, and a {} is given", callee, argument->type_name());
  return *argument->text();
}

int64_t whole_of(const Value* argument, std::string_view callee, int64_t fallback) {
  if (argument == nullptr) return fallback;
  check_defined(*argument);
  check(argument->is_whole(), "{} expects a whole number, and a {} is given", callee, argument->type_name());
  return argument->whole();
}

Bounded bounded(const Value* start, const Value* stop, int64_t length) {
  const auto place = [&](const Value* value, int64_t fallback) {
    if (!is_given(value)) return fallback;
    const int64_t at = std::max(whole_of(value, "a bound", 0), -length - 1);
    return std::max<int64_t>(at < 0 ? at + length : at, 0);
  };
  return {.first = place(start, 0), .last = std::min(place(stop, length), length)};
}

}  // namespace tessera::jinja
