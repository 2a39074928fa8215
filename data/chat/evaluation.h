// One evaluation of a template.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/jinja.h"
#include "data/chat/loop.h"
#include "data/chat/nodes.h"
#include "kernels/base/check.h"

namespace tessera::jinja {

// An error that already says where in the template it happened
class PlacedError : public Error {
  using Error::Error;
};

enum class Going : uint8_t { kOn, kBreak, kContinue };

class Evaluation {
 public:
  Evaluation(const std::string& name, const Dict& variables, const std::tm& now);
  ~Evaluation();
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

  // A nested scope: of an iteration or a macro. What is set in it ends with it.
  class Scope {
   public:
    Scope(Evaluation& e, Scope* parent)
        : e_(e), before_(std::exchange(e.scope_, this)), parent_(parent), number_(++e.scopes_) {}
    ~Scope() { e_.scope_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend Evaluation;
    Evaluation& e_;
    Scope *before_, *parent_;
    const int64_t number_;
    std::vector<std::pair<std::string_view, Value>> variables_;
  };
  // A scope that may have ended
  struct ScopeId {
    Scope* scope;
    int64_t number;
  };

  // One more call on the stack. Error: there are too many
  class Level {
   public:
    explicit Level(Evaluation& e);
    ~Level() { --e_.levels_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Evaluation& e_;
  };

  Scope* scope() { return scope_; }
  ScopeId scope_id() const { return {scope_, scope_->number_}; }
  Scope* running(ScopeId id) const;  // Error: it has ended
  Value variable(const std::string& name) const;
  void set(std::string_view name,
           Value value);  // in the innermost scope; `name` lives as long as the template
  void set(const Target& target, const Value& value);
  // Namespaces live as long as the evaluation: what one of them holds may hold it.
  Value made_namespace(Dict fields);

  void run(const Statements& statements);
  Text captured(const Statements& statements) {  // what they write
    return written([&] { run(statements); });
  }
  template <class Work>
  Text written(const Work& work) {  // what `work` writes
    struct Redirect {
      Text*& out;
      Text* const before;
      ~Redirect() { out = before; }
    };
    Text text;
    const Redirect redirect{out_, std::exchange(out_, &text)};
    work();
    return text;
  }
  void write(const Text& text);
  Arguments arguments(const CallArguments& nodes);
  Value value(const ExpressionPtr& node);
  Value called(const Value& function, const Arguments& arguments);

  // Adds template and line to an error of `work`.
  template <class Work>
  auto at(int line, const Work& work) {
    try {
      return work();
    } catch (const PlacedError&) {
      throw;
    } catch (const Error& error) {
      throw PlacedError(fmt::format("{}:{}: {}", name_, line, error.what()));
    }
  }

  Rendered result;
  Going going = Going::kOn;

 private:
  const std::string& name_;
  const Dict& given_;
  const std::tm now_;
  Text* out_ = &result.text;
  int64_t scopes_ = 0;
  int levels_ = 0;
  std::vector<std::shared_ptr<Namespace>, Counted<std::shared_ptr<Namespace>>> namespaces_;
  Scope* scope_ = nullptr;
  Scope outermost_;
};

// namespace(), dict(), range() and the other functions that a template finds. Undefined: there is no such
// name
Value global_function(std::string_view name, Evaluation& e, const std::tm& now);

}  // namespace tessera::jinja
