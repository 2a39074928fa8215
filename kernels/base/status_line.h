// What a program prints while it works: a status line on a terminal, plain lines in a log.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// A part of a status, "loss 3.1416". A narrow terminal omits the parts of the highest `rank` first.
struct StatusPart {
  std::string text;
  int rank;  // 1: omitted last
};

// The parts in their order, joined by " | ", in at most `columns`. If only one part is left and it is too
// long, it is cut.
std::string fit_status(const std::vector<StatusPart>& parts, int64_t columns);

// The columns that UTF-8 takes on a terminal: East Asian letters and pictures take two, combining marks none.
int64_t columns_of(std::string_view text);

// Breaks lines longer than `columns`; what follows a break begins with `indent` spaces. Words stay whole
// where they fit.
std::string wrap(std::string_view text, int64_t columns, int64_t indent);

// "device   NVIDIA H200": a label, and the text from column kLabelColumns on
inline constexpr int64_t kLabelColumns = 9;
std::string labelled(std::string_view label, std::string_view text);

std::string format_duration(double seconds);  // "1:02:03", "4:05"

bool draws_in_place(int fd);                    // a terminal, and not one of TERM=dumb
int64_t columns_of_terminal(int fd);            // now; where the terminal does not say, $COLUMNS, else 80
bool write_all(int fd, std::string_view text);  // false: errno says why
// Prints on standard output at once. False: its reader has exited, which is no error. Error: it cannot be
// written.
bool print_stdout(std::string_view text);
// On standard error. What cannot be written is dropped: a program does not fail because nobody reads its
// messages.
void print_stderr(std::string_view text);

// On a terminal a status is rewritten in place and never takes more than one line; anywhere else it is a line
// of its own. Output that cannot be written (its reader has exited, the disk is full) is dropped, with one
// notice on stderr: a run does not stop because its output is not read.
class StatusLine {
 public:
  // Where statuses cannot be rewritten, show() writes one only after `quiet_seconds` without output.
  StatusLine(int fd, double quiet_seconds, bool speaks = true);  // speaks false: prints nothing
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool due() const;  // whether show() would write now: cheap, for loops that would call it too often
  void show(const std::vector<StatusPart>& parts);            // a status that the next output replaces
  void keep(const std::vector<StatusPart>& parts);            // a status that stays on the screen
  void print(std::string_view text);                          // the text as it is, which stays on the screen
  void print_wrapped(std::string_view text, int64_t indent);  // fitted to a terminal's width
  void print_labelled(std::string_view label, std::string_view text);
  void notice(std::string_view text) { print_labelled("notice", text); }
  void clear();                                          // removes the status that show() wrote
  bool lost_output() const { return said_ && speaks_; }  // though the output has a reader: the disk is full

 private:
  using Clock = std::chrono::steady_clock;
  void write(const std::string& text);

  int fd_;
  double quiet_seconds_;
  bool speaks_, in_place_;
  bool open_ = false;  // the cursor's line holds a status
  bool said_ = false;  // there was a notice that output was lost
  Clock::time_point last_output_, last_show_;
};

}  // namespace tessera
