// A fixture that runs the prepare program as its users run it.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <utility>

#include "data/token_stream.h"
#include "tests/data/support.h"

namespace tessera {

struct Result {
  int status;  // of the exit, or -1 when a signal ended the program
  std::string out, error;
};

class Prepare : public InTempFolder {
 protected:
  // The program runs in folder_. most_file_bytes > 0 limits what it may write into one file.
  pid_t start(std::vector<std::string> arguments, rlim_t most_file_bytes = 0) const {
    const pid_t child = fork();
    if (child != 0) return child;
    arguments.insert(arguments.begin(), PREPARE_BINARY);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    if (chdir(folder_.c_str()) != 0) _exit(125);
    for (const auto& [name, fd] : {std::pair("stdout", STDOUT_FILENO), std::pair("stderr", STDERR_FILENO)}) {
      if (dup2(open((logs_ + name).c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), fd) < 0) _exit(125);
    }
    const struct rlimit limit = {.rlim_cur = most_file_bytes, .rlim_max = most_file_bytes};
    if (most_file_bytes > 0 && setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(125);
    execv(PREPARE_BINARY, argv.data());
    _exit(126);
  }

  Result finish(pid_t child) const {
    int status = 0;
    waitpid(child, &status, 0);
    Result result = {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(logs_ + "stdout"),
                     read_file(logs_ + "stderr")};
    std::filesystem::remove(logs_ + "stdout");
    std::filesystem::remove(logs_ + "stderr");
    return result;
  }

  Result run(const std::vector<std::string>& arguments, rlim_t most_file_bytes = 0) const {
    return finish(start(arguments, most_file_bytes));
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

  const std::string logs_ =
      folder_.string() + "_";  // beside the folder, so that it holds the program's files alone
};

}  // namespace tessera
