// The walls between the rooms, held up by reading the sources.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Source {
  std::string path, text;  // path relative to the project
};

std::vector<Source> sources() {
  std::vector<Source> found;
  const fs::path root = TESSERA_SOURCE_DIR;
  for (const char* room : {"kernels", "model", "data", "train"})
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
      std::ifstream file(entry.path());
      std::stringstream text;
      text << file.rdbuf();
      found.push_back({fs::relative(entry.path(), root).string(), text.str()});
    }
  EXPECT_GT(found.size(), 40u);
  return found;
}

// Every source that matches `pattern` must be one of `allowed` (prefixes of paths).
void expect_only_in(const char* pattern, const std::vector<std::string>& allowed) {
  const std::regex expression(pattern);
  for (const Source& source : sources()) {
    if (!std::regex_search(source.text, expression)) continue;
    bool fine = false;
    for (const std::string& prefix : allowed) fine = fine || source.path.starts_with(prefix);
    EXPECT_TRUE(fine) << source.path << " matches " << pattern;
  }
}

TEST(Rooms, DeviceMemoryComesFromTheArenaAlone) {
  expect_only_in(R"(\bcuda(Malloc|Free|HostAlloc|HostRegister)\w*\s*\()", {"kernels/base/arena.cpp"});
}

TEST(Rooms, InlineAssemblyIsInPtxHeadersAlone) {
  const std::regex assembly(R"(\basm\s*(volatile\s*)?\()");
  for (const Source& source : sources()) {
    if (std::regex_search(source.text, assembly)) {
      EXPECT_TRUE(fs::path(source.path).filename() == "ptx.cuh") << source.path;
    }
  }
}

TEST(Rooms, CudaHeadersStayInTheirRooms) {
  expect_only_in(R"(#include\s*[<"]cu(da|blas|dnn|b/))",
                 {"kernels/cuda/", "kernels/attention/", "kernels/base/arena.cpp", "train/parallel/nccl_"});
}

TEST(Rooms, TheCommunicatorAloneKnowsHowRanksCommunicate) {
  expect_only_in(R"(#include\s*<nccl)", {"train/parallel/nccl_"});
  expect_only_in(R"(#include\s*<gloo/)", {"train/parallel/gloo_communicator.cpp"});
}

TEST(Rooms, NobodyCallsUpwards) {
  expect_only_in(R"(#include "train/)", {"train/"});
  expect_only_in(R"(#include "model/)", {"model/", "train/"});
  expect_only_in(R"(#include "data/)", {"data/", "train/"});
  for (const Source& source : sources()) {  // data stands alone but for what every room may use
    if (!source.path.starts_with("data/")) continue;
    const std::string text = std::regex_replace(source.text, std::regex(R"(#include "kernels/base/)"), "");
    EXPECT_EQ(text.find("#include \"kernels/"), std::string::npos) << source.path;
  }
}

}  // namespace
