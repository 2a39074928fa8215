// The options of a program or of one of its subcommands. They are parsed by CLI11, which only options.cpp and
// command_line.cpp include, since its header takes ten seconds to compile.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/words.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tessera {

// Every function returns the option itself.
class Option {
 public:
  explicit Option(CLI::Option& option) : option_(&option) {}

  Option& required();
  // The kind of the value, in --help and in messages. Kinds are checked: FILE, FOLDER and PATH must not be
  // empty, N and K are whole numbers, P is a number.
  Option& type_name(const std::string& name);
  Option& show_default();  // the variable's present value, in --help
  Option& show_default(const std::string& text);
  Option& hidden();  // --help does not show it

  Option& positive();
  Option& non_negative();
  Option& within(int64_t least, int64_t most);
  Option& one_of(const std::vector<std::string>& words);
  // The value may have a unit: 100M is 100000000 (also K and G).
  Option& with_unit();

  Option& separated_by(char separator);  // the values of a list
  Option& one_at_a_time();  // a list: each value follows the option's name, which may be given often

  Option& needs(const Option& other);
  Option& excludes(const Option& other);
  Option& excludes(const std::string& name);

 private:
  CLI::Option* option_;
};

class Options {
 public:
  Options(const std::string& description, const std::string& program);
  ~Options();
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  // `names`: "--config"; "config,--config" may also be given without the name. T: a text, a number, a bool, a
  // path, or a vector of texts or numbers.
  template <class T>
  Option add(const std::string& names, T& value, const std::string& help);
  // `set` gets the value. T: a text or an int64_t
  template <class T>
  Option add_function(const std::string& names, const std::function<void(const T&)>& set,
                      const std::string& help);
  // A flag is false or true; "--resume{newest}" is a text, "newest" if no value is given.
  template <class T>
  Option add_flag(const std::string& name, T& value, const std::string& help);
  Option add_flag_function(const std::string& name, const std::function<void()>& set,
                           const std::string& help);
  // The value is one of the words of an enum; an optional one has no value unless the option is given.
  template <HasWords E>
  Option add_word(const std::string& name, E& value, const std::string& help) {
    return add_word_for<E>(name, value, help);
  }
  template <HasWords E>
  Option add_word(const std::string& name, std::optional<E>& value, const std::string& help) {
    return add_word_for<E>(name, value, help);
  }

  Options& add_subcommand(const std::string& name, const std::string& description);
  void require_subcommand();

  void description(const std::string& text);  // at the top of --help
  void footer(const std::string& text);

  bool parsed() const;  // for a subcommand: whether it was the one given
  bool given(const std::string& name) const;
  CLI::App& app() const { return *app_; }

 private:
  explicit Options(CLI::App& subcommand);

  template <HasWords E, class Target>
  Option add_word_for(const std::string& name, Target& value, const std::string& help) {
    std::vector<std::string> known;
    for (const auto& entry : words_of(E{})) known.emplace_back(entry.word);
    return add_function<std::string>(
               name, [&value](const std::string& word) { value = *from_word<E>(word); }, help)
        .one_of(known);
  }

  std::unique_ptr<CLI::App> owned_;  // null in a subcommand
  CLI::App* app_;
  std::vector<std::unique_ptr<Options>> subcommands_;
};

}  // namespace tessera
