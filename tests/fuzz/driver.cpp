// A fuzzer in one file: bytes are changed at random, and what reaches new code is kept and changed again.
//
//   fuzz [--seconds N] [--seed N] [--findings FOLDER] [TARGET...]    all targets, N seconds together
//   fuzz --input FILE TARGET                                         one input, as a finding is reproduced
//
// g++ marks the project's code with -fsanitize-coverage=trace-pc: every jump calls the function below. Each
// target runs in a process of its own, which writes an input into shared memory before it reads it; where the
// process dies, or an input takes over ten seconds or 2 GiB, the input is kept as a file and another goes on.
// The same seed gives the same inputs for as long as the code takes the same paths.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "kernels/base/check.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr size_t kCoverage = 1 << 16;
unsigned char g_coverage[kCoverage];

}  // namespace

extern "C" void __sanitizer_cov_trace_pc() {
  static thread_local uintptr_t previous = 0;
  const auto here = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  unsigned char& count = g_coverage[(here ^ previous) % kCoverage];
  count = static_cast<unsigned char>(count + (count < 255));
  previous = here >> 1;
}

// For the sanitizers: an allocation that is refused is a finding. The largest that is right is the window of
// a file that `zstd --long=31` wrote, 2 GiB, of which little is touched.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=0:max_allocation_size_mb=2100:detect_leaks=0:handle_abort=1";
}
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }

namespace tessera::fuzz {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr size_t kMostBytes = 1 << 16;             // of an input
constexpr double kLongestSeconds = 10;             // of one input
constexpr double kSlowSeconds = 0.1;               // an input that takes longer is not changed into others
constexpr int64_t kMostMemory = int64_t{2} << 30;  // of a target's process
constexpr int kMostFindings = 5;                   // of a target; then it is left
constexpr int kPassedOn = 1, kFound = 99;          // exit codes of the process of a target

// What the process of a target tells the one that watches it.
struct Shared {
  std::atomic<uint64_t> inputs, kept, reached;  // reached: different counts of different jumps
  size_t bytes;
  unsigned char input[kMostBytes];
};

class Mutator {
 public:
  Mutator(uint64_t seed, const std::vector<std::string>& words) : random_(seed), words_(words) {}

  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  std::string change(std::string text, const std::vector<std::string>& corpus) {
    for (size_t i = 1 + below(6); i > 0; --i) change_once(text, corpus[below(corpus.size())]);
    if (text.size() > kMostBytes) text.resize(kMostBytes);
    return text;
  }

 private:
  void change_once(std::string& text, const std::string& other) {
    const size_t at = below(text.size() + 1), length = below(std::min<size_t>(text.size() - at, 40) + 1);
    switch (below(11)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ 1 << below(8));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(at, text.substr(at, length));
        break;
      case 4:
        text.insert(at, std::string(1 + below(200), static_cast<char>(below(256))));
        break;
      case 5:
        text.insert(at, other.substr(below(other.size() + 1), 1 + below(80)));
        break;
      case 6:  // one text goes on as another
        text = text.substr(0, at) + other.substr(below(other.size() + 1));
        break;
      case 7:
        put_integer(text, at);
        break;
      case 8:
        put_number(text, at, length);
        break;
      case 9: {
        static const std::vector<std::string> deep{"[", "{\"a\":", "(", "- ", "  ", "\n", "\\", "\""};
        const std::string& word = deep[below(deep.size())];
        std::string many;
        for (size_t i = below(300); i > 0; --i) many += word;
        text.insert(at, many);
        break;
      }
      default:
        if (!words_.empty()) text.replace(at, below(2) * length, words_[below(words_.size())]);
    }
  }

  void put_integer(std::string& text, size_t at) {  // little-endian, near a border
    static constexpr uint64_t kBorders[] = {
        0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, uint64_t{1} << 32, INT64_MAX, UINT64_MAX};
    const uint64_t value = kBorders[below(std::size(kBorders))] + below(3) - 1;
    const size_t size = size_t{1} << below(4);
    if (at + size <= text.size()) std::memcpy(text.data() + at, &value, size);
  }

  void put_number(std::string& text, size_t at, size_t length) {
    static const std::vector<std::string> numbers{"0",
                                                  "-1",
                                                  "1",
                                                  "9223372036854775807",
                                                  "-9223372036854775808",
                                                  "9223372036854775808",
                                                  "18446744073709551615",
                                                  "1e308",
                                                  "1e999",
                                                  "-0.0",
                                                  "nan",
                                                  "inf",
                                                  "1e-400",
                                                  "4294967296",
                                                  "2147483648"};
    text.replace(at, std::min<size_t>(length, 4), numbers[below(numbers.size())]);
  }

  std::mt19937_64 random_;
  const std::vector<std::string>& words_;
};

// In powers of two, so that how often a loop turned hardly matters.
bool takes_new_path(std::vector<unsigned char>& known) {
  bool found = false;
  for (size_t i = 0; i < kCoverage; ++i) {
    if (g_coverage[i] == 0) continue;
    const auto size = static_cast<unsigned char>(1 << std::min(7, 32 - __builtin_clz(g_coverage[i])));
    found = found || (known[i] & size) == 0;
    known[i] |= size;
  }
  return found;
}

// Whether the target took or refused the bytes as it may.
bool read_once(const Target& target, std::string_view bytes, const fs::path& folder, std::string& why) {
  try {
    target.read(bytes, folder);
  } catch (const Error&) {
  } catch (const std::exception& error) {
    why = std::string("an exception that is no Error: ") + error.what();
    return false;
  }
  return true;
}

// The process of a target; it ends when it is killed, or finds something.
[[noreturn]] void fuzz(const Target& target, uint64_t seed, Shared& shared, const fs::path& folder,
                       const fs::path& log) {
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  fs::create_directories(folder);
  Mutator mutator(seed, target.words);
  std::vector<unsigned char> known(kCoverage);
  std::vector<std::string> corpus;
  for (uint64_t i = 0;; ++i) {
    const bool is_seed = i < target.seeds.size();
    const std::string input = is_seed ? target.seeds[i]
                                      : mutator.change(corpus[mutator.below(corpus.size())], corpus);
    shared.bytes = std::min(input.size(), kMostBytes);
    std::memcpy(shared.input, input.data(), shared.bytes);
    std::memset(g_coverage, 0, sizeof g_coverage);
    std::string why;
    const Clock::time_point start = Clock::now();
    const bool fine = read_once(target, {input.data(), shared.bytes}, folder, why);
    ++shared.inputs;
    if (!fine) {
      std::fprintf(stderr, "%s\n", why.c_str());
      std::fflush(stderr);
      _exit(kFound);
    }
    const bool is_slow = std::chrono::duration<double>(Clock::now() - start).count() > kSlowSeconds;
    if (takes_new_path(known) || is_seed)
      if (!is_slow || corpus.empty()) corpus.push_back(input);
    shared.kept = corpus.size();
    if (i % 256 == 0) {
      shared.reached = static_cast<uint64_t>(std::ranges::count_if(known, [](auto k) { return k != 0; }));
      if (ftruncate(out, 0) == 0) lseek(out, 0, SEEK_SET);  // what refusals printed
    }
  }
}

struct Options {
  double seconds = 60;
  uint64_t seed = 1;
  fs::path findings = "fuzz-findings";
  std::string input;
  std::vector<std::string> names;
};

int64_t memory_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class Watch {
 public:
  Watch(const Options& options, const fs::path& scratch) : options_(options), scratch_(scratch) {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) Shared{};
  }

  // Returns the number of findings.
  int run(const Target& target, double seconds) {
    const Clock::time_point end = Clock::now() + std::chrono::milliseconds(static_cast<int>(seconds * 1000));
    int found = 0;
    uint64_t inputs = 0;
    for (int turn = 0; Clock::now() < end && found < kMostFindings; ++turn) {
      shared_ = new (static_cast<void*>(shared_)) Shared{};
      const pid_t pid = fork();
      if (pid == 0)
        fuzz(target, options_.seed + static_cast<uint64_t>(turn), *shared_, scratch_ / "folder", log());
      found += !watch(target, pid, end);
      inputs += shared_->inputs;
      fs::remove_all(scratch_ / "folder");
    }
    std::printf("%-14s %9lu inputs, %6lu jumps reached, %5lu inputs kept, %d findings\n", target.name.c_str(),
                inputs, shared_->reached.load(), shared_->kept.load(), found);
    std::fflush(stdout);
    return found;
  }

 private:
  fs::path log() const { return scratch_ / "log"; }

  // Until the time is over (true), or the process dies or stands still (false).
  bool watch(const Target& target, pid_t pid, Clock::time_point end) {
    uint64_t last = 0;
    Clock::time_point moved = Clock::now();
    while (Clock::now() < end) {
      int status = 0;
      if (waitpid(pid, &status, WNOHANG) == pid) return keep(target, "crash"), false;
      if (shared_->inputs != last) {
        last = shared_->inputs;
        moved = Clock::now();
      }
      const bool is_slow = std::chrono::duration<double>(Clock::now() - moved).count() > kLongestSeconds;
      if (is_slow || memory_of(pid) > kMostMemory) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        return keep(target, is_slow ? "slow" : "memory"), false;
      }
      usleep(20'000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return true;
  }

  void keep(const Target& target, const std::string& kind) {
    const std::string bytes(reinterpret_cast<const char*>(shared_->input), shared_->bytes);
    fs::create_directories(options_.findings);
    const fs::path path = options_.findings / (target.name + "-" + kind + "-" +
                                               std::to_string(std::hash<std::string>()(bytes) % 100'000'000));
    std::ofstream(path, std::ios::binary) << bytes;
    std::ifstream file(log());
    std::stringstream said;
    said << file.rdbuf();
    std::string text = said.str();
    const size_t report = text.find("ERROR: AddressSanitizer");
    if (report != std::string::npos) text.erase(0, report);
    const fs::path program = fs::read_symlink("/proc/self/exe");
    std::printf("== %s: %s\n%s\n   reproduce: \"%s\" --input \"%s\" %s\n", target.name.c_str(), kind.c_str(),
                text.substr(0, 2500).c_str(), program.c_str(), fs::absolute(path).c_str(),
                target.name.c_str());
    std::fflush(stdout);
  }

  const Options& options_;
  fs::path scratch_;
  Shared* shared_;
};

int reproduce(const Target& target, const Options& options, const fs::path& scratch) {
  std::ifstream file(options.input, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  fs::create_directories(scratch / "folder");
  std::string why;
  if (read_once(target, bytes.str(), scratch / "folder", why)) {
    std::printf("%s reads %s without a fault\n", target.name.c_str(), options.input.c_str());
    return 0;
  }
  std::printf("%s: %s\n", target.name.c_str(), why.c_str());
  return kPassedOn;
}

int run(const Options& options) {
  std::string name = "/dev/shm/tessera_fuzz_XXXXXX";
  if (access("/dev/shm", W_OK) != 0) name = (fs::temp_directory_path() / "tessera_fuzz_XXXXXX").string();
  const fs::path scratch = mkdtemp(name.data());
  std::vector<Target> chosen = targets();
  if (!options.names.empty())
    std::erase_if(chosen, [&](const Target& t) { return !std::ranges::count(options.names, t.name); });
  check(!chosen.empty(), "no such target; there are json, yaml, ...: see tests/fuzz/targets.cpp");
  int found = 0;
  if (!options.input.empty()) {
    found = reproduce(chosen.front(), options, scratch);
  } else {
    std::printf("seed %lu, %.0f s for %zu targets\n", options.seed, options.seconds, chosen.size());
    Watch watch(options, scratch);
    for (const Target& target : chosen)
      found += watch.run(target, options.seconds / static_cast<double>(chosen.size()));
    std::printf("%d findings%s\n", found, found > 0 ? (", in " + options.findings.string()).c_str() : "");
  }
  fs::remove_all(scratch);
  return found > 0 ? 1 : 0;
}

}  // namespace
}  // namespace tessera::fuzz

int main(int argc, char** argv) {
  tessera::fuzz::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = word.starts_with("--") && i + 1 < argc;
    if (!word.starts_with("--")) {
      options.names.push_back(word);
    } else if (!has_value) {
      std::fprintf(stderr, "fuzz: error: %s wants a value\n", argv[i]);
      return 1;
    } else if (word == "--seconds") {
      options.seconds = std::stod(argv[++i]);
    } else if (word == "--seed") {
      options.seed = std::stoull(argv[++i]);
    } else if (word == "--findings") {
      options.findings = argv[++i];
    } else if (word == "--input") {
      options.input = argv[++i];
    } else {
      std::fprintf(stderr, "fuzz: error: there is no option %s\n", argv[i]);
      return 1;
    }
  }
  return tessera::fuzz::run(options);
}
