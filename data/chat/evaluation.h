// One evaluation of a template.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/jinja.h"
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
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

  // A nested scope: of an iteration or a macro. What is set in it ends with it.
  class Scope {
   public:
    Scope(Evaluation& e, Scope* parent) : e_(e), before_(std::exchange(e.scope_, this)), parent_(parent) {}
    ~Scope() { e_.scope_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend Evaluation;
    Evaluation& e_;
    Scope *before_, *parent_;
    std::vector<std::pair<std::string_view, Value>> variables_;
  };

  Scope* scope() { return scope_; }
  Scope* outermost() { return &outermost_; }
  Value variable(const std::string& name) const;
  void set(std::string_view name,
           Value value);  // in the innermost scope; `name` lives as long as the template

  void run(const Statements& statements);
  Text captured(const Statements& statements);  // what they write
  void write(const Text& text, int line);
  void count_step(int line);
  Arguments arguments(const CallArguments& nodes);

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
  int calls = 0;  // of macros, within one another

 private:
  Value global(std::string_view name) const;

  const std::string& name_;
  const Dict& given_;
  const std::tm now_;
  Text* out_ = &result.text;
  int64_t steps_ = 0;
  Scope* scope_ = nullptr;
  Scope outermost_;
};

}  // namespace tessera::jinja
