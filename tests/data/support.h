// What the tests of the data room share: a folder of their own, files made by hand, and errors checked by
// their words.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"

namespace tessera {

// A fixture whose folder_ is empty at the start of each test and gone after it.
class InTempFolder : public ::testing::Test {
 protected:
  InTempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera_data_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    folder_ = name;
  }
  ~InTempFolder() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, std::string_view content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }

  // Everything in the folder, hidden files too.
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      found.insert(entry.path().filename().string());
    }
    return found;
  }

  std::filesystem::path folder_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Little-endian bytes, written out by hand so that the tests do not depend on the code they test.
inline std::string little_endian(uint64_t value, int bytes) {
  std::string result;
  for (int i = 0; i < bytes; ++i) result += static_cast<char>(value >> (8 * i) & 0xff);
  return result;
}

// The bytes of an llm.c shard, with tokens of `bytes` bytes.
inline std::string shard_of(const std::vector<uint32_t>& tokens, int bytes, uint32_t magic,
                            uint32_t version) {
  std::string text = little_endian(magic, 4) + little_endian(version, 4) + little_endian(tokens.size(), 4);
  text.resize(1024, '\0');
  for (const uint32_t token : tokens) text += little_endian(token, bytes);
  return text;
}
inline std::string shard_bytes(const std::vector<uint32_t>& tokens, uint32_t magic = 20240520,
                               uint32_t version = 1) {
  return shard_of(tokens, 2, magic, version);
}
inline std::string wide_shard_bytes(const std::vector<uint32_t>& tokens, uint32_t version = 7) {
  return shard_of(tokens, 4, 20240801, version);
}

// What a clone without Git LFS has in the place of a file
inline constexpr const char* kLfsPointer =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 988097824\n";

template <class Call>
void expect_error(Call&& call, std::initializer_list<std::string_view> words) {
  try {
    call();
    ADD_FAILURE() << "wanted an error that says: " << *words.begin();
  } catch (const Error& error) {
    for (const std::string_view word : words) {
      EXPECT_NE(std::string_view(error.what()).find(word), std::string_view::npos)
          << "wanted: " << word << "\nfound:  " << error.what();
    }
  }
}

}  // namespace tessera
