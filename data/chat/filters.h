// The filters and tests of templates: those of Jinja that published chat templates use, and the few beside
// them.
#pragma once

#include <string>
#include <string_view>

#include "data/chat/value.h"

namespace tessera::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
std::string names_of_filters();  // for messages
std::string names_of_tests();

// Error: no such filter or test; arguments or values that it does not take
Value apply_filter(std::string_view name, const Value& of, const Arguments& arguments);
bool apply_test(std::string_view name, const Value& of, const Arguments& arguments);

// Jinja's of.name, and of[key]. Undefined: there is none. Error: `of` is undefined.
Value attribute_of(const Value& of, std::string_view name);
Value item_of(const Value& of, const Value& key);

// What a loop walks: the elements, the keys, the characters. Error: a value that has none
List elements_of(const Value& value);
// Python's `part in whole`
bool contains(const Value& whole, const Value& part);

}  // namespace tessera::jinja
