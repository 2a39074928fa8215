// What prepare tells while it works: in one line on a terminal, now and then in a log.
#include <sys/stat.h>

#include <chrono>
#include <thread>

#include "tests/data/prepare_process.h"
#include "tests/terminal.h"

namespace tessera {
namespace {

using testing::Screen;
using testing::Terminal;
using testing::TerminalResult;

TEST_F(Prepare, TellsShareRateAndTimeLeft) {
  std::string text;
  while (text.size() < 30'000'000) text += "a line of a text that is long enough to wait for\n";
  write("a_text_with_a_long_name_that_does_not_fit_beside_everything_else.txt", text);
  const TerminalResult result = Terminal{.folder = folder_, .columns = 80}.run(
      PREPARE_BINARY,
      {"--input", "a_text_with_a_long_name_that_does_not_fit_beside_everything_else.txt", "--output", "d"});
  ASSERT_EQ(result.status, 0) << result.output;
  EXPECT_NE(result.output.find("% | "), std::string::npos) << result.output;
  EXPECT_LT(Screen(result.output.substr(0, result.output.rfind("prepare: wrote"))).longest, 80u);
  const Screen screen(result.output);
  EXPECT_EQ(screen.lines.size(), 2u) << "one line of result: " << result.output;
  const TerminalResult wide = Terminal{.folder = folder_, .columns = 200}.run(
      PREPARE_BINARY,
      {"--input", "a_text_with_a_long_name_that_does_not_fit_beside_everything_else.txt", "--output", "e"});
  for (const char* part : {"prepare: ", "% | ", " MB | ", " MB/s | ", " left | ", "documents 0 | a_text"})
    EXPECT_NE(wide.output.find(part), std::string::npos) << part << "\n" << wide.output;
}

TEST_F(Prepare, TellsTheRateAloneOfAPipeAndRarelyInALog) {
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  Process process = start({"--input", "pipe", "--output", "d"});
  {
    std::ofstream pipe(folder_ / "pipe");
    const std::string text(3'000'000, 'x');
    pipe << text << std::flush;
    std::this_thread::sleep_for(std::chrono::milliseconds(5500));
    pipe << text << text << std::flush;
  }
  const Result result = process.finish();
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_TRUE(result.error.starts_with("prepare: ")) << result.error;
  EXPECT_NE(result.error.find(" MB/s | documents 0 | pipe\n"), std::string::npos) << result.error;
  EXPECT_EQ(result.error.find('%'), std::string::npos) << result.error;
  EXPECT_EQ(std::count(result.error.begin(), result.error.end(), '\n'), 1) << result.error;
  EXPECT_EQ(result.error.find('\x1b'), std::string::npos) << result.error;
}

TEST_F(Prepare, ClosedStreamsPutNothingIntoShards) {
  write("a.txt", "text");
  const Result result = testing::run_process(PREPARE_BINARY, {"--input", "a.txt", "--output", "d"},
                                             {.folder = folder_, .closed_streams = true});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(text_of("d"), "text|");
}

}  // namespace
}  // namespace tessera
