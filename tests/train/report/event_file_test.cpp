// TensorBoard's event files: read back by a small reader of our own, and by TensorBoard's, if it is
// installed.
#include "train/report/event_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

// CRC-32C a bit at a time, from its polynomial: no table in common with the writer's.
uint32_t slow_crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  return ~crc;
}

template <class T>
T number_at(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);  // little-endian, as this machine
  return value;
}

struct Fields {  // of a message: by number, the last of each
  std::map<uint64_t, std::string> bytes;
  std::map<uint64_t, uint64_t> numbers;
};

Fields fields_of(std::string_view message) {
  Fields fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const uint64_t key = varint(), type = key & 7, field = key >> 3;
    if (type == 0) {
      fields.numbers[field] = varint();
    } else if (type == 1) {
      fields.numbers[field] = number_at<uint64_t>(message, at);
      at += 8;
    } else if (type == 5) {
      fields.numbers[field] = number_at<uint32_t>(message, at);
      at += 4;
    } else {
      EXPECT_EQ(type, 2u);
      const uint64_t length = varint();
      fields.bytes[field] = message.substr(at, length);
      at += length;
    }
  }
  return fields;
}

std::vector<Fields> read_events(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<Fields> events;
  const auto unmask = [](uint32_t masked) { return std::rotl(masked - 0xa282ead8u, 15); };
  for (size_t at = 0; at < all.size();) {
    const auto length = number_at<uint64_t>(all, at);
    EXPECT_EQ(unmask(number_at<uint32_t>(all, at + 8)), slow_crc32c(std::string_view(all).substr(at, 8)));
    const std::string_view bytes = std::string_view(all).substr(at + 12, length);
    EXPECT_EQ(unmask(number_at<uint32_t>(all, at + 12 + length)), slow_crc32c(bytes));
    events.push_back(fields_of(bytes));
    at += length + 16;
  }
  return events;
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

TEST(EventFile, ChecksumsAreThoseOfRfc3720) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(""), 0u);
}

struct EventFiles : InTempFolder {};

TEST_F(EventFiles, HoldWhatWasAdded) {
  EventFile file(folder_ / "events");
  EXPECT_FALSE(fs::exists(folder_ / "events")) << "nothing is written before there is an event";
  file.start(8, 1234.5);
  file.scalar("train/loss", 7, 1234.5, 2.5);
  file.flush();
  file.scalar("train/loss", int64_t{1} << 40, 1235, -1);
  file.flush();
  const std::vector<fs::path> files = files_in(folder_ / "events");
  ASSERT_EQ(files.size(), 1u);
  EXPECT_TRUE(files[0].filename().string().starts_with("events.out.tfevents.")) << files[0];
  const std::vector<Fields> events = read_events(files[0]);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].bytes.at(3), "brain.Event:2");
  EXPECT_EQ(events[1].numbers.at(2), 8u);
  EXPECT_EQ(fields_of(events[1].bytes.at(7)).numbers.at(1), 1u) << "SessionLog START";
  EXPECT_EQ(std::bit_cast<double>(events[2].numbers.at(1)), 1234.5);
  EXPECT_EQ(events[2].numbers.at(2), 7u);
  const Fields value = fields_of(fields_of(events[2].bytes.at(5)).bytes.at(1));
  EXPECT_EQ(value.bytes.at(1), "train/loss");
  EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(value.numbers.at(2))), 2.5f);
  EXPECT_EQ(events[3].numbers.at(2), uint64_t{1} << 40);
}

TEST_F(EventFiles, ThatCannotBeWrittenAreAnError) {
  write("events", "a file where the folder should be");
  EventFile file(folder_ / "events");
  file.scalar("a", 1, 1, 1);
  EXPECT_THROW(file.flush(), Error);
}

constexpr const char* kConfig =
    "device: cpu\n"
    "model:\n  vocab_size: 257\n  context: 16\n  layers: 1\n  heads: 1\n  channels: 16\n"
    "data:\n  train: text.txt\n"
    "train:\n  folder: out\n  steps: 6\n  tokens_per_step: 32\n  tensorboard: true\n"
    "evaluation:\n  every: 3\n  sequences: 2\n"
    "sampling:\n  every: 0\n"
    "checkpoint:\n  every: 3\n";

struct TensorBoard : TrainProgram {
  TensorBoard() : TrainProgram(kConfig) {}
  bool has_tensorboard() const {
    return run_process("/usr/bin/env", {"python3", "-c", "import tensorboard"}, {.folder = folder}).status ==
           0;
  }
};

// The scalars of all files, as "tag step": value. TensorBoard's START rule: what is later than it was, goes.
std::map<std::string, float> scalars(const fs::path& folder) {
  std::map<std::pair<std::string, uint64_t>, float> found;
  for (const fs::path& path : files_in(folder))
    for (const Fields& event : read_events(path)) {
      const uint64_t step = event.numbers.contains(2) ? event.numbers.at(2) : 0;
      if (event.bytes.contains(7))
        std::erase_if(found, [&](const auto& e) { return e.first.second >= step; });
      if (!event.bytes.contains(5)) continue;
      const Fields value = fields_of(fields_of(event.bytes.at(5)).bytes.at(1));
      found[{value.bytes.at(1), step}] = std::bit_cast<float>(static_cast<uint32_t>(value.numbers.at(2)));
    }
  std::map<std::string, float> named;
  for (const auto& [key, value] : found) named[key.first + " " + std::to_string(key.second)] = value;
  return named;
}

std::map<std::string, float> losses_of(const fs::path& metrics) {
  std::map<std::string, float> found;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    for (const auto& [key, tag] : {std::pair("loss", "train/loss"), {"validation_loss", "validation/loss"}})
      if (json.contains(key)) found[std::string(tag) + " " + json["step"].dump()] = json[key].get<float>();
  }
  return found;
}

TEST_F(TensorBoard, ReadsBackARunThatWasResumed) {
  ASSERT_EQ(train({"--set", "train.steps=5", "--set", "train.folder=out"}).status, 0);
  fs::remove_all(folder /
                 "out/checkpoints/step_00000005");  // as if it had been killed after step 3 was saved
  const ProcessResult resumed = train({"--resume"});
  ASSERT_EQ(resumed.status, 0) << resumed.error;
  EXPECT_EQ(files_in(folder / "out/tensorboard").size(), 2u) << "a file of each process";
  const std::map<std::string, float> wanted = losses_of(folder / "out/metrics.jsonl");
  std::map<std::string, float> found = scalars(folder / "out/tensorboard");
  for (const auto& [key, value] : wanted) EXPECT_EQ(found.contains(key) ? found[key] : NAN, value) << key;
  for (const char* tag :
       {"train/grad_norm 6", "train/learning_rate 6", "train/tokens_per_second 6", "train/mfu 6"})
    EXPECT_TRUE(found.contains(tag)) << tag;

  if (!has_tensorboard()) GTEST_SKIP() << "python3 has no tensorboard: its own reader was not tried";
  write("read.py",
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "events = EventAccumulator('out/tensorboard')\n"
        "events.Reload()\n"
        "for tag in events.Tags()['scalars']:\n"
        "  for e in events.Scalars(tag): print(tag, e.step, repr(e.value), e.wall_time > 1.6e9)\n");
  const ProcessResult read = run_process("/usr/bin/env", {"python3", "read.py"}, {.folder = folder});
  ASSERT_EQ(read.status, 0) << read.error;
  std::istringstream lines(read.out);
  std::map<std::string, float> by_tensorboard;
  std::string tag, step, value, recent;
  while (lines >> tag >> step >> value >> recent) {
    by_tensorboard[tag + " " + step] = std::stof(value);
    EXPECT_EQ(recent, "True");
  }
  for (const auto& [key, loss] : wanted)
    EXPECT_EQ(by_tensorboard.contains(key) ? by_tensorboard[key] : NAN, loss) << key << "\n" << read.out;
  EXPECT_EQ(by_tensorboard.size(), found.size());
}

TEST_F(TensorBoard, HasWhatGoesOnInside) {
  ASSERT_EQ(train({"--set", "train.inside_every=3", "--set", "model.layers=2"}).status, 0);
  const std::map<std::string, float> found = scalars(folder / "out/tensorboard");
  for (const char* tag : {"update_ratio/attention.qkv/0", "weight_norm/norms/1", "gradient_norm/token_table",
                          "attention_entropy/1", "dead_units/0", "clipped"})
    for (const char* step : {" 3", " 6"})
      EXPECT_TRUE(found.contains("inside/" + std::string(tag) + step)) << tag << step;
  EXPECT_FALSE(found.contains("inside/clipped 4"));
}

TEST_F(TensorBoard, IsOffUnlessAskedFor) {
  ASSERT_EQ(train({"--set", "train.tensorboard=false", "--set", "train.steps=2"}).status, 0);
  EXPECT_FALSE(fs::exists(folder / "out/tensorboard"));
}

}  // namespace
}  // namespace tessera::testing
