#include "kernels/base/status_line.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/system_error.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

constexpr const char* kFreshLine = "\r\x1b[K";
constexpr double kSecondsBetweenShows = 0.1;

struct Letter {
  size_t bytes;
  int columns;
};

// The letter that `text` begins with; a byte that is not UTF-8 counts as one.
Letter first_letter(std::string_view text) {
  const std::optional<CodePoint> point = first_code_point(text);
  if (!point) return {1, 1};
  const auto [code, bytes] = *point;
  const auto within = [code = code](uint32_t first, uint32_t last) { return code >= first && code <= last; };
  if (within(0x300, 0x36F) || within(0x200B, 0x200F) || within(0x20D0, 0x20FF) || within(0xFE00, 0xFE0F))
    return {bytes, 0};
  const bool wide = within(0x1100, 0x115F) || within(0x2E80, 0xA4CF) || within(0xAC00, 0xD7A3) ||
                    within(0xF900, 0xFAFF) || within(0xFE30, 0xFE6F) || within(0xFF00, 0xFF60) ||
                    within(0xFFE0, 0xFFE6) || within(0x1F300, 0x1FAFF) || within(0x20000, 0x3FFFD);
  return {bytes, wide ? 2 : 1};
}

// The bytes of the longest prefix of `text` that takes at most `columns`
size_t bytes_within(std::string_view text, int64_t columns) {
  size_t end = 0;
  while (end < text.size()) {
    const Letter letter = first_letter(text.substr(end));
    columns -= letter.columns;
    if (columns < 0) break;
    end += letter.bytes;
  }
  return end;
}

std::string join(const std::vector<StatusPart>& parts) {
  std::string text;
  for (const StatusPart& part : parts) text += (text.empty() ? "" : " | ") + part.text;
  return text;
}

}  // namespace

int64_t columns_of(std::string_view text) {
  int64_t columns = 0;
  while (!text.empty()) {
    const Letter letter = first_letter(text);
    columns += letter.columns;
    text.remove_prefix(letter.bytes);
  }
  return columns;
}

std::string labelled(std::string_view label, std::string_view text) {
  return fmt::format("{:<{}}{}", label, kLabelColumns, text);
}

std::string fit_status(const std::vector<StatusPart>& parts, int64_t columns) {
  std::vector<StatusPart> left = parts;
  std::string text = join(left);
  while (columns_of(text) > columns && left.size() > 1) {
    left.erase(std::max_element(left.begin(), left.end(),
                                [](const StatusPart& a, const StatusPart& b) { return a.rank < b.rank; }));
    text = join(left);
  }
  text.resize(bytes_within(text, columns));
  return text;
}

std::string wrap(std::string_view text, int64_t columns, int64_t indent) {
  std::string wrapped;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    for (int64_t before = 0; columns_of(line) > columns - before; before = indent) {
      const size_t word = line.find_first_not_of(' ');
      size_t cut = line.rfind(' ', bytes_within(line, columns - before));
      if (cut == std::string_view::npos || cut < word) cut = line.find(' ', word);
      if (cut == std::string_view::npos) break;  // one long word: the terminal breaks it
      wrapped.append(line.substr(0, cut)).append("\n").append(static_cast<size_t>(indent), ' ');
      line.remove_prefix(cut + 1);
    }
    wrapped.append(line).append("\n");
  }
  if (!wrapped.empty()) wrapped.pop_back();
  return wrapped;
}

std::string format_duration(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

bool draws_in_place(int fd) {
  const char* term = std::getenv("TERM");
  return term && *term && std::strcmp(term, "dumb") != 0 && isatty(fd) != 0;
}

int64_t columns_of_terminal(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int64_t found = columns ? std::atoll(columns) : 0;
  return found > 0 ? found : 80;
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {  // another process that shares the terminal or the pipe set O_NONBLOCK
      pollfd ready{.fd = fd, .events = POLLOUT, .revents = 0};
      poll(&ready, 1, 1000);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool print_stdout(std::string_view text) {
  std::fflush(stdout);
  if (write_all(STDOUT_FILENO, text)) return true;
  check_system(errno == EPIPE, "cannot write to standard output: {}");
  return false;
}

void print_stderr(std::string_view text) { write_all(STDERR_FILENO, text); }

StatusLine::StatusLine(int fd, double quiet_seconds, bool speaks)
    : fd_(fd),
      quiet_seconds_(quiet_seconds),
      speaks_(speaks),
      in_place_(speaks && draws_in_place(fd)),
      last_output_(Clock::now()) {}

StatusLine::~StatusLine() {
  if (open_) write("\n");
}

void StatusLine::write(const std::string& text) {
  last_output_ = Clock::now();
  if (!speaks_ || write_all(fd_, text)) return;
  // A reader that has exited does not return; a full disk may have space later.
  const int reason = errno;
  if (reason != ENOSPC && reason != EDQUOT && reason != EFBIG) speaks_ = in_place_ = open_ = false;
  if (std::exchange(said_, true)) return;
  print_stderr(fmt::format(
      "{}: notice: cannot write to standard {}: {}. The program continues without this output\n",
      program_invocation_short_name, fd_ == STDERR_FILENO ? "error" : "output", system_reason(reason)));
}

bool StatusLine::due() const {
  if (!speaks_) return false;
  if (!in_place_) return seconds_since(last_output_) >= quiet_seconds_;
  return !open_ || seconds_since(last_show_) >= kSecondsBetweenShows;
}

void StatusLine::show(const std::vector<StatusPart>& parts) {
  if (!due()) return;
  if (!in_place_) return write(join(parts) + "\n");
  last_show_ = Clock::now();
  open_ = true;
  // The last column stays free: a letter there moves the cursor of some terminals to the next line.
  write(kFreshLine + fit_status(parts, columns_of_terminal(fd_) - 1));
}

void StatusLine::keep(const std::vector<StatusPart>& parts) {
  print(in_place_ ? fit_status(parts, columns_of_terminal(fd_) - 1) : join(parts));
}

void StatusLine::print(std::string_view text) {
  if (!speaks_) return;
  const bool was_open = std::exchange(open_, false);
  write(fmt::format("{}{}\n", was_open ? kFreshLine : "", text));
}

void StatusLine::print_wrapped(std::string_view text, int64_t indent) {
  print(in_place_ ? wrap(text, columns_of_terminal(fd_) - 1, indent) : std::string(text));
}

void StatusLine::print_labelled(std::string_view label, std::string_view text) {
  print_wrapped(labelled(label, text), kLabelColumns);
}

void StatusLine::clear() {
  if (std::exchange(open_, false)) write(kFreshLine);
}

}  // namespace tessera
