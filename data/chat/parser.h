// The source of a template as a tree.
#pragma once

#include <string>
#include <string_view>

#include "data/chat/nodes.h"

namespace tessera::jinja {

// Error, with `name`:line: what is no Jinja, and what of Jinja is not supported: a statement, a filter, a
// test.
Tree parse(std::string_view source, const std::string& name);

}  // namespace tessera::jinja
