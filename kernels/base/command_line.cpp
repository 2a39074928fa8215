#include "kernels/base/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/process.h"
#include "kernels/base/status_line.h"
#include "kernels/base/system_error.h"
#include "kernels/base/text.h"
#include "kernels/base/version.h"

namespace tessera {
namespace {

constexpr size_t kColumns = 100;    // of --help
constexpr size_t kHelpColumn = 30;  // at which the description of an option begins

// What other programs abbreviate
constexpr std::pair<std::string_view, std::string_view> kLetters[] = {
    {"-o", "--output"}, {"-c", "--config"}, {"-m", "--model"}, {"-p", "--prompt"}, {"-i", "--input"}};

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// The command in use: the subcommand, if one was given.
const CLI::App& command_of(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : command_of(*chosen.front());
}

std::string help_of(const CLI::App& app, const std::string& program) {
  const CLI::App& command = command_of(app);
  return fmt::format("see ./{}{} --help", program, &command == &app ? "" : " " + command.get_name());
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// The message for a word that no option and no argument took
std::string unexpected(const CommandLine& line, std::string_view word) {
  const CLI::App& command = command_of(line.options.app());
  const std::string name(word.substr(0, word.starts_with('-') ? word.find('=') : word.npos));
  const bool is_option = name.starts_with('-') && name.size() > 1;
  const std::vector<std::string> before =
      line.options.app().remaining(false);  // the subcommand, if there is one
  const bool at_top =
      &command == &line.options.app() || std::find(before.begin(), before.end(), word) != before.end();
  std::vector<std::string> known = is_option ? option_names(command) : std::vector<std::string>{};
  std::vector<std::string> elsewhere;  // the subcommands that have this option
  for (const CLI::App* subcommand : subcommands_of(line.options.app())) {
    const auto names = option_names(*subcommand);
    if (at_top && std::find(names.begin(), names.end(), name) != names.end())
      elsewhere.push_back(
          fmt::format("./{} {} {}", line.options.app().get_name(), subcommand->get_name(), name));
    if (!is_option && at_top) known.push_back(subcommand->get_name());
  }
  std::string text = fmt::format("{} is one argument too many", in_quotes(name));
  if (is_option) text = fmt::format("there is no option {}", name);
  if (!is_option && !known.empty()) text = fmt::format("there is no {} {}", line.subcommand, in_quotes(name));
  if (!elsewhere.empty())
    return fmt::format("{} here; it follows the name of a {}, as in {}", text, line.subcommand,
                       elsewhere.front());
  const std::string advice = line.advice ? line.advice(word) : "";
  if (!advice.empty()) return fmt::format("{}; {}", text, advice);
  for (const auto& [letter, usual] : kLetters)
    if (name == letter && std::find(known.begin(), known.end(), usual) != known.end())
      return fmt::format("{}; did you mean {}?", text, usual);
  const std::vector<std::string_view> candidates(known.begin(), known.end());
  const auto distance = [&](std::string_view candidate) {
    // One dash instead of two, or another case, is not another name.
    const auto bare = [](std::string_view option) {
      return lower(option.substr(std::min(option.find_first_not_of('-'), option.size())));
    };
    return edit_distance(bare(name), bare(candidate));
  };
  const auto near = nearest(candidates, name.size() - std::min<size_t>(2, name.size()), distance);
  if (!near.empty()) return fmt::format("{}; {}", text, did_you_mean(near));
  if (!is_option && !known.empty()) return fmt::format("{}; expected {}", text, join_words(candidates));
  return text;
}

// The type that --help shows, without what the value is checked for: N of N:POSITIVE
std::string type_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

bool is_one_of(const std::string& type, std::initializer_list<const char*> types) {
  return std::find(types.begin(), types.end(), type) != types.end();
}

bool takes_whole_number(const CLI::Option& option) { return is_one_of(type_of(option), {"INT", "N", "K"}); }

std::string expected_value(const CLI::Option& option) {
  if (takes_whole_number(option)) return "a whole number";
  const std::string type = type_of(option);
  return is_one_of(type, {"FLOAT", "P"}) ? "a number" : type;
}

// How an option that is required is given
std::string as_in(const CommandLine& line, const CLI::App& command, const std::string& name) {
  const CLI::Option* option = command.get_option_no_throw(name);
  if (option == nullptr) return "";
  const std::string type = option->get_type_name();
  const size_t words = type.find('{');  // "TEXT:{hf,gguf}"
  if (words != type.npos)
    return fmt::format(", one of {}", type.substr(words + 1, type.rfind('}') - words - 1));
  if (!option->get_positional()) return fmt::format(", as in {} {}", name, type_of(*option));
  const std::string program = line.options.app().get_name(),
                    subcommand = &command == &line.options.app() ? "" : command.get_name();
  return fmt::format(", as in ./{}{}{} {}", program, subcommand.empty() ? "" : " ", subcommand,
                     type_of(*option));
}

// CLI11's message, reworded where it is hard to read
std::string words_of(const CommandLine& line, const CLI::ParseError& error) {
  const CLI::App& command = command_of(line.options.app());
  std::string text = error.what();
  const auto replace = [&](std::string_view from, std::string_view to) {
    if (const size_t at = text.find(from); at != text.npos) text.replace(at, from.size(), to);
  };
  const std::string name = text.substr(0, text.find_first_of(": ="));
  const CLI::Option* option = command.get_option_no_throw(name);
  switch (static_cast<CLI::ExitCodes>(error.get_exit_code())) {
    case CLI::ExitCodes::RequiredError:
      if (text.find("subcommand") == text.npos) return text + as_in(line, command, name);
      text = fmt::format("{}:", line.request);
      for (const CLI::App* subcommand : subcommands_of(line.options.app()))
        text += fmt::format("{} ./{} {}", text.back() == ':' ? "" : ",", line.options.app().get_name(),
                            subcommand->get_name());
      return text;
    case CLI::ExitCodes::ArgumentMismatch:
      if (option == nullptr) return text;
      if (text.find("At Most") != text.npos || text.find("at most") != text.npos)
        return fmt::format("{} is given more than once", name);
      return fmt::format("{} must be followed by a value, {}, found none", name, expected_value(*option));
    case CLI::ExitCodes::ConversionError: {
      // "Could not convert: --arch = x"
      const size_t dashes = text.find("--"), equals = text.find(" = ");
      if (dashes == text.npos || equals == text.npos || equals < dashes) return text;
      const std::string long_name = text.substr(dashes, equals - dashes);
      option = command.get_option_no_throw(long_name);
      if (option == nullptr) return text;
      return fmt::format("{} must be {}, found {}", long_name, expected_value(*option),
                         in_quotes(text.substr(equals + 3)));
    }
    case CLI::ExitCodes::ValidationError: {
      // "--ranks: Value x not in range 1 to 65536", "--fit: width not in {context,batch}"
      const size_t at = text.find(" not in ");
      if (option == nullptr || at == text.npos) return text;
      std::string found = text.substr(name.size() + 2, at - name.size() - 2);
      if (found.starts_with("Value ")) found.erase(0, 6);
      std::string expected = text.substr(at + 8);
      const std::string type = option->get_type_name();
      if (expected.starts_with('{')) expected = "one of " + expected.substr(1, expected.rfind('}') - 1);
      if (expected.starts_with("range ")) {  // of later versions: "range [1 - 65536]"
        std::erase_if(expected, [](char c) { return c == '[' || c == ']'; });
        if (const size_t dash = expected.find(" - "); dash != expected.npos)
          expected.replace(dash, 3, " to ");
        expected = "a number in the " + expected;
      }
      if (type.find("POSITIVE") != type.npos) expected = "a positive number";
      if (type.find("NONNEGATIVE") != type.npos) expected = "a number of at least 0";
      return fmt::format("{} must be {}, found {}", name, expected, in_quotes(found));
    }
    default:
      replace(" excludes ", " cannot be combined with ");
      replace(" requires ", " needs ");
      return text;
  }
}

// What is wrong with a value that CLI11 takes; "": nothing. An empty file name is a mistake, often a shell
// variable that is not set. Of a number beyond int64 CLI11 makes the nearest that is one.
std::string wrong_value(const CLI::App& command) {
  const auto is_beyond = [](const std::string& text) {
    int64_t number = 0;
    return std::from_chars(text.data(), text.data() + text.size(), number).ec ==
           std::errc::result_out_of_range;
  };
  for (const CLI::Option* option : command.get_options()) {
    const std::string type = type_of(*option);
    const auto& results = option->results();
    if (is_one_of(type, {"FILE", "FOLDER", "PATH"}) &&
        std::find(results.begin(), results.end(), "") != results.end())
      return fmt::format("{} must be the name of a {}, found an empty text", option->get_name(),
                         type == "PATH" ? "file or a folder" : lower(type));
    const auto beyond = std::find_if(results.begin(), results.end(), is_beyond);
    if (takes_whole_number(*option) && beyond != results.end())
      return fmt::format("{} must be a whole number of at most {}, found {}", option->get_name(),
                         std::numeric_limits<int64_t>::max(), in_quotes(*beyond));
  }
  return "";
}

// Omits the options that an option excludes and needs, which error messages name, and the words of flags,
// which their descriptions name.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    const std::string name = CLI::Formatter::make_option_name(option, is_positional);
    return name.substr(0, name.find('{'));
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_items_expected_max() == 0 || option->get_expected_min() == 0) return "";
    const std::string text = CLI::Formatter::make_option_opts(option);
    return text.substr(0, std::min(text.find(" Excludes:"), text.find(" Needs:")));
  }
};

// Continuation lines are indented to the description of an option, or to the start of the line.
std::string within_columns(const std::string& help) {
  std::string out;
  for (size_t at = 0; at < help.size();) {
    const std::string_view line = std::string_view(help).substr(at, help.find('\n', at) - at);
    const bool describes = line.size() > kHelpColumn && line.starts_with("  ") &&
                           line[kHelpColumn - 1] == ' ' && line[kHelpColumn] != ' ';
    const size_t indent = describes ? kHelpColumn : std::min(line.find_first_not_of(' '), line.size());
    out += wrap(line, kColumns, static_cast<int64_t>(indent)) + "\n";
    at += line.size() + 1;
  }
  return out;
}

}  // namespace

std::optional<int> parse_command_line(const CommandLine& line) {
  CLI::App& app = line.options.app();
  const std::string program = app.get_name();
  const auto version = [&] { return version_text(program); };
  const char* about_version = "Print the version of Tessera and of the libraries it was built with";
  app.set_version_flag("--version", version, about_version);
  const auto formatter = std::make_shared<HelpFormatter>();
  formatter->column_width(kHelpColumn);
  app.formatter(formatter);
  for (CLI::App* subcommand : app.get_subcommands([](const CLI::App*) { return true; })) {
    subcommand->set_version_flag("--version", version, about_version);
    subcommand->formatter(formatter);
  }
  const auto refuse = [&](const std::string& text) {
    print_stderr(fmt::format("{}: error: {} ({})\n", program, text, help_of(app, program)));
    return 1;
  };
  const auto show = [&](const std::string& text) {
    try {
      print_stdout(text);
      return 0;
    } catch (const Error& error) {
      print_stderr(fmt::format("{}: error: {}\n", program, error.what()));
      return 1;
    }
  };
  try {
    app.parse(line.argc, line.argv);
    const std::string wrong = wrong_value(command_of(app));
    if (!wrong.empty()) return refuse(wrong);
    return std::nullopt;
  } catch (const CLI::CallForVersion&) {
    return show(version());
  } catch (const CLI::Success&) {
    return show(within_columns(app.help()));
  } catch (const CLI::ParseError& error) {
    // A misspelled option is reported first: it may cause missing or superfluous arguments.
    const std::vector<std::string> left = app.remaining(true);
    const auto option =
        std::find_if(left.begin(), left.end(), [](const auto& w) { return w.starts_with('-'); });
    return refuse(left.empty() ? words_of(line, error)
                               : unexpected(line, option == left.end() ? left.front() : *option));
  }
}

int run_program(const char* name, int (*run)(int, char**), int argc, char** argv) {
  start_process();
  outlive_readers();
  return exit_code_of(name, [&] { return run(argc, argv); });
}

}  // namespace tessera
