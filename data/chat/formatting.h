// Python's two ways to format: "%5.2f" % value, and "{:>5}".format(value).
#pragma once

#include "data/chat/value.h"

namespace tessera::jinja {

// `values`: a tuple, a dictionary for %(name)s, or one value. Error: too few or too many; a type that does
// not fit
Text formatted_by_percent(const Text& format, const Value& values);
// {a.field} and {a[key]}: a part of a value
using PartOf = Value (*)(const Value& of, const Value& key, bool is_field);
Text formatted(const Text& format, const Arguments& values, PartOf part_of);

}  // namespace tessera::jinja
