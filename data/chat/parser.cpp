#include "data/chat/parser.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "data/chat/filters.h"
#include "data/chat/lexer.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera::jinja {
namespace {

using Kind = Token::Kind;

constexpr int kMostNested = 200;  // statements and expressions within one another

class Parser {
 public:
  Parser(std::vector<Token> tokens, const std::string& name) : tokens_(std::move(tokens)), name_(name) {}

  Tree run() {
    tree_.statements = statements({});
    return std::move(tree_);
  }

 private:
  // Counts how deep expressions and statements are nested.
  struct Level {
    explicit Level(Parser& parser) : parser(parser) {
      if (++parser.depth_ > kMostNested)
        parser.refuse(fmt::format("it is nested more than {} deep", kMostNested));
    }
    ~Level() { --parser.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    Parser& parser;
  };

  const Token& now() const { return tokens_[at_]; }
  [[noreturn]] void refuse(const std::string& why) const { fail("{}:{}: {}", name_, now().line, why); }
  std::string found() const {
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
  bool is_sign(std::string_view sign) const { return now().kind == Kind::kSign && now().text == sign; }
  bool is_name(std::string_view name) const { return now().kind == Kind::kName && now().text == name; }
  bool take_sign(std::string_view sign) {
    if (!is_sign(sign)) return false;
    ++at_;
    return true;
  }
  bool take_name(std::string_view name) {
    if (!is_name(name)) return false;
    ++at_;
    return true;
  }
  void expect_sign(std::string_view sign) {
    if (!take_sign(sign)) refuse(fmt::format("expected {}, found {}", in_quotes(sign), found()));
  }
  void expect_name(std::string_view name) {
    if (!take_name(name)) refuse(fmt::format("expected {}, found {}", name, found()));
  }
  std::string take_any_name(const char* what) {
    if (now().kind != Kind::kName) refuse(fmt::format("expected {}, found {}", what, found()));
    return tokens_[at_++].text;
  }
  void end_block() {
    if (now().kind != Kind::kBlockEnd) refuse(fmt::format("expected %}}, found {}", found()));
    ++at_;
  }
  template <class Node>
  std::unique_ptr<Node> make() const {
    auto node = std::make_unique<Node>();
    node->line = now().line;
    return node;
  }

  // Up to a tag whose name is one of `ends`, which is the next token then
  Statements statements(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    Statements made;
    while (now().kind != Kind::kEnd) {
      if (now().kind == Kind::kData) {
        auto data = make<Data>();
        data->text = Text(now().text);
        ++at_;
        made.push_back(std::move(data));
      } else if (now().kind == Kind::kValueBegin) {
        auto output = make<Output>();
        ++at_;
        output->of = tuple();
        if (now().kind != Kind::kValueEnd) refuse(fmt::format("expected }}}}, found {}", found()));
        ++at_;
        made.push_back(std::move(output));
      } else {
        ++at_;  // {%
        if (now().kind == Kind::kName && std::ranges::find(ends, now().text) != ends.end()) return made;
        made.push_back(statement(ends));
      }
    }
    if (ends.size() > 0)
      refuse(fmt::format("expected {{% {} %}}, found the end of the template", *(ends.end() - 1)));
    return made;
  }

  std::unique_ptr<const Statement> statement(std::initializer_list<std::string_view> ends) {
    if (is_name("if")) return if_statement();
    if (is_name("for")) return for_statement();
    if (is_name("set")) return set_statement();
    if (is_name("macro")) return macro();
    if (is_name("generation")) return generation();
    if (is_name("break") || is_name("continue")) return jump();
    if (now().kind == Kind::kName && (now().text.starts_with("end") || now().text.starts_with("el")))
      refuse(ends.size() == 0
                 ? fmt::format("{{% {} %}} has nothing to end", now().text)
                 : fmt::format("expected {{% {} %}}, found {{% {} %}}", *(ends.end() - 1), now().text));
    refuse(
        fmt::format("the statement {} is not supported; known are if, for, set, macro, generation, break and "
                    "continue",
                    found()));
  }

  std::unique_ptr<const Statement> if_statement() {
    auto node = make<If>();
    while (true) {  // at "if" or "elif"
      ++at_;
      ExpressionPtr condition = tuple();
      end_block();
      node->branches.emplace_back(std::move(condition), statements({"elif", "else", "endif"}));
      if (is_name("elif")) continue;
      if (take_name("else")) {
        end_block();
        node->branches.emplace_back(nullptr, statements({"endif"}));
      }
      expect_name("endif");
      end_block();
      return node;
    }
  }

  std::vector<std::string> targets() {
    std::vector<std::string> names{take_target()};
    while (take_sign(",")) names.push_back(take_target());
    return names;
  }
  std::string take_target() {
    const std::string name = take_any_name("the name of a variable");
    if (is_reserved(name)) refuse(fmt::format("{} is no name of a variable", name));
    return name;
  }
  static bool is_reserved(std::string_view name) {
    static constexpr std::array kReserved{"and", "or",   "not",  "in",    "is",
                                          "if",  "else", "true", "false", "none"};
    return std::ranges::find(kReserved, name) != kReserved.end();
  }

  std::unique_ptr<const Statement> for_statement() {
    auto node = make<For>();
    ++at_;
    const bool brackets = take_sign("(");
    node->targets = targets();
    if (brackets) expect_sign(")");
    expect_name("in");
    node->over = tuple(false);
    if (take_name("if")) node->condition = expression();
    if (is_name("recursive")) refuse("a recursive for is not supported");
    end_block();
    ++loops_;
    node->body = statements({"else", "endfor"});
    --loops_;
    if (take_name("else")) {
      end_block();
      node->otherwise = statements({"endfor"});
    }
    expect_name("endfor");
    end_block();
    return node;
  }

  std::unique_ptr<const Statement> set_statement() {
    auto node = make<Set>();
    ++at_;
    node->targets = targets();
    if (node->targets.size() == 1 && take_sign(".")) node->field = take_any_name("the name of a field");
    if (take_sign("=")) {
      node->to = tuple();
      end_block();
      return node;
    }
    if (node->targets.size() > 1 || !node->field.empty())
      refuse(fmt::format("expected =, found {}", found()));
    if (is_sign("|")) refuse("a filter on {% set %} with a body is not supported");
    end_block();
    ++captures_;
    node->body = statements({"endset"});
    --captures_;
    expect_name("endset");
    end_block();
    return node;
  }

  std::unique_ptr<const Statement> macro() {
    auto node = make<Macro>();
    if (loops_ > 0 || captures_ > 0) refuse("a macro within a for, a set or another macro is not supported");
    ++at_;
    node->name = take_target();
    expect_sign("(");
    while (!take_sign(")")) {
      std::string name = take_target();
      ExpressionPtr fallback = take_sign("=") ? expression() : nullptr;
      if (!fallback && !node->parameters.empty() && node->parameters.back().second)
        refuse(fmt::format("the parameter {} needs a default, since the one before it has one", name));
      node->parameters.emplace_back(std::move(name), std::move(fallback));
      if (!is_sign(")")) expect_sign(",");
    }
    end_block();
    const int loops = std::exchange(loops_, 0);
    ++captures_;
    node->body = statements({"endmacro"});
    --captures_;
    loops_ = loops;
    expect_name("endmacro");
    end_block();
    return node;
  }

  std::unique_ptr<const Statement> generation() {
    if (captures_ > 0) refuse("{% generation %} within a macro or a set is not supported");
    auto node = make<Generation>();
    ++at_;
    end_block();
    tree_.marks_generation = true;
    node->body = statements({"endgeneration"});
    expect_name("endgeneration");
    end_block();
    return node;
  }

  std::unique_ptr<const Statement> jump() {
    if (loops_ == 0) refuse(fmt::format("{} stands in no for", now().text));
    auto node = make<Jump>();
    node->ends_loop = take_any_name("break") == "break";
    end_block();
    return node;
  }

  // a, b is a list.
  ExpressionPtr tuple(bool with_choice = true) {
    auto node = make<ListDisplay>();
    ExpressionPtr first = with_choice ? expression() : or_expression();
    if (!is_sign(",")) return first;
    node->parts.push_back(std::move(first));
    while (take_sign(",")) {
      if (is_sign(")") || now().kind == Kind::kBlockEnd || now().kind == Kind::kValueEnd) break;
      node->parts.push_back(with_choice ? expression() : or_expression());
    }
    return node;
  }

  ExpressionPtr expression() {
    const Level level(*this);
    ExpressionPtr made = or_expression();
    while (is_name("if")) {
      auto node = make<Choice>();
      ++at_;
      node->yes = std::move(made);
      node->condition = or_expression();
      if (take_name("else")) node->no = expression();
      made = std::move(node);
    }
    return made;
  }

  // left SIGN right SIGN ..., from the left
  template <class Operand, class IsSign>
  ExpressionPtr chain(const Operand& operand, const IsSign& is_sign_here) {
    ExpressionPtr left = operand();
    while (is_sign_here()) {
      auto node = make<Binary>();
      node->sign = tokens_[at_++].text;
      node->left = std::move(left);
      node->right = operand();
      left = std::move(node);
    }
    return left;
  }

  ExpressionPtr or_expression() {
    return chain([&] { return and_expression(); }, [&] { return is_name("or"); });
  }
  ExpressionPtr and_expression() {
    return chain([&] { return not_expression(); }, [&] { return is_name("and"); });
  }
  ExpressionPtr not_expression() {
    if (!is_name("not")) return comparison();
    const Level level(*this);
    auto node = make<Unary>();
    node->sign = tokens_[at_++].text;
    node->operand = not_expression();
    return node;
  }

  ExpressionPtr comparison() {
    auto node = make<Comparison>();
    node->first = sum();
    while (true) {
      static constexpr std::array kSigns{"==", "!=", "<", "<=", ">", ">="};
      std::string sign;
      if (now().kind == Kind::kSign && std::ranges::find(kSigns, now().text) != kSigns.end()) {
        sign = tokens_[at_++].text;
      } else if (take_name("in")) {
        sign = "in";
      } else if (is_name("not") && tokens_[at_ + 1].kind == Kind::kName && tokens_[at_ + 1].text == "in") {
        at_ += 2;
        sign = "not in";
      } else {
        break;
      }
      node->rest.emplace_back(std::move(sign), sum());
    }
    return node->rest.empty() ? std::move(node->first) : std::move(node);
  }

  ExpressionPtr sum() {
    return chain([&] { return joined(); }, [&] { return is_sign("+") || is_sign("-"); });
  }
  ExpressionPtr joined() {
    return chain([&] { return product(); }, [&] { return is_sign("~"); });
  }
  ExpressionPtr product() {
    return chain([&] { return power(); },
                 [&] { return is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%"); });
  }
  ExpressionPtr power() {
    ExpressionPtr made = unary(true);
    if (is_sign("**")) refuse("the operator ** is not supported");
    return made;
  }

  ExpressionPtr unary(bool with_filters) {
    const Level level(*this);
    ExpressionPtr made;
    if (is_sign("-") || is_sign("+")) {
      auto node = make<Unary>();
      node->sign = tokens_[at_++].text;
      node->operand = unary(false);
      made = std::move(node);
    } else {
      made = primary();
    }
    made = with_postfixes(std::move(made));
    return with_filters ? with_filters_and_tests(std::move(made)) : std::move(made);
  }

  ExpressionPtr primary() {
    const Token& token = now();
    if (token.kind == Kind::kName) {
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
    if (token.kind == Kind::kText) {
      std::string text;
      while (now().kind == Kind::kText) text += tokens_[at_++].text;
      tree_.names.insert(text);
      return literal(Text(text), token.line);
    }
    if (token.kind == Kind::kWhole || token.kind == Kind::kReal) return number();
    if (take_sign("(")) {
      if (take_sign(")")) return literal(List{}, token.line);
      ExpressionPtr made = tuple();
      expect_sign(")");
      return made;
    }
    if (is_sign("[")) return list();
    if (is_sign("{")) return dict();
    refuse(fmt::format("expected a value, found {}", found()));
  }

  static std::optional<Value> constant_of(std::string_view name) {
    if (name == "true" || name == "True") return Value(true);
    if (name == "false" || name == "False") return Value(false);
    if (name == "none" || name == "None") return Value();
    return std::nullopt;
  }
  static ExpressionPtr literal(Value value, int line) {
    auto node = std::make_unique<Literal>();
    node->line = line;
    node->literal = std::move(value);
    return node;
  }
  ExpressionPtr number() {
    const Token& token = tokens_[at_++];
    const char* const end = token.text.data() + token.text.size();
    if (token.kind == Kind::kReal) {
      double number = 0;
      std::from_chars(token.text.data(), end, number);
      return literal(number, token.line);
    }
    int64_t number = 0;
    if (std::from_chars(token.text.data(), end, number).ec != std::errc()) refuse("a number is too large");
    return literal(number, token.line);
  }
  ExpressionPtr list() {
    auto node = make<ListDisplay>();
    ++at_;
    while (!take_sign("]")) {
      node->parts.push_back(expression());
      if (!is_sign("]")) expect_sign(",");
    }
    return node;
  }
  ExpressionPtr dict() {
    auto node = make<DictDisplay>();
    ++at_;
    while (!take_sign("}")) {
      ExpressionPtr key = expression();
      expect_sign(":");
      node->fields.emplace_back(std::move(key), expression());
      if (!is_sign("}")) expect_sign(",");
    }
    return node;
  }

  ExpressionPtr with_postfixes(ExpressionPtr made) {
    while (true) {
      if (is_sign(".")) {
        auto node = make<Attribute>();
        ++at_;
        if (now().kind == Kind::kWhole) refuse("a number after a dot is not supported; use [ ]");
        node->of = std::move(made);
        node->name = take_any_name("the name of a field");
        tree_.names.insert(node->name);
        made = std::move(node);
      } else if (is_sign("[")) {
        made = subscript(std::move(made));
      } else if (is_sign("(")) {
        made = call(std::move(made));
      } else {
        return made;
      }
    }
  }

  ExpressionPtr call(ExpressionPtr callee) {
    auto node = make<Call>();
    node->callee = std::move(callee);
    node->arguments = arguments();
    return node;
  }

  ExpressionPtr subscript(ExpressionPtr of) {
    auto slice = make<Slice>();
    ++at_;
    if (!is_sign(":")) slice->first = expression();
    if (take_sign("]")) {
      auto node = make<Subscript>();
      node->line = slice->line;
      node->of = std::move(of);
      node->key = std::move(slice->first);
      return node;
    }
    slice->of = std::move(of);
    expect_sign(":");
    if (!is_sign(":") && !is_sign("]")) slice->last = expression();
    if (take_sign(":") && !is_sign("]")) slice->step = expression();
    expect_sign("]");
    return slice;
  }

  CallArguments arguments() {
    CallArguments made;
    expect_sign("(");
    while (!take_sign(")")) {
      if (is_sign("*") || is_sign("**")) refuse("arguments as a list with * are not supported");
      const bool named =
          now().kind == Kind::kName && tokens_[at_ + 1].kind == Kind::kSign && tokens_[at_ + 1].text == "=";
      if (named) {
        std::string name = now().text;
        at_ += 2;
        made.named.emplace_back(std::move(name), expression());
      } else {
        if (!made.named.empty()) refuse("an argument without a name follows one with a name");
        made.positional.push_back(expression());
      }
      if (!is_sign(")")) expect_sign(",");
    }
    return made;
  }

  ExpressionPtr with_filters_and_tests(ExpressionPtr made) {
    while (true) {
      if (is_sign("|")) {
        auto node = make<Filter>();
        ++at_;
        node->of = std::move(made);
        node->name = take_any_name("the name of a filter");
        if (!is_filter(node->name))
          refuse(fmt::format("the filter {} is not supported; known are {}", node->name, names_of_filters()));
        if (is_sign("(")) node->arguments = arguments();
        made = std::move(node);
      } else if (take_name("is")) {
        made = test(std::move(made));
      } else if (is_sign("(")) {
        made = call(std::move(made));
      } else {
        return made;
      }
    }
  }

  ExpressionPtr test(ExpressionPtr of) {
    auto negation = make<Unary>();
    const bool negated = take_name("not");
    auto node = make<Test>();
    node->of = std::move(of);
    node->name = take_any_name("the name of a test");
    if (!is_test(node->name))
      refuse(fmt::format("the test {} is not supported; known are {}", node->name, names_of_tests()));
    if (is_sign("(")) {
      node->arguments = arguments();
    } else if (begins_argument()) {  // "is divisibleby 2"
      if (is_name("is")) refuse("tests that follow one another are not supported; use brackets");
      node->arguments.positional.push_back(with_postfixes(primary()));
    }
    if (!negated) return node;
    negation->sign = "not";
    negation->operand = std::move(node);
    return negation;
  }
  bool begins_argument() const {
    static constexpr std::array kOthers{"else", "or", "and", "if", "in", "not"};
    if (now().kind == Kind::kName) return std::ranges::find(kOthers, now().text) == kOthers.end();
    return now().kind == Kind::kText || now().kind == Kind::kWhole || now().kind == Kind::kReal ||
           is_sign("[") || is_sign("{");
  }

  const std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  int captures_ = 0;  // macros and sets with a body around this place
  Tree tree_;
};

}  // namespace

Tree parse(std::string_view source, const std::string& name) {
  return Parser(tokenize(source, name), name).run();
}

}  // namespace tessera::jinja
