#include "train/metrics.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> found;
  for (std::string line; std::getline(file, line);) found.push_back(line);
  return found;
}

TEST(MetricsFile, AResumedRunReadsAsIfItHadNeverStopped) {
  const fs::path path = fs::temp_directory_path() / ("tessera_metrics_" + std::to_string(getpid()));
  {
    MetricsFile file(path, -1);
    for (int step = 1; step <= 4; ++step) file.write({{"step", step}, {"loss", 0.1 * step}});
  }
  EXPECT_EQ(lines(path).size(), 4u);
  {
    MetricsFile file(path, 2);
    file.write({{"step", 3}, {"loss", 9.0}});
  }
  EXPECT_EQ(lines(path), (std::vector<std::string>{R"({"step":1,"loss":0.1})", R"({"step":2,"loss":0.2})",
                                                   R"({"step":3,"loss":9.0})"}));
  { MetricsFile anew(path, -1); }
  EXPECT_TRUE(lines(path).empty());
  fs::remove(path);
}

TEST(Format, DurationsAndCounts) {
  EXPECT_EQ(format_duration(65), "1:05");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(999), "999");
}

}  // namespace
}  // namespace tessera
