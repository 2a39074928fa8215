// A run on a terminal: a status that takes one line at any width, and lines that stay.
#include "tests/terminal.h"

#include <algorithm>

#include "tests/train_ranks.h"

namespace tessera::testing {
namespace {

struct OnATerminal : TrainRanks {
  void SetUp() override {}
  Words arguments(const Words& more) const { return with({"--config", "small.yaml"}, more); }
};

int count_lines(const Screen& screen, const std::string& part) {
  return static_cast<int>(std::count_if(screen.lines.begin(), screen.lines.end(), [&](const auto& line) {
    return line.find(part) != std::string::npos;
  }));
}

TEST_F(OnATerminal, NothingIsLongerThanALineAndEveryTenthStepStays) {
  for (const unsigned short columns : {40, 80, 120}) {
    const TerminalResult result = Terminal{.folder = folder, .columns = columns}.run(
        TRAIN_BINARY, arguments(with({"--overwrite"}, sets({"train.log_every=10", "train.steps=45"}))));
    ASSERT_EQ(result.status, 0) << result.output;
    const Screen screen(result.output);
    for (const std::string& line : screen.lines) {
      const bool is_status = line.starts_with("step ") && line.find("checkpoint") == std::string::npos &&
                             line.find("validation") == std::string::npos;
      EXPECT_TRUE(!is_status || line.size() < columns) << line;
    }
    if (columns >= 80) {
      EXPECT_LT(screen.longest, columns) << "some line wrapped";
    }
    for (const char* stays : {"step 10/45", "step 20/45", "step 30/45", "step 40/45", "step 45/45"})
      EXPECT_EQ(count_lines(screen, std::string(stays) + " | loss"), 1) << stays << "\n" << result.output;
    EXPECT_EQ(count_lines(screen, "/45 | "), 5) << "statuses that should have been replaced stayed";
    EXPECT_NE(result.output.find("\x1b[K"
                                 "step 1/45 | loss"),
              std::string::npos)
        << "no status in place";
    EXPECT_EQ(count_lines(screen, "| MFU") > 0, columns >= 80);
  }
}

TEST_F(OnATerminal, TheWidthIsFollowed) {
  bool resized = false;
  size_t from = 0;
  const TerminalResult result = Terminal{.folder = folder, .columns = 120}.run(
      TRAIN_BINARY,
      arguments(sets({"train.log_every=1", "train.steps=60", "checkpoint.every=0", "evaluation.every=0",
                      "sampling.every=0"})),
      [&](const std::string& output, int fd) {
        if (resized || output.find("step 3/60") == std::string::npos) return;
        const winsize narrow{.ws_row = 24, .ws_col = 50, .ws_xpixel = 0, .ws_ypixel = 0};
        resized = ioctl(fd, TIOCSWINSZ, &narrow) == 0;
        from = output.size();
      });
  ASSERT_EQ(result.status, 0) << result.output;
  ASSERT_TRUE(resized);
  const Screen before(result.output.substr(0, from)), after(result.output.substr(from));
  EXPECT_GT(before.longest, 80u);
  for (const std::string& line : after.lines)
    EXPECT_TRUE(!line.starts_with("step 60/60 |") || line.size() < 50) << line;
  EXPECT_EQ(count_lines(after, "step 60/60 |"), 1);
}

TEST_F(OnATerminal, ADumbTerminalGetsPlainLines) {
  for (const char* term : {"dumb", ""}) {
    const TerminalResult result = Terminal{.folder = folder, .columns = 80, .term = term}.run(
        TRAIN_BINARY, arguments(with({"--overwrite"}, sets({"train.steps=20"}))));
    ASSERT_EQ(result.status, 0) << result.output;
    EXPECT_EQ(result.output.find('\x1b'), std::string::npos) << result.output;
    EXPECT_EQ(count_lines(Screen(result.output), "step 10/20 | loss"), 1) << result.output;
  }
}

TEST_F(OnATerminal, AnEvaluationTellsHowFarItIs) {
  const TerminalResult result = Terminal{.folder = folder, .columns = 80}.run(
      TRAIN_BINARY, arguments(sets({"train.steps=1", "train.micro_batch=1", "evaluation.sequences=1000"})));
  ASSERT_EQ(result.status, 0) << result.output;
  EXPECT_NE(result.output.find("step 0/1 | evaluation "), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("/s | "), std::string::npos) << result.output;
  EXPECT_EQ(count_lines(Screen(result.output), "evaluation "), 0) << "its progress should have been replaced";
}

// The window is closed, or the connection is lost: SIGHUP comes, and nothing can be written there any more.
TEST_F(OnATerminal, ATerminalThatIsClosedLeavesACheckpoint) {
  const TerminalResult result = Terminal{.folder = folder, .columns = 80}.run(
      TRAIN_BINARY,
      arguments(sets({"train.steps=100000", "optimizer.schedule=constant", "evaluation.every=0",
                      "sampling.every=0", "checkpoint.every=0"})),
      [&](const std::string& output, int fd) {
        if (output.find("step 20/") != std::string::npos) close(fd);
      });
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(checkpoints("out").size(), 1u);
  EXPECT_NE(read_file(folder / "out/metrics.jsonl").find(R"("signal":"SIGHUP")"), std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
