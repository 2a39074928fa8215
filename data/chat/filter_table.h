// The filters of each file by their names: filters.cpp puts them together.
#pragma once

#include <map>
#include <string>

#include "data/chat/value.h"

namespace tessera::jinja {

using FilterFunction = Value (*)(const Value&, const Arguments&);
using FilterTable = std::map<std::string, FilterFunction, std::less<>>;

const FilterTable& list_filters();
const FilterTable& text_filters();
const FilterTable& number_filters();

}  // namespace tessera::jinja
