#include "data/chat/formatting.h"

#include <algorithm>
#include <cmath>

#include "data/chat/format_spec.h"
#include "data/chat/writing.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera::jinja {
namespace {

// "%s": what a conversion may be given, one after the other
class PercentValues {
 public:
  explicit PercentValues(const Value& values) : values_(values) {}
  const Value& next() {
    const List* several = values_.tuple();
    check(several ? taken_ < several->size() : taken_ == 0, "too few values for a format with %");
    return several ? (*several)[taken_++] : (++taken_, values_);
  }
  const Value& named(const Text& name) {
    check(values_.dict() != nullptr, "a format with %({}) needs a dictionary", name.bytes());
    const Value* found = find(*values_.dict(), name.bytes());
    check(found != nullptr, "a format names {}, which is not given", name.bytes());
    return *found;
  }
  void check_all_taken() const {
    const List* several = values_.tuple();
    check(several ? taken_ == several->size()
                  : taken_ > 0 || values_.dict() || (values_.sequence() && !several),
          "too many values for a format with %");
  }

 private:
  const Value& values_;
  size_t taken_ = 0;
};

int64_t as_whole(const Value& value, char type) {
  check_defined(value);
  check(value.is_number(), "%{} expects a number, and a {} is given", type, value.type_name());
  if (value.is_whole()) return value.whole();
  check(std::fabs(*value.real()) < 9.2e18, "a number is too large for %{}", type);
  check(type == 'd' || type == 'i' || type == 'u', "%{} expects an integer, and a float is given", type);
  return static_cast<int64_t>(*value.real());
}

Text one_by_percent(char type, const Value& value, Spec spec) {
  const char align = spec.align;
  if (type == 's' || type == 'r' || type == 'a') {
    Text text = type == 's' ? to_text(value) : representation(value);
    if (type == 'a') text = in_ascii(text);
    if (spec.precision >= 0) text = text.characters(0, std::min(spec.precision, text.length()));
    return padded(text, "", {.align = align, .width = spec.width}, '>');
  }
  if (type == 'c') {
    const bool fits = value.text() ? value.text()->length() == 1
                                   : value.is_whole() && value.whole() >= 0 && value.whole() < 0x110000;
    check(fits, "%c expects one character");
    std::string character;
    if (!value.text()) append_utf8(character, static_cast<uint32_t>(value.whole()));
    return padded(value.text() ? *value.text() : Text(character), "", {.align = align, .width = spec.width},
                  '>');
  }
  if (spec.zeros && align != '<') spec.align = '=', spec.fill = "0";
  if (std::string_view("diuoxX").find(type) != std::string_view::npos) {
    spec.type = type == 'i' || type == 'u' ? 'd' : type;
    const Value whole = value.big() ? value : Value(as_whole(value, type));
    if (spec.precision < 0) return whole_number(whole, spec);
    Spec digits = spec;  // the precision is the least number of digits
    digits.align = '=', digits.fill = "0", digits.width = spec.precision, digits.sign = '-',
    digits.alternative = false;
    Text body =
        whole_number(whole.big() || whole.whole() >= 0 ? whole : Value(std::abs(whole.whole())), digits);
    std::string sign = sign_of(!whole.big() && whole.whole() < 0, spec.sign);
    if (spec.alternative && type != 'd') sign += std::string("0") + spec.type;
    return padded(body, sign, spec, '>');
  }
  check(std::string_view("eEfFgG").find(type) != std::string_view::npos,
        "the conversion %{} is not supported", type);
  check_defined(value);
  check(value.is_number(), "%{} expects a number, and a {} is given", type, value.type_name());
  spec.type = type;
  return real_number(value.number(), spec);
}

}  // namespace

Text formatted_by_percent(const Text& format, const Value& values) {
  Text out;
  PercentValues given(values);
  Reader reader(format);
  while (!reader.ended()) {
    const size_t sign = std::min(format.bytes().find('%', reader.at()), format.size());
    out.append(format, reader.at(), sign - reader.at());
    reader.move_to(sign);
    if (reader.ended()) break;
    Budget::spend(1);
    reader.next();
    const Value* named = nullptr;
    if (reader.take('(')) {
      const size_t first = reader.at();
      for (int open = 1; open > 0;) {
        const char c = reader.next();
        open += (c == '(') - (c == ')');
      }
      named = &given.named(format.part(first, reader.at() - 1 - first));
    }
    Spec spec;
    for (bool flag = true; flag;) {
      flag = false;
      if (reader.take('-')) spec.align = '<', flag = true;
      if (reader.take('0')) spec.zeros = flag = true;
      if (reader.take('#')) spec.alternative = flag = true;
      if (reader.take('+')) spec.sign = '+', flag = true;
      if (reader.take(' ')) spec.sign = spec.sign == '+' ? '+' : ' ', flag = true;
    }
    const auto size = [&] { return reader.take('*') ? as_whole(given.next(), 'd') : reader.number(0); };
    spec.width = size();
    if (spec.width < 0) spec.align = '<', spec.width = -spec.width;
    if (reader.take('.')) spec.precision = std::max<int64_t>(size(), 0);
    while (reader.take('h') || reader.take('l') || reader.take('L')) {
    }
    const char type = reader.next();
    if (type == '%')
      out.append(1, '%');
    else
      out.append(one_by_percent(type, named ? *named : given.next(), spec));
  }
  given.check_all_taken();
  return out;
}

namespace {

Spec read_spec(const Text& text) {
  Spec spec;
  Reader reader(text);
  static constexpr std::string_view kAligns = "<>^=";
  const auto is_align = [&](size_t at) {
    return at < text.size() && kAligns.find(text.bytes()[at]) != kAligns.npos;
  };
  const size_t first = text.place_of(1);
  if (text.length() > 1 && is_align(first)) {
    spec.fill = text.part(0, first);
    spec.align = text.bytes()[first];
    reader.move_to(first + 1);
  } else if (is_align(0)) {
    spec.align = reader.next();
  }
  for (const char c : {'+', '-', ' '})
    if (reader.take(c)) {
      spec.sign = c;
      break;
    }
  check(!reader.take('z'), "z in a format is not supported");
  spec.alternative = reader.take('#');
  if (reader.take('0')) {
    spec.zeros = true;
    if (!spec.align) spec.align = '=', spec.fill = "0";
  }
  spec.width = reader.number(0);
  if (reader.now() == ',' || reader.now() == '_') spec.grouping = reader.next();
  if (reader.take('.')) spec.precision = reader.number(-1);
  if (!reader.ended()) spec.type = reader.next();
  check(reader.ended(), "the format {} is not supported", in_quotes(text.bytes()));
  return spec;
}

Text one_formatted(const Value& value, const Text& format) {
  if (format.empty()) return to_text(value);
  check_defined(value);
  Spec spec = read_spec(format);
  const auto is_type = [&](std::string_view types) {
    return spec.type == 0 || types.find(spec.type) != types.npos;
  };
  const auto refuse = [&] {
    fail("the format {} does not fit a {}", in_quotes(format.bytes()), value.type_name());
  };
  if (value.text()) {
    if (!is_type("s") || (spec.align == '=' && !spec.zeros) || spec.sign != '-' || spec.alternative ||
        spec.grouping)
      refuse();
    if (spec.align == '=') spec.align = '<';
    const Text text = spec.precision >= 0
                          ? value.text()->characters(0, std::min(spec.precision, value.text()->length()))
                          : *value.text();
    return padded(text, "", spec, '<');
  }
  if (value.truth_value() && spec.type == 0) return whole_number(value.whole(), spec);
  const bool whole = value.is_whole() || value.big();
  if (whole && spec.type == 'c') fail("the format c is not supported");
  if (spec.grouping && spec.width > 0 && spec.zeros)
    fail("a format with zeros and {} is not supported", spec.grouping);
  if (whole && is_type("bdnoxX") && spec.precision < 0) return whole_number(value, spec);
  if (value.is_number() && (value.real() || spec.type != 0) && is_type("eEfFgGn%"))
    return real_number(value.number(), spec);
  refuse();
  return {};
}

// The parts of "{name.field[key]!r:spec}" as they come
class Formatter {
 public:
  Formatter(const Arguments& values, PartOf part_of) : values_(values), part_of_(part_of) {}

  Text run(const Text& format, int depth) {
    check(depth <= 2, "a format is nested too deep");
    Text out;
    Reader reader(format);
    while (!reader.ended()) {
      const size_t mark = std::min(format.bytes().find_first_of("{}", reader.at()), format.size());
      out.append(format, reader.at(), mark - reader.at());
      reader.move_to(mark);
      if (reader.ended()) break;
      const char c = reader.next();
      Budget::spend(1);
      if (reader.take(c)) {
        out.append(1, c);
        continue;
      }
      check(c == '{', "a single }} in a format");
      out.append(field(format, reader, depth));
    }
    return out;
  }

 private:
  Text field(const Text& format, Reader& reader, int depth) {
    const size_t first = reader.at();
    while (reader.now() != '}' && reader.now() != '!' && reader.now() != ':') {
      check(reader.now() != '{', "a {{ in the name of a format's field is not supported");
      if (reader.next() == '[')
        while (reader.next() != ']') {
        }
    }
    Value value = named(format.part(first, reader.at() - first).bytes());
    if (reader.take('!')) {
      const char how = reader.next();
      check(how == 's' || how == 'r' || how == 'a', "the conversion !{} is not supported", how);
      value = how == 's'   ? to_text(value)
              : how == 'r' ? representation(value)
                           : in_ascii(representation(value));
    }
    Text spec;
    if (reader.take(':')) {
      const size_t begin = reader.at();
      for (int open = 1; open > 0;) {
        const char c = reader.next();
        open += (c == '{') - (c == '}');
      }
      spec = run(format.part(begin, reader.at() - 1 - begin), depth + 1);
    } else {
      check(reader.take('}'), "a format expects }} here");
    }
    return one_formatted(value, spec);
  }

  Value named(const std::string& path) {
    const size_t end = std::min(path.find_first_of(".["), path.size());
    const std::string name = path.substr(0, end);
    Value value = base(name);
    for (size_t at = end; at < path.size();) {
      const bool is_key = path[at] == '[';
      const size_t next =
          is_key ? path.find(']', at) : std::min(path.find_first_of(".[", at + 1), path.size());
      check(next != path.npos, "a format misses a ]");
      const std::string part = path.substr(at + 1, next - at - 1);
      if (is_key) {
        const bool index =
            !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
        value = part_of_(value, index ? Value(int64_t{std::stoll(part)}) : Value(Text(part)), false);
      } else {
        value = part_of_(value, Text(part), true);
      }
      check_defined(value);
      at = next + (is_key ? 1 : 0);
    }
    return value;
  }

  Value base(const std::string& name) {
    const bool number = std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
    if (number) {
      check(name.size() < 9, "a number in a format is too large");
      const size_t at = name.empty() ? next_++ : static_cast<size_t>(std::stoll(name));
      check(at < values_.positional.size(), "a format names the value {}, and {} are given", at,
            values_.positional.size());
      return values_.positional[at];
    }
    for (const auto& [known, value] : values_.named)
      if (known == name) return value;
    fail("a format names {}, which is not given", name);
  }

  const Arguments& values_;
  const PartOf part_of_;
  size_t next_ = 0;
};

}  // namespace

Text formatted(const Text& format, const Arguments& values, PartOf part_of) {
  return Formatter(values, part_of).run(format, 1);
}

}  // namespace tessera::jinja
