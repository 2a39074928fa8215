// Reads expressions from tokens.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/lexer.h"
#include "data/chat/nodes.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera::jinja {

class ExpressionParser {
 protected:
  ExpressionParser(std::vector<Token> tokens, const std::string& name)
      : tokens_(std::move(tokens)), name_(name) {}

  // Counts how deep expressions and statements are nested.
  struct Level {
    explicit Level(ExpressionParser& parser);
    ~Level() { --parser.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ExpressionParser& parser;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  [[noreturn]] void refuse(const std::string& why) const { fail("{}:{}: {}", name_, now().line, why); }
  std::string found() const;
  bool is_sign(std::string_view sign) const { return now().kind == Token::Kind::kSign && now().text == sign; }
  bool is_name(std::string_view name) const { return now().kind == Token::Kind::kName && now().text == name; }
  bool take_sign(std::string_view sign);
  bool take_name(std::string_view name);
  void expect_sign(std::string_view sign);
  void expect_name(std::string_view name);
  std::string take_any_name(const char* what);
  template <class Node>
  std::unique_ptr<Node> make() const {
    auto node = std::make_unique<Node>();
    node->line = now().line;
    return node;
  }

  // a, b is a tuple.
  ExpressionPtr tuple(bool with_choice = true, bool in_brackets = false);
  ExpressionPtr expression();
  CallArguments arguments();
  // "upper | trim": the first one has no value
  ExpressionPtr filters();
  ExpressionPtr call_expression();  // of {% call %}
  Target target(bool may_be_field);
  std::string take_variable();

  std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int depth_ = 0;
  Tree tree_;

 private:
  static bool is_reserved(std::string_view name);
  // The deepest tree that is evaluated, and freed, on the stack
  void add(Expression& node, const ExpressionPtr& part) const;
  void add(Expression& node, const CallArguments& parts) const;
  template <class Operand, class IsSign>
  ExpressionPtr chain(const Operand& operand, const IsSign& is_sign_here);
  ExpressionPtr or_expression();
  ExpressionPtr and_expression();
  ExpressionPtr not_expression();
  ExpressionPtr comparison();
  std::string take_comparison();
  ExpressionPtr sum();
  ExpressionPtr joined();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr number();
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr with_postfixes(ExpressionPtr made);
  ExpressionPtr field(ExpressionPtr of);
  ExpressionPtr call(ExpressionPtr callee);
  ExpressionPtr subscript(ExpressionPtr of);
  ExpressionPtr slice(ExpressionPtr of, ExpressionPtr first);
  ExpressionPtr with_filters_and_tests(ExpressionPtr made);
  ExpressionPtr filter(ExpressionPtr of);
  ExpressionPtr test(ExpressionPtr of);
  bool begins_argument() const;
};

}  // namespace tessera::jinja
