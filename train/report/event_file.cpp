#include "train/report/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_line.h"
#include "kernels/base/system_error.h"

namespace tessera {
namespace {

template <class T>
std::string little_endian(T value) {
  std::string bytes(sizeof(T), '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(value & 0xff);
    value >>= 8;
  }
  return bytes;
}

// Protocol Buffers: a field is a key, which is its number and how it is encoded, and its value.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(uint32_t field, WireType type) { return varint(field << 3 | type); }

std::string bytes_field(uint32_t field, std::string_view bytes) {
  return key(field, kBytes) + varint(bytes.size()) + std::string(bytes);
}

std::string integer_field(uint32_t field, int64_t value) {
  return key(field, kVarint) + varint(static_cast<uint64_t>(value));
}

// Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7
std::string event(double wall_time, int64_t step, uint32_t what, std::string_view message) {
  return event_record(key(1, kFixed64) + little_endian(std::bit_cast<uint64_t>(wall_time)) +
                      integer_field(2, step) + bytes_field(what, message));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < made.size(); ++i) {
      uint32_t remainder = i;
      for (int bit = 0; bit < 8; ++bit) remainder = remainder >> 1 ^ (remainder & 1 ? 0x82f63b78u : 0u);
      made[i] = remainder;
    }
    return made;
  }();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = table[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ crc >> 8;
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

std::string event_record(std::string_view bytes) {
  const std::string length = little_endian(static_cast<uint64_t>(bytes.size()));
  return length + little_endian(masked_crc32c(length)) + std::string(bytes) +
         little_endian(masked_crc32c(bytes));
}

void EventFile::start(int64_t step, double wall_time) {
  pending_ += event(wall_time, step, 7, integer_field(1, 1));  // SessionLog: status = 1, START is 1
}

void EventFile::scalar(std::string_view tag, int64_t step, double wall_time, double value) {
  // Summary: value = 1; Value: tag = 1, simple_value = 2
  const std::string simple = bytes_field(1, tag) + key(2, kFixed32) +
                             little_endian(std::bit_cast<uint32_t>(static_cast<float>(value)));
  pending_ += event(wall_time, step, 5, bytes_field(1, simple));
}

void EventFile::flush() {
  if (pending_.empty()) return;
  std::string records = std::exchange(pending_, "");
  if (!file_.is_open()) records.insert(0, open());
  if (write_all(file_.get(), records)) return;
  const SystemCall written = false;
  file_.close();
  check_system(written, "cannot append to {}: {}", path_.string());
}

// TensorBoard reads a folder's files in the order of their names, which begin with the time.
std::string EventFile::open() {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  check(!error, "cannot make the folder {}: {}", folder_.string(), error.message());
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  const auto now = static_cast<int64_t>(std::time(nullptr));
  for (int i = 0; !file_.is_open(); ++i) {  // never the file of another process
    path_ = folder_ / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", now, host, getpid(), i);
    file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    check_system(file_.is_open() || errno == EEXIST, "cannot write {}: {}", path_.string());
  }
  return event_record(key(1, kFixed64) + little_endian(std::bit_cast<uint64_t>(static_cast<double>(now))) +
                      bytes_field(3, "brain.Event:2"));
}

}  // namespace tessera
