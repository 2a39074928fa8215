#include <algorithm>
#include <array>

#include "data/chat/expression_parser.h"
#include "data/chat/filters.h"
#include "data/chat/numbers.h"
#include "kernels/base/present.h"

namespace tessera::jinja {
namespace {

std::optional<Value> constant_of(std::string_view name) {
  if (name == "true" || name == "True") return Value(true);
  if (name == "false" || name == "False") return Value(false);
  if (name == "none" || name == "None") return Value();
  return std::nullopt;
}
ExpressionPtr literal(Value value, int line) {
  auto node = std::make_unique<Literal>();
  node->line = line;
  node->literal = std::move(value);
  return node;
}

}  // namespace

ExpressionPtr ExpressionParser::primary() {
  const Token& token = now();
  if (token.kind == Token::Kind::kName) {
    if (is_reserved(token.text) && !constant_of(token.text))
      refuse(fmt::format("expected a value, found {}", found()));
    ++at_;
    if (const auto constant = constant_of(token.text)) return literal(*constant, token.line);
    tree_.variables.insert(token.text);
    auto node = std::make_unique<Name>();
    node->line = token.line;
    node->name = token.text;
    return node;
  }
  if (token.kind == Token::Kind::kText) {
    std::string text;
    while (now().kind == Token::Kind::kText) text += tokens_[at_++].text;
    tree_.names.insert(text);
    return literal(Text(text), token.line);
  }
  if (token.kind == Token::Kind::kWhole || token.kind == Token::Kind::kReal) return number();
  if (take_sign("(")) {
    ExpressionPtr made = tuple(true, true);
    expect_sign(")");
    return made;
  }
  if (is_sign("[")) return list();
  if (is_sign("{")) return dict();
  refuse(fmt::format("expected a value, found {}", found()));
}

ExpressionPtr ExpressionParser::number() {
  const Token& token = tokens_[at_++];
  if (token.kind == Token::Kind::kReal) return literal(present(real_in(token.text)), token.line);
  const bool in_other_base = token.text.size() > 1 && token.text[0] == '0' &&
                             !std::isdigit(static_cast<unsigned char>(token.text[1]));
  const char mark = in_other_base ? static_cast<char>(token.text[1] | 0x20) : '0';
  const auto whole = whole_in(token.text, mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10);
  if (!whole) refuse(fmt::format("{} is no number", in_quotes(token.text)));
  return literal(*whole, token.line);
}

ExpressionPtr ExpressionParser::list() {
  auto node = make<ListDisplay>();
  ++at_;
  while (!take_sign("]")) {
    node->parts.push_back(expression());
    add(*node, node->parts.back());
    if (!is_sign("]")) expect_sign(",");
  }
  return node;
}

ExpressionPtr ExpressionParser::dict() {
  auto node = make<DictDisplay>();
  ++at_;
  while (!take_sign("}")) {
    ExpressionPtr key = expression();
    add(*node, key);
    expect_sign(":");
    node->fields.emplace_back(std::move(key), expression());
    add(*node, node->fields.back().second);
    if (!is_sign("}")) expect_sign(",");
  }
  return node;
}

ExpressionPtr ExpressionParser::with_postfixes(ExpressionPtr made) {
  while (true) {
    if (is_sign("."))
      made = field(std::move(made));
    else if (is_sign("["))
      made = subscript(std::move(made));
    else if (is_sign("("))
      made = call(std::move(made));
    else
      return made;
  }
}

ExpressionPtr ExpressionParser::field(ExpressionPtr of) {
  auto node = make<Attribute>();
  auto element = make<Subscript>();
  ++at_;
  if (now().kind == Token::Kind::kWhole) {  // a.0 is a[0].
    add(*element, of);
    element->of = std::move(of);
    element->key = number();
    return element;
  }
  add(*node, of);
  node->of = std::move(of);
  node->name = take_any_name("the name of a field");
  tree_.names.insert(node->name);
  return node;
}

ExpressionPtr ExpressionParser::call(ExpressionPtr callee) {
  auto node = make<Call>();
  add(*node, callee);
  node->callee = std::move(callee);
  node->arguments = arguments();
  add(*node, node->arguments);
  return node;
}

ExpressionPtr ExpressionParser::call_expression() {
  ExpressionPtr made = unary(false);
  if (dynamic_cast<const Call*>(made.get()) == nullptr) refuse("{% call %} expects the call of a macro");
  return made;
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr of) {
  auto node = make<Subscript>();
  ++at_;
  ExpressionPtr key = is_sign(":") ? nullptr : expression();
  if (is_sign(":")) return slice(std::move(of), std::move(key));
  if (is_sign(",")) refuse("several keys in [ ] are not supported");
  expect_sign("]");
  add(*node, of);
  add(*node, key);
  node->of = std::move(of);
  node->key = std::move(key);
  return node;
}

ExpressionPtr ExpressionParser::slice(ExpressionPtr of, ExpressionPtr first) {
  auto node = make<Slice>();
  node->of = std::move(of);
  node->first = std::move(first);
  expect_sign(":");
  if (!is_sign(":") && !is_sign("]")) node->last = expression();
  if (take_sign(":") && !is_sign("]")) node->step = expression();
  expect_sign("]");
  for (const auto* part : {&node->of, &node->first, &node->last, &node->step}) add(*node, *part);
  return node;
}

CallArguments ExpressionParser::arguments() {
  CallArguments made;
  expect_sign("(");
  while (!take_sign(")")) {
    const bool named =
        now().kind == Token::Kind::kName && next().kind == Token::Kind::kSign && next().text == "=";
    if (take_sign("*")) {
      if (made.more || made.more_named) refuse("a second * is no argument");
      made.more = expression();
    } else if (take_sign("**")) {
      if (made.more_named) refuse("a second ** is no argument");
      made.more_named = expression();
    } else if (named) {
      std::string name = now().text;
      at_ += 2;
      made.named.emplace_back(std::move(name), expression());
    } else {
      if (!made.named.empty() || made.more || made.more_named)
        refuse("an argument without a name follows one with a name");
      made.positional.push_back(expression());
    }
    if (!is_sign(")")) expect_sign(",");
  }
  return made;
}

ExpressionPtr ExpressionParser::with_filters_and_tests(ExpressionPtr made) {
  while (true) {
    if (take_sign("|"))
      made = filter(std::move(made));
    else if (take_name("is"))
      made = test(std::move(made));
    else if (is_sign("("))
      made = call(std::move(made));
    else
      return made;
  }
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr of) {
  auto node = make<Filter>();
  add(*node, of);
  node->of = std::move(of);
  node->name = take_any_name("the name of a filter");
  while (take_sign(".")) node->name += "." + take_any_name("the name of a filter");
  try {
    check_filter(node->name);
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (is_sign("(")) node->arguments = arguments();
  add(*node, node->arguments);
  return node;
}

ExpressionPtr ExpressionParser::filters() {
  ExpressionPtr made = filter(nullptr);
  while (take_sign("|")) made = filter(std::move(made));
  return made;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr of) {
  auto negation = make<Unary>();
  const bool negated = take_name("not");
  auto node = make<Test>();
  add(*node, of);
  node->of = std::move(of);
  node->name = take_any_name("the name of a test");
  try {
    check_test(node->name);
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (is_sign("(")) {
    node->arguments = arguments();
  } else if (begins_argument()) {  // "is divisibleby 2"
    if (is_name("is")) refuse("tests that follow one another are not supported; use brackets");
    node->arguments.positional.push_back(with_postfixes(primary()));
  }
  add(*node, node->arguments);
  if (!negated) return node;
  negation->sign = "not";
  negation->operand = std::move(node);
  add(*negation, negation->operand);
  return negation;
}

bool ExpressionParser::begins_argument() const {
  static constexpr std::array kOthers{"else", "or", "and", "if", "in", "not", "recursive"};
  if (now().kind == Token::Kind::kName) return std::ranges::find(kOthers, now().text) == kOthers.end();
  return now().kind == Token::Kind::kText || now().kind == Token::Kind::kWhole ||
         now().kind == Token::Kind::kReal || is_sign("[") || is_sign("{");
}

}  // namespace tessera::jinja
