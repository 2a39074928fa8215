#include "train/generate/conversation.h"

#include <cstdio>
#include <memory>
#include <optional>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/signals.h"
#include "kernels/base/status_line.h"

namespace tessera {
namespace {

// A line of standard input; none: it has ended, or a signal came
std::optional<std::string> read_line() {
  char* line = nullptr;
  size_t room = 0;
  const ssize_t bytes = getline(&line, &room, stdin);
  const std::unique_ptr<char, void (*)(void*)> owner(line, std::free);
  if (bytes < 0 || stop_signal() != 0) return std::nullopt;
  std::string text(line, static_cast<size_t>(bytes));
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

// Reads a message into the cache. False: it is too long for it.
bool read(const std::string& message, ChatTurns& chat, Session& session, Decoder& decoder,
          Throughput& total) {
  const int64_t capacity = decoder.settings().capacity;
  const Clock::time_point start = Clock::now();
  const bool goes_on = !decoder.is_idle(0);
  if (!goes_on) chat.forget();
  ChatTurns::Message next = chat.ask(message);
  const int64_t before = next.whole ? 0 : decoder.length(0);
  if (goes_on && before + std::ssize(next.ids) >= capacity) {
    print_stderr(
        fmt::format("notice   the context of {} tokens is full: the conversation begins anew\n", capacity));
    chat.forget();
    next = chat.ask(message);
  }
  if (next.whole && std::ssize(next.ids) >= capacity) {
    print_stderr(
        fmt::format("notice   a message of {} tokens leaves no room for an answer in a context of {}\n",
                    next.ids.size(), capacity));
    decoder.stop(0);
    return false;
  }
  if (next.whole)
    decoder.start(0, next.ids, /*sequence=*/0);
  else
    decoder.append(0, next.ids);
  session.stream().synchronize();
  total.prompt_tokens += std::ssize(next.ids);
  total.prompt_seconds += seconds_since(start);
  return true;
}

}  // namespace

Throughput converse(Session& session, Decoder& decoder, const Tokenizer& tokenizer, ChatTurns& chat,
                    const GenerationRule& rule, TextOutput& out) {
  Throughput total;
  while (!out.reader_is_gone()) {
    out.write("> ");
    const std::optional<std::string> message = read_line();
    if (!message) break;
    if (message->empty() || !read(*message, chat, session, decoder, total)) continue;
    Continuation answer(tokenizer, rule);
    std::string text;
    const auto write = [&](const std::string& more) {
      text += more;
      out.write(more);
    };
    const Clock::time_point start = Clock::now();
    while (!answer.ended() && !out.reader_is_gone()) {
      if (stop_signal() != 0) {
        write(answer.interrupt());
        break;
      }
      const int32_t token = decoder.next(rule.sampling, rule.seed)[0];
      write(answer.add(token, decoder.is_idle(0)));
      ++total.tokens;
    }
    forget_stop_signal();
    out.write("\n");
    if (answer.ended() == Ended::kContext)
      print_stderr(fmt::format(
          "notice   the answer was cut off: the context of {} tokens is full. The next message begins a new "
          "conversation\n",
          decoder.settings().capacity));
    total.seconds += seconds_since(start);
    const int32_t end = chat.turn_end().token;
    chat.answer(text, end >= 0 ? answer.last_token() == end : answer.ended() == Ended::kStopString);
  }
  out.write("\n");
  return total;
}

}  // namespace tessera
