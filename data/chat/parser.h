// The source of a template as a tree.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "data/chat/nodes.h"

namespace tessera::jinja {

struct Tree {
  Statements statements;
  bool marks_generation = false;  // it has {% generation %}
  std::set<std::string> variables;
  std::set<std::string> names;  // attributes, keys and texts: a field that is not among them is not read
};

// Error, with `name`:line: what is no Jinja, and what of Jinja is not supported: a statement, a filter, a
// test.
Tree parse(std::string_view source, const std::string& name);

}  // namespace tessera::jinja
