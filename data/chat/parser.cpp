#include "data/chat/parser.h"

#include <algorithm>
#include <array>

#include "data/chat/expression_parser.h"

namespace tessera::jinja {
namespace {

using Kind = Token::Kind;

class Parser : public ExpressionParser {
 public:
  Parser(std::vector<Token> tokens, const std::string& name) : ExpressionParser(std::move(tokens), name) {}

  Tree run() {
    tree_.statements = statements({});
    return std::move(tree_);
  }

 private:
  void end_block() {
    if (now().kind != Kind::kBlockEnd) refuse(fmt::format("expected %}}, found {}", found()));
    ++at_;
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
  // Up to the tag `end`, and past it
  Statements body(std::string_view end) {
    Statements made = statements({end});
    expect_name(end);
    end_block();
    return made;
  }

  std::unique_ptr<const Statement> statement(std::initializer_list<std::string_view> ends) {
    if (is_name("if")) return if_statement();
    if (is_name("for")) return for_statement();
    if (is_name("set")) return set_statement();
    if (is_name("with")) return with_statement();
    if (is_name("filter")) return filter_block();
    if (is_name("macro")) return macro();
    if (is_name("call")) return call_block();
    if (is_name("generation")) return generation();
    if (is_name("break") || is_name("continue")) return jump();
    if (now().kind == Kind::kName && (now().text.starts_with("end") || now().text.starts_with("el")))
      refuse(ends.size() == 0
                 ? fmt::format("{{% {} %}} has nothing to end", now().text)
                 : fmt::format("expected {{% {} %}}, found {{% {} %}}", *(ends.end() - 1), now().text));
    refuse(fmt::format(
        "the statement {} is not supported; known are if, for, set, with, filter, macro, call, raw, "
        "generation, break and continue",
        found()));
  }

  std::unique_ptr<const Statement> if_statement() {
    auto node = make<If>();
    while (true) {  // at "if" or "elif"
      ++at_;
      ExpressionPtr condition = tuple(false);
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

  std::unique_ptr<const Statement> for_statement() {
    auto node = make<For>();
    ++at_;
    node->target = target(false);
    expect_name("in");
    node->over = tuple(false);
    if (take_name("if")) node->condition = expression();
    node->recursive = take_name("recursive");
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

  // What a body writes is a value, so {% generation %} has no place in the text there.
  template <class Read>
  auto captured(const Read& read) {
    const int loops = std::exchange(loops_, 0);
    ++captures_;
    auto made = read();
    --captures_;
    loops_ = loops;
    return made;
  }

  std::unique_ptr<const Statement> set_statement() {
    auto node = make<Set>();
    ++at_;
    node->target = target(true);
    if (take_sign("=")) {
      node->to = tuple();
      end_block();
      return node;
    }
    if (!node->target.parts.empty()) refuse(fmt::format("expected =, found {}", found()));
    if (take_sign("|")) node->filters = filters();
    end_block();
    ++captures_;
    node->body = body("endset");
    --captures_;
    return node;
  }

  std::unique_ptr<const Statement> with_statement() {
    auto node = make<With>();
    ++at_;
    while (now().kind != Kind::kBlockEnd) {
      if (!node->values.empty()) expect_sign(",");
      Target name{.name = take_variable(), .field = {}, .parts = {}};
      expect_sign("=");
      node->values.emplace_back(std::move(name), expression());
    }
    end_block();
    node->body = body("endwith");
    return node;
  }

  std::unique_ptr<const Statement> filter_block() {
    auto node = make<FilterBlock>();
    ++at_;
    node->filters = filters();
    end_block();
    ++captures_;
    node->body = body("endfilter");
    --captures_;
    return node;
  }

  void parameters(Macro& macro) {
    expect_sign("(");
    while (!take_sign(")")) {
      std::string name = take_variable();
      ExpressionPtr fallback = take_sign("=") ? expression() : nullptr;
      if (!fallback && !macro.parameters.empty() && macro.parameters.back().second)
        refuse(fmt::format("the parameter {} needs a default, since the one before it has one", name));
      macro.parameters.emplace_back(std::move(name), std::move(fallback));
      if (!is_sign(")")) expect_sign(",");
    }
  }
  void macro_body(Macro& macro, std::string_view end) {
    const size_t first = at_;
    macro.body = captured([&] { return body(end); });
    for (size_t i = first; i < at_; ++i) {
      if (tokens_[i].kind != Kind::kName) continue;
      macro.reads_varargs = macro.reads_varargs || tokens_[i].text == "varargs";
      macro.reads_kwargs = macro.reads_kwargs || tokens_[i].text == "kwargs";
      macro.reads_caller = macro.reads_caller || tokens_[i].text == "caller";
    }
  }

  std::unique_ptr<const Statement> macro() {
    auto node = make<Macro>();
    ++at_;
    node->name = take_variable();
    parameters(*node);
    end_block();
    macro_body(*node, "endmacro");
    return node;
  }

  std::unique_ptr<const Statement> call_block() {
    auto node = make<CallBlock>();
    ++at_;
    node->caller.line = node->line;
    node->caller.name = "caller";
    if (is_sign("(")) parameters(node->caller);
    node->call = call_expression();
    end_block();
    macro_body(node->caller, "endcall");
    return node;
  }

  std::unique_ptr<const Statement> generation() {
    if (captures_ > 0) refuse("{% generation %} within a macro or a set is not supported");
    auto node = make<Generation>();
    ++at_;
    end_block();
    tree_.marks_generation = true;
    node->body = body("endgeneration");
    return node;
  }

  std::unique_ptr<const Statement> jump() {
    if (loops_ == 0) refuse(fmt::format("{} stands in no for", now().text));
    auto node = make<Jump>();
    node->ends_loop = take_any_name("break") == "break";
    end_block();
    return node;
  }

  int loops_ = 0;
  int captures_ = 0;  // macros and sets with a body around this place
};

}  // namespace

Tree parse(std::string_view source, const std::string& name) {
  return Parser(tokenize(source, name), name).run();
}

}  // namespace tessera::jinja
