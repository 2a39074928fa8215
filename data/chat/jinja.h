// Chat templates in Jinja, as transformers evaluates them: jinja2's sandbox with trim_blocks, lstrip_blocks,
// loop controls and {% generation %}. What a template writes is what jinja2 writes. What is not implemented,
// a statement, a filter, a test, a method, is refused by name and place.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/value.h"

namespace tessera::jinja {

struct Span {
  size_t first, last;  // bytes
};
struct Rendered {
  Text text;
  std::vector<Span> generated;  // by {% generation %}
};

struct Tree;

class Template {
 public:
  // `name`: its file, for messages. Error, with `name`:line: what is no Jinja, or is not supported.
  Template(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;

  const std::string& name() const { return name_; }
  bool marks_generation() const;
  // Whether the template has this name of a field, or of a variable: what it does not name it cannot read.
  bool names(std::string_view field) const;
  bool reads(std::string_view variable) const;

  // Any number of threads may call it. `now` is the time of strftime_now().
  // Error, with name and line: what Python would raise; what the template raises itself; more work or memory
  // than a conversation of this size needs (budget.h).
  Rendered render(const Dict& variables, const std::tm& now) const;

 private:
  std::string name_;
  std::unique_ptr<const Tree> tree_;
};

}  // namespace tessera::jinja
