// Where the algorithms of a run's GEMMs come from, and where they are kept.
#include "train/run/gemm_choices.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/base/file.h"
#include "tests/data/support.h"
#include "tests/gemm_library.h"
#include "tests/root_rights.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct GemmChoicesTest : InTempFolder {
  GemmChoicesTest() { library.milliseconds = {{1, 1.0}, {2, 0.5}, {3, 2.0}}; }

  // As a run chooses; what it timed is in `timed`.
  GemmChoices choose(const std::vector<GemmKey>& keys) {
    timed.clear();
    return choose_gemms({.library = library,
                         .places = places,
                         .time =
                             [&](const GemmKey& key) {
                               timed.push_back(key);
                               std::vector<GemmTime> times;
                               for (const auto& [id, ms] : library.milliseconds)
                                 times.push_back({algorithm(id), ms});
                               return times;
                             }},
                        keys);
  }
  GemmTable table(const std::vector<GemmKey>& keys, int id) const {
    GemmTable made{.platform = library.name, .choices = {}};
    for (const GemmKey& key : keys) made.choices[key] = {.algorithm = algorithm(id), .ms = 1, .first_ms = 1};
    return made;
  }
  std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
  int chosen(const GemmChoices& choices, const GemmKey& key) {
    const auto found = choices.table.choices.find(key);
    return found == choices.table.choices.end() ? 0 : found->second.algorithm.id;
  }

  const GemmKey a = product(64, 128, 32), b = product(64, 32, 128), c = product(128, 32, 64);
  FakeGemms library;
  GemmTablePlaces places{.run = folder_ / "run/gemms.jsonl",
                         .shipped = folder_ / "shipped.jsonl",
                         .cache = folder_ / "cache/tessera/table.jsonl"};
  std::vector<GemmKey> timed;
};

TEST_F(GemmChoicesTest, WhatIsTimedOnceIsKept) {
  const GemmChoices first = choose({a, b});
  EXPECT_EQ(timed, (std::vector{a, b}));
  EXPECT_EQ(chosen(first, a), 2);
  EXPECT_NE(first.summary.find("2 timed in "), std::string::npos) << first.summary;
  EXPECT_NE(first.summary.find(" s and kept in " + places.cache.string()), std::string::npos)
      << first.summary;
  EXPECT_TRUE(first.notices.empty());
  EXPECT_EQ(names(), std::set<std::string>{"cache"});

  library.milliseconds[0].second = 0.1;  // now the first would be the fastest
  const GemmChoices second = choose({b, a, c});
  EXPECT_EQ(timed, std::vector{c});
  EXPECT_EQ(chosen(second, a), 2);
  EXPECT_EQ(chosen(second, c), 1);
  EXPECT_EQ(second.summary.find("2 from " + places.cache.string() + ", 1 timed"), 0u) << second.summary;
  EXPECT_EQ(read_gemm_table(places.cache).choices.size(), 3u) << "what was kept before stays";
}

TEST_F(GemmChoicesTest, RunsThatTimeTheSameProductAtTheSameTimeAgree) {
  GemmChoices other;
  const GemmChoices mine =
      choose_gemms({.library = library,
                    .places = places,
                    .time =
                        [&](const GemmKey&) {
                          if (other.table.choices.empty()) other = choose({a, b});  // a run that is faster
                          return std::vector<GemmTime>{{algorithm(3), 0.1}, {algorithm(1), 0.2}};
                        }},
                   {a, c});
  EXPECT_EQ(chosen(other, a), 2);
  EXPECT_EQ(chosen(mine, a), 2) << "as it is in the cache by now";
  EXPECT_EQ(chosen(mine, c), 3);
  EXPECT_EQ(mine.table.choices.size(), 2u);
  EXPECT_EQ(read_gemm_table(places.cache).choices.size(), 3u);
}

TEST_F(GemmChoicesTest, ARunKeepsItsOwnThenComesWhatShipsThenTheCache) {
  fs::create_directories(places.cache.parent_path());
  fs::create_directories(places.run.parent_path());
  add_to_table(places.run, table({a}, 1));
  add_to_table(places.shipped, table({a, b}, 2));
  add_to_table(places.cache, table({a, b, c}, 3));
  const GemmChoices choices = choose({a, b, c});
  EXPECT_TRUE(timed.empty());
  EXPECT_EQ(chosen(choices, a), 1);
  EXPECT_EQ(chosen(choices, b), 2);
  EXPECT_EQ(chosen(choices, c), 3);
  EXPECT_EQ(choices.summary, "1 from " + places.run.string() + ", 1 from " + places.shipped.string() +
                                 ", 1 from " + places.cache.string());
}

TEST_F(GemmChoicesTest, ARunOfAnotherDeviceIsToldThatItsBitsMayDiffer) {
  fs::create_directories(places.run.parent_path());
  GemmTable other = table({a}, 1);
  other.platform.device = "Other GPU";
  write_file(places.run, text_of(other));
  const GemmChoices choices = choose({a});
  EXPECT_EQ(chosen(choices, a), 2);
  ASSERT_EQ(choices.notices.size(), 1u);
  EXPECT_NE(
      choices.notices[0].find("has algorithms for Other GPU with cuBLASLt 130100 of CUDA 13000; here is "
                              "Test GPU 80GB"),
      std::string::npos)
      << choices.notices[0];
  EXPECT_NE(choices.notices[0].find("bits of this run"), std::string::npos);
}

TEST_F(GemmChoicesTest, AnAlgorithmThatTheLibraryDoesNotSupportIsNamedAndTimedAnew) {
  add_to_table(places.shipped, table({a, b}, 9));
  const GemmChoices choices = choose({a});
  EXPECT_EQ(timed, std::vector{a});
  EXPECT_EQ(chosen(choices, a), 2);
  ASSERT_EQ(choices.notices.size(), 1u);
  EXPECT_TRUE(says(choices.notices[0],
                   {places.shipped.string(), "cuBLASLt", "algorithm 9", "[64, 32] x [128, 32]^T in bf16"}));
}

// As with train.gemm_backend: cublaslt, where a table that ships may name our GEMMs: only a run is told.
TEST_F(GemmChoicesTest, AProductOfOursThatIsLeftOutIsTimedAnew) {
  GemmTable ours = table({a}, 1);
  ours.choices[a].algorithm = {.id = GemmAlgorithm::kOwn};
  add_to_table(places.shipped, ours);
  EXPECT_TRUE(choose({a}).notices.empty());
  EXPECT_EQ(timed, std::vector{a});
  fs::create_directories(places.run.parent_path());
  add_to_table(places.run, ours);
  const GemmChoices choices = choose({a});
  EXPECT_NE(chosen(choices, a), GemmAlgorithm::kOwn);
  ASSERT_EQ(choices.notices.size(), 1u);
  EXPECT_EQ(choices.notices[0].find(places.run.string() + ": this run has used our own GEMM for [64, 32] x"),
            0u)
      << choices.notices[0];
}

TEST_F(GemmChoicesTest, ADamagedTableIsRefusedAtItsLine) {
  for (const fs::path& place : {places.run, places.shipped, places.cache}) {
    fs::create_directories(place.parent_path());
    write_file(place, text_of(table({a}, 1)) + "{\"m\": 64}\n");
    const std::string found = refusal([&] { choose({a}); });
    EXPECT_EQ(found.find(place.string() + ":3 has no \"n\""), 0u) << found;
    EXPECT_NE(found.find("mv " + place.string()), std::string::npos) << found;
    fs::remove(place);
  }
  GemmTable other = table({a}, 1);
  other.platform.cublaslt = 120000;
  write_file(places.shipped, text_of(other));
  const std::string found = refusal([&] { choose({a}); });
  EXPECT_EQ(found.find(places.shipped.string() + ":1: "), 0u) << found;
}

TEST_F(GemmChoicesTest, ACacheThatCannotBeWrittenIsANotice) {
  write("file", "");
  places.cache = folder_ / "file/table.jsonl";
  const GemmChoices choices = choose({a});
  EXPECT_EQ(chosen(choices, a), 2);
  ASSERT_EQ(choices.notices.size(), 1u);
  EXPECT_NE(choices.notices[0].find("next run"), std::string::npos);
  EXPECT_EQ(choices.summary.find("kept"), std::string::npos) << choices.summary;
  places.cache.clear();  // no home
  EXPECT_TRUE(choose({a}).notices.empty());
}

TEST_F(GemmChoicesTest, AProductWithoutAlgorithmsIsLeftToTheLibrary) {
  library.milliseconds.clear();
  const GemmChoices choices = choose({a});
  EXPECT_TRUE(choices.table.choices.empty());
  EXPECT_TRUE(names().empty());
}

TEST_F(GemmChoicesTest, TheCacheIsWhereTheUserKeepsCaches) {
  const auto cache = [&] { return table_places(library.name, "").cache; };
  const char* home = std::getenv("HOME");
  const std::string before = home ? home : "";
  setenv("XDG_CACHE_HOME", "/elsewhere", 1);
  EXPECT_EQ(cache(), "/elsewhere/tessera/test_gpu_80gb-130100-13000.jsonl");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/home/a", 1);
  EXPECT_EQ(cache(), "/home/a/.cache/tessera/test_gpu_80gb-130100-13000.jsonl");
  unsetenv("HOME");
  EXPECT_EQ(cache(), "");
  if (home) setenv("HOME", before.c_str(), 1);
}

// Those in configs/gemms: each is for the platform of its name, and for GEMMs that can be.
TEST(ShippedGemmTables, AreReadAndNamedAfterTheirPlatforms) {
  for (const auto& entry : fs::directory_iterator(fs::path(TESSERA_SOURCE_DIR) / "configs/gemms")) {
    const GemmTable table = read_gemm_table(entry.path());
    EXPECT_EQ(entry.path().filename().string(), table_file_name(table.platform));
    EXPECT_FALSE(table.choices.empty());
    EXPECT_EQ(text_of(table), read_file(entry.path())) << "written by hand";
    for (const auto& [key, choice] : table.choices)
      EXPECT_LE(choice.ms, (1 + kGemmNoise) * choice.first_ms) << describe(key);
  }
}

}  // namespace
}  // namespace tessera::testing
