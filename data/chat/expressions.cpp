#include <algorithm>

#include "data/chat/evaluation.h"
#include "data/chat/filters.h"
#include "data/chat/members.h"
#include "data/chat/operators.h"

namespace tessera::jinja {

Value Name::value(Evaluation& e) const { return e.variable(name); }

Value ListDisplay::value(Evaluation& e) const {
  List list;
  for (const auto& part : parts) list.push_back(e.value(part));
  return {form, std::move(list)};
}

Value DictDisplay::value(Evaluation& e) const {
  Dict dict;
  for (const auto& [key, field] : fields) {
    const Value name = e.value(key);
    put(dict, name, e.value(field));
  }
  return dict;
}

Value Attribute::value(Evaluation& e) const { return attribute_of(e.value(of), name); }

Value Subscript::value(Evaluation& e) const {
  const Value held = e.value(of);
  return item_of(held, e.value(key));
}

Value Slice::value(Evaluation& e) const {
  const Value held = e.value(of);
  const auto bound = [&](const ExpressionPtr& node) { return node ? e.value(node) : Value(); };
  const Value from = bound(first), to = bound(last);
  return slice_of(held, {.first = from, .last = to, .step = bound(step)});
}

Value Call::value(Evaluation& e) const {
  const Value function = e.value(callee);
  return e.called(function, e.arguments(arguments));
}

Value Filter::applied(Evaluation& e, const Value& to) const {
  const auto* inner = dynamic_cast<const Filter*>(of.get());
  const Value held = inner ? inner->applied(e, to) : to;
  return apply_filter(name, held, e.arguments(arguments));
}
Value Filter::value(Evaluation& e) const {
  const Value held = e.value(of);
  return apply_filter(name, held, e.arguments(arguments));
}

Value Test::value(Evaluation& e) const {
  const Value held = e.value(of);
  return apply_test(name, held, e.arguments(arguments));
}

Value Unary::value(Evaluation& e) const {
  const Value held = e.value(operand);
  if (sign == "not") return !held.is_true();
  return sign == "-" ? negative(held) : positive(held);
}

Value Binary::value(Evaluation& e) const {
  Value a = e.value(left);
  if (sign == "and") return a.is_true() ? e.value(right) : a;
  if (sign == "or") return a.is_true() ? a : e.value(right);
  return binary(sign, a, e.value(right));
}

Value Comparison::value(Evaluation& e) const {
  Value a = e.value(first);
  for (const auto& [sign, node] : rest) {
    Value b = e.value(node);
    if (!holds(sign, a, b)) return false;
    a = std::move(b);
  }
  return true;
}

Value Choice::value(Evaluation& e) const {
  if (e.value(condition).is_true()) return e.value(yes);
  return no ? e.value(no) : Value(Undefined{"a value of an if without else"});
}

}  // namespace tessera::jinja
