// The arguments of a filter, a test, a method or a function, by their names.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "data/chat/value.h"

namespace tessera::jinja {

// The arguments in the order of `names`; null: not given. Error: one that has no such name, is given twice,
// or is missing among the first `required`
std::vector<const Value*> bind(const Arguments& arguments, std::string_view callee,
                               std::initializer_list<std::string_view> names, size_t required = 0);

// `fallback` where no argument is given. Error: it has another type
const Text& text_of(const Value* argument, std::string_view callee, const Text& fallback = {});
int64_t whole_of(const Value* argument, std::string_view callee, int64_t fallback);
inline bool truth_of(const Value* argument) { return argument && argument->is_true(); }
inline bool is_given(const Value* argument) { return argument && !argument->is_none(); }

// A start and a stop, as the methods of Python take them: cut to 0..length; negative ones count from the end
struct Bounded {
  int64_t first, last;
};
Bounded bounded(const Value* start, const Value* stop, int64_t length);

}  // namespace tessera::jinja
