#include "kernels/base/options.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <optional>

namespace tessera {

Option& Option::required() { return option_->required(), *this; }
Option& Option::type_name(const std::string& name) { return option_->type_name(name), *this; }
Option& Option::show_default() { return option_->capture_default_str(), *this; }
Option& Option::show_default(const std::string& text) { return option_->default_str(text), *this; }
Option& Option::hidden() { return option_->group(""), *this; }

Option& Option::positive() { return option_->check(CLI::PositiveNumber), *this; }
Option& Option::non_negative() { return option_->check(CLI::NonNegativeNumber), *this; }
Option& Option::within(int64_t least, int64_t most) { return option_->check(CLI::Range(least, most)), *this; }
Option& Option::one_of(const std::vector<std::string>& words) {
  return option_->check(CLI::IsMember(words)), *this;
}
Option& Option::with_unit() {
  const std::map<std::string, int64_t> units{{"K", 1'000}, {"M", 1'000'000}, {"G", 1'000'000'000}};
  option_->transform(CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::CASE_SENSITIVE));
  return *this;
}

Option& Option::separated_by(char separator) { return option_->delimiter(separator), *this; }
Option& Option::one_at_a_time() {
  option_->expected(1)->take_all()->allow_extra_args(false);
  return *this;
}

Option& Option::needs(const Option& other) { return option_->needs(other.option_), *this; }
Option& Option::excludes(const Option& other) { return option_->excludes(other.option_), *this; }
Option& Option::excludes(const std::string& name) { return option_->excludes(name), *this; }

Options::Options(const std::string& description, const std::string& program)
    : owned_(std::make_unique<CLI::App>(description, program)), app_(owned_.get()) {}
Options::Options(CLI::App& subcommand) : app_(&subcommand) {}
Options::~Options() = default;

template <class T>
Option Options::add(const std::string& names, T& value, const std::string& help) {
  return Option(*app_->add_option(names, value, help));
}
template Option Options::add(const std::string&, std::string&, const std::string&);
template Option Options::add(const std::string&, std::filesystem::path&, const std::string&);
template Option Options::add(const std::string&, std::optional<std::string>&, const std::string&);
template Option Options::add(const std::string&, bool&, const std::string&);
template Option Options::add(const std::string&, int&, const std::string&);
template Option Options::add(const std::string&, int64_t&, const std::string&);
template Option Options::add(const std::string&, uint64_t&, const std::string&);
template Option Options::add(const std::string&, float&, const std::string&);
template Option Options::add(const std::string&, double&, const std::string&);
template Option Options::add(const std::string&, std::vector<std::string>&, const std::string&);
template Option Options::add(const std::string&, std::vector<std::filesystem::path>&, const std::string&);
template Option Options::add(const std::string&, std::vector<int32_t>&, const std::string&);
template Option Options::add(const std::string&, std::vector<int64_t>&, const std::string&);

template <class T>
Option Options::add_function(const std::string& names, const std::function<void(const T&)>& set,
                             const std::string& help) {
  return Option(*app_->add_option_function<T>(names, set, help));
}
template Option Options::add_function(const std::string&, const std::function<void(const std::string&)>&,
                                      const std::string&);
template Option Options::add_function(const std::string&, const std::function<void(const int64_t&)>&,
                                      const std::string&);

template <class T>
Option Options::add_flag(const std::string& name, T& value, const std::string& help) {
  return Option(*app_->add_flag(name, value, help));
}
template Option Options::add_flag(const std::string&, bool&, const std::string&);
template Option Options::add_flag(const std::string&, std::string&, const std::string&);
template Option Options::add_flag(const std::string&, std::optional<std::string>&, const std::string&);

Option Options::add_flag_function(const std::string& name, const std::function<void()>& set,
                                  const std::string& help) {
  return Option(*app_->add_flag_function(
      name, [set](int64_t) { set(); }, help));
}

Options& Options::add_subcommand(const std::string& name, const std::string& description) {
  CLI::App& app = *app_->add_subcommand(name, description);
  subcommands_.push_back(std::unique_ptr<Options>(new Options(app)));
  return *subcommands_.back();
}
void Options::require_subcommand() { app_->require_subcommand(1); }

void Options::description(const std::string& text) { app_->description(text); }
void Options::footer(const std::string& text) { app_->footer(text); }

bool Options::parsed() const { return app_->parsed(); }
bool Options::given(const std::string& name) const { return app_->count(name) > 0; }

}  // namespace tessera
