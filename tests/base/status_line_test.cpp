// What programs print: statuses that fit, text that is wrapped, output that cannot be written.
#include "kernels/base/status_line.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "kernels/base/descriptor.h"

namespace tessera {
namespace {

const std::vector<StatusPart> kStatus{{"step 3/9", 1}, {"loss 3.1416", 2}, {"norm 0.5", 4}, {"ETA 1:00", 3}};

TEST(StatusLine, TheLeastImportantPartsGoFirst) {
  EXPECT_EQ(fit_status(kStatus, 80), "step 3/9 | loss 3.1416 | norm 0.5 | ETA 1:00");
  EXPECT_EQ(fit_status(kStatus, 44), "step 3/9 | loss 3.1416 | norm 0.5 | ETA 1:00");
  EXPECT_EQ(fit_status(kStatus, 43), "step 3/9 | loss 3.1416 | ETA 1:00");
  EXPECT_EQ(fit_status(kStatus, 32), "step 3/9 | loss 3.1416");
  EXPECT_EQ(fit_status(kStatus, 10), "step 3/9");
  EXPECT_EQ(fit_status(kStatus, 4), "step");
  EXPECT_EQ(fit_status(kStatus, 0), "");
}

TEST(StatusLine, ColumnsAreCountedNotBytes) {
  EXPECT_EQ(columns_of("abc"), 3);
  EXPECT_EQ(columns_of("Bücher"), 6);
  EXPECT_EQ(columns_of("日本"), 4);
  EXPECT_EQ(columns_of("e\u0301"), 1);  // an accent of its own
  EXPECT_EQ(columns_of("\U0001F600"), 2);
  EXPECT_EQ(columns_of("a\xff\xe2\x82"), 4);  // what is no UTF-8 is not read past
  EXPECT_EQ(fit_status({{"日本語.txt", 1}}, 5), "日本");
}

TEST(StatusLine, TextIsWrappedBetweenWords) {
  EXPECT_EQ(wrap("notice   one two three four", 20, 9), "notice   one two\n         three four");
  EXPECT_EQ(wrap("short\nlines stay", 20, 9), "short\nlines stay");
  EXPECT_EQ(wrap("a/path/longer/than/the/terminal and more", 20, 2),
            "a/path/longer/than/the/terminal\n  and more");
  EXPECT_EQ(wrap("notice   a/path/longer/than/the/terminal", 20, 9),
            "notice  \n         a/path/longer/than/the/terminal");
  EXPECT_EQ(wrap("", 20, 9), "");
}

TEST(StatusLine, DurationsAreReadable) {
  EXPECT_EQ(format_duration(65), "1:05");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(-1), "0:00");
}

TEST(StatusLine, TheWidthIsThatOfTheVariableWhereThereIsNoTerminal) {
  const Descriptor null(open("/dev/null", O_WRONLY));
  setenv("COLUMNS", "132", 1);
  EXPECT_EQ(columns_of_terminal(null.get()), 132);
  setenv("COLUMNS", "none", 1);
  EXPECT_EQ(columns_of_terminal(null.get()), 80);
  unsetenv("COLUMNS");
  EXPECT_EQ(columns_of_terminal(null.get()), 80);
}

// A pipe is what a log is: whole lines, and statuses that stay alone.
TEST(StatusLine, LogsGetPlainLines) {
  Pipe pipe = make_pipe("a log");
  {
    StatusLine line(pipe.write.get(), 3600);
    EXPECT_FALSE(line.due());
    line.show({{"step 1/9", 1}});
    line.keep(kStatus);
    line.print("text");
    line.clear();
  }
  {
    StatusLine line(pipe.write.get(), 0);  // after 0 s of quiet
    line.show({{"step 2/9", 1}, {"loss 3", 2}});
  }
  StatusLine(pipe.write.get(), 0, false).print("silent");
  pipe.write.close();
  char text[1000];
  const ssize_t count = read(pipe.read.get(), text, sizeof text);
  EXPECT_EQ(std::string(text, static_cast<size_t>(count)),
            "step 3/9 | loss 3.1416 | norm 0.5 | ETA 1:00\ntext\nstep 2/9 | loss 3\n");
}

TEST(StatusLine, OutputThatNobodyReadsIsDroppedWithOneNotice) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe = make_pipe("a log");
  pipe.read.close();
  ::testing::internal::CaptureStderr();
  {
    StatusLine line(pipe.write.get(), 0);
    line.print("lost");
    line.keep(kStatus);
    EXPECT_FALSE(line.due());
  }
  const std::string error = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(error.find("cannot write to standard output: Broken pipe"), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), error.size() - 1) << error;
}

// A full disk may have room again.
TEST(StatusLine, OutputToAFullDiskIsTriedAgain) {
  const Descriptor full(open("/dev/full", O_WRONLY));
  ASSERT_TRUE(full.is_open());
  ::testing::internal::CaptureStderr();
  StatusLine line(full.get(), 0);
  line.print("lost");
  EXPECT_TRUE(line.due());
  line.print("lost too");
  const std::string error = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(error.find("No space left on device"), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), error.size() - 1) << error;
}

}  // namespace
}  // namespace tessera
