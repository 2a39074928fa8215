#include "train/report/metrics.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/status_line.h"
#include "kernels/base/text.h"

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

TEST(MetricsFile, AFileThatIsRemovedReplacedOrCutIsNoticedAndNoLaterLineIsLost) {
  const fs::path path = fs::temp_directory_path() / ("tessera_metrics_" + std::to_string(getpid()));
  const std::string first = R"({"step":1})", second = R"({"step":2})", third = R"({"step":3})";
  MetricsFile file(path, -1);
  file.write({{"step", 1}});
  EXPECT_EQ(file.take_notice(), "");
  fs::remove(path);
  file.write({{"step", 2}});
  EXPECT_FALSE(fs::exists(path)) << "its folder may be about to be removed";
  file.finish();
  EXPECT_EQ(lines(path), std::vector{second});
  EXPECT_NE(file.take_notice().find(path.string() + " was removed"), std::string::npos);
  std::ofstream(path.string() + ".other") << first << "\n";
  fs::rename(path.string() + ".other", path);
  file.write({{"step", 2}});
  EXPECT_EQ(lines(path), (std::vector{first, second}));
  EXPECT_NE(file.take_notice().find(path.string() + " was replaced"), std::string::npos);
  fs::resize_file(path, static_cast<uintmax_t>(first.size() + 1));
  file.write({{"step", 3}});
  EXPECT_EQ(lines(path), (std::vector{first, third}));
  EXPECT_NE(file.take_notice().find(path.string() + " was cut"), std::string::npos);
  file.write({{"step", 3}});
  EXPECT_EQ(file.take_notice(), "");
  fs::remove(path);
}

TEST(MetricsFile, KeepsTheEventsBeforeTheStepAndDropsWhatIsTorn) {
  const fs::path path = fs::temp_directory_path() / ("tessera_metrics_" + std::to_string(getpid()));
  std::ofstream(path) << R"({"type":"start","step":0})"
                      << "\n"
                      << R"({"step":1,"loss":0.5})"
                      << "\n"
                      << R"({"step":null,"loss":1})"
                      << "\n[]\n"
                      << R"({"step":2,"validation_loss":0.5})"
                      << "\n"
                      << R"({"type":"stop","step":2,"reason":"signal"})"
                      << "\n"
                      << R"({"type":"step","step":3,"loss":0.1})"
                      << "\n"
                      << R"({"type":"step","step":2,"lo)";
  {
    MetricsFile file(path, 2);
    EXPECT_TRUE(file.kept("evaluation"));  // told by its keys: it has no type
    EXPECT_FALSE(file.kept("sample"));
    EXPECT_FALSE(file.kept("step")) << "that of step 1 is not at the end";
    file.write({{"type", "resume"}, {"step", 2}});
    file.sync();
  }
  EXPECT_EQ(lines(path), (std::vector<std::string>{R"({"type":"start","step":0})", R"({"step":1,"loss":0.5})",
                                                   R"({"step":2,"validation_loss":0.5})",
                                                   R"({"type":"stop","step":2,"reason":"signal"})",
                                                   R"({"type":"resume","step":2})"}));
  fs::remove(path);
}

// The run that resumes writes it again. Runs of earlier versions name it "stage".
TEST(MetricsFile, DropsAPhaseThatBeginsAtTheStep) {
  const fs::path path = fs::temp_directory_path() / ("tessera_metrics_" + std::to_string(getpid()));
  const std::string step = R"({"type":"step","step":2,"loss":0.5})";
  for (const char* type : {"phase", "stage"}) {
    std::ofstream(path) << step << fmt::format("\n{{\"type\":\"{}\",\"step\":2}}\n", type)
                        << R"({"type":"evaluation","step":2,"validation_loss":0.5})"
                        << "\n";
    const MetricsFile file(path, 2);
    EXPECT_EQ(lines(path), std::vector<std::string>{step});
    EXPECT_FALSE(file.kept("evaluation"));
  }
  fs::remove(path);
}

// A run that goes back keeps what it has done at that step; one that resumes there goes back again.
TEST(MetricsFile, DropsWhatARunGoesBackBehind) {
  const fs::path path = fs::temp_directory_path() / ("tessera_metrics_" + std::to_string(getpid()));
  const std::string phase = R"({"type":"phase","step":2})", back = R"({"type":"rewind","step":2})",
                    third = R"({"type":"step","step":3})";
  {
    MetricsFile file(path, -1);
    file.write({{"type", "phase"}, {"step", 2}});
    for (int times = 0; times < 2; ++times) {
      file.write({{"type", "step"}, {"step", 3}});
      file.drop_after(2);
      file.write({{"type", "rewind"}, {"step", 2}});
    }
    file.write({{"type", "step"}, {"step", 3}});
  }
  EXPECT_EQ(lines(path), (std::vector<std::string>{phase, back, back, third}));
  { const MetricsFile later(path, 3); }
  EXPECT_EQ(lines(path), (std::vector<std::string>{phase, back, back, third}));
  std::ofstream(path) << back << "\n" << third << "\n";
  { const MetricsFile again(path, 2); }
  EXPECT_TRUE(lines(path).empty());
  fs::remove(path);
}

TEST(Format, TheTimeIsThatOfTheClockInUtc) {
  const std::string time = utc_time();
  std::tm parts{};
  ASSERT_NE(strptime(time.c_str(), "%Y-%m-%dT%H:%M:%S", &parts), nullptr) << time;
  EXPECT_NEAR(static_cast<double>(timegm(&parts)), static_cast<double>(std::time(nullptr)), 2) << time;
  EXPECT_EQ(time.size(), std::string("2026-01-31T12:34:56.789Z").size()) << time;
}

TEST(Format, DurationsAndCounts) {
  EXPECT_EQ(format_duration(65), "1:05");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(999), "999");
}

}  // namespace
}  // namespace tessera
