// Configurations that are written to harm: none may take the machine's memory, its time or the stack.
#include <gtest/gtest.h>

#include "tests/train_program.h"

namespace tessera::testing {
namespace {

struct ConfigAttack : TrainProgram {
  ConfigAttack() : TrainProgram("device: cpu\n") {}
  void SetUp() override {
    if (!kAddressesCanBeLimited) GTEST_SKIP() << "built with the address sanitizer: no limit on memory";
  }

  // Under a limit of memory and time, as yaml-cpp has inputs that it reads without end.
  ProcessResult limited(const std::string& arguments) const {
    return run_shell(
        "ulimit -v 4000000; OMP_NUM_THREADS=1 exec timeout 20 \"$0\" --print-config " + arguments,
        {TRAIN_BINARY}, {.folder = folder});
  }
  void refused(const std::string& arguments, const std::string& part) const {
    const ProcessResult result = limited(arguments);
    EXPECT_EQ(result.status, 1) << arguments << "\n" << result.error;
    EXPECT_LT(result.error.size(), 1000u) << result.error;
    EXPECT_NE(result.error.find(part), std::string::npos)
        << "wanted: " << part << "\nfound:  " << result.error;
  }
};

// The matrix library of the CPU would wait for address space for ever. Below the limits that it refuses, the
// loader has no room for the libraries of the program, which are large in a build with CUDA, and says so.
TEST_F(ConfigAttack, ALimitOfAddressSpaceThatIsTooLowIsRefused) {
  write("train.yaml", "device: cpu\ndata: {train: text.txt}\ntrain: {steps: 1, folder: out}\n");
  constexpr int kNoRoomForLibraries = 127;
  int refused = 0;
  for (int limit = 100'000; limit < 8'000'000; limit += 100'000) {  // KiB
    const ProcessResult result =
        run_shell(fmt::format("ulimit -v {}; OMP_NUM_THREADS=1 exec timeout 20 \"$0\" train.yaml", limit),
                  {TRAIN_BINARY}, {.folder = folder});
    if (result.status == kNoRoomForLibraries) continue;
    if (result.error.find("ulimit -v unlimited") == std::string::npos) break;  // it had room
    EXPECT_EQ(result.status, 1) << limit << result.error;
    for (const char* part : {"train: error: ", "OMP_NUM_THREADS=1"})
      EXPECT_NE(result.error.find(part), std::string::npos) << limit << result.error;
    refused += 1;
  }
  EXPECT_GT(refused, 0);
}

TEST_F(ConfigAttack, WhatFollowsTheRootIsRefused) {
  for (const char* text : {"\"a\",\"b\"",
                           "{\"device\": \"cpu\"},",
                           "'a',",
                           "[a],",
                           "[a],[b]",
                           "{a: b},c",
                           "{a: b}:",
                           "\"a\" b",
                           "\"a\" \"b\"",
                           "{a: b} {c: d}",
                           "{a: b}]",
                           "{a: b}}",
                           ",",
                           "]",
                           "}",
                           "&x \"a\",",
                           "!!str \"a\",",
                           "? a\n,",
                           "- a\n,",
                           "device: cpu\n...\n,",
                           "{device: cpu}\n- a"}) {
    write("bad.yaml", text);
    refused("bad.yaml", "bad.yaml:");
    if (std::string(text).find('\n') == std::string::npos && text[0] != 'd')
      refused("small.yaml --set 'sampling.prompt=" + std::string(text[0] == '\'' ? "\"a\"," : text) + "'",
              "--set sampling.prompt=");
  }
  refused("small.yaml --set 'sampling.prompt=\"a\",\"b\"'", "ended before");
  write("two.yaml", "device: cpu\n---\ndevice: cpu\n");
  refused("two.yaml", "second");
}

TEST_F(ConfigAttack, SizeAndDepthAreBounded) {
  std::string deep = "model: ", dashes;
  for (int i = 0; i < 200000; ++i) deep += "[";
  write("deep.yaml", deep);
  refused("deep.yaml", "more than 64 deep");
  for (int i = 0; i < 200000; ++i) dashes += "- ";
  write("dashes.yaml", dashes);
  refused("dashes.yaml", "more than 64 deep");
  write("large.yaml", std::string((1 << 20) + 1, '#'));
  refused("large.yaml", "at most 1048576 bytes");
  refused("/dev/zero", "at most 1048576 bytes");
  // Anchors that double themselves: read as they stand, not multiplied out.
  std::string laughs = "model: {x: &a0 [a, a]";
  for (int i = 0; i < 60; ++i)
    laughs += ", y" + std::to_string(i) + ": &a" + std::to_string(i + 1) + " [*a" + std::to_string(i) +
              ", *a" + std::to_string(i) + "]";
  write("laughs.yaml", laughs + "}\n");
  refused("laughs.yaml", "unknown key");
}

}  // namespace
}  // namespace tessera::testing
