// ./bench links: which figures are slow, and the program's run on two ranks.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/train_ranks.h"
#include "train/bench/links_results.h"

namespace tessera::testing {
namespace {

LinksResults of_three_machines() {
  LinksResults results{.of_machines = true, .ends = {"a", "b", "c"}, .ranks = {}, .links = {}};
  for (const char* machine : {"a", "b", "c"})
    results.ranks.push_back({.machine = machine,
                             .device = "CPU",
                             .flops = 1e12,
                             .memory = 2e10,
                             .host = 1e10,
                             .send = 0,
                             .disk_write = 1e9,
                             .disk_read = 3e9});
  for (int64_t from = 0; from < 3; ++from)
    for (int64_t to = 0; to < 3; ++to)
      if (from != to) results.links.push_back({.from = from, .to = to, .rate = 1e10, .seconds = 2e-5});
  return results;
}

TEST(Links, NameWhatIsBelowTheMedian) {
  LinksResults results = of_three_machines();
  EXPECT_TRUE(slow_ones(results).empty());
  results.ranks[1].flops = 0.71e12;      // above 0.7 of the median
  results.ranks[2].disk_write = 0.69e9;  // below
  results.links[1].rate = 1e9;           // a to c
  results.links[4].seconds = 1e-3;       // c to a
  const std::vector<std::string> slow = slow_ones(results);
  ASSERT_EQ(slow.size(), 3u);
  for (const auto& [i, parts] :
       std::map<size_t, std::vector<std::string>>{{0, {"c to a", "1000.0 us", "20.0 us"}},
                                                  {1, {"a to c", "1 GB/s", "10 GB/s"}},
                                                  {2, {"rank 2 on c", "writes 0.69 GB/s", "1 GB/s"}}})
    for (const std::string& part : parts) EXPECT_NE(slow[i].find(part), std::string::npos) << slow[i];
  EXPECT_EQ(json_of(results)["slow"].size(), 3u);
  EXPECT_NE(links_table(results).find("c                a"), std::string::npos) << links_table(results);
}

struct LinksOfRanks : TrainRanks {};

TEST_F(LinksOfRanks, AreMeasuredInBothDirections) {
  const ProcessResult result = run_process(
      BENCH_BINARY, {"links", "--ranks", "3", "--device", "cpu", "--json", "links.json"}, {.folder = folder});
  ASSERT_EQ(result.status, 0) << result.error;
  const auto json = nlohmann::json::parse(read_file(folder / "links.json"));
  ASSERT_EQ(json["ranks"].size(), 3u);
  for (const auto& rank : json["ranks"])
    for (const char* figure : {"gemm_tflops", "device_memory_gb_per_s", "host_memory_gb_per_s"})
      EXPECT_GT(rank[figure], 0) << figure;
  EXPECT_GT(json["ranks"][0]["disk_write_gb_per_s"], 0);
  std::set<std::string> pairs;
  for (const auto& link : json["links"]) {
    pairs.insert(link["from"].get<std::string>() + link["to"].get<std::string>());
    EXPECT_GT(link["gb_per_s"], 0);
    EXPECT_GT(link["latency_us"], 0);
  }
  EXPECT_EQ(pairs.size(), 6u);
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".tessera")) << "a file is left over";
  EXPECT_NE(result.out.find("rank 2"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace tessera::testing
