#include "data/chat/expression_parser.h"

#include <algorithm>
#include <array>

namespace tessera::jinja {
namespace {

using Kind = Token::Kind;

constexpr int kMostNested = 200;  // statements and expressions within one another
constexpr int kDeepest = 500;     // operators, fields and filters on one another: a + b + ...

}  // namespace

bool ExpressionParser::is_reserved(std::string_view name) {
  static constexpr std::array kReserved{"and", "or",   "not",  "in",    "is",
                                        "if",  "else", "true", "false", "none"};
  return std::ranges::find(kReserved, name) != kReserved.end();
}

ExpressionParser::Level::Level(ExpressionParser& parser) : parser(parser) {
  if (++parser.depth_ > kMostNested)
    parser.refuse(fmt::format("it is nested more than {} deep", kMostNested));
}

std::string ExpressionParser::found() const {
  switch (now().kind) {
    case Kind::kEnd:
      return "the end of the template";
    case Kind::kBlockEnd:
      return "%}";
    case Kind::kValueEnd:
      return "}}";
    case Kind::kText:
      return "the text " + in_quotes(now().text);
    default:
      return in_quotes(now().text);
  }
}
bool ExpressionParser::take_sign(std::string_view sign) {
  if (!is_sign(sign)) return false;
  ++at_;
  return true;
}
bool ExpressionParser::take_name(std::string_view name) {
  if (!is_name(name)) return false;
  ++at_;
  return true;
}
void ExpressionParser::expect_sign(std::string_view sign) {
  if (!take_sign(sign)) refuse(fmt::format("expected {}, found {}", in_quotes(sign), found()));
}
void ExpressionParser::expect_name(std::string_view name) {
  if (!take_name(name)) refuse(fmt::format("expected {}, found {}", name, found()));
}
std::string ExpressionParser::take_any_name(const char* what) {
  if (now().kind != Kind::kName) refuse(fmt::format("expected {}, found {}", what, found()));
  return tokens_[at_++].text;
}
std::string ExpressionParser::take_variable() {
  std::string name = take_any_name("the name of a variable");
  if (is_reserved(name)) refuse(fmt::format("{} is no name of a variable", name));
  return name;
}

void ExpressionParser::add(Expression& node, const ExpressionPtr& part) const {
  if (part) node.depth = std::max(node.depth, part->depth + 1);
  if (node.depth > kDeepest)
    refuse(fmt::format(
        "more than {} operators, fields or filters stand on one another, which is the limit of a template",
        kDeepest));
}
void ExpressionParser::add(Expression& node, const CallArguments& parts) const {
  for (const auto& part : parts.positional) add(node, part);
  for (const auto& [name, part] : parts.named) add(node, part);
  add(node, parts.more);
  add(node, parts.more_named);
}

ExpressionPtr ExpressionParser::tuple(bool with_choice, bool in_brackets) {
  auto node = make<ListDisplay>();
  node->form = Form::kTuple;
  if (in_brackets && is_sign(")")) return node;
  ExpressionPtr first = with_choice ? expression() : or_expression();
  if (!is_sign(",")) return first;
  add(*node, first);
  node->parts.push_back(std::move(first));
  while (take_sign(",")) {
    if (is_sign(")") || now().kind == Kind::kBlockEnd || now().kind == Kind::kValueEnd || is_name("in"))
      break;
    node->parts.push_back(with_choice ? expression() : or_expression());
    add(*node, node->parts.back());
  }
  return node;
}

Target ExpressionParser::target(bool may_be_field) {
  const auto one = [&] {
    const Level level(*this);
    Target made;
    if (take_sign("(")) {
      made = target(may_be_field);
      expect_sign(")");
      return made;
    }
    made.name = take_variable();
    if (may_be_field && take_sign(".")) made.field = take_any_name("the name of a field");
    return made;
  };
  Target first = one();
  if (!is_sign(",")) return first;
  Target several;
  several.parts.push_back(std::move(first));
  while (take_sign(",")) {
    if (is_name("in") || is_sign("=") || is_sign(")")) break;
    several.parts.push_back(one());
  }
  return several;
}

ExpressionPtr ExpressionParser::expression() {
  const Level level(*this);
  ExpressionPtr made = or_expression();
  while (is_name("if")) {
    auto node = make<Choice>();
    ++at_;
    node->yes = std::move(made);
    node->condition = or_expression();
    if (take_name("else")) node->no = expression();
    for (const auto* part : {&node->yes, &node->condition, &node->no}) add(*node, *part);
    made = std::move(node);
  }
  return made;
}

// left SIGN right SIGN ..., from the left
template <class Operand, class IsSign>
ExpressionPtr ExpressionParser::chain(const Operand& operand, const IsSign& is_sign_here) {
  ExpressionPtr left = operand();
  while (is_sign_here()) {
    auto node = make<Binary>();
    node->sign = tokens_[at_++].text;
    node->left = std::move(left);
    node->right = operand();
    add(*node, node->left);
    add(*node, node->right);
    left = std::move(node);
  }
  return left;
}

ExpressionPtr ExpressionParser::or_expression() {
  return chain([&] { return and_expression(); }, [&] { return is_name("or"); });
}
ExpressionPtr ExpressionParser::and_expression() {
  return chain([&] { return not_expression(); }, [&] { return is_name("and"); });
}
ExpressionPtr ExpressionParser::not_expression() {
  if (!is_name("not")) return comparison();
  const Level level(*this);
  auto node = make<Unary>();
  node->sign = tokens_[at_++].text;
  node->operand = not_expression();
  add(*node, node->operand);
  return node;
}

std::string ExpressionParser::take_comparison() {
  static constexpr std::array kSigns{"==", "!=", "<", "<=", ">", ">="};
  if (now().kind == Kind::kSign && std::ranges::find(kSigns, now().text) != kSigns.end())
    return tokens_[at_++].text;
  if (take_name("in")) return "in";
  if (!is_name("not") || next().kind != Kind::kName || next().text != "in") return "";
  at_ += 2;
  return "not in";
}

ExpressionPtr ExpressionParser::comparison() {
  auto node = make<Comparison>();
  node->first = sum();
  add(*node, node->first);
  for (std::string sign; !(sign = take_comparison()).empty();) {
    node->rest.emplace_back(std::move(sign), sum());
    add(*node, node->rest.back().second);
  }
  return node->rest.empty() ? std::move(node->first) : std::move(node);
}

ExpressionPtr ExpressionParser::sum() {
  return chain([&] { return joined(); }, [&] { return is_sign("+") || is_sign("-"); });
}
ExpressionPtr ExpressionParser::joined() {
  return chain([&] { return product(); }, [&] { return is_sign("~"); });
}
ExpressionPtr ExpressionParser::product() {
  return chain([&] { return power(); },
               [&] { return is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%"); });
}
ExpressionPtr ExpressionParser::power() {
  return chain([&] { return unary(true); }, [&] { return is_sign("**"); });
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const Level level(*this);
  ExpressionPtr made;
  if (is_sign("-") || is_sign("+")) {
    auto node = make<Unary>();
    node->sign = tokens_[at_++].text;
    node->operand = unary(false);
    add(*node, node->operand);
    made = std::move(node);
  } else {
    made = primary();
  }
  made = with_postfixes(std::move(made));
  return with_filters ? with_filters_and_tests(std::move(made)) : std::move(made);
}

}  // namespace tessera::jinja
