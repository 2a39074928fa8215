// Files that the user names for a program to write: regular files appear whole, anything else stays what it
// is.
#include "kernels/base/output.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <thread>

#include "kernels/base/descriptor.h"
#include "tests/data/support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class Output : public InTempFolder {};

TEST_F(Output, ARegularFileIsReplaced) {
  const fs::path path = write("a.json", "a text that is longer than what comes");
  check_writable(path);
  write_output(path, "{}\n");
  EXPECT_EQ(read_file(path), "{}\n");
  write_output(folder_ / "new.json", "1\n");
  EXPECT_EQ(read_file(folder_ / "new.json"), "1\n");
  write_output("", "nowhere");
  EXPECT_EQ(names(), (std::set<std::string>{"a.json", "new.json"}));
}

TEST_F(Output, CheckingLeavesNothingAndSaysWhatIsWrong) {
  check_writable(folder_ / "new.json");
  check_writable("");
  expect_error([&] { check_writable(folder_); }, {"cannot write", "it is a folder"});
  expect_error([&] { check_writable(folder_ / "none/a.json"); }, {"cannot write", "none/a.json"});
  EXPECT_TRUE(names().empty());
}

TEST_F(Output, ANamedPipeStaysOne) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string text;
  std::thread reader([&] { text = read_file(pipe); });
  check_writable(pipe);  // without opening it: the reader must not take that for the end
  write_output(pipe, "through a pipe\n");
  reader.join();
  EXPECT_EQ(text, "through a pipe\n");
  EXPECT_TRUE(fs::is_fifo(pipe));
  EXPECT_EQ(names(), std::set<std::string>{"pipe"});
}

TEST_F(Output, ALinkStaysOne) {
  write("real.json", "a longer text than the new one");
  fs::create_symlink("real.json", folder_ / "link.json");
  check_writable(folder_ / "link.json");
  write_output(folder_ / "link.json", "new\n");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link.json"));
  EXPECT_EQ(read_file(folder_ / "real.json"), "new\n");
}

TEST_F(Output, ADescriptorsFileIsWrittenInPlace) {
  const fs::path path = write("file", "");
  const Descriptor file(open(path.c_str(), O_WRONLY));
  ASSERT_TRUE(file.is_open());
  struct stat before = {}, after = {};
  fstat(file.get(), &before);
  write_output("/dev/fd/" + std::to_string(file.get()), "in place\n");
  stat(path.c_str(), &after);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(read_file(path), "in place\n");
}

TEST_F(Output, AFullDeviceIsSaid) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  fs::create_symlink("/dev/full", folder_ / "full");  // should this fail, the link is lost, not the device
  expect_error([&] { write_output(folder_ / "full", "text"); }, {"cannot write", "No space left"});
}

}  // namespace
}  // namespace tessera
