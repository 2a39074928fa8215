#include "train/generate/conversation.h"

#include <cstdio>
#include <memory>
#include <optional>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/status_line.h"
#include "train/generate/interrupts.h"

namespace tessera {
namespace {

// A line of standard input; none: it has ended, or a signal came
std::optional<std::string> read_line() {
  char* line = nullptr;
  size_t room = 0;
  const ssize_t bytes = getline(&line, &room, stdin);
  const std::unique_ptr<char, void (*)(void*)> owner(line, std::free);
  if (bytes < 0 || is_interrupted()) return std::nullopt;
  std::string text(line, static_cast<size_t>(bytes));
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

struct Turns {
  Session& session;
  Decoder& decoder;
  const ChatTurns& chat;
  const std::string& system;
  bool has_end_marker = false;

  // Reads a message into the cache. False: it is too long for it.
  bool read(const std::string& message, Throughput& total) {
    const int64_t capacity = decoder.settings().capacity;
    const Clock::time_point start = Clock::now();
    const bool goes_on = !decoder.is_idle(0);
    std::vector<int32_t> ids = goes_on ? chat.next(message, has_end_marker) : chat.opening(system, message);
    if (goes_on && decoder.length(0) + std::ssize(ids) < capacity) {
      decoder.append(0, ids);
    } else {
      if (goes_on) {
        ids = chat.opening(system, message);
        print_stderr(fmt::format("notice   the context of {} tokens is full: the conversation begins anew\n",
                                 capacity));
      }
      if (std::ssize(ids) >= capacity) {
        print_stderr(
            fmt::format("notice   a message of {} tokens leaves no room for an answer in a context of {}\n",
                        ids.size(), capacity));
        decoder.stop(0);
        return false;
      }
      decoder.start(0, ids, /*sequence=*/0);
    }
    session.stream().synchronize();
    total.prompt_tokens += std::ssize(ids);
    total.prompt_seconds += seconds_since(start);
    return true;
  }
};

}  // namespace

Throughput converse(Session& session, Decoder& decoder, const Tokenizer& tokenizer, const ChatTurns& chat,
                    const GenerationRule& rule, const std::string& system, TextOutput& out) {
  Throughput total;
  Turns turns{session, decoder, chat, system};
  while (!out.reader_is_gone()) {
    out.write("> ");
    const std::optional<std::string> message = read_line();
    if (!message) break;
    if (message->empty() || !turns.read(*message, total)) continue;
    Continuation answer(tokenizer, rule);
    const Clock::time_point start = Clock::now();
    while (!answer.ended() && !out.reader_is_gone()) {
      if (is_interrupted()) {
        out.write(answer.interrupt());
        break;
      }
      const int32_t token = decoder.next(rule.sampling, rule.seed)[0];
      out.write(answer.add(token, decoder.is_idle(0)));
      ++total.tokens;
    }
    forget_interrupt();
    out.write("\n");
    total.seconds += seconds_since(start);
    turns.has_end_marker = chat.end_token() >= 0 ? answer.last_token() == chat.end_token()
                                                 : answer.ended() == Ended::kStopString;
  }
  out.write("\n");
  return total;
}

}  // namespace tessera
