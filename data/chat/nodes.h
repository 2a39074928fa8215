// A template as a tree: what its parser makes and its evaluation walks.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/value.h"

namespace tessera::jinja {

class Evaluation;

struct Expression {
  int line = 0;
  int depth = 1;  // of the tree below it
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
  ExpressionPtr more, more_named;  // *more, **more_named
};

struct Literal : Expression {
  Value literal;
  Value value(Evaluation&) const override { return literal; }
};
struct Name : Expression {
  std::string name;
  Value value(Evaluation& e) const override;
};
struct ListDisplay : Expression {  // [a, b]; (a, b)
  Form form = Form::kList;
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
  ExpressionPtr of;           // none: what the body of a block writes
  std::string name;
  CallArguments arguments;
  Value value(Evaluation& e) const override;
  Value applied(Evaluation& e, const Value& to) const;
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

// What is set: a variable, a field of a namespace, or several of them
struct Target {
  std::string name, field;
  std::vector<Target> parts;
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
  Target target;
  ExpressionPtr over, condition;
  Statements body, otherwise;
  bool recursive = false;
  void run(Evaluation& e) const override;
};
struct Set : Statement {
  Target target;
  ExpressionPtr to;  // none: what `body` writes, through the filters, of which the first has no value
  Statements body;
  ExpressionPtr filters;
  void run(Evaluation& e) const override;
};
struct With : Statement {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Statements body;
  void run(Evaluation& e) const override;
};
struct FilterBlock : Statement {
  ExpressionPtr filters;
  Statements body;
  void run(Evaluation& e) const override;
};
struct Macro : Statement {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // with their defaults
  Statements body;
  bool reads_varargs = false, reads_kwargs = false, reads_caller = false;
  void run(Evaluation& e) const override;
  Value callable(Evaluation& e) const;
};
struct CallBlock : Statement {  // {% call(a) f() %}: f gets the body as the macro caller(a)
  std::unique_ptr<const Expression> call;
  Macro caller;
  void run(Evaluation& e) const override;
};
struct Generation : Statement {  // what the model is to learn to write
  Statements body;
  void run(Evaluation& e) const override;
};
struct Jump : Statement {  // break, continue
  bool ends_loop = false;
  void run(Evaluation& e) const override;
};

struct Tree {
  Statements statements;
  bool marks_generation = false;  // it has {% generation %}
  std::set<std::string> variables;
  std::set<std::string> names;  // attributes, keys and texts: a field that is not among them is not read
};

}  // namespace tessera::jinja
