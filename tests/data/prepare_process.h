// A fixture that runs the prepare program as its users run it.
#pragma once

#include "data/token_stream.h"
#include "tests/data/support.h"
#include "tests/process.h"

namespace tessera {

using testing::Process;
using Result = testing::ProcessResult;

class Prepare : public InTempFolder {
 protected:
  // The program runs in folder_. most_file_bytes > 0 limits what it may write into one file.
  Process start(const std::vector<std::string>& arguments, rlim_t most_file_bytes = 0) const {
    return Process(PREPARE_BINARY, arguments, {.folder = folder_, .most_file_bytes = most_file_bytes});
  }
  Result run(const std::vector<std::string>& arguments, rlim_t most_file_bytes = 0) const {
    return start(arguments, most_file_bytes).finish();
  }

  void expect_refusal(const std::vector<std::string>& arguments,
                      std::initializer_list<std::string_view> words, rlim_t most_file_bytes = 0) const {
    const auto before = names();
    const Result result = run(arguments, most_file_bytes);
    EXPECT_EQ(result.status, 1);
    EXPECT_TRUE(result.error.starts_with("prepare: error: ")) << result.error;
    for (const std::string_view word : words) {
      EXPECT_NE(result.error.find(word), std::string::npos)
          << "wanted: " << word << "\nfound:  " << result.error;
    }
    EXPECT_EQ(names(), before);  // nothing is left behind
  }

  std::string text_of(const std::filesystem::path& dataset) const {
    const auto stream = TokenStream::open(folder_ / dataset);
    std::vector<int32_t> tokens(static_cast<size_t>(stream.size()));
    stream.read(0, tokens);
    std::string text;
    for (const int32_t token : tokens) text += token == 256 ? '|' : static_cast<char>(token);
    return text;
  }
};

}  // namespace tessera
