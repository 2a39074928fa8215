#include <algorithm>

#include "data/chat/evaluation.h"
#include "data/chat/operators.h"
#include "data/chat/writing.h"

namespace tessera::jinja {
namespace {

// Ends a loop: what was saved of it keeps its numbers, and holds no elements any more.
struct Ending {
  Loop& loop;
  ~Ending() {
    loop.list = nullptr;
    loop.changed.reset();
    loop.recurse = nullptr;
  }
};

List chosen(Evaluation& e, const For& node, const List& list) {
  List kept;
  for (const Value& one : list) {
    Budget::spend(1);
    const Evaluation::Scope scope(e, e.scope());
    e.set(node.target, one);
    if (e.value(node.condition).is_true()) kept.push_back(one);
  }
  return kept;
}

void walk(Evaluation& e, const For& node, const Value& over, int depth) {
  std::shared_ptr<const List> list = elements_of(over).shared();
  if (node.condition) list = std::make_shared<const List>(chosen(e, node, *list));
  if (list->empty()) return e.run(node.otherwise);
  const auto loop = std::allocate_shared<Loop>(Counted<Loop>());
  const Ending ending{*loop};
  *loop = {.list = list, .length = list->size(), .depth = depth, .changed = {}, .recurse = nullptr};
  if (node.recursive)
    loop->recurse = [&e, &node, depth, outer = e.scope_id()](const Value& inner) -> Value {
      const Evaluation::Level level(e);
      const Evaluation::Scope scope(e, e.running(outer));
      return e.written([&] { walk(e, node, inner, depth + 1); });
    };
  for (size_t i = 0; i < list->size(); ++i) {
    Budget::spend(1);
    const Evaluation::Scope scope(e, e.scope());
    loop->at = i;
    e.set("loop", loop);
    e.set(node.target, (*list)[i]);
    e.run(node.body);
    const Going going = std::exchange(e.going, Going::kOn);
    if (going == Going::kBreak) return;
  }
}

Value bound_macro(const Macro& macro, Evaluation& e, const Arguments& arguments, Evaluation::ScopeId outer) {
  const Evaluation::Level level(e);
  const Evaluation::Scope scope(e, e.running(outer));
  Dict more_named;
  std::vector<bool> used(arguments.named.size(), false);
  const auto& parameters = macro.parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [parameter, fallback] = parameters[i];
    const auto named = std::ranges::find(arguments.named, parameter, &std::pair<std::string, Value>::first);
    if (i < arguments.positional.size()) {
      e.set(parameter, arguments.positional[i]);
    } else if (named != arguments.named.end()) {
      e.set(parameter, named->second);
      used[static_cast<size_t>(named - arguments.named.begin())] = true;
    } else {
      e.set(parameter, fallback ? e.value(fallback) : Value(Undefined{parameter}));
    }
  }
  const bool has_caller =
      std::ranges::find(parameters, "caller", &std::pair<std::string, ExpressionPtr>::first) !=
      parameters.end();
  if (macro.reads_caller && !has_caller) e.set("caller", Undefined{"caller"});
  for (size_t i = 0; i < arguments.named.size(); ++i) {
    const auto& [name, value] = arguments.named[i];
    if (used[i]) continue;
    if (name == "caller" && macro.reads_caller) {
      e.set("caller", value);
      continue;
    }
    check(macro.reads_kwargs, "the macro {} has no parameter {}", macro.name, name);
    more_named.emplace_back(Text(name), value);
  }
  if (macro.reads_kwargs) e.set("kwargs", more_named);
  const auto given = std::min(parameters.size(), arguments.positional.size());
  check(macro.reads_varargs || arguments.positional.size() == given,
        "the macro {} takes {} arguments, and {} are given", macro.name, parameters.size(),
        arguments.positional.size());
  if (macro.reads_varargs)
    e.set("varargs",
          Value(Form::kTuple, List(arguments.positional.begin() + static_cast<std::ptrdiff_t>(given),
                                   arguments.positional.end())));
  return e.captured(macro.body);
}

}  // namespace

void Data::run(Evaluation& e) const { e.write(text); }

void Output::run(Evaluation& e) const {
  const Value value = e.value(of);
  if (const Text* text = value.text()) return e.write(*text);
  e.write(to_text(value));
}

void If::run(Evaluation& e) const {
  for (const auto& [condition, statements] : branches)
    if (!condition || e.value(condition).is_true()) return e.run(statements);
}

void For::run(Evaluation& e) const { walk(e, *this, e.value(over), 1); }

void Set::run(Evaluation& e) const {
  if (to) return e.set(target, e.value(to));
  Value written;
  {
    const Evaluation::Scope scope(e, e.scope());
    written = e.captured(body);
  }
  if (filters) written = static_cast<const Filter&>(*filters).applied(e, written);
  e.set(target, written);
}

void With::run(Evaluation& e) const {
  std::vector<Value> made;
  for (const auto& [target, node] : values) made.push_back(e.value(node));
  const Evaluation::Scope scope(e, e.scope());
  for (size_t i = 0; i < made.size(); ++i) e.set(values[i].first, made[i]);
  e.run(body);
}

void FilterBlock::run(Evaluation& e) const {
  const Evaluation::Scope scope(e, e.scope());
  const Value written = e.captured(body);
  e.write(to_text(static_cast<const Filter&>(*filters).applied(e, written)));
}

Value Macro::callable(Evaluation& e) const {
  Dict fields;
  List names;
  for (const auto& [parameter, fallback] : parameters) names.emplace_back(Text(parameter));
  fields.emplace_back("name", Text(name));
  fields.emplace_back("arguments", Value(Form::kTuple, std::move(names)));
  fields.emplace_back("catch_kwargs", reads_kwargs);
  fields.emplace_back("catch_varargs", reads_varargs);
  fields.emplace_back("caller", reads_caller);
  return Callable{.name = name,
                  .call = [this, &e, outer = e.scope_id()](
                              const Arguments& arguments) { return bound_macro(*this, e, arguments, outer); },
                  .fields = std::move(fields)};
}
void Macro::run(Evaluation& e) const { e.set(name, callable(e)); }

void CallBlock::run(Evaluation& e) const {
  const auto& node = static_cast<const Call&>(*call);
  const Value function = e.value(node.callee);
  Arguments arguments = e.arguments(node.arguments);
  arguments.named.emplace_back("caller", caller.callable(e));
  e.write(to_text(e.called(function, arguments)));
}

void Generation::run(Evaluation& e) const {
  const size_t first = e.result.text.size();
  const Evaluation::Scope scope(e, e.scope());
  e.run(body);
  e.result.generated.push_back({first, e.result.text.size()});
}

void Jump::run(Evaluation& e) const { e.going = ends_loop ? Going::kBreak : Going::kContinue; }

}  // namespace tessera::jinja
