#include "kernels/base/system_error.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <new>
#include <tuple>

#include "tests/says.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// As other calls do, whatever they are called for
std::string changes_errno(const std::string& text) {
  errno = 0;
  return text;
}

template <class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error_text(error);
  }
  return "";
}

TEST(SystemErrors, TheReasonIsThatOfTheCallWhateverElseTheMessageNeeds) {
  EXPECT_EQ(message_of([] {
              check_system(access("/not/there", R_OK) == 0, "cannot read {}: {}", changes_errno("a file"));
            }),
            "cannot read a file: No such file or directory");
  EXPECT_EQ(message_of([] {
              check_system(close(-1) == 0, "{} and {}: {}. Try again", changes_errno("1"),
                           changes_errno("2"));
            }),
            "1 and 2: Bad file descriptor. Try again");
  EXPECT_EQ(message_of([] { check_system(access("/", R_OK) == 0, "{}: {}", "fine"); }), "");
}

TEST(SystemErrors, ThoseOfTheLibraryAreToldInPlainWords) {
  const fs::path file = fs::temp_directory_path() / ("tessera_system_error_" + std::to_string(getpid()));
  fs::create_directories(file / "full");
  const auto told = [&](auto&& call, std::initializer_list<std::string_view> facts) {
    const std::string text = message_of(call);
    EXPECT_TRUE(says(text, facts));
    EXPECT_EQ(text.find("filesystem error"), std::string::npos) << text;
    EXPECT_EQ(text.find('['), std::string::npos) << text;
  };
  const std::string name = file.string();
  told([&] { fs::remove(file); }, {"cannot remove", name, "not empty"});
  told([&] { fs::rename(file / "none", file / "other"); }, {"cannot rename", name, "none", "No such file"});
  told([&] { fs::create_directory(file / "none/deeper"); }, {"cannot create", "deeper", "No such file"});
  told([&] { std::ignore = fs::file_size(file / "none"); }, {"cannot", "none", "No such file"});
  told([&] { fs::directory_iterator(file / "none"); }, {"cannot read", "none", "No such file"});
  told([&] { std::ignore = fs::status(fs::path(std::string(5000, 'x'))); }, {"cannot read", "name too long"});
  told([] { throw std::bad_alloc(); }, {"memory", "ulimit -v"});
  fs::remove_all(file);
}

}  // namespace
}  // namespace tessera
