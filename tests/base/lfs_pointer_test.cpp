// Pointers of Git LFS: which texts are one, and that no mapped file may be.
#include "kernels/base/lfs_pointer.h"

#include <fstream>

#include "kernels/base/file.h"
#include "tests/support.h"

namespace tessera::testing {
namespace {

const std::string kPointer =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 988097824\n";

TEST(LfsPointer, TheSizeThatItStandsFor) {
  EXPECT_EQ(lfs_pointer_size(kPointer), 988097824);
  EXPECT_EQ(lfs_pointer_size(kPointer.substr(0, kPointer.size() - 1)),
            988097824);  // without the last newline
  std::string extended = kPointer;
  extended.insert(extended.find("oid"), "ext-0-foo sha256:00\n");
  EXPECT_EQ(lfs_pointer_size(extended), 988097824);
}

TEST(LfsPointer, OtherTextsAreNone) {
  const auto replaced = [](const std::string& from, const std::string& to) {
    std::string text = kPointer;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string(), " " + kPointer, replaced("spec/v1", "spec/v2"), replaced("oid", "id"),
        replaced("size", "bytes"), replaced("988097824", "-1"), replaced("988097824", "many"),
        replaced("988097824", "99999999999999999999"), kPointer + std::string(1024, '\n')})
    EXPECT_EQ(lfs_pointer_size(text), std::nullopt) << text;
}

TEST(LfsPointer, AMappedFileIsNone) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("tessera_pointer_{}.bin", getpid());
  std::ofstream(path) << kPointer;
  try {
    MappedFile file(path);
    ADD_FAILURE() << "a pointer was mapped";
  } catch (const Error& error) {
    const std::string what = error.what();
    for (const std::string& word :
         {path.string() + " is a Git LFS pointer", std::string("988097824 bytes (942 MiB)"),
          "git -C " + path.parent_path().string() + " lfs pull", std::string("hf download")})
      EXPECT_NE(what.find(word), std::string::npos) << "expected: " << word << "\nfound: " << what;
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tessera::testing
