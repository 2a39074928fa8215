#include "train/tasks/eval_file.h"

#include <array>
#include <bit>
#include <cstring>

#include "kernels/base/check.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "files of tokens are little-endian");

using Header = std::array<int32_t, 256>;
constexpr int32_t kMagic = 20240522, kVersion = 1;
constexpr uint16_t kBegin = 65535;  // of an item
constexpr int64_t kItemHeader = 5;  // uint16: kBegin, bytes, number, label, choices

// Reads an item's numbers one after the other.
class Numbers {
 public:
  Numbers(const MappedFile& file, int64_t item, size_t first)
      : file_(file), item_(item), first_(first), at_(first), end_(file.bytes().size()) {}

  int64_t next(const char* what) {
    check(at_ + sizeof(uint16_t) <= end_, "{}: the {} is missing: the {} ends there", place(), what,
          end_ == file_.bytes().size() ? "file" : "item");
    uint16_t number = 0;
    std::memcpy(&number, file_.bytes().data() + at_, sizeof number);
    at_ += sizeof number;
    return number;
  }
  std::vector<int32_t> tokens(const char* of) {
    const int64_t count = next(of);
    check(count > 0, "{}: {} has no tokens", place(), of);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(next(of)));
    return tokens;
  }
  void end_after(int64_t bytes) {
    check(bytes >= kItemHeader * 2 && first_ + static_cast<size_t>(bytes) <= end_,
          "{}: it says that it has {} bytes, and the file has {} from there on", place(), bytes,
          end_ - first_);
    end_ = first_ + static_cast<size_t>(bytes);
  }
  size_t end() const {
    check(at_ == end_, "{}: it says that it has {} bytes, and holds {}", place(), end_ - first_,
          at_ - first_);
    return end_;
  }
  std::string place() const {
    return fmt::format("{}: item {}, at byte {}", file_.path().string(), item_, first_);
  }

 private:
  const MappedFile& file_;
  int64_t item_;
  size_t first_, at_, end_;
};

}  // namespace

bool begins_as_eval_file(std::span<const std::byte> bytes) {
  int32_t magic = 0;
  if (bytes.size() < sizeof magic) return false;
  std::memcpy(&magic, bytes.data(), sizeof magic);
  return magic == kMagic;
}

std::vector<TaskItem> read_eval_file(const MappedFile& file, int64_t most) {
  const std::string path = file.path().string();
  check(begins_as_eval_file(file.bytes()),
        "{} is no file of a task: it does not begin with {}, llm.c's number", path, kMagic);
  check(file.bytes().size() >= sizeof(Header), "{}: the header takes {} bytes, found {}", path,
        sizeof(Header), file.bytes().size());
  Header header;
  std::memcpy(header.data(), file.bytes().data(), sizeof header);
  check(header[1] == kVersion, "{} has version {}, supported is {}", path, header[1], kVersion);
  check(header[2] > 0, "{} says that it holds {} items", path, header[2]);
  std::vector<TaskItem> items;
  size_t at = sizeof header;
  for (int64_t i = 0; i < header[2]; ++i) {
    Numbers numbers(file, i + 1, at);
    check(numbers.next("mark") == kBegin, "{}: an item must begin with the mark {}", numbers.place(), kBegin);
    numbers.end_after(numbers.next("number of bytes"));
    const int64_t number = numbers.next("number");
    check(number == i, "{}: its number is {}, expected {}", numbers.place(), number, i);
    TaskItem item{.context = {}, .choices = {}, .answer = numbers.next("right choice"), .place = i + 1};
    const int64_t choices = numbers.next("number of choices");
    check(choices >= 2 && item.answer < choices,
          "{}: choice {} of {} is right: an item must have at least 2 choices, and the right one is one of "
          "them",
          numbers.place(), item.answer, choices);
    item.context = numbers.tokens("the context");
    for (int64_t c = 0; c < choices; ++c) item.choices.push_back({.tokens = numbers.tokens("a choice")});
    at = numbers.end();
    if (most == 0 || i < most) items.push_back(std::move(item));
  }
  check(at == file.bytes().size(), "{} has {} bytes after its {} items", path, file.bytes().size() - at,
        header[2]);
  return items;
}

}  // namespace tessera
