#include "data/chat/evaluation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "data/chat/arguments.h"
#include "data/chat/filters.h"
#include "data/chat/parser.h"
#include "data/chat/text_methods.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMostSteps = 10'000'000;
constexpr size_t kMostBytes = size_t{256} << 20;
constexpr int64_t kMostOfRange = 100'000;  // as jinja2's sandbox
constexpr int kMostCalls = 100;

void check_defined(const Value& value) {
  check(!value.is_undefined(), "{} is undefined", value.is_undefined() ? value.undefined()->name : "");
}

Value range(const Arguments& a) {
  const auto bound = bind(a, "range", {"start", "stop", "step"}, 1);
  const int64_t first = bound[1] ? whole_of(bound[0], "range", 0) : 0;
  const int64_t last = whole_of(bound[1] ? bound[1] : bound[0], "range", 0),
                step = whole_of(bound[2], "range", 1);
  check(step != 0, "range: the step is 0");
  constexpr int64_t kFar = int64_t{1} << 40;
  check(std::max({std::abs(first), std::abs(last), std::abs(step)}) < kFar, "range: a number is too large");
  List numbers;
  for (int64_t i = first; step > 0 ? i < last : i > last; i += step) {
    check(std::ssize(numbers) < kMostOfRange, "range has more than {} numbers", kMostOfRange);
    numbers.emplace_back(i);
  }
  return numbers;
}

Dict fields_of(const Arguments& a, const char* callee) {
  Dict fields;
  check(a.positional.size() <= 1 && (a.positional.empty() || a.positional[0].dict()),
        "{} takes a dictionary, or named arguments", callee);
  if (!a.positional.empty()) fields = *a.positional[0].dict();
  for (const auto& [name, value] : a.named) fields.emplace_back(Text(name), value);
  return fields;
}

Value strftime(const Arguments& a, const std::tm& now) {
  const std::string& format = text_of(bind(a, "strftime_now", {"format"}, 1)[0], "strftime_now").bytes();
  if (format.empty()) return "";
  std::string text(format.size() + 256, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &now));
  check(!text.empty(), "strftime_now: the format makes no text, or a long one");
  return Text(std::move(text));
}

[[noreturn]] void refuse(const Arguments& a) {
  const Value* message = bind(a, "raise_exception", {"message"}, 1)[0];
  fail("the template refuses this conversation: {}", to_text(*message).bytes());
}

Value arithmetic(const std::string& sign, const Value& left, const Value& right) {
  const auto floor_of = [](int64_t a, int64_t b) {
    return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
  };
  if (left.is_whole() && right.is_whole()) {
    const int64_t a = left.whole(), b = right.whole();
    int64_t made = 0;
    check((sign[0] != '/' && sign[0] != '%') || b != 0, "division by zero");
    const bool fits = sign == "+"   ? !__builtin_add_overflow(a, b, &made)
                      : sign == "-" ? !__builtin_sub_overflow(a, b, &made)
                      : sign == "*" ? !__builtin_mul_overflow(a, b, &made)
                                    : a != std::numeric_limits<int64_t>::min();
    check(fits, "a number is too large");
    if (sign == "/") return static_cast<double>(a) / static_cast<double>(b);
    if (sign == "//") return floor_of(a, b);
    if (sign == "%") return a - floor_of(a, b) * b;
    return made;
  }
  const double a = left.number(), b = right.number();
  if (sign == "+") return a + b;
  if (sign == "-") return a - b;
  if (sign == "*") return a * b;
  check(b != 0, "division by zero");
  if (sign == "/") return a / b;
  return sign == "//" ? std::floor(a / b) : a - std::floor(a / b) * b;
}

Value repeated(const Text& text, int64_t times) {
  check(times <= 0 || text.size() <= kMostBytes / static_cast<size_t>(times),
        "a text is longer than {} bytes", kMostBytes);
  Text out;
  for (int64_t i = 0; i < times; ++i) out.append(text);
  return out;
}

Value binary(const std::string& sign, const Value& left, const Value& right) {
  check_defined(left);
  check_defined(right);
  if (left.is_number() && right.is_number()) return arithmetic(sign, left, right);
  if (sign == "+" && left.text() && right.text()) {
    Text text = *left.text();
    text.append(*right.text());
    return text;
  }
  if (sign == "+" && left.list() && right.list()) {
    List list = *left.list();
    list.insert(list.end(), right.list()->begin(), right.list()->end());
    return list;
  }
  if (sign == "*" && left.text() && right.is_whole()) return repeated(*left.text(), right.whole());
  fail("{} of a {} and a {} is not possible", sign, left.type_name(), right.type_name());
}

bool holds(const std::string& sign, const Value& left, const Value& right) {
  if (sign == "==") return equal(left, right);
  if (sign == "!=") return !equal(left, right);
  if (sign == "in") return contains(right, left);
  if (sign == "not in") return !contains(right, left);
  check_defined(left);
  check_defined(right);
  const int order = compare(left, right);
  if (sign == "<") return order < 0;
  if (sign == "<=") return order <= 0;
  return sign == ">" ? order > 0 : order >= 0;
}

// What {% for %} knows as `loop`; its fields are in this order.
std::shared_ptr<Namespace> loop_fields(const List& list) {
  auto loop = std::make_shared<Namespace>();
  for (const char* name :
       {"index0", "index", "revindex0", "revindex", "first", "last", "previtem", "nextitem", "length"})
    loop->fields.emplace_back(Text(name), std::ssize(list));
  return loop;
}
void advance(Namespace& loop, const List& list, size_t i) {
  const auto at = static_cast<int64_t>(i), count = std::ssize(list);
  const auto element = [&](bool there, size_t k) {
    return there ? list[k] : Value(Undefined{"the element beside the loop"});
  };
  const Value values[] = {
      at,      at + 1,          count - at - 1,        count - at,
      at == 0, at + 1 == count, element(i > 0, i - 1), element(i + 1 < list.size(), i + 1)};
  for (size_t k = 0; k < std::size(values); ++k) loop.fields[k].second = values[k];
}

void set_targets(Evaluation& e, const std::vector<std::string>& targets, const Value& value) {
  if (targets.size() == 1) return e.set(targets[0], value);
  const List parts = elements_of(value);
  check(parts.size() == targets.size(), "{} variables are set to {} values", targets.size(), parts.size());
  for (size_t i = 0; i < targets.size(); ++i) e.set(targets[i], parts[i]);
}

}  // namespace

Evaluation::Evaluation(const std::string& name, const Dict& variables, const std::tm& now)
    : name_(name), given_(variables), now_(now), outermost_(*this, nullptr) {}

Value Evaluation::variable(const std::string& name) const {
  for (const Scope* scope = scope_; scope; scope = scope->parent_)
    for (auto at = scope->variables_.rbegin(); at != scope->variables_.rend(); ++at)
      if (at->first == name) return at->second;
  if (const Value* given = find(given_, name)) return *given;
  return global(name);
}

Value Evaluation::global(std::string_view name) const {
  if (name == "namespace")
    return Callable{"namespace", [](const Arguments& a) -> Value {
                      auto made = std::make_shared<Namespace>();
                      made->fields = fields_of(a, "namespace");
                      return made;
                    }};
  if (name == "dict")
    return Callable{"dict", [](const Arguments& a) -> Value { return fields_of(a, "dict"); }};
  if (name == "range") return Callable{"range", range};
  if (name == "strftime_now")
    return Callable{"strftime_now", [this](const Arguments& a) { return strftime(a, now_); }};
  if (name == "raise_exception")
    return Callable{"raise_exception", [](const Arguments& a) -> Value { refuse(a); }};
  return Undefined{std::string(name)};
}

void Evaluation::set(std::string_view name, Value value) {
  for (auto& [known, held] : scope_->variables_)
    if (known == name) {
      held = std::move(value);
      return;
    }
  scope_->variables_.emplace_back(name, std::move(value));
}

void Evaluation::count_step(int line) {
  if (++steps_ > kMostSteps) fail("{}:{}: the template takes more than {} steps", name_, line, kMostSteps);
}

void Evaluation::run(const Statements& statements) {
  for (const auto& statement : statements) {
    count_step(statement->line);
    statement->run(*this);
    if (going != Going::kOn) return;
  }
}

Text Evaluation::captured(const Statements& statements) {
  struct Redirect {
    Text*& out;
    Text* const before;
    ~Redirect() { out = before; }
  };
  Text text;
  const Redirect redirect{out_, std::exchange(out_, &text)};
  run(statements);
  return text;
}

void Evaluation::write(const Text& text, int line) {
  if (out_->size() + text.size() > kMostBytes)
    fail("{}:{}: the text is longer than {} bytes", name_, line, kMostBytes);
  out_->append(text);
}

Arguments Evaluation::arguments(const CallArguments& nodes) {
  Arguments made;
  for (const auto& node : nodes.positional) made.positional.push_back(node->value(*this));
  for (const auto& [name, node] : nodes.named) made.named.emplace_back(name, node->value(*this));
  return made;
}

Value Name::value(Evaluation& e) const { return e.variable(name); }

Value ListDisplay::value(Evaluation& e) const {
  List list;
  for (const auto& part : parts) list.push_back(part->value(e));
  return list;
}

Value DictDisplay::value(Evaluation& e) const {
  Dict dict;
  for (const auto& [key, field] : fields) {
    const Value name = key->value(e);
    e.at(line, [&] {
      check(name.text() != nullptr, "a key is a {}, and only texts are supported", name.type_name());
    });
    const auto known = std::ranges::find_if(
        dict, [&](const auto& one) { return one.first.bytes() == name.text()->bytes(); });
    if (known != dict.end())
      known->second = field->value(e);
    else
      dict.emplace_back(*name.text(), field->value(e));
  }
  return dict;
}

Value Attribute::value(Evaluation& e) const {
  const Value held = of->value(e);
  return e.at(line, [&] { return attribute_of(held, name); });
}

Value Subscript::value(Evaluation& e) const {
  const Value held = of->value(e), at = key->value(e);
  return e.at(line, [&] { return item_of(held, at); });
}

Value Slice::value(Evaluation& e) const {
  const Value held = of->value(e);
  const auto bound = [&](const ExpressionPtr& node) { return node ? node->value(e) : Value(); };
  const Value from = bound(first), to = bound(last), by = bound(step);
  return e.at(line, [&]() -> Value {
    check_defined(held);
    check(held.text() || held.list(), "a {} has no slices", held.type_name());
    const int64_t count = held.text() ? held.text()->length() : std::ssize(*held.list());
    const auto whole = [&](const Value& value, int64_t fallback) {
      return value.is_none() ? fallback : whole_of(&value, "a slice", 0);
    };
    const int64_t stride = whole(by, 1);
    check(stride != 0 && std::abs(stride) <= std::numeric_limits<int32_t>::max(), "a slice's step is {}",
          stride);
    // As Python: -1 is the last one, and what lies beyond the ends is cut.
    const auto place = [&](const Value& value, int64_t fallback) {
      if (value.is_none()) return fallback;
      const int64_t at = whole(value, 0);
      const int64_t counted = at < 0 ? at + count : at;
      return stride > 0 ? std::clamp<int64_t>(counted, 0, count)
                        : std::clamp<int64_t>(counted, -1, count - 1);
    };
    const int64_t begin = place(from, stride > 0 ? 0 : count - 1), end = place(to, stride > 0 ? count : -1);
    if (held.text()) return held.text()->characters(begin, end, stride);
    List list;
    for (int64_t i = begin; stride > 0 ? i < end : i > end; i += stride)
      list.push_back((*held.list())[static_cast<size_t>(i)]);
    return list;
  });
}

Value Call::value(Evaluation& e) const {
  const Value function = callee->value(e);
  const Arguments given = e.arguments(arguments);
  e.count_step(line);
  return e.at(line, [&] {
    check_defined(function);
    check(function.callable() != nullptr, "a {} cannot be called", function.type_name());
    return function.callable()->call(given);
  });
}

Value Filter::value(Evaluation& e) const {
  const Value held = of->value(e);
  const Arguments given = e.arguments(arguments);
  return e.at(line, [&] { return apply_filter(name, held, given); });
}

Value Test::value(Evaluation& e) const {
  const Value held = of->value(e);
  const Arguments given = e.arguments(arguments);
  return e.at(line, [&] { return apply_test(name, held, given); });
}

Value Unary::value(Evaluation& e) const {
  const Value held = operand->value(e);
  if (sign == "not") return !held.is_true();
  return e.at(line, [&]() -> Value {
    check_defined(held);
    check(held.is_number(), "{} of a {} is not possible", sign, held.type_name());
    if (sign == "+") return held;
    return held.is_whole() ? Value(-held.whole()) : Value(-held.number());
  });
}

Value Binary::value(Evaluation& e) const {
  Value a = left->value(e);
  if (sign == "and") return a.is_true() ? right->value(e) : a;
  if (sign == "or") return a.is_true() ? a : right->value(e);
  const Value b = right->value(e);
  return e.at(line, [&]() -> Value {
    if (sign != "~") return binary(sign, a, b);
    Text text = to_text(a);
    text.append(to_text(b));
    return text;
  });
}

Value Comparison::value(Evaluation& e) const {
  Value a = first->value(e);
  for (const auto& [sign, node] : rest) {
    Value b = node->value(e);
    if (!e.at(line, [&] { return holds(sign, a, b); })) return false;
    a = std::move(b);
  }
  return true;
}

Value Choice::value(Evaluation& e) const {
  if (condition->value(e).is_true()) return yes->value(e);
  return no ? no->value(e) : Value(Undefined{"a value of an if without else"});
}

void Data::run(Evaluation& e) const { e.write(text, line); }

void Output::run(Evaluation& e) const {
  const Value value = of->value(e);
  if (const Text* text = value.text()) return e.write(*text, line);
  e.write(e.at(line, [&] { return to_text(value); }), line);
}

void If::run(Evaluation& e) const {
  for (const auto& [condition, statements] : branches)
    if (!condition || condition->value(e).is_true()) return e.run(statements);
}

void For::run(Evaluation& e) const {
  const Value walked = over->value(e);
  List list = e.at(line, [&] { return elements_of(walked); });
  if (condition)
    std::erase_if(list, [&](const Value& one) {
      e.count_step(line);
      const Evaluation::Scope scope(e, e.scope());
      e.at(line, [&] { set_targets(e, targets, one); });
      return !condition->value(e).is_true();
    });
  if (list.empty()) return e.run(otherwise);
  const auto loop = loop_fields(list);
  for (size_t i = 0; i < list.size(); ++i) {
    const Evaluation::Scope scope(e, e.scope());
    advance(*loop, list, i);
    e.set("loop", loop);
    e.at(line, [&] { set_targets(e, targets, list[i]); });
    e.count_step(line);
    e.run(body);
    const Going going = std::exchange(e.going, Going::kOn);
    if (going == Going::kBreak) return;
  }
}

void Set::run(Evaluation& e) const {
  const Value value = to ? to->value(e) : Value(e.captured(body));
  e.at(line, [&] {
    if (field.empty()) return set_targets(e, targets, value);
    const Value owner = e.variable(targets[0]);
    check(owner.fields() != nullptr, "{} is no namespace, so its field {} cannot be set", targets[0], field);
    Dict& fields = owner.fields()->fields;
    for (auto& [name, held] : fields)
      if (name.bytes() == field) {
        held = value;
        return;
      }
    fields.emplace_back(Text(field), value);
  });
}

void Macro::run(Evaluation& e) const {
  e.set(name, Callable{name, [this, &e](const Arguments& arguments) { return call(e, arguments); }});
}

Value Macro::call(Evaluation& e, const Arguments& arguments) const {
  struct Calls {
    int& count;
    ~Calls() { --count; }
  };
  check(e.calls < kMostCalls, "macros call one another more than {} deep", kMostCalls);
  ++e.calls;
  const Calls calls{e.calls};
  const Evaluation::Scope scope(e, e.outermost());
  check(arguments.positional.size() <= parameters.size(), "the macro {} takes {} arguments, and {} are given",
        name, parameters.size(), arguments.positional.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [parameter, fallback] = parameters[i];
    const auto named = std::ranges::find(arguments.named, parameter, &std::pair<std::string, Value>::first);
    if (i < arguments.positional.size())
      e.set(parameter, arguments.positional[i]);
    else if (named != arguments.named.end())
      e.set(parameter, named->second);
    else
      e.set(parameter, fallback ? fallback->value(e) : Value(Undefined{parameter}));
  }
  for (const auto& [given, value] : arguments.named)
    check(std::ranges::any_of(parameters, [&](const auto& one) { return one.first == given; }),
          "the macro {} has no parameter {}", name, given);
  return e.captured(body);
}

void Generation::run(Evaluation& e) const {
  const size_t first = e.result.text.size();
  e.run(body);
  e.result.generated.push_back({first, e.result.text.size()});
}

void Jump::run(Evaluation& e) const { e.going = ends_loop ? Going::kBreak : Going::kContinue; }

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
  Evaluation evaluation(name_, variables, now);
  evaluation.run(tree_->statements);
  return std::move(evaluation.result);
}

}  // namespace tessera::jinja
