#include "train/launch/messages.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr size_t kMaxNameBytes = 1024;

constexpr int64_t kMaxInt = std::numeric_limits<int>::max();

std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// Every message is one object without lists or objects in it.
json parse(std::string_view text, const std::string& name) {
  return parse_json(text, name, {.bytes = kMaxJsonBytes, .depth = 1});
}

// The name of another rank is printed: no control characters, and not longer than a line or two.
std::string name_of_rank(const json& value, const std::string& message) {
  const std::string name = text_value(value, "name", message);
  check(name.size() <= kMaxNameBytes, "{}: a name of {} bytes; at most {} are allowed", message, name.size(),
        kMaxNameBytes);
  return printable(name);
}

}  // namespace

std::string encode(const Hello& hello) {
  return dump({{"rank", hello.rank},
               {"size", hello.size},
               {"name", hello.name},
               {"build", hello.run.build},
               {"config", hello.run.config}});
}

std::string encode(const Welcome& welcome) { return dump({{"name", welcome.name}}); }

std::string encode(const Heartbeat& heartbeat) {
  return dump({{"phases", heartbeat.phases},
               {"timeout", heartbeat.timeout == Timeout::kLimit ? 1 : 0},
               {"phase", heartbeat.phase}});
}

std::string encode(const Shutdown& shutdown) {
  return dump({{"reporter", shutdown.reporter}, {"error", shutdown.error}});
}

Hello decode_hello(std::string_view text) {
  const std::string name = "hello";
  const json value = parse(text, name);
  return {.rank = static_cast<int>(whole_number(value, "rank", name, -kMaxInt, kMaxInt)),
          .size = static_cast<int>(whole_number(value, "size", name, -kMaxInt, kMaxInt)),
          .name = name_of_rank(value, name),
          .run = {.build = text_value(value, "build", name), .config = text_value(value, "config", name)}};
}

Welcome decode_welcome(std::string_view text) {
  return {.name = name_of_rank(parse(text, "welcome"), "welcome")};
}

Heartbeat decode_heartbeat(std::string_view text) {
  const std::string name = "heartbeat";
  const json value = parse(text, name);
  return {.phases = whole_number(value, "phases", name),
          .timeout = whole_number(value, "timeout", name, 0, 1) == 1 ? Timeout::kLimit : Timeout::kNone,
          .phase = text_value(value, "phase", name)};
}

Shutdown decode_shutdown(std::string_view text) {
  const std::string name = "shutdown";
  const json value = parse(text, name);
  return {.reporter = static_cast<int>(whole_number(value, "reporter", name, Shutdown::kNobody, kMaxInt)),
          .error = text_value(value, "error", name)};
}

}  // namespace tessera
