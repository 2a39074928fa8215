#include "data/chat/evaluation.h"

#include <algorithm>

#include "data/chat/operators.h"
#include "data/chat/parser.h"

namespace tessera::jinja {
namespace {

// Expressions and statements on one another, through macros and recursive loops
constexpr int kMostLevels = 2000;

}  // namespace

Evaluation::Level::Level(Evaluation& e) : e_(e) {
  if (++e.levels_ <= kMostLevels) return;
  --e.levels_;
  fail("macros, loops and expressions are evaluated more than {} deep, which is the limit of a template",
       kMostLevels);
}

Evaluation::Evaluation(const std::string& name, const Dict& variables, const std::tm& now)
    : name_(name), given_(variables), now_(now), outermost_(*this, nullptr) {}

Evaluation::~Evaluation() {
  for (const auto& one : namespaces_) one->fields.clear();
}

Evaluation::Scope* Evaluation::running(ScopeId id) const {
  for (Scope* scope = scope_; scope; scope = scope->before_)
    if (scope == id.scope && scope->number_ == id.number) return scope;
  fail("a macro is called after the block that it stands in has ended: that is not supported");
}

Value Evaluation::variable(const std::string& name) const {
  for (const Scope* scope = scope_; scope; scope = scope->parent_)
    for (auto at = scope->variables_.rbegin(); at != scope->variables_.rend(); ++at)
      if (at->first == name) return at->second;
  if (const Value* given = find(given_, name)) return *given;
  return global_function(name, const_cast<Evaluation&>(*this), now_);
}

void Evaluation::set(std::string_view name, Value value) {
  for (auto& [known, held] : scope_->variables_)
    if (known == name) {
      held = std::move(value);
      return;
    }
  scope_->variables_.emplace_back(name, std::move(value));
}

void Evaluation::set(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    check_defined(value);
    const auto parts = elements_of(value);
    check(parts.size() == target.parts.size(), "{} variables are set to {} values", target.parts.size(),
          parts.size());
    for (size_t i = 0; i < parts.size(); ++i) set(target.parts[i], parts[i]);
    return;
  }
  if (target.field.empty()) return set(target.name, value);
  const Value owner = variable(target.name);
  check(owner.fields() != nullptr, "{} is no namespace, so its field {} cannot be set", target.name,
        target.field);
  check(!target.field.starts_with('_'),
        "a namespace has no field {}: transformers refuses names that begin with _", target.field);
  put(owner.fields()->fields, Text(target.field), value);
}

Value Evaluation::made_namespace(Dict fields) {
  namespaces_.push_back(std::allocate_shared<Namespace>(Counted<Namespace>()));
  namespaces_.back()->fields = std::move(fields);
  return namespaces_.back();
}

void Evaluation::run(const Statements& statements) {
  for (const auto& statement : statements) {
    at(statement->line, [&] {
      const Level level(*this);
      Budget::spend(1);
      statement->run(*this);
    });
    if (going != Going::kOn) return;
  }
}

void Evaluation::write(const Text& text) { out_->append(text); }

Value Evaluation::value(const ExpressionPtr& node) {
  return at(node->line, [&] {
    const Level level(*this);
    Budget::spend(1);
    return node->value(*this);
  });
}

Arguments Evaluation::arguments(const CallArguments& nodes) {
  Arguments made;
  for (const auto& node : nodes.positional) made.positional.push_back(value(node));
  if (nodes.more) {
    const auto more = elements_of(value(nodes.more));
    made.positional.insert(made.positional.end(), more.begin(), more.end());
  }
  for (const auto& [name, node] : nodes.named) made.named.emplace_back(name, value(node));
  if (!nodes.more_named) return made;
  const Value more = value(nodes.more_named);
  check(more.dict() != nullptr, "** expects a dictionary, and a {} is given", more.type_name());
  for (const auto& [key, given] : *more.dict()) made.named.emplace_back(key.bytes(), given);
  return made;
}

Value Evaluation::called(const Value& function, const Arguments& arguments) {
  Budget::spend(1);
  check_defined(function);
  if (const auto* loop = function.loop()) {
    check((*loop)->recurse != nullptr, "the loop has ended, or is not recursive, so it cannot be called");
    check(arguments.positional.size() == 1 && arguments.named.empty(), "a loop is called with one value");
    return (*loop)->recurse(arguments.positional[0]);
  }
  check(function.callable() != nullptr, "a {} cannot be called", function.type_name());
  return function.callable()->call(arguments);
}

Template::Template(std::string_view source, std::string name)
    : name_(std::move(name)), tree_(std::make_unique<const Tree>(parse(source, name_))) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

bool Template::marks_generation() const { return tree_->marks_generation; }
bool Template::names(std::string_view field) const { return tree_->names.contains(std::string(field)); }
bool Template::reads(std::string_view variable) const {
  return tree_->variables.contains(std::string(variable));
}

Rendered Template::render(const Dict& variables, const std::tm& now) const {
  int64_t input = 0;
  for (const auto& [name, value] : variables) input += size_of(value);
  const Budget budget(input);
  Evaluation evaluation(name_, variables, now);
  evaluation.run(tree_->statements);
  return std::move(evaluation.result);
}

}  // namespace tessera::jinja
