// The filters and tests of Jinja.
#pragma once

#include <string>
#include <string_view>

#include "data/chat/value.h"

namespace tessera::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
// Error: there is no such filter, or it is not supported; for messages with a line
void check_filter(std::string_view name);
void check_test(std::string_view name);

// Error: no such filter or test; arguments or values that it does not take
Value apply_filter(std::string_view name, const Value& of, const Arguments& arguments);
bool apply_test(std::string_view name, const Value& of, const Arguments& arguments);

}  // namespace tessera::jinja
