// A template as a tree: what its parser makes and its evaluation walks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/value.h"

namespace tessera::jinja {

class Evaluation;

struct Expression {
  int line = 0;
  virtual ~Expression() = default;
  virtual Value value(Evaluation& e) const = 0;
};
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Statement {
  int line = 0;
  virtual ~Statement() = default;
  virtual void run(Evaluation& e) const = 0;
};
using Statements = std::vector<std::unique_ptr<const Statement>>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Literal : Expression {
  Value literal;
  Value value(Evaluation&) const override { return literal; }
};
struct Name : Expression {
  std::string name;
  Value value(Evaluation& e) const override;
};
struct ListDisplay : Expression {  // [a, b], and the tuple a, b
  std::vector<ExpressionPtr> parts;
  Value value(Evaluation& e) const override;
};
struct DictDisplay : Expression {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> fields;
  Value value(Evaluation& e) const override;
};
struct Attribute : Expression {  // of.name
  ExpressionPtr of;
  std::string name;
  Value value(Evaluation& e) const override;
};
struct Subscript : Expression {  // of[key]
  ExpressionPtr of, key;
  Value value(Evaluation& e) const override;
};
struct Slice : Expression {  // of[first:last:step]
  ExpressionPtr of, first, last, step;
  Value value(Evaluation& e) const override;
};
struct Call : Expression {
  ExpressionPtr callee;
  CallArguments arguments;
  Value value(Evaluation& e) const override;
};
struct Filter : Expression {  // of | name(arguments)
  ExpressionPtr of;
  std::string name;
  CallArguments arguments;
  Value value(Evaluation& e) const override;
};
struct Test : Expression {  // of is name(arguments)
  ExpressionPtr of;
  std::string name;
  CallArguments arguments;
  Value value(Evaluation& e) const override;
};
struct Unary : Expression {  // "not", "-" or "+"
  std::string sign;
  ExpressionPtr operand;
  Value value(Evaluation& e) const override;
};
struct Binary : Expression {  // arithmetic, ~, and, or
  std::string sign;
  ExpressionPtr left, right;
  Value value(Evaluation& e) const override;
};
struct Comparison : Expression {  // a < b <= c; also "in" and "not in"
  ExpressionPtr first;
  std::vector<std::pair<std::string, ExpressionPtr>> rest;
  Value value(Evaluation& e) const override;
};
struct Choice : Expression {  // yes if condition else no
  ExpressionPtr yes, condition, no;
  Value value(Evaluation& e) const override;
};

struct Data : Statement {
  Text text;
  void run(Evaluation& e) const override;
};
struct Output : Statement {  // {{ of }}
  ExpressionPtr of;
  void run(Evaluation& e) const override;
};
struct If : Statement {
  std::vector<std::pair<ExpressionPtr, Statements>> branches;  // no condition: else
  void run(Evaluation& e) const override;
};
struct For : Statement {
  std::vector<std::string> targets;
  ExpressionPtr over, condition;
  Statements body, otherwise;
  void run(Evaluation& e) const override;
};
struct Set : Statement {
  std::vector<std::string> targets;
  std::string field;  // of the only target, a namespace
  ExpressionPtr to;   // none: what `body` writes
  Statements body;
  void run(Evaluation& e) const override;
};
struct Macro : Statement {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with their defaults
  Statements body;
  void run(Evaluation& e) const override;
  Value call(Evaluation& e, const Arguments& arguments) const;
};
struct Generation : Statement {  // what the model is to learn to write
  Statements body;
  void run(Evaluation& e) const override;
};
struct Jump : Statement {  // break, continue
  bool ends_loop = false;
  void run(Evaluation& e) const override;
};

}  // namespace tessera::jinja
